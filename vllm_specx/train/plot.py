"""The picture of a training: held-out acceptance of each draft position, by step."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_specx.plan.plot import new_figure, save_figure


def plot_training(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a picture in the format that the file's name asks for.

    Args:
        history: entries with `step` and `acceptance`, one number a draft position.
        path: file to write.

    Raises:
        BenchError: matplotlib is not installed, or the file cannot be written.

    """
    figure = new_figure()
    axes = figure.add_subplot()
    steps = [entry["step"] for entry in history]
    for position in range(len(history[0]["acceptance"])):
        axes.plot(
            steps,
            [entry["acceptance"][position] for entry in history],
            marker=".",
            label=f"draft token {position + 1}",
        )
    axes.set_xlabel("training step")
    axes.set_ylabel("accepted, of those that were reached (greedy, held out)")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save_figure(figure, path)
