"""What a step costs: a model of its time by requests and draft tokens, learned in service.

The time is a sum of a part for the requests, a part for all tokens of the step (both linear between knots at powers of
two), one of its own for each small number of tokens, a jump where there are drafts at all, and a part for the drafter's
own passes. A Kalman filter follows it: errors
are relative to the time, outliers are clipped, everything may drift together (a machine gets slower) and, more slowly,
apart. The features are in `_kernels`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vllm_specx.tuner import _kernels as kernels
from vllm_specx.tuner.cost_table import CostTable

# Prior, in units of a plain step of one request: another draft token costs 0.02 of it, give or take 0.03.
_SLOPE: Final = 0.02
_PASS: Final = 0.05
_FEW: Final = 0.08  # how far one small number of tokens may be off the line, give or take
_NOISE: Final = 0.08  # of a measured time, relative, until learned
_TABLE_NOISE: Final = 0.03
_TABLE_DOUBT: Final = 0.02  # of the prior's variance that a table leaves

_DRIFT: Final = 0.007**2  # per step, of everything together
_DOUBT: Final = 5e-5  # per step, of the prior's variance
_CLIP: Final = 2.5  # standard deviations
_CHANGE: Final = 5  # clipped errors of one sign that are not outliers
_TREND: Final = 1.0  # mean of recent errors, in standard deviations, that is not noise
_LEAST, _MOST = 1e-7, 1e5  # seconds that a step can take
_EARLY: Final = 16  # steps
_ODD_RUN: Final = 8  # times in a row that are far off in the same way are believed
_STEPS, _CHANGES, _RUN = 2, 4, 5  # in the filter's state
_NO_SIZES: Final = np.empty(0)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the engine did.

    Attributes:
        num_requests: requests that decoded.
        num_draft_tokens: draft tokens verified, all requests together.
        num_tokens: tokens committed, the bonus tokens included.
        seconds: time of the step; None or NaN: not measured.
        num_prefill_tokens: prompt tokens in the same step; such steps say nothing about decoding time.
        num_passes: forward passes of the drafter in the step (autoregressive drafters).

    """

    num_requests: int
    num_draft_tokens: int
    num_tokens: int
    seconds: float | None
    num_prefill_tokens: int = 0
    num_passes: int = 0


