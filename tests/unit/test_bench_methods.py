"""What the methods tell vLLM, which ones are left out, and how draft memory is cleared."""

import pytest

from vllm_specx.bench import methods as subject
from vllm_specx.bench.engine import clear_draft_memory
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.methods import DEFAULT, METHODS, Method, choose, engine_options
from vllm_specx.bench.runner import rotation
from vllm_specx.bench.settings import BenchSettings


def settings(tmp_path, **more):
    return BenchSettings(model="m", prompts={"w": tmp_path}, **more)


def test_default_methods_are_the_known_ones(tmp_path):
    assert settings(tmp_path).methods == DEFAULT


def test_options_for_vllm(tmp_path):
    given = settings(tmp_path, num_speculative_tokens=7, specx_options={"alpha": 0.1})
    assert engine_options("none", given) == {}
    assert engine_options("ngram", given)["speculative_config"]["num_speculative_tokens"] == 5
    assert engine_options("suffix-tree", given) == {
        "speculative_config": {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 7},
        "additional_config": {"specx": {"alpha": 0.1}},
    }
    both = engine_options("suffix-tree+lookahead", given)
    assert both["additional_config"]["specx"] == {"alpha": 0.1, "drafters": ["suffix_tree", "lookahead"]}
    assert METHODS["suffix-tree"].speculative_config["num_speculative_tokens"] == 16


def test_baseline_is_always_first():
    assert choose(["ngram"]).methods == ("none", "ngram")
    assert choose(["ngram", "none"]).methods == ("none", "ngram")


def test_unknown_method_names_the_closest_and_all():
    with pytest.raises(
        BenchError, match=r"'ngarm' is not known, did you mean 'ngram'\?; allowed: none, ngram"
    ):
        choose(["none", "ngarm"])


def test_method_without_its_package_is_left_out_with_the_reason(monkeypatch):
    absent = Method("x", {}, needs=("surely_not_installed.part",), hint="install it")
    monkeypatch.setitem(subject.METHODS, "absent", absent)
    choice = choose(["none", "absent", "ngram"])
    assert choice.methods == ("none", "ngram")
    assert "surely_not_installed" in choice.left_out["absent"]
    assert "install it" in choice.left_out["absent"]


def test_rotation_gives_each_method_each_place():
    names = ["a", "b", "c"]
    orders = [rotation(names, turn) for turn in range(3)]
    for name in names:
        assert sorted(order.index(name) for order in orders) == [0, 1, 2]
    assert rotation(names, 3) == names


class Cache:
    def __init__(self, max_tree_depth, max_cached_requests):
        self.max_tree_depth, self.max_cached_requests = max_tree_depth, max_cached_requests


class Arctic:
    def __init__(self):
        self.suffix_cache = Cache(max_tree_depth=24, max_cached_requests=10000)


class Ours:
    cleared = 0

    def reset_memory(self):
        self.cleared += 1


def test_draft_memory_is_cleared():
    arctic, ours = Arctic(), Ours()
    before = arctic.suffix_cache
    clear_draft_memory(arctic)
    assert arctic.suffix_cache is not before
    assert vars(arctic.suffix_cache) == vars(before)
    clear_draft_memory(ours)
    assert ours.cleared == 1
    clear_draft_memory(None)
    clear_draft_memory(object())
