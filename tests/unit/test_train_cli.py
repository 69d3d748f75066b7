"""`specx train eagle3`: every wrong value is one line on stderr and exit code 2, before an engine is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heads import conversations, write_target
from stand_ins import complaint
from typer.testing import CliRunner

from drafters.recordings import Recordings
from drafters.target import Target
from vllm_specx.cli.main import app
from vllm_specx.train import record, run


def specx(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["train", "eagle3", *map(str, arguments)])


@pytest.fixture
def arguments(tmp_path: Path) -> list[Any]:
    return ["--model", write_target(tmp_path / "target"), "--out", tmp_path / "head"]


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("an engine was started for bad input")

    monkeypatch.setattr(run, "record", refuse)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--conversations", "1"], "--conversations must be at least 2, got 1"),
        (["--held-out", "4864"], "--held-out must be below --conversations (4864), got 4864"),
        (["--greedy-share", "1.5"], "--greedy-share must be at most 1.0, got 1.5"),
        (["--greedy-share", "-1"], "--greedy-share must be at least 0, got -1"),
        (["--temperature", "nan"], "--temperature must be at most 2.0, got nan"),
        (["--learning-rate", "0"], "--learning-rate must be above 0 and at most 1, got 0"),
        (["--unroll", "0"], "--unroll must be at least 1"),
        (["--dtype", "bflaot16"], "--dtype 'bflaot16' is not known, did you mean 'bfloat16'?"),
        (["--seed", "-1"], "--seed must be at least 0"),
    ],
)
def test_bad_values(arguments: list[Any], options: list[str], said: str) -> None:
    assert said in complaint(specx(*arguments, *options))


@pytest.mark.usefixtures("no_engine")
def test_models_that_are_none(tmp_path: Path, arguments: list[Any]) -> None:
    assert "cannot be loaded" in complaint(specx("--model", tmp_path / "nowhere", *arguments[2:]))
    (tmp_path / "target" / "model.safetensors").unlink()
    assert "no *.safetensors" in complaint(specx(*arguments))


@pytest.mark.usefixtures("no_engine")
def test_a_head_is_not_overwritten(tmp_path: Path, arguments: list[Any]) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text("{}")
    assert "holds a head: replace it with --force" in complaint(specx(*arguments))
    (tmp_path / "file").write_text("")
    assert "is a file, give a folder" in complaint(specx(*arguments[:2], "--out", tmp_path / "file"))


@pytest.mark.usefixtures("no_engine")
def test_a_draft_vocabulary_larger_than_the_vocabulary(
    tmp_path: Path, arguments: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "record", lambda settings, tell: recorded(settings, tmp_path / "target"))
    said = complaint(specx(*arguments, "--conversations", 8, "--held-out", 2, "--draft-vocab", 41))
    assert "--draft-vocab must be at most 40, the model's own, got 41" in said


def recorded(settings: Any, target: Path) -> Recordings:
    """What the engine would have recorded."""
    recordings = record.open_recordings(settings)
    if not recordings.shards:
        recordings.add(conversations(settings.conversations, Target.load(target).embeddings), (1, 2, 3))
    return recordings


def test_from_recordings_to_a_head_and_its_picture(
    tmp_path: Path, arguments: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "record", lambda settings, tell: recorded(settings, tmp_path / "target"))
    options = ["--conversations", 16, "--held-out", 4, "--steps", 4, "--batch", 4, "--draft-vocab", 30]
    options += ["--evaluate-every", 2, "--checkpoint-every", 2]
    plot = pytest.importorskip("matplotlib") and tmp_path / "training.png"
    result = specx(*arguments, *options, "--plot", plot)
    assert result.exit_code == 0, result.output
    assert "held-out acceptance by draft token:" in result.stdout
    assert "[4/4] training: loss" in result.stderr
    files = {path.name for path in (tmp_path / "head").iterdir()}
    assert files == {"config.json", "model.safetensors", "training.json"}
    assert plot.stat().st_size > 10_000
    # The same command has nothing left to do; another training does not take this one's checkpoints.
    assert specx(*arguments, *options, "--force").exit_code == 0
    said = complaint(specx(*arguments, *options, "--force", "--learning-rate", 0.5))
    assert "other settings (learning_rate: 0.01, not 0.5)" in said
    said = complaint(specx(*arguments, *options, "--force", "--answer-tokens", 99))
    assert "holds recordings of other settings (answer_tokens: 192, not 99)" in said