class CostModel:
    """Predicts step times; follows what is measured.

    Args:
        table: measured times to start from; without one, a line whose scale the first step sets.
        sizes: token counts to which a step is padded (CUDA graphs); without them, no stairs.

    Attributes:
        num_learned: steps that were learned from.
        num_dropped: steps that were not measured, or whose time makes no sense (eight times off what is known well,
            unless it stays so).
        surprise: |error| of the last prediction, relative to it.

    Raises:
        ValueError: sizes that are not positive and increasing.

    """

    def __init__(self, table: CostTable | None = None, *, sizes: Sequence[int] | None = None) -> None:
        """Start from the table or from the prior."""
        self.sizes: NDArray[np.float64] = np.asarray(sizes, dtype=np.float64) if sizes else _NO_SIZES
        if len(self.sizes) and (self.sizes[0] < 1 or np.any(np.diff(self.sizes) <= 0)):
            raise ValueError(f"sizes must be positive and increasing, got {list(sizes or ())}")
        self.num_learned = 0
        self.num_dropped = 0
        self.surprise = 0.0
        self.scale = 1.0  # seconds of a plain step of one request, once known
        self._prior_mean, self._prior_cov = _prior()
        self.mean: NDArray[np.float64] = self._prior_mean.copy()  # read by the policy's kernels
        self._cov = self._prior_cov.copy()
        self._x = np.empty(kernels.NUM_FEATURES)
        self._plain = np.empty(kernels.NUM_FEATURES)
        self._limits = np.array([_DRIFT, _DOUBT, _CLIP, _CHANGE, _TREND])
        self._state = np.array([_NOISE**2, 0.0, 0.0, 0.0, 0.0, 0.0])
        self._started = table is not None
        self._compile()
        if table is not None:
            self._seed(table)
        self._first = self.mean.copy(), self._cov.copy()

    def seconds(
        self, num_requests: int, num_draft_tokens: ArrayLike, num_passes: ArrayLike = 0
    ) -> NDArray[np.float64]:
        """Predicted seconds for each of `num_draft_tokens`; positive, and beyond 8 tokens a step not falling in them.

        Before anything was measured the unit is a plain step of one request.
        """
        shape, ms, passes = _pairs(num_draft_tokens, num_passes)
        order = np.argsort(ms, kind="stable")
        out = np.empty(len(ms))
        kernels._times(self.mean, float(num_requests), ms[order], passes[order], self.sizes, self._x, out)
        result = np.empty(len(ms))
        result[order] = out * self.scale
        return result.reshape(shape)

    def deviation(
        self, num_requests: int, num_draft_tokens: ArrayLike, num_passes: ArrayLike = 0
    ) -> NDArray[np.float64]:
        """Standard deviation of the predicted seconds that drafts and passes add to a plain step."""
        shape, ms, passes = _pairs(num_draft_tokens, num_passes)
        out = np.empty(len(ms))
        kernels._spread(self._cov, float(num_requests), ms, passes, self.sizes, self._x, out)
        return (out * self.scale).reshape(shape)

    def update(self, step: Step) -> None:
        """Learn from a step; one that was not measured, or whose time makes no sense, is counted and left out."""
        seconds = step.seconds
        if step.num_prefill_tokens > 0:
            return
        if (
            seconds is None
            or not _LEAST <= seconds <= _MOST
            or step.num_requests < 1
            or step.num_draft_tokens < 0
        ):
            self.num_dropped += 1
            return
        did = float(step.num_requests), float(step.num_draft_tokens), float(step.num_passes)
        if not self._started:
            self._started = True
            kernels._features(*did, self.sizes, self._x)
            self.scale = seconds / float(self._x @ self.mean)
        error = kernels._learn_from(
            *did,
            self.sizes,
            self.mean,
            self._cov,
            self._prior_mean,
            self._prior_cov,
            self._x,
            self._plain,
            seconds / self.scale,
            self._limits,
            self._state,
        )
        if isnan(error):
            self.num_dropped += 1
            if abs(self._state[_RUN]) >= (2 if self._state[_STEPS] < _EARLY else _ODD_RUN):
                self._start_again(seconds)
            return
        self.surprise = abs(float(error))
        self.num_learned += 1

    def export(self) -> dict[str, NDArray[np.float64]]:
        """Copy what is known, for `start_from` of another model with the same sizes."""
        return {
            "mean": self.mean.copy(),
            "cov": self._cov.copy(),
            "scale": np.array([self.scale]),
            "noise": self._state[:1].copy(),
        }

    def start_from(self, known: Mapping[str, NDArray[np.float64]]) -> None:
        """Start from what another model has learnt, with the doubt that a table leaves.

        Raises:
            ValueError: it is not as `export` made it; nothing is changed.

        """
        shapes = {"mean": self.mean.shape, "cov": self._cov.shape, "scale": (1,), "noise": (1,)}
        if {name: array.shape for name, array in known.items()} != shapes:
            raise ValueError("step times of another kind")
        cov, scale, noise = known["cov"], float(known["scale"][0]), float(known["noise"][0])
        if not all(np.isfinite(array).all() for array in known.values()) or not np.allclose(cov, cov.T):
            raise ValueError("step times that are no numbers")
        if np.linalg.eigvalsh(cov)[0] < -1e-6 or not _LEAST <= scale <= _MOST or not 0 < noise < 1:
            raise ValueError("step times that cannot be")
        self.mean[:] = known["mean"]
        self._cov[:] = cov + _TABLE_DOUBT * self._prior_cov
        self.scale = scale
        self._state[:] = noise, 0.0, 0.0, 0.0, self._state[_CHANGES], 0.0
        self._started = True
        self._first = self.mean.copy(), self._cov.copy()

    @property
    def noise(self) -> float:
        """Relative standard deviation of a measured time."""
        return float(np.sqrt(self._state[0]))

    @property
    def num_changes(self) -> int:
        """How often the times were found to have changed."""
        return int(self._state[_CHANGES])

    def _compile(self) -> None:
        """Run every kernel once; nothing is changed."""
        self.seconds(1, 1)
        self.deviation(1, 1)
        kernels._features(1.0, 1.0, 0.0, self.sizes, self._x)
        args = self._prior_mean, self._prior_cov, self._x, self._plain, 1.0, self._limits
        did = 1.0, 1.0, 0.0, self.sizes
        kernels._learn_from(*did, self.mean.copy(), self._cov.copy(), *args, self._state.copy())

    def _start_again(self, seconds: float) -> None:
        """Not these times are odd, but those before, or it is another machine now: keep nothing but this one."""
        self.mean[:], self._cov[:] = self._first
        self._state[:] = _NOISE**2, 0.0, 0.0, 0.0, self._state[_CHANGES] + 1, 0.0
        self.scale = seconds / float(self._x @ self.mean)

    def _seed(self, table: CostTable) -> None:
        self.scale = float(table.seconds[0, 0])
        limits = np.array([0.0, 0.0, np.inf, np.inf, np.inf])
        state = np.array([_TABLE_NOISE**2, 0.0, 0.0, 0.0, 0.0, 0.0])
        for requests, row in zip(table.requests, table.seconds, strict=True):
            for drafts, seconds in zip(table.drafts, row, strict=True):
                kernels._features(float(requests), float(requests * drafts), 0.0, self.sizes, self._x)
                state[0] = (_TABLE_NOISE * seconds / self.scale / max(1e-6, float(self._x @ self.mean))) ** 2
                kernels._learn(
                    self.mean,
                    self._cov,
                    self._prior_mean,
                    self._prior_cov,
                    self._x,
                    self._x,
                    seconds / self.scale,
                    limits,
                    state,
                )
        self._cov += _TABLE_DOUBT * self._prior_cov


