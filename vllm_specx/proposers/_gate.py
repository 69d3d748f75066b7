"""The one place that checks what leaves a proposer; vLLM itself dies on each of these faults."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def checked_drafts(
    drafts: Any, limits: Sequence[int], vocab_size: int, on_fault: Callable[[str], None]
) -> list[list[int]]:
    """Return one list of token ids per row, whatever `drafts` is.

    Args:
        drafts: what a drafter returned: should be a sequence of len(limits) rows of token ids.
        limits: most tokens that each row may have.
        vocab_size: ids must be within [0, vocab_size).
        on_fault: told about every fault; a faulty row becomes empty, one that is only too long is cut.

    """
    empty: list[list[int]] = [[] for _ in limits]
    try:
        if len(drafts) != len(limits):
            on_fault(f"{len(drafts)} drafts for {len(limits)} requests")
            return empty
    except TypeError:
        on_fault(f"drafts are {type(drafts).__name__}, not a sequence")
        return empty
    return [_checked_row(row, limit, vocab_size, on_fault) for row, limit in zip(drafts, limits, strict=True)]


def _checked_row(row: Any, limit: int, vocab_size: int, on_fault: Callable[[str], None]) -> list[int]:
    try:
        ids = np.asarray(row)
    except (TypeError, ValueError) as error:
        on_fault(f"a draft is not an array: {error}")
        return []
    if ids.size == 0 and ids.ndim == 1:
        return []
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        on_fault(f"a draft is not one row of integers: dtype {ids.dtype}, shape {ids.shape}")
        return []
    values: list[int] = ids.tolist()
    if min(values) < 0 or max(values) >= vocab_size:
        on_fault(f"a draft has token ids outside [0, {vocab_size}): {min(values)}..{max(values)}")
        return []
    if len(values) > limit:
        on_fault(f"a draft has {len(values)} tokens where {limit} are allowed")
    return values[:limit]
