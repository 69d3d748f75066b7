"""Runtime form of the drafter-calls patch: see patches/README.md.

The worker's module takes a second to import, so it is left to the process that has a worker: the wrapper goes
in when a custom proposer is created, inside the worker, which looks up its methods only when they are called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_specx._compat import fingerprints
from vllm_specx._compat.apply import is_applied, replace
from vllm_specx._compat.versions import check_supported

PATCH = "drafter-calls"
_MODULE = "vllm.v1.worker.worker_base"
_WEIGHT_CHANGES = frozenset(
    {"finish_weight_update", "reload_weights", "reset_weights", "sleep", "update_weights"}
)


def is_present() -> bool:
    """Whether the installed vLLM has the diff applied; told by its source, which is not imported."""
    spec = find_spec(_MODULE)
    return (
        spec is not None and spec.origin is not None and "def call_drafter" in Path(spec.origin).read_text()
    )


def install(*, at_once: bool) -> None:
    """Leave the wrapper to `create_custom_proposer`, unless the worker is loaded already or it should be now."""
    if at_once or hasattr(sys.modules.get(_MODULE), "WorkerWrapperBase"):
        install_worker_side()


def install_worker_side() -> None:
    """Wrap `WorkerWrapperBase.__getattr__`, where the diff is not applied. Imports the worker."""
    minor = check_supported()
    wrapper = import_module(_MODULE).WorkerWrapperBase
    if not hasattr(wrapper, "call_drafter") and not is_applied(wrapper, "__getattr__", PATCH):
        fingerprints.require_pristine(fingerprints.WRAPPER, vars(wrapper).get("__getattr__"), minor)
        replace(wrapper, "__getattr__", _getattr, patch=PATCH)


def _getattr(original: Callable[..., Any]) -> Any:
    def __getattr__(self: Any, attr: str) -> Any:
        # Every executor calls its workers' methods by name through this.
        if attr == "call_drafter":
            return partial(_call_drafter, self)
        value = original(self, attr)
        if attr in _WEIGHT_CHANGES or attr == "add_lora":
            return partial(_change_weights, self, value)
        return value

    return __getattr__


def _drafter(wrapper: Any) -> Any:
    runner = getattr(wrapper.worker, "model_runner", None)
    # V2 has a speculator instead, behind which a proposer may stand.
    return getattr(runner, "drafter", None) or getattr(getattr(runner, "speculator", None), "proposer", None)


def _call_drafter(wrapper: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    drafter = _drafter(wrapper)
    return None if drafter is None else getattr(drafter, method)(*args, **kwargs)


def _change_weights(wrapper: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return method(*args, **kwargs)
    finally:
        hook = getattr(_drafter(wrapper), "on_weights_changed", None)
        # A LoRA adapter that is added changes nothing for anybody, unless it replaces another one.
        if hook is not None and (method.__name__ != "add_lora" or _replaces(*args, **kwargs)):
            hook()


def _replaces(lora_request: Any) -> bool:
    return bool(lora_request.load_inplace)
