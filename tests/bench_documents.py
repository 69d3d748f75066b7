"""Documents as `specx bench --json` writes them, made with its own functions from speeds that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from vllm_specx.bench.cells import summarise
from vllm_specx.bench.document import FORMAT
from vllm_specx.bench.methods import BASELINE, engine_options
from vllm_specx.bench.provenance import provenance
from vllm_specx.bench.settings import BenchSettings

PLAIN = 30.0  # tokens per second
_KEPT = [[20.0] * 10, [20 * (0.05 + i / 10) for i in range(10)], [2.0 * i for i in range(10)]]


def bench_document(
    speeds: Mapping[str, float | tuple[float, ...]],
    *,
    workloads: tuple[str, ...] = ("chat", "code"),
    concurrency: tuple[int, ...] = (1, 8),
    repeats: int = 3,
    warm: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Each method's ratio to plain decoding, one for all repeats or one per repeat; lower by a tenth at code."""
    methods = (BASELINE, *speeds)
    made = BenchSettings(
        **{"model": "some/model", "dtype": "float32", "max_model_len": 512, "warm": warm, **settings},
        prompts={name: Path(f"{name}.jsonl") for name in workloads},
        methods=methods,
        concurrency=concurrency,
        repeats=repeats,
    )
    runs = [
        _run(workload, number, phase, method, repeat, speeds)
        for repeat, workload, number, method, phase in product(
            range(repeats), workloads, concurrency, methods, ("cold", "warm") if warm else ("cold",)
        )
    ]
    return {
        "format": FORMAT,
        "complete": True,
        "provenance": {
            **provenance(["specx", "bench", "--model", made.model]),
            "engine": {"max_model_len": 512, "dtype": "float32", "device_name": "cpu"},
        },
        "settings": {**asdict(made), "prompts": {name: str(path) for name, path in made.prompts.items()}},
        "methods": {name: engine_options(name, made) for name in methods},
        "left_out": {"suffix": "arctic_inference cannot be imported"},
        "workloads": {name: {"ids": ["a"], "prompt_tokens": [8], "lengths": [16]} for name in workloads},
        "runs": runs,
        "summary": summarise(runs),
    }


def save(document: Any, path: Path) -> Path:
    """Write it as a file, and return its path."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _run(
    workload: str, concurrency: int, phase: str, method: str, repeat: int, speeds: Mapping[str, Any]
) -> dict[str, Any]:
    given = speeds.get(method, 1.0)
    ratio = given[repeat % len(given)] if isinstance(given, tuple) else given
    if method != BASELINE and workload == "code":
        ratio *= 0.9
    n = int(method.partition(":")[2] or 4)
    return {
        "workload": workload,
        "concurrency": concurrency,
        "phase": phase,
        "method": method,
        "repeat": repeat,
        "tokens_per_s": PLAIN * ratio * (1 + repeat / 100),
        "tpot_ms_p50": 30.0,
        "tpot_ms_p99": 31.0,
        "tokens_per_step": 1.0 if method == BASELINE else 1.75,
        "acceptance": None if method == BASELINE else 0.75 / n,
        "draft_tokens_per_step": 0.0 if method == BASELINE else float(n),
        "num_preemptions": 0,
        "faults": 0,
        "lengths_over_time": [0.0] * 8 if method == BASELINE else [0.0, *[float(n)] * 7],
        "kept": _KEPT if method == "suffix-tree" else None,
        "requests": [{"first_difference": None}, {"first_difference": None if repeat else 9}],
    }
