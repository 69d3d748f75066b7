"""Runtime form of the cpu-kernel-rebind patch: see patches/README.md."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vllm_specx._compat import fingerprints
from vllm_specx._compat.apply import replace
from vllm_specx._compat.versions import check_supported

PATCH = "cpu-kernel-rebind"


def rebind_kernels(overrides: list[tuple[Any, Any]]) -> None:
    """Put each (kernel, override) pair's override wherever a loaded module holds the kernel.

    That is as an attribute of the module, or as the attribute `kernel` of an object that the module holds.
    Objects whose `__dict__` is not a dict are passed over: numba's llvmlite has one.
    """

    def override_of(value: Any) -> Any:
        # By identity: some modules hold objects whose comparison imports things or raises.
        return next((override for kernel, override in overrides if value is kernel), None)

    for module in list(sys.modules.values()):
        for name, value in list((getattr(module, "__dict__", None) or {}).items()):
            if (override := override_of(value)) is not None:
                setattr(module, name, override)
                continue
            attributes: Any = getattr(value, "__dict__", None)
            if not hasattr(attributes, "get") or (override := override_of(attributes.get("kernel"))) is None:
                continue
            value.kernel = override
            if not isinstance(value, type):
                attributes.pop("_kernel_arg_names", None)


def is_needed() -> bool:
    """Whether this is vLLM for the CPU with the faulty scan; unknown sources are tried out."""
    minor = check_supported()
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    from vllm.triton_utils import dispatcher

    scan = dispatcher._rebind_kernels
    return fingerprints.is_pristine(fingerprints.REBIND, scan, minor) or not survives_odd_objects(scan)


def survives_odd_objects(scan: Callable[[list[tuple[Any, Any]]], None]) -> bool:
    """Run `scan` while a module holds an object whose `__dict__` is not a dict."""

    class Odd:
        __dict__ = property(lambda self: object())

    module = ModuleType("vllm_specx_odd")
    module.odd = Odd()  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        scan([])
    except (AttributeError, TypeError):
        return False
    finally:
        del sys.modules[module.__name__]
    return True


def install() -> None:
    """Replace the scan."""
    from vllm.triton_utils import dispatcher

    replace(dispatcher, "_rebind_kernels", lambda _: rebind_kernels, patch=PATCH)
