"""One decision and its reasons."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen and why; `str()` is one structured log line.

    Attributes:
        num_requests: requests in the step.
        num_draft_tokens: draft tokens chosen, all requests together.
        num_candidates: draft tokens there were to choose from.
        expected_tokens: tokens that the step should commit, the bonus tokens included.
        price: R, tokens that a second has to earn.
        speedup: S, R over the rate of plain decoding at this batch.
        alpha: mean cost of one draft token per request at this choice, in plain steps of this batch; at no draft token,
            that of the first.
        seconds: predicted time of the step.
        reason: "price" (drafts pay), "off" (none does), "empty" (nothing to choose from), "probe" (to learn),
            "keep" (another choice would gain too little).

    """

    num_requests: int
    num_draft_tokens: int
    num_candidates: int
    expected_tokens: float
    price: float
    speedup: float
    alpha: float
    seconds: float
    reason: str

    def __str__(self) -> str:
        """One line of key=value pairs."""
        return (
            f"decision reason={self.reason} requests={self.num_requests} draft={self.num_draft_tokens}"
            f" candidates={self.num_candidates} expected_tokens={self.expected_tokens:.2f} price={self.price:.1f}"
            f" speedup={self.speedup:.3f} alpha={self.alpha:.4f} ms={1e3 * self.seconds:.3f}"
        )


def mean_alpha(num_requests: int, num_draft: int, plain: float, seconds: float) -> float:
    """Cost of a draft token per request in plain steps, from a step with `num_draft` (at least 1) draft tokens."""
    return (seconds - plain) / plain * num_requests / num_draft
