"""Runtime form of the shutdown-window patch: see patches/README.md.

Only an engine that has something to save needs it, so it goes in when such a configuration is complete, in the
process that starts the engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_specx._compat import fingerprints
from vllm_specx._compat.apply import is_applied, replace
from vllm_specx._compat.versions import check_supported

PATCH = "shutdown-window"
VARIABLE = "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"
_MODULE = "vllm.v1.engine.utils"
_NAME = "get_engine_process_shutdown_timeout"


def is_present() -> bool:
    """Whether the installed vLLM heeds VARIABLE here; told by its source, which is not imported."""
    spec = find_spec(_MODULE)
    return (
        spec is not None
        and spec.origin is not None
        and f'is_set("{VARIABLE}")' in Path(spec.origin).read_text()
    )


def open_window(seconds: int) -> None:
    """Let engines of this process have `seconds` to end in an orderly way, unless VARIABLE says another time."""
    os.environ.setdefault(VARIABLE, str(seconds))
    if is_present():
        return
    minor = check_supported()
    module = import_module(_MODULE)
    if not is_applied(module, _NAME, PATCH):
        fingerprints.require_pristine(fingerprints.SHUTDOWN, vars(module).get(_NAME), minor)
        replace(module, _NAME, _timeout, patch=PATCH)


def _timeout(original: Callable[..., float | None]) -> Any:
    def get_engine_process_shutdown_timeout(
        request_timeout: float | None, process_timeout: float | None
    ) -> float | None:
        if request_timeout == 0 and process_timeout == 0 and VARIABLE in os.environ:
            return float(os.environ[VARIABLE])
        return original(request_timeout, process_timeout)

    return get_engine_process_shutdown_timeout
