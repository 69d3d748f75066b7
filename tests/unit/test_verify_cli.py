"""`specx verify`: every wrong value is one line on stderr and exit code 2, before an engine is started."""

from __future__ import annotations

import json

import pytest
from stand_ins import complaint
from typer.testing import CliRunner

from vllm_specx.cli.main import app
from vllm_specx.heads import BUNDLED
from vllm_specx.verify import run
from vllm_specx.verify.plan import make_plan
from vllm_specx.verify.settings import VerifySettings, built_in_prompts

RECIPE = """
model: somebody/else
max-model-len: 512
max-num-seqs: 3
swap-space: 1
speculative-config: {model: vllm_specx.SuffixTreeProposer, num_speculative_tokens: 5}
additional-config: {other: 1, specx: {memory_path: kept, autosave_s: 5, memory_bytes: 2000000, fleet: {name: f}}}
"""


def specx(*arguments):
    return CliRunner().invoke(app, ["verify", "--model", "m", *map(str, arguments)])


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("an engine was started for bad input")

    monkeypatch.setattr(run, "VerifyWorker", refuse)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "sufix-tree"], "did you mean 'suffix-tree'?"),
        (["--methods", "none"], "--methods 'none' is not known"),
        (["--methods", ","], "--methods needs at least one value"),
        (["--lengths", "4,x"], "--lengths '4,x' must be whole numbers"),
        (["--lengths", "0"], "--lengths must be at least 1, got 0"),
        (["--lengths", "129"], "--lengths must be at most 128"),
        (["--batch", "8,8"], "--batch names a value twice"),
        (["--dtype", "float16"], "allowed: float32, bfloat16"),
        (["--epsilon", "nan"], "--epsilon must be within [0, 5], got nan"),
        (["--num-prompts", "-1"], "--num-prompts must be at least 0"),
        (["--num-prompts", "0", "--samples", "0"], "leave nothing to verify"),
        (["--temperature", "0.6,warm"], "--temperature '0.6,warm' must be numbers"),
        (["--temperature", "0"], "--temperature must be within [0.1, 2], got 0"),
        (["--top-p", "1.5"], "--top-p must be within [0.01, 1], got 1.5"),
        (["--top-k", "20"], "--top-k must be within [2, 19], got 20"),
        (["--json", "/no/such/out.json"], "the folder /no/such does not exist"),
        (["--config", "no-such-recipe"], "unknown recipe 'no-such-recipe'"),
        (["--config", "x.yaml", "--methods", "medusa"], "--methods has no effect with --config"),
        (["--config", "x.yaml", "--lengths", "4"], "--lengths has no effect with --config"),
        ([], "--model 'm' cannot be loaded"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_options(options, said):
    assert said in complaint(specx(*options))


def test_a_recipe_that_does_not_speculate(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("model: m\n")
    assert "there is nothing to verify" in complaint(specx("--config", path))


def test_a_recipe_keeps_what_it_says_and_touches_nothing_of_the_users(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(RECIPE)
    plan = make_plan(VerifySettings(model="m", prompts=built_in_prompts(), config=str(path)))
    assert plan.max_model_len == 512
    assert plan.shared == {"swap_space": 1, "additional_config": {"other": 1}}
    assert plan.greedy == plan.sampled
    (candidate,) = plan.greedy
    assert (candidate.n, candidate.is_fixed) == (5, False)
    assert candidate.options == {
        "swap_space": 1,
        "speculative_config": {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 5},
        "additional_config": {"other": 1, "specx": {"memory_bytes": 2000000}},
    }


def test_as_far_as_the_drafter_goes(tmp_path):
    """Medusa has four heads; and a target that no head fits is told so by name."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 9}
    sizes = {"hidden_size": 576, "vocab_size": 49152, "num_hidden_layers": 30}
    settings = VerifySettings(
        model=write(tmp_path, config | sizes),
        prompts=built_in_prompts(),
        methods=("suffix-tree", "medusa"),
        lengths=(4, 16),
        samples=0,
    )
    plan = make_plan(settings)
    assert [c.name for c in plan.greedy] == ["suffix-tree, N=4", "suffix-tree, N=16", "medusa, N=4"]
    assert plan.sampled == []
    assert list(plan.left_out) == ["medusa, N=16"]
    assert "within [1, 4], got 16" in plan.left_out["medusa, N=16"]

    model = write(tmp_path, config | sizes | {"num_hidden_layers": 6})
    line = complaint(specx("--model", model, "--methods", "medusa,hybrid"))
    assert "nothing can be verified: medusa, N=4: vllm-specx brings no Medusa heads for" in line
    assert "hybrid, N=2: vllm-specx brings no EAGLE-3 head for" in line


def test_medusa_heads_of_ones_own(tmp_path):
    """They go to the method with heads, and to no other; what is no heads is refused before an engine starts."""
    sizes = {"hidden_size": 576, "vocab_size": 49152, "num_hidden_layers": 30, "num_attention_heads": 9}
    model = write(tmp_path, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | sizes)

    def plan(heads):
        return make_plan(
            VerifySettings(
                model=model,
                prompts=built_in_prompts(),
                methods=("suffix-tree", "medusa"),
                num_prompts=0,
                medusa_heads=str(heads),
            )
        )

    heads = BUNDLED / "smollm2-135m-medusa"
    tree, medusa = plan(heads).sampled
    assert tree.options["additional_config"] == {"specx": {}}
    assert medusa.options["additional_config"] == {"specx": {"medusa_heads": str(heads)}}
    assert "no such folder" in plan(tmp_path / "none").left_out["medusa, N=2"]


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
