"""Runtime form of the cpu-rejection-expand patch: see patches/README.md."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vllm_specx._compat import fingerprints
from vllm_specx._compat.apply import original, replace
from vllm_specx._compat.versions import check_supported

PATCH = "cpu-rejection-expand"
_KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"


def expand_kernel_impl(
    output: Any,
    input_val: Any,
    cu_num_tokens: Any,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Write each value of `input_val` (batch,) into its own tokens of `output` (num_tokens,).

    `cu_num_tokens` (batch,) holds the ends of the rows in `output`. Values equal to `replace_from` are
    written as `replace_to`. Works for every dtype.
    """
    num_tokens = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = input_val.masked_fill(input_val == replace_from, replace_to)
    expanded = values.repeat_interleave(num_tokens)
    output[: expanded.shape[0]] = expanded


def is_needed() -> bool:
    """Whether this is vLLM for the CPU with the faulty kernel.

    The released sources are told by fingerprint, which costs nothing; any other source is tried out.
    """
    minor = check_supported()
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    from vllm.utils import cpu_triton_utils

    kernel = cpu_triton_utils._expand_kernel_impl
    if fingerprints.is_pristine(fingerprints.EXPAND, kernel, minor):
        return True
    current_platform.import_kernels()
    return not expands_rightly(kernel)


def expands_rightly(kernel: Callable[..., Any]) -> bool:
    """Try `kernel` on float32 and int32, with and without a value to replace."""
    import torch

    ends = torch.tensor([2, 4], dtype=torch.int32)
    for values in (torch.tensor([0.0, 0.5]), torch.tensor([0, 7], dtype=torch.int32)):
        for replace_to in (0, 1):
            output = torch.full((4,), -1, dtype=values.dtype)
            kernel(output, values, ends, 0, replace_to)
            if output.tolist() != [replace_to, replace_to, values[1].item(), values[1].item()]:
                return False
    return True


def install() -> None:
    """Replace the kernel for those who look it up later and for those who hold it already."""
    from vllm.utils import cpu_triton_utils

    replace(cpu_triton_utils, "_expand_kernel_impl", lambda _: expand_kernel_impl, patch=PATCH)
    faulty = original(cpu_triton_utils, "_expand_kernel_impl")
    dispatcher = sys.modules.get("vllm.triton_utils.dispatcher")
    sampler = sys.modules.get("vllm.v1.sample.rejection_sampler")
    registered = getattr(dispatcher, "_registry", {}).get(_KERNEL)
    if registered is None or registered[1] is not faulty:
        return
    # A worker of this process has registered the kernel already. Everybody holds one and the same
    # KernelOverride, so it is changed in place.
    override = sampler.expand_kernel  # type: ignore[union-attr]
    override._impl = override.func = expand_kernel_impl
    dispatcher._registry[_KERNEL] = (registered[0], expand_kernel_impl)  # type: ignore[union-attr]
