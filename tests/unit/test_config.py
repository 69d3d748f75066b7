"""The options: types, ranges, combinations without effect, and the memory file's place."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from vllm_specx import plugin
from vllm_specx.config import ConfigError, SpecxConfig, check_memory_path
from vllm_specx.fleet.options import FleetConfig


def test_defaults():
    options = SpecxConfig.from_mapping(None)
    assert options == SpecxConfig()
    assert (options.memory_ttl_s, options.memory_path, options.autosave_s) == (0.0, "", 0.0)


def test_everything_set():
    given = {"memory_ttl_s": 3600, "memory_path": "/m/f", "autosave_s": 0.5, "memory_bytes": 1 << 20}
    options = SpecxConfig.from_mapping(given)
    assert all(getattr(options, name) == value for name, value in given.items())


def test_a_fleet():
    options = SpecxConfig.from_mapping({"fleet": {"address": "auto", "name": "chat", "required": True}})
    assert options.fleet is not None
    assert (options.fleet.name, options.fleet.required, options.fleet.shards) == ("chat", True, 1)
    assert SpecxConfig.from_mapping({"fleet": options.fleet}) == options
    assert SpecxConfig().fleet is None
    options.check_proposer("vllm_specx.SuffixTreeProposer")
    options.check_proposer("vllm_specx.HybridProposer")


def test_every_option_of_a_fleet_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    assert [f.name for f in fields(FleetConfig) if f"| `{f.name}` |" not in page] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_pth": "f"}, ["specx.memory_pth", "did you mean 'memory_path'"]),
        ({"memory_path": 3}, ["specx.memory_path", "text", "3"]),
        ({"memory_path": None}, ["specx.memory_path", "text", "None"]),
        ({"memory_path": "a\0b"}, ["specx.memory_path", "text"]),
        ({"memory_ttl_s": -1}, ["specx.memory_ttl_s", "within [0.0", "-1"]),
        ({"memory_ttl_s": "1h"}, ["specx.memory_ttl_s", "a number", "1h"]),
        ({"memory_ttl_s": float("nan")}, ["specx.memory_ttl_s", "within"]),
        ({"memory_path": "f", "autosave_s": float("inf")}, ["specx.autosave_s", "within"]),
        ({"memory_path": "f", "autosave_s": True}, ["specx.autosave_s", "a number"]),
        ({"autosave_s": 5}, ["specx.autosave_s needs specx.memory_path"]),
        ({"shared": False, "memory_path": "f"}, ["specx.memory_path has no effect", "shared false"]),
        ({"shared": False, "memory_ttl_s": 5}, ["specx.memory_ttl_s has no effect"]),
        ({"shared": False, "memory_bytes": 1 << 20}, ["specx.memory_bytes has no effect"]),
        ({"costs": 3}, ["specx.costs", "text"]),
        ({"costs": "f", "alpha": 0.1}, ["specx.costs and specx.alpha", "remove one"]),
        ({"adaptive": "yes"}, ["specx.adaptive", "true or false"]),
        ({"adaptive": True, "max_draft_share": 1.5}, ["specx.max_draft_share", "within [0.0, 1.0]"]),
        ({"adaptive": True, "alpha": 0.1}, ["specx.alpha has no effect with specx.adaptive"]),
        ({"adaptive": True, "shared": False}, ["specx.shared has no effect with specx.adaptive"]),
        (
            {"drafters": ["lookahead"]},
            ["specx.drafters must be ['suffix_tree'] or ['suffix_tree', 'lookahead']"],
        ),
        ({"drafters": "suffix_tree"}, ["specx.drafters must be", "'suffix_tree'"]),
        ({"lookahead_window": 0}, ["specx.lookahead_window", "within [1, 128]", "0"]),
        ({"lookahead_ngram": 1}, ["specx.lookahead_ngram", "within [2, 16]"]),
        ({"lookahead_ngram": 10**12}, ["specx.lookahead_ngram", "within [2, 16]"]),
        ({"lookahead_candidates": 0}, ["specx.lookahead_candidates", "within [1, 64]"]),
        ({"lookahead_shared": "yes"}, ["specx.lookahead_shared", "true or false"]),
        (
            {"hybrid": True, "drafters": ["suffix_tree", "lookahead"]},
            ["specx.hybrid", "remove specx.drafters"],
        ),
        ({"fleet": "auto"}, ["specx.fleet must be a mapping", "'auto'"]),
        ({"fleet": {"adress": "auto"}}, ["specx.fleet.adress", "did you mean 'address'"]),
        ({"fleet": {"address": ""}}, ["specx.fleet.address must not be empty"]),
        ({"fleet": {"name": "a/b"}}, ["specx.fleet.name", "'a/b'"]),
        ({"fleet": {"required": 1}}, ["specx.fleet.required", "true or false"]),
        ({"fleet": {"shards": 0}}, ["specx.fleet.shards", "within [1, 64]"]),
        ({"fleet": {"bytes": 1000}}, ["specx.fleet.bytes", "within [1048576"]),
        ({"fleet": {"sync_interval_s": 0}}, ["specx.fleet.sync_interval_s", "within [0.05, 60.0]"]),
        ({"fleet": {"snapshot_path": 3}}, ["specx.fleet.snapshot_path", "text"]),
        ({"fleet": {}, "shared": False}, ["specx.fleet has no effect", "shared false"]),
        ({"fleet": {}, "adaptive": True}, ["specx.fleet has no effect with specx.adaptive"]),
    ],
    ids=str,
)
def test_bad_options(options, words):
    with pytest.raises(ConfigError) as error:
        SpecxConfig.from_mapping(options)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("SuffixTreeProposer", {"lookahead_ngram": 4}, ["unless specx.drafters names lookahead"]),
        ("SuffixTreeProposer", {"medusa_heads": "f"}, ["specx.medusa_heads has no effect"]),
        ("LookaheadProposer", {"memory_bytes": 1 << 20}, ["specx.memory_bytes has no effect"]),
        ("LookaheadProposer", {"drafters": ["suffix_tree", "lookahead"]}, ["specx.drafters has no effect"]),
        ("MedusaProposer", {"alpha": 0.1}, ["specx.alpha has no effect with vllm_specx.MedusaProposer"]),
        ("LookaheadProposer", {"fleet": {}}, ["specx.fleet has no effect"]),
        ("HybridProposer", {"lookahead_prompt": True}, ["specx.lookahead_prompt has no effect"]),
    ],
    ids=str,
)
def test_options_of_another_proposer(model, options, words):
    with pytest.raises(ConfigError) as error:
        SpecxConfig.from_mapping(options).check_proposer(f"vllm_specx.{model}")
    for word in words:
        assert word in str(error.value)


def test_options_of_the_proposer_at_work():
    both = {"drafters": ["suffix_tree", "lookahead"], "lookahead_ngram": 4, "memory_bytes": 1 << 20}
    SpecxConfig.from_mapping(both).check_proposer("vllm_specx.SuffixTreeProposer")
    SpecxConfig.from_mapping({"lookahead_shared": True, "alpha": 0.1}).check_proposer(
        "vllm_specx.LookaheadProposer"
    )
    SpecxConfig.from_mapping({"medusa_heads": "f", "costs": "t"}).check_proposer("vllm_specx.MedusaProposer")


def test_memory_path(tmp_path, monkeypatch):
    assert check_memory_path(tmp_path / "f") == tmp_path / "f"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_memory_path("f") == check_memory_path("~/f") == tmp_path / "f"


def test_memory_path_that_cannot_be_used(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"memory_path .*no/f': the folder .*/no does not exist"):
        check_memory_path(tmp_path / "no" / "f")
    with pytest.raises(ConfigError, match="is a folder, not a file"):
        check_memory_path(tmp_path)
    (tmp_path / "f").touch()
    with pytest.raises(ConfigError, match=r"the folder .*/f does not exist"):
        check_memory_path(tmp_path / "f" / "g")
    # As root, for whom nothing is forbidden, by another way.
    monkeypatch.setattr("os.access", lambda path, mode: path == tmp_path)
    with pytest.raises(ConfigError, match="the file cannot be read"):
        check_memory_path(tmp_path / "f")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="cannot be written"):
        check_memory_path(tmp_path / "f")


def vllm_config(path, **parallel):
    return SimpleNamespace(
        additional_config={"specx": {"memory_path": str(path)}},
        speculative_config=SimpleNamespace(
            method="custom_class",
            model="vllm_specx.SuffixTreeProposer",
            num_speculative_tokens=4,
            num_speculative_tokens_per_batch_size=None,
            rejection_sample_method="standard",
        ),
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=False),
        use_v2_model_runner=False,
        parallel_config=SimpleNamespace(nnodes=1, distributed_executor_backend=None, **parallel),
        model_config=None,
    )


def test_the_folder_is_checked_where_the_worker_sees_it(tmp_path):
    config = vllm_config(tmp_path / "no" / "f")
    with pytest.raises(ConfigError, match="does not exist"):
        plugin.check_config(config)
    config.parallel_config.nnodes = 2
    plugin.check_config(config)
    config.parallel_config.nnodes, config.parallel_config.distributed_executor_backend = 1, "ray"
    plugin.check_config(config)


def test_an_engine_with_a_memory_file_gets_time_to_save(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("vllm_specx._compat.open_window", opened.append)
    plugin.complete_config(vllm_config(""))
    assert opened == []
    plugin.complete_config(vllm_config(tmp_path / "f"))
    assert opened == [plugin.SHUTDOWN_SECONDS]
