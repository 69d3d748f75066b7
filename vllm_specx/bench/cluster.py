"""A bench spread over a Ray cluster, a workload at a time on a node; what comes back has the form of a local run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vllm_specx.bench.cells import summarise
from vllm_specx.bench.errors import EngineFailed
from vllm_specx.bench.methods import choose
from vllm_specx.bench.prompts import read_prompts
from vllm_specx.bench.provenance import provenance
from vllm_specx.bench.runner import Save, Tell, run_bench
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.cluster import spread


def run_bench_on_ray(
    settings: BenchSettings, origin: Mapping[str, Any], tell: Tell, save: Save = lambda document: None
) -> dict[str, Any]:
    """Measure and return the JSON document; see `run_bench`.

    A cell's methods run on one node, which `provenance.nodes` describes and each run names. `save` is called after each
    workload.

    Raises:
        BenchError: see `run_bench` and `spread`.
        EngineFailed: see there; or nodes differ in the methods that they can run.

    """
    choose(settings.methods)
    texts = {}
    for name, path in settings.prompts.items():
        read_prompts(path, settings.limit, settings.max_tokens)
        texts[name] = path.read_text(encoding="utf-8")
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    names = list(texts)

    def done(index: int, node: str, document: dict[str, Any]) -> None:
        found[names[index]] = node, document
        tell(f"{names[index]} on {node}", len(found), len(names))
        save(merged(settings, origin, found))

    tell("looking for nodes", 0, len(names))
    spread(_measure, [(settings, name, text) for name, text in texts.items()], done)
    return merged(settings, origin, found)


def _measure(settings: BenchSettings, name: str, text: str) -> dict[str, Any]:
    """On a node: measure one workload."""
    with TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.jsonl")
        path.write_text(text, encoding="utf-8")
        alone = replace(settings, prompts={name: path})
        return run_bench(alone, provenance(["specx", "bench", "--ray"]), lambda *_: None)


def merged(
    settings: BenchSettings, origin: Mapping[str, Any], found: Mapping[str, tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    """One document of the (node, document) of each workload. Raises EngineFailed."""
    documents = {name: found[name] for name in settings.prompts if name in found}
    node, first = next(iter(documents.values()))
    for other, document in documents.values():
        if document["methods"].keys() != first["methods"].keys():
            raise EngineFailed(
                f"nodes differ in what they can run: {node} {', '.join(first['methods'])}; "
                f"{other} {', '.join(document['methods'])}"
            )
    runs = [{**run, "node": name} for name, document in documents.values() for run in document["runs"]]
    return {
        **first,
        "complete": len(documents) == len(settings.prompts),
        "provenance": {
            **origin,
            "engine": first["provenance"]["engine"],
            "nodes": {name: document["provenance"]["machine"] for name, document in documents.values()},
        },
        "settings": {**asdict(settings), "prompts": {k: str(v) for k, v in settings.prompts.items()}},
        "workloads": {k: v for _, document in documents.values() for k, v in document["workloads"].items()},
        "runs": runs,
        "summary": summarise(runs),
    }
