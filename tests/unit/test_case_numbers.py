"""Faults of other engines, tried without one: how many tokens are drafted, what that costs, and what is counted.

The numbers are those of docs/trust.md.
"""

from __future__ import annotations

import heapq
import inspect
import random
import re
import textwrap
import time
from pydoc_data import topics

import numba
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from proposer_world import N, World, make_proposer

from drafters import SuffixTreeDrafter
from drafters.replay import Trace
from vllm_specx.metrics import collector, page
from vllm_specx.metrics.layout import NUM_VALUES
from vllm_specx.metrics.meter import DraftMeter
from vllm_specx.regret.baselines import FixedN
from vllm_specx.regret.cells import Cell, Workload
from vllm_specx.regret.costs import PACKAGED, CostGrid
from vllm_specx.regret.simulate import Policy, simulate
from vllm_specx.regret.tuned import Tuned
from vllm_specx.tuner import CostModel, CostTable, Step, Tuner, UniformTuner

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # hashes wrap


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="takes minutes without the compiler")
@pytest.mark.parametrize("text", ["varied", "one token"])
def test_21_drafting_does_not_grow_with_the_context(text: str) -> None:
    """Sixteen times the context, 64 rows: about the same time. Minima of many, taken in turns."""
    rng = np.random.default_rng(0)
    drafters = {}
    for length in (512, 8192):
        drafters[length] = drafter = SuffixTreeDrafter(max_n=16, memory_bytes=1 << 20)
        for row in range(64):
            words = rng.integers(1, 40, size=length) if text == "varied" else np.full(length, 7)
            drafter.start(row, words.astype(np.int32), namespace=None)
        drafter.propose(range(64), 16)
    seconds: dict[int, list[float]] = {length: [] for length in drafters}
    for _ in range(40):
        for length, drafter in drafters.items():
            for row in range(64):
                drafter.observe(row, [7])
            start = time.perf_counter()
            drafter.propose(range(64), 16)
            seconds[length].append(time.perf_counter() - start)
    assert min(seconds[8192]) < 5 * min(seconds[512])  # linear work would take 16 times as long


def test_26_drafts_shorten_for_the_request_whose_drafts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long request whose drafts hold no more has short ones; a short one beside it goes on as before."""
    world = World(make_proposer("suffix_tree", monkeypatch, alpha=0.05))
    rng = random.Random(0)
    line = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    # Goes elsewhere after each token that it takes up again.
    wrong = [token for _ in range(200) for token in (line[0], 100 + rng.randrange(800))]
    truth = {"long": line * 30 + wrong, "short": line * 40}
    world.add("long", line * 30)
    world.add("short", line * 2)
    lengths = []
    for _ in range(30):
        found = world.say(truth)
        lengths.append((len(found["long"]), len(found["short"])))
    late = np.array(lengths[-10:])
    assert late[:, 0].mean() < 1
    assert late[:, 1].min() == N


def words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def workload(name: str, pairs: list[tuple[str, str]]) -> Workload:
    """Prompts and outputs of text, a token for each word and mark."""
    ids: dict[str, int] = {}
    traces = [
        Trace(f"{name}-{i}", *([ids.setdefault(w, len(ids)) for w in words(t)][:700] for t in pair))
        for i, pair in enumerate(pairs)
    ]
    return Workload(name, tuple(traces))


def prose() -> Workload:
    """The second half of pages of Python's documentation, given the first."""
    pages = [text for _, text in sorted(topics.topics.items()) if 4000 < len(text) < 12000][:10]
    return workload("prose", [(text[: len(text) // 2], text[len(text) // 2 :]) for text in pages])


def code() -> Workload:
    """Modules that are written anew, with some names changed."""
    sources = [
        inspect.getsource(f) for f in (textwrap.TextWrapper, heapq.merge, heapq.nsmallest, textwrap.dedent)
    ]
    return workload(
        "code", [(text, re.sub(r"\bself\b", "this", text).replace("heap", "pile")) for text in sources]
    )


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="takes minutes without the compiler")
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("make", [prose, code])
def test_27_up_to_32_tokens_are_as_good_as_always_5(make: object, batch: int) -> None:
    served = make()  # type: ignore[operator]
    cell = Cell("cell", True, (served,), max(served.num_tokens, 600 * batch), 0, ((0, batch),))
    costs = CostGrid(CostTable.load(PACKAGED), 32)

    def rate(policy: Policy) -> float:
        return simulate(cell, cell.queue(0), policy, costs, max_n=32).rate

    assert rate(Tuned(32)) >= 0.98 * rate(FixedN(5))
    assert (
        rate(FixedN(32)) < 0.98 * rate(FixedN(5)) or served.name == "code"
    )  # it is not the length that does it


def table(per_token: float) -> CostTable:
    """A step of 20 ms, and what each token of a batch adds."""
    draft = np.array([0, 1, 2, 4, 8, 16])
    batch = np.array([1, 2, 4, 8])
    return CostTable(batch, draft, 0.02 * (1 + per_token * np.tile(draft, (4, 1))))


@pytest.mark.parametrize("batch", [1, 4])
def test_28_steep_costs_make_drafts_shorter(batch: int) -> None:
    """As experts do, of which every further token wakes some."""
    ragged, uniform = [], []
    for per_token in (0.01, 0.1, 0.4, 2.0):
        cost, rng = table(per_token), np.random.default_rng(0)
        tuner = Tuner(CostModel(cost), max_n=8)
        one = UniformTuner(CostModel(cost), max_n=8, is_autoregressive=False)
        chosen: list[tuple[float, int]] = []
        for _ in range(200):
            lengths, n = tuner.choose([np.cumprod(np.full(8, 0.8))] * batch), one.choose(batch)
            chosen.append((sum(lengths) / batch, n))
            right = rng.geometric(0.2, batch) - 1  # draft tokens that hold, each with a chance of 0.8
            held = np.minimum(right, lengths).sum()
            tuner.update(Step(batch, sum(lengths), batch + int(held), float(cost(batch, sum(lengths)))))
            accepted = np.minimum(right, n).tolist()
            one.update(
                Step(batch, batch * n, batch + sum(accepted), float(cost(batch, batch * n))), n, accepted
            )
        mean = np.mean(chosen[100:], axis=0)
        ragged.append(mean[0])
        uniform.append(mean[1])
    for means in (ragged, uniform):
        assert means[0] > means[1] > means[2] > means[3]
        assert means[0] > 5
        assert means[3] < 0.2


def test_30_a_page_without_drafts_has_finite_numbers_only(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "folder", lambda: tmp_path)
    numbers = page.new_page("fresh", 0)
    meter = DraftMeter(numbers)
    meter.chosen([0, 0], None, "empty", 0.0)
    meter.stepped(Step(2, 0, 2, float("nan")), lambda _: float("nan"))
    meter.verified([])
    pages = collector.PageCollector()
    pages.watch("fresh", "model")
    registry = CollectorRegistry()
    registry.register(pages)
    samples = [
        sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]
    assert len(samples) > NUM_VALUES
    assert np.isfinite(samples).all()
