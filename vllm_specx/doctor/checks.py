"""All checks in the order in which they are reported, and what becomes of one that fails itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from vllm_specx.doctor import installation, machine
from vllm_specx.doctor.finding import Finding, fault

CHECKS: Final[Mapping[str, Callable[[], Finding]]] = {
    "Python": installation.python,
    "vLLM": installation.vllm_version,
    "distribution vllm": installation.vllm_distribution,
    "entry point": installation.entry_point,
    "VLLM_PLUGINS": installation.plugin_choice,
    "patches": installation.patches,
    "fingerprints": installation.sources,
    "numba": machine.numba_kernels,
    "torchvision": machine.torchvision,
    "OpenMP": machine.openmp,
    "GPU": machine.gpu,
    "model runner": machine.model_runner,
    "ray": partial(machine.extra, "ray", "engines inside Ray actors", "pip install 'vllm-specx[ray]'"),
    "arctic-inference": machine.arctic,
    "matplotlib": partial(
        machine.extra, "matplotlib", "pictures (specx plan --plot)", "pip install 'vllm-specx[plot]'"
    ),
}


def diagnose(checks: Mapping[str, Callable[[], Finding]] = CHECKS) -> dict[str, Finding]:
    """Run every check and return what it found, by its name. Raises nothing."""
    return {name: _outcome(check) for name, check in checks.items()}


def _outcome(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (Exception, SystemExit) as error:  # broken packages raise anything when they are imported
        return fault(
            f"the check itself failed: {type(error).__name__}: {error}",
            "repair or install what the error names",
        )
