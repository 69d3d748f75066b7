"""The command line: every wrong value is one line on stderr and exit code 2, before anything heavy starts."""

import json
import os

import pytest
from typer.testing import CliRunner

from vllm_specx.bench import runner
from vllm_specx.cli.main import app

ROW = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(ROW))
    return path


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("an engine was started for bad input")

    monkeypatch.setattr(runner, "Worker", refuse)


def specx(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def complaint(result):
    """The one line, after checking that it is one and that nothing else was said."""
    assert result.exit_code == 2, result.output
    assert result.stdout.replace("[0/1] reading prompts\n", "") == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("specx: error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "none,ngarm"], ["'ngarm'", "did you mean 'ngram'?", "suffix-tree"]),
        (["--methods", "none,none"], ["--methods", "twice"]),
        (["--concurrency", "1,x"], ["--concurrency", "whole numbers"]),
        (["--concurrency", "0"], ["--concurrency", "at least 1", "got 0"]),
        (["--concurrency", ","], ["--concurrency", "at least one number"]),
        (["--concurrency", "2,2"], ["--concurrency", "twice"]),
        (["--repeats", "0"], ["--repeats", "at least 1"]),
        (["--repeats", "two"], ["--repeats", "integer"]),
        (["--limit", "-1"], ["--limit", "at least 1"]),
        (["--dtype", "float23"], ["'float23'", "did you mean 'float32'?", "bfloat16"]),
        (["--max-model-len", "1"], ["--max-model-len", "at least 2"]),
        (["--max-tokens", "0"], ["--max-tokens", "at least 1"]),
        (["--kv-cache-gib", "0"], ["--kv-cache-gib", "at least 1"]),
        (["--num-speculative-tokens", "0"], ["--num-speculative-tokens", "at least 1", "got 0"]),
        (["--num-speculative-tokens", "129"], ["--num-speculative-tokens", "at most 128"]),
        (["--num-speculative-tokens", "16", "--max-model-len", "16"], ["below --max-model-len 16"]),
        (["--specx-options", "{"], ["--specx-options", "not JSON"]),
        (["--specx-options", "[]"], ["--specx-options", "JSON object"]),
        (["--specx-options", '{"alhpa": 1}'], ["alhpa", "did you mean 'alpha'?"]),
        (["--specx-options", '{"memory_bytes": -1}'], ["memory_bytes", "-1"]),
        (["--wram"], ["--wram"]),
        (["extra"], ["extra"]),
    ],
)
def test_wrong_value(prompts, arguments, said):
    line = complaint(specx("bench", "--model", "m", "--prompts", prompts, *arguments))
    for part in said:
        assert part in line


def test_missing_options(prompts):
    assert "--model" in complaint(specx("bench", "--prompts", prompts))
    assert "--prompts" in complaint(specx("bench", "--model", "m"))


def test_unknown_command():
    assert "'bnech'" in complaint(specx("bnech"))


def test_bad_prompt_row_is_named(prompts):
    prompts.write_text(json.dumps(ROW) + '\n{"id": 1}\n')
    assert f"{prompts}:2: " in complaint(specx("bench", "--model", "m", "--prompts", prompts))


def test_unloadable_model(prompts, tmp_path):
    pytest.importorskip("transformers")
    line = complaint(specx("bench", "--model", tmp_path / "no-model", "--prompts", prompts))
    assert "no-model' cannot be loaded" in line


def test_json_into_nowhere(prompts, tmp_path):
    base = ["bench", "--model", "m", "--prompts", prompts, "--json"]
    assert "does not exist" in complaint(specx(*base, tmp_path / "no" / "out.json"))
    assert "is a folder" in complaint(specx(*base, tmp_path))
    assert os.listdir(tmp_path) == ["chat.jsonl"]


def test_interrupted_repeats_leave_what_was_measured(monkeypatch, prompts, tmp_path):
    """An engine that dies: exit code 1, one line, and the JSON of the repeats before it."""
    from vllm_specx.bench.errors import EngineFailed

    def one_repeat(settings, origin, tell, save):
        save({"complete": False, "origin": origin["command"][0]})
        raise EngineFailed("the engine of method 'ngram' died")

    monkeypatch.setattr(runner, "run_bench", one_repeat)
    out = tmp_path / "out.json"
    result = specx("bench", "--model", "m", "--prompts", prompts, "--json", out)
    assert result.exit_code == 1
    assert result.stderr == "specx: error: the engine of method 'ngram' died\n"
    assert json.loads(out.read_text())["complete"] is False
    assert sorted(os.listdir(tmp_path)) == ["chat.jsonl", "out.json"]


def test_version_and_help():
    assert "vllm" in specx("version").stdout
    for command in ("bench", "demo"):
        assert "Usage: " in specx(command, "--help").stdout
