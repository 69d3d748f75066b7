"""`specx calibrate`: every wrong value is one line on stderr and exit code 2, before an engine is started."""

import json

import numpy as np
import pytest
from stand_ins import complaint
from typer.testing import CliRunner

from vllm_specx.bench.errors import EngineFailed
from vllm_specx.calibrate import run
from vllm_specx.calibrate.measure import Measured
from vllm_specx.cli.main import app


def specx(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


@pytest.fixture
def arguments(tmp_path):
    return ["--model", "m", "--out", tmp_path / "costs.json"]


@pytest.fixture
def no_engine(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("an engine was started for bad input")

    monkeypatch.setattr(run, "_measure", refuse)


@pytest.fixture
def engine(monkeypatch):
    """One that answers at once."""

    def fake(settings, tell, log_path):
        tell("measuring", 1, 2)
        seconds = 0.01 * np.add.outer(settings.batch, settings.drafts)
        return Measured(seconds, 0 * seconds, 24), {"dtype": "bfloat16"}

    monkeypatch.setattr(run, "_measure", fake)
    monkeypatch.setattr(run, "check_model", lambda model: None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batch", "1,x"], "--batch '1,x' must be whole numbers separated by commas"),
        (["--batch", "0,1"], "--batch must be at least 1, got 0"),
        (["--batch", ","], "--batch needs at least one number"),
        (["--batch", "2,2"], "--batch names a number twice"),
        (["--drafts", "0,1.5"], "--drafts '0,1.5' must be whole numbers"),
        (["--drafts", "1,2"], "--drafts must contain 0"),
        (["--drafts", "0,-1"], "--drafts must be at least 0, got -1"),
        (["--drafts", "0,129"], "--drafts must be at most 128"),
        (["--drafts", "0,4,4"], "--drafts names a number twice"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--prompt-tokens", "0"], "--prompt-tokens must be at least 1"),
        (["--dtype", "float23"], "did you mean 'float32'?"),
        (["--max-model-len", "81"], "need a model length of 82; it is 81"),
        (["--kv-cache-gib", "0"], "--kv-cache-gib must be at least 1"),
        (["--out", "/no/such/costs.json"], "the folder /no/such does not exist"),
        (["--otu", "x"], "--otu"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_options(no_engine, arguments, options, said):
    assert said in complaint(specx(*arguments, *options))


def test_missing_options(no_engine, tmp_path):
    assert "--model" in complaint(specx("--out", tmp_path / "costs.json"))
    assert "--out" in complaint(specx("--model", "m"))


def test_a_model_that_is_missing(no_engine, tmp_path):
    pytest.importorskip("transformers")
    line = complaint(specx("--model", tmp_path / "no-model", "--out", tmp_path / "costs.json"))
    assert "no-model' cannot be loaded" in line


def test_a_file_that_exists(engine, arguments, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("precious")
    assert f"--out {path} exists: replace it with --force" in complaint(specx(*arguments))
    assert path.read_text() == "precious"
    assert specx(*arguments, "--force").exit_code == 0
    assert json.loads(path.read_text())["format"] == "specx-costs/1"
    assert "is a folder" in complaint(specx("--model", "m", "--out", tmp_path))


def test_json(engine, arguments, tmp_path):
    result = specx(*arguments, "--batch", "1,8", "--drafts", "0,4", "--json")
    assert result.exit_code == 0, result.output
    table = json.loads(result.stdout)
    assert table == json.loads((tmp_path / "costs.json").read_text())
    assert table["seconds"] == [[0.01, 0.05], [0.08, 0.12]]
    assert {"command", "versions", "machine", "engine", "settings"} <= table["source"].keys()
    assert "[1/2] measuring" in result.stderr


def test_table(engine, arguments, tmp_path):
    result = specx(*arguments, "--batch", "1,8", "--drafts", "0,4")
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert lines[1] == ["requests", "N=0", "N=4"]
    assert lines[3:5] == [["1", "10.0", "50.0"], ["8", "80.0", "120.0"]]
    assert result.stdout.splitlines()[-1] == f"cost table: {tmp_path / 'costs.json'}"


def test_an_engine_that_fails(monkeypatch, engine, arguments, tmp_path):
    def fail(*arguments):
        raise EngineFailed("the engine died")

    monkeypatch.setattr(run, "_measure", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # its log is kept
    assert complaint(specx(*arguments), code=1) == "specx: error: the engine died"
    assert not (tmp_path / "costs.json").exists()
