"""The pictures of a page, as SVG that is part of it. Colours are classes: the page's style gives them."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil
from typing import Any, Final

from vllm_specx.bench.report import ratio_text
from vllm_specx.report.formula import Fit

_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 34
_WIDTH, _HEIGHT = 340, 220
_ROOM: Final = 1.15


def bar(ratio: Mapping[str, Any], value: float, top: float) -> str:
    """A point with its interval on a line from 0 to `top`; the baseline is a tick at 1."""

    def place(number: float) -> str:
        return f"{100 * min(max(number / top, 0), 1):.2f}%"

    marks = [f'<line class="one" x1="{place(1)}" x2="{place(1)}" y1="0" y2="100%"/>']
    if ratio["low"] is not None:
        low, high = place(ratio["low"]), place(ratio["high"])
        marks.append(f'<line class="interval" x1="{low}" x2="{high}" y1="50%" y2="50%"/>')
    marks.append(f'<circle class="point" cx="{place(value)}" cy="50%" r="4"/>')
    return (
        f'<svg class="bar" role="img" aria-label="{escape(ratio_text({**ratio, "median": value}))}">'
        f"{''.join(marks)}</svg>"
    )


def trend(values: Sequence[float], top: float) -> str:
    """A line over time, on a scale from 0 to `top`."""
    last = max(1, len(values) - 1)
    points = " ".join(f"{100 * i / last:.1f},{28 * (1 - value / top):.1f}" for i, value in enumerate(values))
    said = f"from {values[0]:g} to {values[-1]:g}, at most {max(values):g}"
    return (
        f'<svg class="trend" viewBox="-1 -2 102 32" preserveAspectRatio="none" role="img" aria-label="{said}">'
        f'<polyline points="{points}"/></svg>'
    )


def calibration(promised: Sequence[float], kept: Sequence[float], title: str) -> str:
    """Shares kept over shares promised, within 0 and 1; on the dashed line promises hold."""
    size = _HEIGHT - _TOP - _BOTTOM

    def x(share: float) -> float:
        return _LEFT + size * min(max(share, 0), 1)

    def y(share: float) -> float:
        return _TOP + size * (1 - min(max(share, 0), 1))

    parts = [f'<line class="one" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>']
    for mark in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{x(mark):.1f}" y="{y(0) + 14:.1f}" text-anchor="middle">{mark:g}</text>')
        parts.append(f'<text x="{x(0) - 4:.1f}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    parts.append(f'<text x="{x(0.5):.1f}" y="{_HEIGHT - 4}" text-anchor="middle">promised</text>')
    parts += [
        f'<circle class="point" cx="{x(a):.1f}" cy="{y(b):.1f}" r="4"/>'
        for a, b in zip(promised, kept, strict=True)
    ]
    return (
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def curve(fit: Fit, title: str) -> str:
    """S(N) by the formula as a line, what was measured as points with their intervals."""
    max_n = len(fit.speedups) - 1
    measured = [(n, row["ratio"]) for n, row in zip(fit.lengths.tolist(), fit.rows, strict=True)]
    top = max(1.0, *fit.speedups.tolist(), *(ratio["geometric_mean"] for _, ratio in measured)) * _ROOM

    def x(n: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * n / max_n

    def y(speedup: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(max(speedup / top, 0), 1))

    def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
        return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'

    def text(what: object, x1: float, y1: float, anchor: str = "middle") -> str:
        return f'<text x="{x1:.1f}" y="{y1:.1f}" text-anchor="{anchor}">{escape(str(what))}</text>'

    parts = [
        line("axis", x(0), y(0), x(max_n), y(0)),
        line("axis", x(0), y(0), x(0), y(top)),
        line("one", x(0), y(1), x(max_n), y(1)),
    ]
    parts += [text(n, x(n), y(0) + 14) for n in range(0, max_n + 1, ceil(max_n / 8))]
    step = next(size for size in (0.5, 1, 2, 5, 10, 100, 1e4, 1e6) if top / size <= 6 or size == 1e6)
    marks = [number * step for number in range(int(top / step) + 1)]
    parts += [text(f"{mark:g}x", x(0) - 4, y(mark) + 4, "end") for mark in marks]
    parts.append(text("N, draft tokens per step", (x(0) + x(max_n)) / 2, _HEIGHT - 4))
    points = " ".join(f"{x(n):.1f},{y(speedup):.1f}" for n, speedup in enumerate(fit.speedups.tolist()))
    parts.append(f'<polyline class="formula" points="{points}"/>')
    for n, ratio in measured:
        if ratio["low"] is not None:
            parts.append(line("interval", x(n), y(ratio["low"]), x(n), y(ratio["high"])))
        parts.append(f'<circle class="point" cx="{x(n):.1f}" cy="{y(ratio["geometric_mean"]):.1f}" r="4"/>')
    return (
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )
