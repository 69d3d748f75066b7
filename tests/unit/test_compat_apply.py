"""The helper that replaces names, on toy classes and modules."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from vllm_specx._compat.apply import PatchConflict, is_applied, original, replace


class Toy:
    def plain(self, x: int) -> int:
        """Doc."""
        return x + 1

    @classmethod
    def of_class(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @staticmethod
    def static(x: int) -> int:
        return x


class Child(Toy):
    pass


@pytest.fixture
def toy() -> Any:
    before = dict(vars(Toy))
    yield Toy
    for name in ("plain", "of_class", "static"):
        setattr(Toy, name, before[name])


def tenfold(function: Callable[..., Any]) -> Any:
    def replacement(*args: Any) -> Any:
        result = function(*args)
        return (result[0], result[1] * 10) if isinstance(result, tuple) else result * 10

    return replacement


def test_replaces_and_keeps_the_original(toy: Any) -> None:
    before = toy.plain
    assert replace(toy, "plain", tenfold, patch="p")
    assert toy().plain(1) == 20
    assert original(toy, "plain") is before
    assert is_applied(toy, "plain", "p")
    assert (toy.plain.__name__, toy.plain.__qualname__, toy.plain.__doc__) == ("plain", "Toy.plain", "Doc.")


def test_repetition_changes_nothing(toy: Any) -> None:
    replace(toy, "plain", tenfold, patch="p")
    first = toy.plain
    assert not replace(toy, "plain", tenfold, patch="p")
    assert toy.plain is first
    assert toy().plain(1) == 20


@pytest.mark.parametrize(("name", "expected"), [("of_class", ("Child", 30)), ("static", 30)])
def test_binding_is_kept(toy: Any, name: str, expected: Any) -> None:
    replace(toy, name, tenfold, patch="p")
    assert getattr(Child, name)(3) == expected
    assert not replace(toy, name, tenfold, patch="p")


def test_two_patches_of_ours_conflict(toy: Any) -> None:
    replace(toy, "plain", tenfold, patch="p")
    with pytest.raises(PatchConflict, match=r"Toy\.plain was replaced by patch 'p' before patch 'q'"):
        replace(toy, "plain", tenfold, patch="q")


def test_wrapped_by_another_owner(toy: Any) -> None:
    before = toy.plain

    @functools.wraps(before)
    def other(self: Any, x: int) -> int:
        return before(self, x)

    toy.plain = other
    with pytest.raises(PatchConflict, match="before patch 'p' came"):
        replace(toy, "plain", tenfold, patch="p")
    assert toy.plain is other


def test_replaced_by_another_owner(toy: Any) -> None:
    scope: dict[str, Any] = {"__name__": "other_plugin"}
    exec("def plain(self, x): return 0", scope)
    toy.plain = scope["plain"]
    with pytest.raises(PatchConflict, match="was replaced by other_plugin"):
        replace(toy, "plain", tenfold, patch="p")

    # One who also copies the names is given away by the file of its code.
    scope["plain"].__module__, scope["plain"].__qualname__ = Toy.__module__, "Toy.plain"
    with pytest.raises(PatchConflict):
        replace(toy, "plain", tenfold, patch="p")


def test_replaced_by_something_that_is_no_function(toy: Any) -> None:
    toy.plain = functools.partial(toy.plain, None)
    with pytest.raises(PatchConflict):
        replace(toy, "plain", tenfold, patch="p")


@pytest.mark.parametrize(("owner", "name"), [(Toy, "gone"), (Child, "plain")])
def test_only_what_the_owner_itself_defines(owner: Any, name: str) -> None:
    with pytest.raises(PatchConflict, match=rf"{owner.__name__}\.{name} does not exist"):
        replace(owner, name, tenfold, patch="p")


def test_function_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("toy_module")
    module.__file__ = "toy_module.py"
    exec(compile("def f(x): return x", module.__file__, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "toy_module", module)
    assert replace(module, "f", tenfold, patch="p")
    assert module.f(2) == 20
    assert not replace(module, "f", tenfold, patch="p")


def test_function_that_the_module_only_imported() -> None:
    with pytest.raises(PatchConflict, match="was replaced by vllm_specx"):
        replace(sys.modules[__name__], "replace", tenfold, patch="p")
