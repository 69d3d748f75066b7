"""A very small real run: what the JSON must say whatever the speed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.bench.runner import run_bench
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.cli.main import app

CAPS = (12, 9)
ROUNDS = 2
METHODS = ("none", "ngram", "suffix-tree")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    texts = ("Repeat this ten times: red green blue red green blue red green blue", "Name one color.")
    rows = [
        {"id": f"p{number}", "messages": [{"role": "user", "content": text}], "max_tokens": cap}
        for number, (text, cap) in enumerate(zip(texts, CAPS, strict=True))
    ]
    path = tmp_path_factory.mktemp("bench") / "tiny.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def document(model_dir, prompts) -> dict:
    out = prompts.parent / "out.json"
    arguments = ["bench", "--model", model_dir, "--prompts", prompts, "--methods", ",".join(METHODS)]
    arguments += ["--concurrency", "1,2", "--repeats", 2, "--rounds", ROUNDS, "--warm", "--dtype", "float32"]
    arguments += ["--max-model-len", 256, "--kv-cache-gib", 1, "--json", out]
    arguments += ["--specx-options", '{"alpha": 0.02}']  # lengths that no clock has a say in
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "ratio to none" in result.stdout
    return json.loads(out.read_text())


def test_every_cell_is_there_once(document):
    assert document["complete"]
    cells = [(run["concurrency"], run["method"], run["repeat"], run["phase"]) for run in document["runs"]]
    assert len(cells) == len(set(cells)) == 2 * len(METHODS) * 2 * 2
    assert len(document["summary"]) == 2 * len(METHODS) * 2
    places = {(run["repeat"], run["place"]) for run in document["runs"] if run["method"] == "ngram"}
    assert len({place for _, place in places}) > 1  # the order rotates


def test_tokens_are_the_fixed_lengths(document):
    lengths = document["workloads"]["tiny"]["lengths"]
    assert all(1 <= length <= cap for length, cap in zip(lengths, CAPS, strict=True))
    for run in document["runs"]:
        assert [request["output_tokens"] for request in run["requests"]] == lengths * ROUNDS
        assert run["output_tokens"] == sum(lengths) * ROUNDS


def test_counters_are_consistent(document):
    most = {
        name: (options.get("speculative_config") or {}).get("num_speculative_tokens", 0)
        for name, options in document["methods"].items()
    }
    for run in document["runs"]:
        limit = most[run["method"]]
        num_requests = len(run["requests"])
        assert 0 <= run["num_accepted_tokens"] <= run["num_draft_tokens"] <= run["num_drafts"] * limit
        assert run["num_drafts"] <= run["request_steps"]
        assert run["num_steps"] <= sum(request["steps"] for request in run["requests"])
        assert run["request_steps"] == sum(request["steps"] - 1 for request in run["requests"])
        # Each request-step commits what it accepted and one more; vLLM counts what the end cuts off as accepted.
        cut = run["request_steps"] + run["num_accepted_tokens"] - (run["output_tokens"] - num_requests)
        assert 0 <= cut <= num_requests * limit
        assert run["acceptance"] is None or 0 <= run["acceptance"] <= 1
        assert 0 < run["engine_seconds"] <= run["seconds"]
        assert run["faults"] == run["num_preemptions"] == 0


def test_plain_decoding_drafts_nothing_and_ngram_does(document):
    runs = {name: [run for run in document["runs"] if run["method"] == name] for name in METHODS}
    for run in runs["none"]:
        assert run["num_drafts"] == 0
        assert run["tokens_per_step"] == 1.0
    assert all(run["num_draft_tokens"] > 0 for run in runs["ngram"])


def test_outputs_equal_plain_decoding_in_float32(document):
    for run in document["runs"]:
        assert all(request["first_difference"] is None for request in run["requests"])


def test_cold_cells_start_empty_and_warm_ones_do_not(document):
    cells = {
        (run["concurrency"], run["repeat"], run["phase"]): run
        for run in document["runs"]
        if run["method"] == "suffix-tree"
    }
    for concurrency in (1, 2):
        # The warm pass has seen these very answers; with the memory cleared, the next repeat has not.
        cold, again = (cells[concurrency, repeat, "cold"]["request_steps"] for repeat in (0, 1))
        assert cells[concurrency, 0, "warm"]["request_steps"] < min(cold, again)


def test_the_metrics_page_counts_what_vllm_counts(document):
    for run in document["runs"]:
        assert 0 < len(run["lengths_over_time"]) <= 48
        assert any(run["lengths_over_time"]) == (run["num_draft_tokens"] > 0)
        if run["method"] != "suffix-tree":
            assert run["kept"] is None
            continue
        tokens, promised, kept = map(sum, run["kept"])
        assert (tokens, kept) == (run["num_draft_tokens"], run["num_accepted_tokens"])
        assert 0 <= promised <= tokens


def test_provenance(document):
    origin = document["provenance"]
    assert origin["engine"]["dtype"] == "float32"
    assert origin["engine"]["max_model_len"] == 256
    assert origin["engine"]["environment"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert {"python", "torch"} <= origin["versions"].keys()


def bench(model_dir, prompts, **more):
    return run_bench(
        BenchSettings(model=str(model_dir), prompts={"tiny": prompts}, **more), {}, lambda *arguments: None
    )


def test_row_beyond_the_model_length_is_named(model_dir, prompts):
    with pytest.raises(BenchError, match=r"tiny\.jsonl:1: .* exceed the model length of 20"):
        bench(model_dir, prompts, max_model_len=20)


def test_engine_that_cannot_start_names_the_method_and_keeps_the_log(
    prompts, model_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_bytes((model_dir / name).read_bytes())
    with pytest.raises(EngineFailed, match=r"method 'none' failed: .*\(log: .*none\.log\)") as caught:
        bench(tmp_path, prompts, methods=("none",), max_model_len=256)
    log = Path(str(caught.value).split("log: ")[1].rstrip(")"))
    assert "Traceback" in log.read_text()
