"""A world for the tuner: bursty drafts whose reach is true, a measured cost table, and a rule that knows everything."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vllm_specx.regret.costs import PACKAGED
from vllm_specx.tuner import CostTable, Step, Tuner

MAX_N = 16
TABLE = CostTable.load(PACKAGED)  # a 2-core CPU: alpha 0.02 at batch 1, 0.8 at batch 64


@dataclass(frozen=True)
class Workload:
    """Requests enter and leave stretches in which drafts are long and good; outside, they are short and poor."""

    enter: float
    leave: float
    good: tuple[float, float]  # Beta law of conditional acceptance
    share: float  # of poor steps that have a draft at all
    poor: tuple[float, float]


WORKLOADS = {
    "chat": Workload(0.03, 0.25, (12, 1.5), 0.6, (1.0, 2.5)),
    "edit": Workload(0.10, 0.03, (40, 1), 0.7, (1.5, 2.0)),
    "sql": Workload(0.06, 0.12, (20, 1.5), 0.7, (1.2, 2.0)),
    "hopeless": Workload(0.0, 1.0, (1, 1), 0.3, (0.3, 4.0)),
}


def drafts(workload: Workload, batch: int, rng: np.random.Generator) -> Iterator[list[np.ndarray]]:
    """Yield the reach lists of one step after the other."""
    good = np.zeros(batch, dtype=bool)
    while True:
        draws = rng.random(batch)
        good = np.where(good, draws > workload.leave, draws < workload.enter)
        step = []
        for is_good in good:
            if is_good:
                n, law = int(rng.integers(6, MAX_N + 1)), workload.good
            else:
                n, law = int(rng.integers(1, 5)) * int(rng.random() < workload.share), workload.poor
            step.append(np.cumprod(rng.beta(*law, size=n)))
        yield step


def accepted(reaches: Sequence[np.ndarray], lengths: Sequence[int], rng: np.random.Generator) -> int:
    """Draw how many draft tokens hold, all requests together."""
    return sum(
        int(np.count_nonzero(reach[:n] > rng.random())) for reach, n in zip(reaches, lengths, strict=True)
    )


def expected(reaches: Sequence[np.ndarray], lengths: Sequence[int]) -> float:
    """Expected value of `accepted`."""
    return float(sum(np.sum(reach[:n]) for reach, n in zip(reaches, lengths, strict=True)))


class Clairvoyant:
    """The price rule with true costs and the rate that it really attains."""

    def __init__(self, workload: Workload, batch: int, num_steps: int = 400) -> None:
        self.costs = TABLE(batch, np.arange(batch * MAX_N + 1))
        stream = drafts(workload, batch, np.random.default_rng(99))
        steps = [self._gains(next(stream)) for _ in range(num_steps)]
        self.rate = batch / self.costs[0]
        for _ in range(8):
            chosen = [(gains, self._best(gains)) for gains in steps]
            tokens = sum(batch + gains[m] for gains, m in chosen)
            self.rate = float(tokens / sum(self.costs[m] for _, m in chosen))

    @staticmethod
    def _gains(reaches: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(([0.0], np.cumsum(np.sort(np.concatenate(reaches))[::-1])))

    def _best(self, gains: np.ndarray) -> int:
        return int(np.argmax(gains - self.rate * self.costs[: len(gains)]))

    def choose(self, reaches: Sequence[np.ndarray]) -> tuple[float, float]:
        """Return expected accepted tokens and seconds of the best choice."""
        gains = self._gains(reaches)
        m = self._best(gains)
        return float(gains[m]), float(self.costs[m])


@dataclass
class Outcome:
    """What a run of the tuner looked like, a value per step."""

    lengths: list[int]
    reasons: list[str]
    ratio: float  # of the rate to the clairvoyant's, over the steps that count


def run(
    tuner: Tuner,
    workload: Workload,
    batch: int,
    num_steps: int,
    rng: np.random.Generator,
    *,
    noise: float = 0.07,
    count_from: int = 0,
    clock: Callable[[int, float], float | None] = lambda k, seconds: seconds,
    holds: bool = True,
) -> Outcome:
    """Run the tuner for some steps.

    Args:
        tuner: learns.
        workload: what is drafted.
        batch: requests.
        num_steps: steps.
        rng: of everything that is drawn.
        noise: of the measured times, relative.
        count_from: first step that counts for the ratio.
        clock: from step and (noisy) seconds to what is measured.
        holds: whether anything is accepted.

    """
    knows = Clairvoyant(workload, batch)
    stream = drafts(workload, batch, rng)
    had, could = np.zeros(2), np.zeros(2)
    lengths, reasons = [], []
    for k in range(num_steps):
        reaches = next(stream)
        chosen = tuner.choose(reaches)
        m = sum(chosen)
        assert tuner.last is not None
        lengths.append(m)
        reasons.append(tuner.last.reason)
        num_accepted = accepted(reaches, chosen, rng) if holds else 0
        seconds = float(knows.costs[m]) * float(np.exp(noise * rng.normal()))
        tuner.update(Step(batch, m, batch + num_accepted, clock(k, seconds)))
        if k >= count_from:
            had += batch + (expected(reaches, chosen) if holds else 0.0), knows.costs[m]
            most, time = knows.choose(reaches)
            could += batch + most, time
    return Outcome(lengths, reasons, float(had[0] / had[1] / (could[0] / could[1])))
