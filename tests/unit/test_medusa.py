"""Medusa heads: their products, the formats they come in, their training, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from heads import CONFIG, HIDDEN, VOCAB, conversations, write_target
from safetensors.torch import save_file
from torch.nn import functional

from drafters.medusa import HeadsError, MedusaConfig, MedusaHeads, load, train
from drafters.medusa.checkpoint import export
from drafters.recordings import Conversation
from drafters.target import Target
from vllm_specx import medusa_heads
from vllm_specx.config import ConfigError

SIZES = MedusaConfig(hidden_size=HIDDEN, vocab_size=VOCAB, draft_vocab_size=VOCAB, num_heads=3)
TRAINING = train.TrainConfig(
    steps=60,
    batch=4,
    learning_rate=0.02,
    draft_vocab_size=VOCAB,
    seed=3,
    evaluate_every=30,
    checkpoint_every=30,
    num_heads=3,
    num_layers=1,
    token_input=False,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in one order
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(write_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def said(target: Target) -> list[Conversation]:
    return conversations(24, target.embeddings)


def random_heads(**sizes: Any) -> MedusaHeads:
    heads = MedusaHeads(dataclasses.replace(SIZES, **sizes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_(generator=generator)
    return heads.requires_grad_(False)


def published(heads: MedusaHeads) -> dict[str, torch.Tensor]:
    """The state dictionary of FasterDecoding's module with the same numbers."""
    tensors = {}
    for h in range(heads.config.num_heads):
        for layer in range(heads.config.num_layers):
            tensors[f"{h}.{layer}.linear.weight"] = heads.weight[layer][h].T.contiguous()
            tensors[f"{h}.{layer}.linear.bias"] = heads.bias[layer][h, 0].contiguous()
        tensors[f"{h}.{heads.config.num_layers}.weight"] = heads.output[h].T.contiguous()
    return tensors


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("token_input", [False, True])
def test_all_heads_in_one_product(num_layers: int, token_input: bool) -> None:
    heads = random_heads(num_layers=num_layers, token_input=token_input)
    hidden, embeds = torch.randn(5, HIDDEN), torch.randn(5, HIDDEN)
    output = torch.randn(VOCAB, HIDDEN)
    logits = heads.logits(heads.states(hidden, embeds, 2), output)
    assert logits.shape == (2, 5, VOCAB)
    for h in range(2):
        x = hidden
        for layer in range(num_layers):
            read = torch.cat([x, embeds], dim=-1) if token_input and layer == 0 else x
            x = x + functional.silu(read @ heads.weight[layer][h] + heads.bias[layer][h])
        torch.testing.assert_close(logits[h], x @ output.T, rtol=1e-4, atol=1e-4)


def test_our_format_goes_around(tmp_path: Path) -> None:
    heads = random_heads(draft_vocab_size=7, token_input=True).to(torch.bfloat16)
    ids = torch.arange(3, 10)
    export(heads, ids, tmp_path, {"target": {"hidden_size": HIDDEN}})
    again, again_ids = load(tmp_path)
    assert again.config == heads.config
    assert torch.equal(again_ids, ids)
    sizes, their_ids = load(tmp_path, "meta")  # what a start-up checks
    assert (sizes.config, their_ids.tolist()) == (heads.config, ids.tolist())
    assert all(value.is_meta for value in sizes.parameters())
    for (name, x), y in zip(heads.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("num_layers", [1, 2])
def test_published_layouts(tmp_path: Path, num_layers: int) -> None:
    heads = random_heads(has_output=True, num_layers=num_layers)
    tensors = published(heads)
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "folder").mkdir()
    save_file(tensors, tmp_path / "folder" / "medusa_lm_head.safetensors")
    blocks = {}
    for name, value in tensors.items():  # vLLM's names
        h, layer, *rest = name.split(".")
        blocks[f"blocks.{h}.layers.{layer}.{rest[-1]}" if len(rest) == 2 else f"lm_heads.{h}.weight"] = value
    save_file(blocks, tmp_path / "vllm.safetensors")
    hidden = torch.randn(4, HIDDEN)
    wanted = heads.logits(heads.states(hidden, None, 3), None)
    for path in (tmp_path / "medusa_lm_head.pt", tmp_path / "folder", tmp_path / "vllm.safetensors"):
        found, ids = load(path)
        assert ids is None
        assert found.config == load(path, "meta")[0].config == heads.config
        torch.testing.assert_close(found.logits(found.states(hidden, None, 3), None), wanted)


class Malicious:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(Path(os.environ["SPECX_TEST_CANARY"])),)


def test_a_malicious_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECX_TEST_CANARY", str(tmp_path / "canary"))
    path = tmp_path / "medusa_lm_head.pt"
    path.write_bytes(pickle.dumps({"0.0.linear.weight": Malicious()}))
    with pytest.raises(HeadsError, match="could run code is not loaded"):
        load(path)
    torch.save({"0.0.linear.weight": Malicious()}, path)
    for device in ("cpu", "meta"):
        with pytest.raises(HeadsError, match="could run code is not loaded"):
            load(path, device)
    assert not (tmp_path / "canary").exists()
    pickle.loads(pickle.dumps(Malicious()))
    assert (tmp_path / "canary").exists()


