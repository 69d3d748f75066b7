"""Prior weights of Lookahead's reach model, by group: made by benchmarks/fit_lookahead_prior.py."""

WEIGHTS: tuple[tuple[float, ...], ...] = (
    (-2.0,) * 5 + (-1.0,) * 5 + (-0.5,) * 5 + (0.0,) * 5,
    (0.0,) * 16,
    (0.0,) * 12,
    (0.0,) * 5,
    (0.0,) * 14,
)
