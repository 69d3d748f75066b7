"""The JSON file and the tables."""

import json
import os

import pytest
from rich.console import Console

from vllm_specx.bench.cells import summarise
from vllm_specx.bench.provenance import provenance, relevant
from vllm_specx.bench.report import check_writable, ratio_text, show, write_json


def document(dtype="bfloat16", repeats=2, **more):
    runs = [
        {
            "workload": "chat",
            "concurrency": concurrency,
            "phase": "cold",
            "method": method,
            "repeat": repeat,
            "tokens_per_s": speed * (1 + repeat / 100),
            "tpot_ms_p50": 30.0,
            "tpot_ms_p99": 31.0,
            "tokens_per_step": 1.75,
            "acceptance": acceptance,
            "draft_tokens_per_step": 2.5,
            "num_preemptions": 0,
            "faults": 0,
            "lengths_over_time": [],
            "kept": None,
            "requests": [{"first_difference": None}, {"first_difference": difference}],
        }
        for repeat in range(repeats)
        for concurrency in (1, 8)
        for method, speed, acceptance, difference in (("none", 30.0, None, None), ("ngram", 45.0, 0.4, 9))
    ]
    return {
        "complete": True,
        "settings": {"natural": False, "warm": False, "repeats": repeats},
        "provenance": {"engine": {"dtype": dtype}},
        "left_out": {"suffix": "not installed"},
        "workloads": {"chat": {}},
        "runs": runs,
        "summary": summarise(runs),
        **more,
    }


def shown(what):
    terminal = Console(width=118, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - closed below
    show(what, terminal)
    terminal.file.close()
    return terminal.export_text()


def test_table_and_notes():
    text = shown(document())
    row = next(line for line in text.splitlines() if "ngram" in line)
    for cell in ("45.2", "30.0", "1.75", "40%", "2.50", "1.50x [1.50, 1.50]", "2/4"):
        assert cell in row
    assert "suffix left out: not installed" in text
    assert "near-ties flip" in text
    assert "…" not in text


def test_notes_that_depend():
    assert "near-ties" not in shown(document(dtype="float32"))
    assert "no interval" in shown(document(repeats=1))
    assert "1.50x [" not in shown(document(repeats=1))
    preempted = document()
    preempted["summary"][0]["num_preemptions"] = 3
    assert "3 requests were preempted" in shown(preempted)
    assert "interrupted" in shown(document(complete=False))


def test_ratio_text():
    assert ratio_text({"median": 1.5, "low": None, "high": None}) == "1.50x"
    assert ratio_text({"median": 1.5, "low": 1.4, "high": 1.61}) == "1.50x [1.40, 1.61]"
    assert ratio_text({"median": 1.5, "low": 0.0, "high": 1e5}) == "1.50x [0.00, >99]"


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "out.json"
    write_json(path, {"a": 1})
    write_json(path, document())
    assert json.loads(path.read_text())["complete"] is True
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text())["complete"] is True
    assert os.listdir(tmp_path) == ["out.json"]


def test_check_writable_leaves_nothing_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    check_writable(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_provenance_says_where_it_comes_from():
    origin = provenance(["specx", "bench"])
    assert origin["command"] == ["specx", "bench"]
    assert origin["machine"]["cores"] >= 1
    assert "numba" in origin["versions"]
    json.dumps(origin)


def test_environment_without_secrets():
    kept = relevant({"OMP_NUM_THREADS": "2", "VLLM_API_KEY": "x", "VLLM_PLUGINS": "specx", "HOME": "/h"})
    assert kept == {"OMP_NUM_THREADS": "2", "VLLM_PLUGINS": "specx"}
