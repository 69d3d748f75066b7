"""What a reader sees on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from vllm_specx.bench.report import console
from vllm_specx.regret.harness import POLICIES


def show(document: Mapping[str, Any]) -> None:
    """One table of rates relative to plain decoding, one of what the tuner gains over each rule."""
    terminal = console()
    rules = [name for name in POLICIES if name != "none"]
    table = Table("cell", *(name.replace("_", "\n") for name in rules), "best\nN", box=SIMPLE)
    table.title, table.title_justify = "tokens per unit of cost, over plain decoding", "left"
    for column in table.columns[1:]:
        column.justify = "right"
    stationary = True
    for cell in document["cells"]:
        if stationary and not cell["stationary"]:
            table.add_section()
        stationary = cell["stationary"]
        plain = cell["none"]["mean"]
        table.add_row(
            cell["name"], *(f"{cell[name]['mean'] / plain:.3f}" for name in rules), str(cell["best_fixed_n"])
        )
    terminal.print(table)
    gains = Table("tuner over", *(f"{kind}\nmean / worst" for kind in document["summary"]), box=SIMPLE)
    gains.title, gains.title_justify = "geometric mean over the cells, and the worst cell", "left"
    for name in (name for name in POLICIES if name != "tuner"):
        gains.add_row(
            name.replace("_", " "),
            *(
                "{geometric_mean:.3f} / {worst:.3f} ({worst_cell})".format(**kind["tuner_over"][name])
                for kind in document["summary"].values()
            ),
        )
    terminal.print(gains)
