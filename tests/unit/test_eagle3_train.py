"""Training a tiny head: it learns, goes on where it was stopped, and keeps its last good checkpoint."""

from __future__ import annotations

import dataclasses
import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import CONFIG, HIDDEN, LAYERS, VOCAB, conversations, write_target
from safetensors.torch import load_file

from drafters import training
from drafters.eagle3 import train
from drafters.eagle3.export import export
from drafters.recordings import Conversation, RecordingError, Recordings
from drafters.target import Target, TargetError

TRAINING = train.TrainConfig(
    steps=12,
    batch=4,
    learning_rate=0.02,
    unroll=2,
    draft_vocab_size=VOCAB - 8,
    seed=3,
    evaluate_every=4,
    checkpoint_every=4,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(write_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def said(target: Target) -> list[Conversation]:
    return conversations(24, target.embeddings)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in one order
    yield
    torch.set_num_threads(before)


class Stopped(Exception):
    pass


def run(
    target: Target,
    said: list[Conversation],
    folder: Path,
    config: train.TrainConfig = TRAINING,
    stop_at: int = 0,
) -> training.State:
    state = train.load(folder, config, lambda text: None) or train.start(target, LAYERS, said[4:], config)

    def tell(what: str, step: int, steps: int, facts: dict[str, Any]) -> None:
        if step == stop_at:
            raise Stopped

    train.train(state, target, said[4:], said[:4], config, folder, tell)
    return state


def test_it_learns_what_the_target_says(target: Target, said: list[Conversation], tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, steps=80, evaluate_every=40, draft_vocab_size=VOCAB)
    history = run(target, said, tmp_path, config).history
    assert [entry["step"] for entry in history] == [40, 80]
    assert len(history[-1]["acceptance"]) == 5
    assert history[-1]["acceptance"][0] > 0.9  # a walk that goes up by one
    assert history[-1]["loss"][0] < history[0]["loss"][0]


@pytest.mark.parametrize("stop_at", [5, 8, 11])
def test_a_stopped_training_goes_on_to_the_same_head(
    target: Target, said: list[Conversation], tmp_path: Path, stop_at: int
) -> None:
    wanted = run(target, said, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(target, said, tmp_path / "parts", stop_at=stop_at)
    got = run(target, said, tmp_path / "parts")
    assert got.history == wanted.history
    for (name, x), y in zip(wanted.head.state_dict().items(), got.head.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def test_two_checkpoints_are_kept_and_a_damaged_one_is_passed_over(
    target: Target, said: list[Conversation], tmp_path: Path
) -> None:
    run(target, said, tmp_path)
    paths = training.checkpoints(tmp_path)
    assert [path.name for path in paths] == [training.CHECKPOINT.format(8), training.CHECKPOINT.format(12)]
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    told: list[str] = []
    state = train.load(tmp_path, TRAINING, told.append)
    assert state is not None
    assert state.step == 8
    assert "is damaged" in told[0]
    paths[0].write_bytes(b"nonsense")
    with pytest.raises(training.CheckpointError, match="none of its 2 checkpoints can be read"):
        train.load(tmp_path, TRAINING, told.append)


def test_a_checkpoint_of_another_training_is_refused(
    target: Target, said: list[Conversation], tmp_path: Path
) -> None:
    run(target, said, tmp_path)
    with pytest.raises(training.CheckpointError, match=r"other settings \(seed: 3, not 4\)"):
        train.load(tmp_path, dataclasses.replace(TRAINING, seed=4), lambda text: None)


def test_a_full_disk_leaves_the_last_good_checkpoint(
    target: Target, said: list[Conversation], tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        run(target, said, tmp_path, stop_at=6)
    (good,) = training.checkpoints(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (good.stat().st_size // 2, before[1]))
    try:
        with pytest.raises(OSError):
            run(target, said, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == [good.name]
    assert run(target, said, tmp_path).step == TRAINING.steps


def test_what_is_exported(target: Target, said: list[Conversation], tmp_path: Path) -> None:
    state = run(target, said, tmp_path / "work")
    export(state.head, state.ids, tmp_path / "head")
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["target"] == {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_hidden_layers": 4}
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(LAYERS)
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    assert torch.equal(tensors["d2t"] + torch.arange(VOCAB - 8), state.ids)
    assert tensors["t2d"].nonzero().flatten().tolist() == state.ids.tolist()
    assert tensors["fc.weight"].shape == (HIDDEN, 3 * HIDDEN)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (HIDDEN, 2 * HIDDEN)
    assert tensors["lm_head.weight"].dtype == torch.bfloat16


def test_the_draft_vocabulary_is_what_answers_use_most(said: list[Conversation]) -> None:
    ids = training.draft_vocabulary(said[:1], 6, VOCAB).tolist()
    answer = said[0].token_ids[said[0].answer :].tolist()
    assert ids == sorted(ids)
    assert set(ids) <= set(answer) or set(answer) <= set(ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["BertModel"]}, "not a Llama-type causal model"),
        ({"hidden_size": None}, "not a Llama-type causal model"),
    ],
)
def test_targets_that_are_none(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_target(tmp_path)
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TargetError, match=message):
        Target.load(tmp_path)


def test_targets_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no readable config\.json"):
        Target.load(tmp_path)
    write_target(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(TargetError, match="not readable"):
        Target.load(tmp_path)
    weights.unlink()
    with pytest.raises(TargetError, match="no \\*\\.safetensors"):
        Target.load(tmp_path)


def test_recordings_come_back_as_they_were(said: list[Conversation], tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, {"seed": 1})
    recordings.add(said[:3], LAYERS)
    recordings.add(said[3:5], LAYERS)
    again = Recordings(tmp_path, {"seed": 1})
    assert again.layers == LAYERS
    for x, y in zip(said[:5], again.read(), strict=True):
        assert x.token_ids.tolist() == y.token_ids.tolist()
        assert x.answer == y.answer
        assert torch.equal(x.states, y.states)
        assert torch.equal(x.finals, y.finals)


def test_recordings_of_other_settings_and_damaged_ones_are_refused(
    said: list[Conversation], tmp_path: Path
) -> None:
    recordings = Recordings(tmp_path, {"seed": 1})
    path = recordings.add(said[:3], LAYERS)
    with pytest.raises(RecordingError, match=r"other settings \(seed: 1, not 2\)"):
        Recordings(tmp_path, {"seed": 2})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RecordingError, match="not a readable shard"):
        list(recordings.read())


def test_a_head_for_the_whole_vocabulary_has_no_map(
    target: Target, said: list[Conversation], tmp_path: Path
) -> None:
    """vLLM knows none of these tensors then, and ends at an unknown one."""
    config = dataclasses.replace(TRAINING, draft_vocab_size=VOCAB)
    state = run(target, said, tmp_path / "work", config)
    assert state.ids.tolist() == list(range(VOCAB))
    export(state.head, state.ids, tmp_path / "head")
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    assert not {"d2t", "t2d"} & tensors.keys()
    assert tensors["lm_head.weight"].shape == (VOCAB, HIDDEN)
