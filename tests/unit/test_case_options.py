"""Faults of other engines, tried on configurations: options that are accepted and ignored, and targets to warn of.

The numbers are those of docs/trust.md.
"""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vllm_specx
from vllm_specx import plugin
from vllm_specx.config import ConfigError, SpecxConfig

PACKAGE = Path(vllm_specx.__file__).parent

# How each kind of drafting is asked for: proposer (none: vLLM's own drafter), and options that go with it.
MODES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "suffix tree": ("SuffixTreeProposer", {}),
    "with lookahead": ("SuffixTreeProposer", {"drafters": ["suffix_tree", "lookahead"]}),
    "lookahead": ("LookaheadProposer", {}),
    "medusa": ("MedusaProposer", {}),
    "hybrid": ("HybridProposer", {"hybrid": True}),
    "adaptive": (None, {"adaptive": True}),
}
# These say what drafts; what they do not go with is refused by the plug-in, which sees the proposer, too.
CHOICES = {"adaptive", "hybrid"}
TREES = {"suffix tree", "with lookahead", "hybrid"}
LOOKAHEAD = {"with lookahead", "lookahead"}
# A value that is not the default, and with what it has an effect. A new option wants a line here.
OPTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "shared": ({"shared": False}, TREES),
    "memory_bytes": ({"memory_bytes": 1 << 21}, TREES),
    "memory_ttl_s": ({"memory_ttl_s": 9.0}, TREES),
    "memory_path": ({"memory_path": "file"}, TREES),
    "autosave_s": ({"autosave_s": 9.0, "memory_path": "file"}, TREES),
    "fleet": ({"fleet": {}}, TREES),
    "alpha": ({"alpha": 0.1}, {"suffix tree", *LOOKAHEAD}),
    "costs": ({"costs": "table"}, set(MODES)),
    "max_draft_share": ({"max_draft_share": 0.1}, set(MODES)),
    "drafters": ({"drafters": ["suffix_tree", "lookahead"]}, {"suffix tree", "with lookahead"}),
    "lookahead_window": ({"lookahead_window": 9}, LOOKAHEAD),
    "lookahead_ngram": ({"lookahead_ngram": 4}, LOOKAHEAD),
    "lookahead_candidates": ({"lookahead_candidates": 4}, LOOKAHEAD),
    "lookahead_shared": ({"lookahead_shared": True}, LOOKAHEAD),
    "lookahead_prompt": ({"lookahead_prompt": True}, LOOKAHEAD),
    "medusa_heads": ({"medusa_heads": "folder"}, {"medusa"}),
}


def is_taken(mode: str, given: dict[str, Any]) -> bool:
    model, options = MODES[mode]
    if model is None:
        model = "some/head"
    try:
        SpecxConfig.from_mapping(options | given).check_proposer(f"vllm_specx.{model}")
    except ConfigError:
        return False
    return True


def test_24_every_option_is_known_here() -> None:
    assert OPTIONS.keys() | CHOICES == {f.name for f in fields(SpecxConfig)}


@pytest.mark.parametrize("option", OPTIONS)
def test_24_an_option_has_an_effect_or_is_refused(option: str) -> None:
    given, used = OPTIONS[option]
    assert {mode for mode in MODES if is_taken(mode, given)} == used


def test_24_every_option_is_read() -> None:
    """Somewhere outside the module that declares it."""
    read = {
        node.attr
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "config.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert {*OPTIONS} | CHOICES <= read


@pytest.mark.parametrize(("is_hybrid", "num_lines"), [(True, 1), (False, 0)])
def test_8_a_target_with_recurrent_states_is_warned_of(
    is_hybrid: bool, num_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = pytest.importorskip("vllm.logger")
    lines: list[str] = []
    monkeypatch.setattr(logger, "init_logger", lambda name: SimpleNamespace(warning_once=lines.append))
    plugin.complete_config(
        SimpleNamespace(
            additional_config={},
            instance_id="test-hybrid-target",
            model_config=SimpleNamespace(is_hybrid=is_hybrid, served_model_name="m"),
            parallel_config=SimpleNamespace(worker_extension_cls=""),
            scheduler_config=SimpleNamespace(scheduler_cls=None),
            speculative_config=SimpleNamespace(
                method="custom_class",
                model="vllm_specx.SuffixTreeProposer",
                num_speculative_tokens_per_batch_size=None,
            ),
        )
    )
    assert len(lines) == num_lines
    assert all("Mamba" in line for line in lines)
