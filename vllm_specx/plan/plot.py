"""The picture: speedup by N, its optimum, and both ceilings."""

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from vllm_specx.bench.errors import BenchError
from vllm_specx.plan.curve import Plan

_ROOM: Final = 5.0  # a ceiling further up than this times the optimum is named, not drawn
_DRAFTS, _COSTS = "if drafts were free", "if every draft were right"


def plot_plan(plan: Plan, path: Path) -> None:
    """Write a picture in the format that the file's name asks for.

    Raises:
        BenchError: matplotlib is not installed, or the file cannot be written.

    """
    figure = new_figure()
    from matplotlib.ticker import MaxNLocator

    n = np.arange(len(plan.speedups))
    axes = figure.add_subplot()
    axes.plot(n, plan.speedups, marker=".", color="C0", label="speedup")
    axes.plot(plan.optimal_n, plan.speedup, marker="o", color="C3", linestyle="none", label=_optimum(plan))
    axes.axhline(1.0, color="0.7", linewidth=0.8)
    highest = max(plan.speedup, 1.0) * _ROOM
    for value, what, colour in ((plan.ceiling, _COSTS, "C1"), (plan.free_ceiling, _DRAFTS, "C2")):
        if value <= highest:
            axes.axhline(
                value, color=colour, linestyle="--", linewidth=1, label=f"ceiling {what}: {value:.2f}"
            )
        else:
            text = f"{value:.1f}" if math.isfinite(value) else "none"
            axes.plot([], [], color=colour, linestyle="--", label=f"ceiling {what}: {text} (off the scale)")
    axes.set_xlabel("N, draft tokens per request and step")
    axes.set_ylabel("speedup over plain decoding")
    axes.set_title(title(plan))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")
    save_figure(figure, path)


def new_figure() -> Any:
    """An empty matplotlib figure. Raises BenchError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # not pyplot: no window, no global state
    except ImportError as error:
        raise BenchError(
            f"--plot needs the package matplotlib, which cannot be imported ({error}); "
            "`pip install 'vllm-specx[plot]'` brings it"
        ) from error
    return Figure(figsize=(7, 4.5), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format that the file's name asks for. Raises BenchError if that cannot be done."""
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise BenchError(f"--plot {path}: {error.strerror or error}") from error
    except ValueError as error:  # a format that matplotlib does not know
        raise BenchError(f"--plot {path}: {error}") from error


def title(plan: Plan) -> str:
    """What was asked, in one line."""
    settings = plan.settings
    words = [f"p {','.join(f'{p:g}' for p in settings.p)}"]
    if settings.alpha is not None:
        words.append(f"alpha {settings.alpha:g}")
    if settings.costs is not None:
        words.append(f"{settings.costs.name} at batch {settings.batch}")
    if settings.draft_cost:
        words.append(f"draft cost {settings.draft_cost:g} a token")
    if settings.draft_cost_fixed:
        words.append(f"draft cost {settings.draft_cost_fixed:g} a step")
    return ", ".join(words)


def _optimum(plan: Plan) -> str:
    return f"best: N = {plan.optimal_n}, {plan.speedup:.2f}x"
