"""Which head a name means, and the heads that are refused before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from heads import CONFIG, HIDDEN, LAYERS, VOCAB

from drafters.eagle3.export import export
from drafters.eagle3.model import Eagle3Config, Eagle3Head
from vllm_specx import heads as subject
from vllm_specx.config import ConfigError
from vllm_specx.heads import ADAPTIVE, HYBRID, check_head, find_head, split_name


def target(**changes: Any) -> Any:
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_hidden_layers": 4} | changes
    return SimpleNamespace(model="some/model", hf_text_config=SimpleNamespace(**sizes))


@pytest.fixture
def head(tmp_path: Path) -> Path:
    made = Eagle3Head(Eagle3Config.of(CONFIG, 20, LAYERS))
    export(made, torch.arange(0, 40, 2), tmp_path / "head")
    return tmp_path / "head"


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (ADAPTIVE, (ADAPTIVE, "")),
        (f"{HYBRID}:/a/b:c", (HYBRID, "/a/b:c")),
        ("vllm_specx.SuffixTreeProposer", None),
        ("/a/folder", None),
        (None, None),
    ],
)
def test_names(model: Any, named: Any) -> None:
    assert split_name(model) == named


def test_a_head_that_fits(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_head(ADAPTIVE, str(head), target(), 8) == str(head)
    assert find_head(ADAPTIVE, "somebody/on-the-hub", target()) == "somebody/on-the-hub"
    monkeypatch.setattr(subject, "BUNDLED", head.parent)
    assert find_head(ADAPTIVE, "", target()) == str(head)
    with pytest.raises(
        ConfigError, match=r"no EAGLE-3 head for some/model .*\[17, 40, 4\].*specx train eagle3"
    ):
        find_head(ADAPTIVE, "", target(hidden_size=17))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32}, r"hidden size 16, the target some/model has 32"),
        ({"vocab_size": 41}, r"vocabulary 40, the target some/model has 41"),
        ({"num_hidden_layers": 2}, r"reads layers \[3\], the target some/model has 2 layers"),
    ],
)
def test_a_head_of_another_target(head: Path, changes: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_head(head, target(**changes))


@pytest.mark.parametrize("num_tokens", [0, -1, 129])
def test_more_draft_tokens_than_can_be_verified(head: Path, num_tokens: int) -> None:
    with pytest.raises(ConfigError, match=rf"within \[1, 128\].* got {num_tokens}"):
        check_head(head, target(), num_tokens)


def test_more_draft_tokens_than_the_head_has_positions(head: Path) -> None:
    config = json.loads((head / "config.json").read_text()) | {"max_position_embeddings": 10}
    (head / "config.json").write_text(json.dumps(config))
    check_head(head, target(), 8)
    with pytest.raises(ConfigError, match=r"within \[1, 8\].*the head has 10 positions"):
        check_head(head, target(), 9)


def test_damaged_heads(head: Path) -> None:
    weights = head / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged"):
        check_head(head, target())
    weights.write_bytes(b"PK\3\4 not what it should be")
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged"):
        check_head(head, target())
    weights.unlink()
    with pytest.raises(ConfigError, match="no weights"):
        check_head(head, target())
    (head / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="is not an object"):
        check_head(head, target())
    (head / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"no readable config\.json"):
        check_head(head, target())


def test_what_is_no_eagle3_head(head: Path) -> None:
    from safetensors.torch import save_file

    save_file({"lm_head.weight": torch.zeros(2, 2)}, head / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no tensor fc\.weight"):
        check_head(head, target())
    config = json.loads((head / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"]}
    (head / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="name no EAGLE-3 head"):
        check_head(head, target())
