"""Tier 2: vLLM's own rejection sampler, on the CPU and called directly, against exact laws.

Peaked logits that depend on the drafts before them, a vocabulary of six, 100,000 rows of every kind in one
interleaved batch: other temperatures, top_k and top_p, greedy rows, 0 to 3 drafts. The tuple that a row
emits (accepted drafts, then a recovered or a bonus token) is tested by chi-square at ALPHA = 1e-6: 29
comparisons in this file, so that a right sampler fails it once in 34,000 choices of the seeds.

Every fault that is simulated below must push at least one kind of row under ALPHA.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sampling_laws import ALPHA, STANDARD, fit_p_value, most_likely, processed, step_law
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON, dispatcher
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from vllm_specx import _compat
from vllm_specx._compat.apply import original

VOCAB, MAX_DRAFTS, NUM_ROWS = 6, 3, 100_000


@dataclass(frozen=True)
class Kind:
    """Rows of a batch that share a law."""

    num_drafts: int
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None


PLAIN = (Kind(0), Kind(1), Kind(2), Kind(3), Kind(2, temperature=0.4))
MIXED = (Kind(2, temperature=0.0), Kind(0), Kind(3), Kind(1, temperature=0.0))
FILTERED = (
    Kind(3),
    Kind(2, top_k=2),
    Kind(2, top_p=0.7),
    Kind(0, top_k=3, top_p=0.8),
    Kind(3, temperature=1.3, top_k=4, top_p=0.9),
    Kind(1, temperature=0.0),
)


class Models:
    """Target and draft as tables: row i of table k belongs to the k tokens whose base-VOCAB number is i."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = [VOCAB**k for k in range(MAX_DRAFTS + 1)]
        self.logits = [2.0 * rng.standard_normal((n, VOCAB)).astype(np.float32) for n in sizes]
        # A draft that is half right, so that all of acceptance, rejection and bonus are frequent.
        noisy = [table + 0.7 * rng.standard_normal(table.shape) for table in self.logits]
        self.draft_probs = [np.stack([processed(row, 0.8) for row in table]) for table in noisy]

    def target(self, kind: Kind):
        return lambda prefix: processed(
            self.logits[len(prefix)][number(prefix)], kind.temperature, kind.top_k, kind.top_p
        )

    def draft(self, prefix):
        return self.draft_probs[len(prefix)][number(prefix)]


def number(prefix):
    return int("".join(map(str, prefix)) or "0", VOCAB)


@pytest.fixture(scope="module", autouse=True)
def _repaired_kernels():
    """What a vLLM worker does at its start: the plug-in first, then the CPU's stand-ins for Triton kernels."""
    if not current_platform.is_cpu() or HAS_TRITON:
        pytest.skip("these tests are about vLLM-CPU's stand-ins")
    _compat.install()
    current_platform.import_kernels()
    if "vllm.v1.sample.rejection_sampler.expand_kernel" not in dispatcher._registry:
        current_platform.register_triton_kernel_overrides()