def _pairs(
    num_draft_tokens: ArrayLike, num_passes: ArrayLike
) -> tuple[tuple[int, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Their common shape, and both as flat arrays of that size."""
    ms, passes = np.broadcast_arrays(np.asarray(num_draft_tokens), np.asarray(num_passes))
    return ms.shape, ms.astype(np.float64).ravel(), passes.astype(np.float64).ravel()


def _prior() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean float64[d] and covariance float64[d, d] before anything is known; neighbours in size are alike."""
    mean = np.zeros(kernels.NUM_FEATURES)
    cov = np.zeros((kernels.NUM_FEATURES, kernels.NUM_FEATURES))
    base = slice(0, kernels.NUM_BASE)
    work = slice(kernels.WORK, kernels.WORK + kernels.NUM_WORK)
    mean[base] = 1.0
    octave = np.arange(kernels.NUM_BASE)
    cov[base, base] = 0.3**2 + 0.15**2 * np.minimum(octave[:, None], octave[None, :])  # a random walk
    mean[work] = _SLOPE
    octave = np.arange(kernels.NUM_WORK)
    cov[work, work] = 0.03**2 + 0.02**2 * np.exp(-0.5 * np.abs(octave[:, None] - octave[None, :]))
    few = slice(kernels.FEW, kernels.NUM_FEATURES)
    cov[few, few] = np.diag(np.full(kernels.FEW_MOST - 1, _FEW**2))
    for at, expected, deviation in (
        (kernels.JUMP, 0.0, 0.06),
        (kernels.JUMP + 1, 0.0, 0.001),
        (kernels.PASS, _PASS, 0.1),
        (kernels.PASS + 1, 0.0, 0.005),
    ):
        mean[at] = expected
        cov[at, at] = deviation**2
    return mean, cov