def test_files_that_hold_no_heads(tmp_path: Path) -> None:
    with pytest.raises(HeadsError, match="no such folder or file"):
        load(tmp_path / "nowhere")
    with pytest.raises(HeadsError, match=r"no \*\.safetensors"):
        load(tmp_path)
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(HeadsError, match="damaged"):
        load(path)
    save_file({"model.layers.0": torch.zeros(2)}, path)
    with pytest.raises(HeadsError, match=r"unknown tensor 'model.layers.0'"):
        load(path)
    tensors = published(random_heads(has_output=True))
    save_file({name: value for name, value in tensors.items() if name != "1.0.linear.bias"}, path)
    with pytest.raises(HeadsError, match="incomplete"):
        load(path)
    save_file({**tensors, "1.0.linear.bias": torch.zeros(HIDDEN + 1)}, path)
    with pytest.raises(HeadsError, match="different sizes"):
        load(path)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(HeadsError, match="not a dictionary of tensors"):
        load(tmp_path / "list.pt")


def test_our_format_damaged(tmp_path: Path) -> None:
    export(random_heads(), torch.arange(VOCAB), tmp_path, {})
    config = json.loads((tmp_path / "config.json").read_text())
    for change, said in (
        ({"num_heads": 2}, "are not those of its sizes"),
        ({"num_heads": 0}, "0 heads of 1 layers"),
        ({"draft_vocab_size": 3}, "ids are not 3 of the vocabulary"),
        ({"vocab_size": 3}, "ids are not"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(HeadsError, match=said):
            load(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(HeadsError, match=r"no usable config\.json"):
        load(tmp_path)


def engine(folder: Path, num_tokens: int = 3, **target: int) -> Any:
    """As much of a VllmConfig as is looked at."""
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_hidden_layers": 4} | target
    return SimpleNamespace(
        additional_config={"specx": {"medusa_heads": str(folder)} if folder.name else {}},
        model_config=SimpleNamespace(model="target", hf_text_config=SimpleNamespace(**sizes)),
        speculative_config=SimpleNamespace(num_speculative_tokens=num_tokens, model=medusa_heads.NAME),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
    )


def test_heads_that_do_not_fit(tmp_path: Path) -> None:
    export(random_heads(), torch.arange(VOCAB), tmp_path, {})
    medusa_heads.check(engine(tmp_path))
    medusa_heads.check(engine(tmp_path, 1))  # fewer draft tokens than heads
    for config, said in (
        (engine(tmp_path, 4), r"num_speculative_tokens must be within \[1, 3\], got 4"),
        (engine(tmp_path, hidden_size=32), "have hidden size 16, the target target has 32"),
        (engine(tmp_path, vocab_size=99), "have vocabulary 40, the target target has 99"),
        (engine(tmp_path / "none"), "no such folder or file"),
        (engine(Path()), "brings no Medusa heads for target .*`specx train medusa` makes one"),
    ):
        with pytest.raises(ConfigError, match=said):
            medusa_heads.check(config)
    two = engine(tmp_path)
    two.parallel_config.tensor_parallel_size = 2
    with pytest.raises(ConfigError, match="tensor_parallel_size must be 1, got 2"):
        medusa_heads.check(two)


class Stopped(Exception):
    pass


def run(
    target: Target,
    said: list[Conversation],
    folder: Path,
    config: train.TrainConfig = TRAINING,
    stop_at: int = 0,
) -> Any:
    state = train.load(folder, config, lambda text: None) or train.start(target, said[4:], config)

    def tell(what: str, step: int, steps: int, facts: dict[str, Any]) -> None:
        if step == stop_at:
            raise Stopped

    train.train(state, target, said[4:], said[:4], config, folder, tell)
    return state


@pytest.mark.parametrize("token_input", [False, True])
def test_it_learns_what_the_target_says(
    target: Target, said: list[Conversation], tmp_path: Path, token_input: bool
) -> None:
    config = dataclasses.replace(TRAINING, token_input=token_input, steps=400, evaluate_every=200)
    history = run(target, said, tmp_path, config).history
    assert [entry["step"] for entry in history] == [200, 400]
    assert len(history[-1]["acceptance"]) == 3
    assert history[-1]["acceptance"][0] > 0.4  # a walk that goes up by one; new heads are never right
    assert history[-1]["loss"][0] < history[0]["loss"][0]


def test_a_stopped_training_goes_on_to_the_same_heads(
    target: Target, said: list[Conversation], tmp_path: Path
) -> None:
    wanted = run(target, said, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(target, said, tmp_path / "parts", stop_at=45)
    got = run(target, said, tmp_path / "parts")
    assert got.history == wanted.history
    for (name, x), y in zip(wanted.head.state_dict().items(), got.head.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def test_new_heads_say_what_the_target_says_next(target: Target, said: list[Conversation]) -> None:
    state = train.start(target, said, TRAINING)
    hidden = torch.randn(3, HIDDEN)
    torch.testing.assert_close(state.head.states(hidden, None, 3), hidden.expand(3, -1, -1))
    assert CONFIG["vocab_size"] == len(state.ids)


def test_the_scale_of_the_training_goes_into_the_weights(target: Target, said: list[Conversation]) -> None:
    config = dataclasses.replace(TRAINING, token_input=True)
    heads = train.start(target, said, config).head
    assert (heads.scale != 1).any()
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_()
    hidden, embeds = torch.randn(5, HIDDEN), torch.randn(5, HIDDEN)
    wanted = heads.states(hidden, embeds, 3)
    torch.testing.assert_close(heads.folded().states(hidden, embeds, 3), wanted, rtol=1e-4, atol=1e-4)
