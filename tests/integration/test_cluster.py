"""`specx bench --ray` and `specx train --ray` on a real cluster of two nodes, both on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_specx.bench.cluster import run_bench_on_ray
from vllm_specx.bench.document import read_document
from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.cluster import spread
from vllm_specx.train import record
from vllm_specx.train.settings import MedusaSettings

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cloudpickle import register_pickle_by_value
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    register_pickle_by_value(sys.modules[__name__])  # nodes do not find the tests
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
    cluster.shutdown()


def where(number: int) -> tuple[int, int, str]:
    import ray

    return number, os.getpid(), ray.get_runtime_context().get_node_id()


def fails(number: int) -> None:
    raise (BenchError("wrong") if number else ZeroDivisionError("odd"))


def dies_once(mark: str) -> str:
    if not os.path.exists(mark):
        Path(mark).touch()
        os._exit(1)
    return "done"


def test_each_piece_has_a_process_and_all_nodes_work(cluster: Any) -> None:
    results: dict[int, tuple[int, int, str]] = {}
    spread(
        where, [(number,) for number in range(4)], lambda index, node, result: results.update({index: result})
    )
    assert [results[number][0] for number in range(4)] == [0, 1, 2, 3]
    assert len({pid for _, pid, _ in results.values()}) == 4
    assert len({node for *_, node in results.values()}) == 2


def test_faults_come_back_as_they_are(cluster: Any) -> None:
    with pytest.raises(BenchError, match=r"^wrong$"):
        spread(fails, [(1,)], lambda *_: None)
    with pytest.raises(EngineFailed, match="ZeroDivisionError: odd"):
        spread(fails, [(0,)], lambda *_: None)


def test_a_piece_that_is_lost_is_done_once_more(cluster: Any, tmp_path: Path) -> None:
    results: list[str] = []
    spread(dies_once, [(str(tmp_path / "mark"),)], lambda index, node, result: results.append(result))
    assert results == ["done"]


def test_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(BenchError, match="--ray finds no cluster"):
        spread(where, [(1,)], lambda *_: None)


def test_a_bench_has_the_form_of_a_local_one(cluster: Any, model_dir: Path, tmp_path: Path) -> None:
    for name, text in (("one", "Name a color."), ("two", "Say it twice: blue, blue.")):
        row = {"id": name, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    settings = BenchSettings(
        model=str(model_dir),
        prompts={name: tmp_path / f"{name}.jsonl" for name in ("one", "two")},
        methods=("none", "ngram"),
        repeats=2,
        dtype="float32",
        max_model_len=256,
        kv_cache_gib=1,
    )
    told: list[str] = []
    saved: list[bool] = []
    document = run_bench_on_ray(
        settings,
        {"command": ["test"], "time": "now", "machine": {}},
        lambda what, *_: told.append(what),
        lambda document: saved.append(document["complete"]),
    )
    (tmp_path / "bench.json").write_text(json.dumps(document))
    assert read_document(tmp_path / "bench.json")["complete"]
    assert saved == [False, True]
    assert {row["workload"] for row in document["summary"]} == {"one", "two"}
    assert len(document["runs"]) == 2 * 2 * 2
    assert all(request["first_difference"] is None for run in document["runs"] for request in run["requests"])
    assert {run["node"] for run in document["runs"]} == document["provenance"]["nodes"].keys()


def test_conversations_are_written_on_the_nodes(
    cluster: Any, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "PER_SHARD", 2)
    settings = MedusaSettings(
        model=str(model_dir), out=tmp_path / "heads", conversations=3, held_out=1, answer_tokens=8, slots=2,
        dtype="float32", ray=True,
    )  # fmt: skip
    told: list[tuple[Any, ...]] = []
    recordings = record.record(settings, lambda *news: told.append(news))
    said = list(recordings.read())
    assert [len(recordings.shards), len(said)] == [2, 3]
    assert all(0 < one.answer < len(one) for one in said)
    assert len({one.token_ids.tobytes() for one in said}) == 3
    assert told[-1][1:] == (3, 3)
    # All are there: nothing is written again.
    assert record.record(settings, lambda *news: told.append(("again", *news))).shards == recordings.shards
    assert told[-1][0] != "again"
