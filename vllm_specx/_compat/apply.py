"""The one way in which a name of vLLM is replaced at run time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

_PATCH = "__specx_patch__"
_ORIGINAL = "__specx_original__"


class PatchConflict(RuntimeError):
    """The name that a patch wants is missing or belongs to another patch already."""


def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any], *, patch: str) -> bool:
    """Put `make(original)` in the place of `owner.name`; `owner` is a class or a module.

    `original` is the plain function, also where `owner` holds a classmethod or staticmethod; the
    replacement gets the same binding. Returns False, changing nothing, where `patch` is already there.
    Raises PatchConflict where `owner` itself does not define the name as an undecorated function of its
    own module: then somebody else replaced or wrapped it, and two patches would undo each other.
    """
    where = f"{_label(owner)}.{name}"
    if name not in vars(owner):
        raise PatchConflict(f"{where} does not exist, so patch {patch!r} cannot be applied")
    current = vars(owner)[name]
    if is_applied(owner, name, patch):
        return False
    binding = type(current) if isinstance(current, classmethod | staticmethod) else None
    function = current.__func__ if binding else current
    other = getattr(function, _PATCH, None)
    if other is not None or _is_foreign(owner, name, function):
        by = f"patch {other!r}" if other else getattr(function, "__module__", repr(function))
        raise PatchConflict(f"{where} was replaced by {by} before patch {patch!r} came")

    replacement = make(function)
    # Tracebacks and profiles should show the name that was called.
    replacement.__name__, replacement.__qualname__ = function.__name__, function.__qualname__
    replacement.__doc__ = function.__doc__ or replacement.__doc__
    setattr(replacement, _PATCH, patch)
    setattr(replacement, _ORIGINAL, function)
    setattr(owner, name, binding(replacement) if binding else replacement)
    return True


def is_applied(owner: Any, name: str, patch: str) -> bool:
    """Whether `replace` has put `patch` in the place of `owner.name`."""
    current = vars(owner).get(name)
    return getattr(getattr(current, "__func__", current), _PATCH, None) == patch


def original(owner: Any, name: str) -> Callable[..., Any] | None:
    """The function that `replace` took away from `owner.name`, or None."""
    current = vars(owner).get(name)
    return getattr(getattr(current, "__func__", current), _ORIGINAL, None)


def _is_foreign(owner: Any, name: str, function: Any) -> bool:
    module = owner.__module__ if isinstance(owner, type) else owner.__name__
    qualname = f"{owner.__qualname__}.{name}" if isinstance(owner, type) else name
    # functools.wraps copies the names but leaves __wrapped__; the code object names its own file.
    return (
        not isinstance(function, FunctionType)
        or hasattr(function, "__wrapped__")
        or (function.__module__, function.__qualname__) != (module, qualname)
        or function.__code__.co_filename != getattr(sys.modules.get(module), "__file__", None)
    )


def _label(owner: Any) -> str:
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
