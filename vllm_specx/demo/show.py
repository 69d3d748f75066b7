"""What `specx demo` measures and prints."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vllm_specx.bench.report import number
from vllm_specx.bench.settings import BenchSettings

WORKLOADS = {"code_edit": "code edit", "structured": "structured output", "chat": "open chat"}
METHODS = {"none": "plain vLLM", "ngram": "vLLM n-gram", "suffix-tree": "vllm-specx"}


def demo_settings(model: Path, limit: int) -> BenchSettings:
    """Three methods over the package's own workloads, one request at a time, in float32.

    float32, because only there greedy outputs of different batch shapes can be expected to be the same.
    """
    folder = files("vllm_specx.demo") / "workloads"
    return BenchSettings(
        model=str(model),
        prompts={name: Path(str(folder / f"{name}.jsonl")) for name in WORKLOADS},
        methods=tuple(METHODS),
        concurrency=(1,),
        repeats=1,
        limit=limit,
        dtype="float32",
        max_model_len=1024,
        kv_cache_gib=1,
    )


def show_demo(document: Mapping[str, Any], terminal: Console) -> None:
    """The closing table."""
    table = Table("workload", "method", "tokens/s", "tokens/step", "speedup", "identical outputs")
    for column in table.columns[2:5]:
        column.justify = "right"
    for workload, title in WORKLOADS.items():
        for row in document["summary"]:
            if row["workload"] == workload:
                same = row["identical"] == row["compared"]
                table.add_row(
                    title,
                    METHODS[row["method"]],
                    number(row["tokens_per_s"], 1),
                    number(row["tokens_per_step"]),
                    f"{row['ratio']['median']:.2f}x",
                    "yes" if same else f"no ({row['identical']} of {row['compared']})",
                )
                title = ""
        table.add_section()
    terminal.print(table)