def emitted(kinds, models, seed, *, is_drawn, declared=True, num_rows=NUM_ROWS, generators=None):
    """Run `num_rows` rows of each kind through RejectionSampler and count, for each kind, what they emit.

    Drafts are drawn from models.draft or are its argmax (`is_drawn`). Drawn ones come with their
    probabilities unless `declared` is false.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    rows = [kind for _ in range(num_rows) for kind in kinds]
    num_drafts = np.array([kind.num_drafts for kind in rows])
    ends = np.cumsum(num_drafts + 1)
    first = ends - num_drafts - 1
    logits = np.empty((ends[-1], VOCAB), dtype=np.float32)
    token_at = np.zeros(ends[-1], dtype=np.int64)
    probs_at = np.zeros((ends[-1], VOCAB), dtype=np.float32)
    index = np.zeros(len(rows), dtype=np.int64)
    for k in range(MAX_DRAFTS + 1):
        has_logits = np.flatnonzero(num_drafts >= k)
        logits[first[has_logits] + k] = models.logits[k][index[has_logits]]
        drafted = np.flatnonzero(num_drafts > k)
        probs = models.draft_probs[k][index[drafted]]
        if is_drawn:
            draws = rng.random((len(drafted), 1))
            tokens = np.minimum((probs.cumsum(axis=1) < draws).sum(axis=1), VOCAB - 1)
        else:
            tokens = probs.argmax(axis=1)
        token_at[first[drafted] + k], probs_at[first[drafted] + k] = tokens, probs
        index[drafted] = index[drafted] * VOCAB + tokens
    bonus_at = ends - 1
    draft_at = np.setdiff1d(np.arange(ends[-1]), bonus_at)
    metadata = SpecDecodeMetadata(
        draft_token_ids=torch.tensor(token_at[draft_at], dtype=torch.int32),
        num_draft_tokens=num_drafts.tolist(),
        cu_num_draft_tokens=torch.tensor(np.cumsum(num_drafts), dtype=torch.int32),
        cu_num_sampled_tokens=torch.tensor(ends, dtype=torch.int32),
        target_logits_indices=torch.tensor(draft_at, dtype=torch.int32),
        bonus_logits_indices=torch.tensor(bonus_at, dtype=torch.int32),
        logits_indices=torch.arange(int(ends[-1]), dtype=torch.int32),
    )
    output = rejection_sampler.RejectionSampler(Sampler())(
        metadata,
        torch.tensor(probs_at[draft_at]) if is_drawn and declared else None,
        torch.tensor(logits),
        sampling_metadata(rows, generators or {}),
    )
    counts = [Counter() for _ in kinds]
    for row, tokens in enumerate(output.sampled_token_ids.tolist()):
        counts[row % len(kinds)][tuple(t for t in tokens if t != -1)] += 1
    return counts


def sampling_metadata(rows, generators):
    """What vLLM's InputBatch would pass: a filter that no row uses is None, one that some use has neutral values."""
    temperatures = [kind.temperature for kind in rows]
    top_k = [kind.top_k or VOCAB for kind in rows]
    top_p = [kind.top_p or 1.0 for kind in rows]
    empty = torch.empty(0)
    return SamplingMetadata(
        temperature=torch.tensor(temperatures),
        all_greedy=not any(temperatures),
        all_random=all(temperatures),
        top_p=torch.tensor(top_p) if any(kind.top_p for kind in rows) else None,
        top_k=torch.tensor(top_k, dtype=torch.int32) if any(kind.top_k for kind in rows) else None,
        generators=generators,
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=empty,
        presence_penalties=empty,
        repetition_penalties=empty,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def p_values(kinds, models, counts, *, is_drawn):
    """One p-value per kind of rows. Where a kind has only one answer (greedy) it is compared at once."""
    draft = models.draft if is_drawn else most_likely(models.draft)
    found = []
    for kind, seen in zip(kinds, counts, strict=True):
        law = step_law(STANDARD, models.target(kind), draft, (), kind.num_drafts)
        if len(law) == 1:
            assert list(seen) == list(law)
        else:
            found.append(fit_p_value(seen, law))
    return found


@pytest.mark.parametrize("is_drawn", [False, True], ids=["deterministic", "drawn"])
@pytest.mark.parametrize("kinds", [PLAIN, MIXED, FILTERED], ids=["plain", "mixed", "filtered"])
def test_rows_follow_their_own_law(kinds, is_drawn):
    models = Models(seed=8)
    counts = emitted(kinds, models, 11, is_drawn=is_drawn)
    drafting = [(kind, seen) for kind, seen in zip(kinds, counts, strict=True) if kind.num_drafts]
    whole = sum(n for kind, seen in drafting for tokens, n in seen.items() if len(tokens) > kind.num_drafts)
    share = whole / (NUM_ROWS * len(drafting))
    assert 0.2 < share < 0.8  # both rejections and bonus tokens are tested
    assert min(p_values(kinds, models, counts, is_drawn=is_drawn)) > ALPHA


def test_rows_with_their_own_seeds_follow_the_law_and_repeat():
    """A request with a seed has a generator of its own, also when its neighbours have none."""
    kinds, models, num_rows = (Kind(2), Kind(3, top_k=3)), Models(seed=8), 10_000

    def run():
        generators = {row: torch.Generator().manual_seed(row) for row in range(0, 2 * num_rows, 2)}
        return emitted(kinds, models, 13, is_drawn=False, num_rows=num_rows, generators=generators)

    counts = run()
    assert min(p_values(kinds, models, counts, is_drawn=False)) > ALPHA
    torch.manual_seed(0)
    assert run()[0] == counts[0]


def test_stock_stand_in_writes_nothing():
    """vLLM's own kernel for the CPU leaves its output as it was, so that uninitialised memory is read."""
    stock = original(__import__("vllm.utils.cpu_triton_utils", fromlist=["_"]), "_expand_kernel_impl")
    if stock is None:
        pytest.skip("the installed vLLM has the repair")
    output = torch.full((4,), 7.0)
    stock(output, torch.tensor([0.8, 0.5]), torch.tensor([2, 4], dtype=torch.int32), 0, 1)
    assert output.tolist() == [7.0] * 4
    repaired = rejection_sampler.expand_batch_to_tokens(
        torch.tensor([0.8, 0.5]), torch.tensor([2, 4], dtype=torch.int32), 4
    )
    assert repaired.tolist() == pytest.approx([0.8, 0.8, 0.5, 0.5])


@pytest.mark.parametrize("kinds", [PLAIN, FILTERED], ids=["plain", "filtered"])
def test_broken_without_the_repair(monkeypatch, kinds):
    """The stock stand-in, in the luckiest case, in which the memory that it does not write happens to hold ones."""
    monkeypatch.setattr(
        rejection_sampler, "expand_batch_to_tokens", lambda x, cu_num_tokens, n, *_, **__: x.new_ones(n)
    )
    models = Models(seed=8)
    counts = emitted(kinds, models, 11, is_drawn=True, num_rows=20_000)
    assert min(p_values(kinds, models, counts, is_drawn=True)) < ALPHA


@pytest.mark.parametrize("is_drawn", [False, True], ids=["deterministic", "drawn"])
def test_broken_without_the_residual(monkeypatch, is_drawn):
    """A rejected draft is replaced by a draw from p instead of (p - q)+."""

    def from_target(max_spec_len, num_drafts, cu, draft_ids, draft_probs, target_probs, *_):
        return torch.multinomial(target_probs, 1).flatten().to(draft_ids.dtype)

    monkeypatch.setattr(rejection_sampler, "sample_recovered_tokens", from_target)
    models = Models(seed=8)
    counts = emitted(PLAIN, models, 11, is_drawn=is_drawn)
    assert min(p_values(PLAIN, models, counts, is_drawn=is_drawn)) < ALPHA


def test_broken_when_drawn_drafts_are_declared_deterministic():
    """A proposer that samples its drafts but returns no probabilities: vLLM then accepts with p, not p/q."""
    models = Models(seed=8)
    counts = emitted(PLAIN, models, 11, is_drawn=True, declared=False)
    assert min(p_values(PLAIN, models, counts, is_drawn=True)) < ALPHA
