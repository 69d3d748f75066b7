"""Checks of what is installed: Python, vLLM, the plug-in and the patches."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from vllm_specx import _compat, plugin
from vllm_specx._compat import (
    SUPPORTED_RANGE,
    PatchConflict,
    UnsupportedVLLM,
    check_supported,
    context,
    cpu_kernels,
    cpu_sampling,
    drafter_calls,
    no_draft_sampling,
    shutdown_window,
    v2_speculators,
)
from vllm_specx._compat import fingerprints as known
from vllm_specx._compat.versions import installed_version
from vllm_specx.doctor.finding import Finding, fault, ok, warning

PYTHON: Final = ((3, 11), (3, 14))  # from, and below; as in pyproject.toml
GROUP: Final = "vllm.general_plugins"
NAME: Final = "specx"
_WHICH_VLLM: Final = (
    f"pip install 'vllm{SUPPORTED_RANGE}'; for the CPU: make install in a checkout of vllm-specx"
)
_ALIAS: Final = (
    "in a checkout of vllm-specx: pip install --no-deps --force-reinstall ./packaging/vllm-cpu-alias"
)
_REINSTALL: Final = "pip install --no-deps --force-reinstall vllm-specx"

# What the diff of a patch may change; anything else that differs is neither a release nor ours.
TARGETS: Final[dict[str, tuple[str, ...]]] = {
    context.PATCH: (known.PROPOSE, known.SAMPLE, known.FITS, known.CREATE, known.FROM_REQUEST),
    cpu_sampling.PATCH: (known.EXPAND,),
    cpu_kernels.PATCH: (known.REBIND,),
    no_draft_sampling.PATCH: (known.REJECT,),
    drafter_calls.PATCH: (known.WRAPPER,),
    shutdown_window.PATCH: (known.SHUTDOWN,),
    v2_speculators.PATCH: (
        known.UNSUPPORTED,
        known.INIT_SPECULATOR,
        known.V2_LOAD,
        known.V2_ADD,
        known.V2_TAKE,
        known.V2_DRAFT_MODEL,
    ),
    "": known.WITHOUT_DIFF,
}


def version_of(distribution: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the one for the CPU, as vLLM itself tells it."""
    return "cpu" in (version_of("vllm") or "") or version_of("vllm-cpu") is not None


def is_loaded(plug_in: str) -> bool:
    """Whether VLLM_PLUGINS lets vLLM load the plug-in of that name; vLLM strips no blanks either."""
    chosen = os.environ.get("VLLM_PLUGINS")
    return chosen is None or plug_in in chosen.split(",")


def python() -> Finding:
    """The interpreter's version."""
    found, (first, beyond) = platform.python_version(), PYTHON
    if first <= sys.version_info[:2] < beyond:
        return ok(found)
    return fault(
        f"{found} is not supported", f"use Python {_dotted(first)} or later, below {_dotted(beyond)}"
    )


def vllm_version() -> Finding:
    """The installed vLLM can be imported and is of a supported release."""
    try:
        check_supported()
    except UnsupportedVLLM as error:
        return fault(str(error), _WHICH_VLLM)
    return ok(f"{installed_version()}, supported are {SUPPORTED_RANGE}")


def vllm_distribution() -> Finding:
    """A distribution is called `vllm`: the command looks its version up, and platforms tell the CPU build by it."""
    named, for_cpu = version_of("vllm"), version_of("vllm-cpu")
    if named is None:
        return fault(
            "no distribution of this name is installed: the `vllm` command dies at start (PackageNotFoundError)",
            _WHICH_VLLM if for_cpu is None else _ALIAS,
        )
    if for_cpu is None:
        return ok(named)
    if "+cpu" not in named:
        return fault(
            f"vllm {named} beside vllm-cpu {for_cpu} has no +cpu in its version: vLLM does not know its CPU build then",
            f"pip uninstall vllm; {_ALIAS}",
        )
    if named.partition("+")[0] != for_cpu.partition("+")[0]:
        return warning(f"the alias says {named}, but vllm-cpu is {for_cpu}", _ALIAS)
    return ok(f"{named}, an alias for vllm-cpu")


def entry_point() -> Finding:
    """The plug-in is registered and can be imported; vLLM goes on without one that cannot."""
    points = metadata.entry_points(group=GROUP, name=NAME)
    if not points:
        return fault(f"{GROUP} has no {NAME}: vLLM does not load vllm-specx", _REINSTALL)
    try:
        for point in points:
            point.load()
    except Exception as error:
        return fault(f"{NAME} cannot be loaded, and vLLM goes on without it: {error}", _REINSTALL)
    return ok(f"{NAME} in {GROUP}")


def plugin_choice() -> Finding:
    """VLLM_PLUGINS does not leave vllm-specx out."""
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is None:
        return ok("not set: vLLM loads every plug-in")
    if is_loaded(NAME):
        return ok(chosen)
    return fault(f"{chosen!r} leaves {NAME} out", f"add {NAME}, after a comma without blanks, or unset it")


def patches() -> Finding:
    """Everything that the plug-in does in a process of vLLM goes in, and how."""
    try:
        plugin.register()
        state = _compat.install()
    except UnsupportedVLLM as error:
        return fault(str(error), f"install an unmodified release: {_WHICH_VLLM}")
    except PatchConflict as error:
        return fault(str(error), f"leave the other plug-in out: VLLM_PLUGINS={NAME}")
    return ok(
        f"put in at run time: {_listed(state.applied)}; in the installed vLLM, or not needed: {_listed(state.present)}"
    )


def sources() -> Finding:
    """What is replaced is the code of the release, unless a diff of ours changed it."""
    try:
        minor, present = check_supported(), _present()
    except UnsupportedVLLM as error:
        return fault(str(error), _WHICH_VLLM)
    changed = [
        target
        for patch, targets in TARGETS.items()
        if patch not in present
        for target in targets
        if not _is_released(target, minor)
    ]
    if changed:
        return fault(
            f"not the code of vLLM {minor}: {_listed(target.replace(':', '.') for target in changed)}",
            f"undo local changes, or install an unmodified release: {_WHICH_VLLM}",
        )
    return ok(f"what vllm-specx replaces or wraps is the code of vLLM {minor}, or has its diffs")


def _present() -> tuple[str, ...]:
    try:
        return _compat.install().present
    except PatchConflict:
        return ()


def _is_released(target: str, minor: str) -> bool:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    module = Path(spec.origin).parent.parent / f"{target.partition(':')[0].replace('.', '/')}.py"
    try:
        found = known.fingerprint_in_text(module.read_text(encoding="utf-8"), target)
    except (OSError, StopIteration):  # the module or the name is gone
        return False
    return found == known.FINGERPRINTS[target][minor]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
