"""A very small verification by real engines, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import scripts
from sampling_laws import ALPHA
from typer.testing import CliRunner

from vllm_specx.cli.main import app
from vllm_specx.verify import run_verify

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sampled_law.py"
SAMPLES = 1000  # with which the broken sampler is told apart


def specx(model_dir, out, *arguments) -> tuple[str, dict]:
    common = ["verify", "--model", model_dir, "--tokens", 16, "--batch", 4, "--max-model-len", 512]
    arguments = [*common, "--kv-cache-gib", 1, "--json", out, *arguments]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(out.read_text())


@pytest.fixture(scope="module")
def run(model_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("verify") / "out.json"
    options = ["--methods", "suffix-tree", "--lengths", 4, "--num-prompts", 6]
    return specx(model_dir, out, *options, "--samples", SAMPLES, "--temperature", "1.0")


def test_greedy_outputs_are_the_same_and_were_drafted(run):
    printed, document = run
    assert "verdict: nothing wrong; 6 outputs and" in printed
    assert (document["complete"], document["verdict"]) == (True, "ok")
    (cell,) = (cell for cell in document["cells"] if cell["part"] == "greedy")
    assert (cell["method"], cell["n"], cell["batch"], cell["verdict"]) == ("suffix-tree", 4, 4, "ok")
    assert (cell["identical"] + cell["ties"], cell["wrong"], cell["tokens"]) == (6, 0, 96)
    # Whole drafts, whatever they promise.
    assert cell["num_draft_tokens"] > 3 * cell["num_drafts"] > 0
    assert 0 < cell["num_accepted_tokens"] < cell["num_draft_tokens"]
    assert cell["faults"] == 0


def test_samples_follow_the_law_and_a_broken_sampler_does_not(run):
    _, document = run
    plain, cell = (cell for cell in document["cells"] if cell["part"] == "sampled")
    assert (plain["method"], plain["num_draft_tokens"]) == ("none", 0)
    assert plain["verdict"] == cell["verdict"] == "ok"
    assert cell["samples"] == cell["broken_samples"] == SAMPLES
    assert min(plain["p_value"], cell["p_value"], cell["p_value_against_plain"]) > ALPHA
    assert cell["broken_p_value"] < ALPHA
    # Both lengths, and so tokens after drafts that were accepted as a whole.
    assert cell["num_drafts"] < cell["num_draft_tokens"] < 2 * cell["num_drafts"]


def test_a_recipe_as_it_is(model_dir, tmp_path):
    printed, document = specx(
        model_dir, tmp_path / "out.json", "--config", "medusa", "--num-prompts", 3, "--samples", 0
    )
    (cell,) = document["cells"]
    assert (cell["method"], cell["n"], cell["wrong"]) == ("recipe", 4, 0)
    assert cell["num_draft_tokens"] > 0
    assert "the recipe as it is" in printed


def test_medusas_samples_on_a_small_target(tmp_path):
    """benchmarks/sampled_law.py with few samples: heads that it trains, some of whose drafts are right."""
    sampled_law = scripts.load(SCRIPT)
    folders = sampled_law.make_target(tmp_path)
    settings = sampled_law.settings_of(
        folders, methods=("medusa",), samples=SAMPLES, temperature=(0.6,), kv_cache_gib=1
    )
    document = run_verify(settings, {}, lambda *news: None)
    plain, cell = document["cells"]
    assert (document["verdict"], plain["verdict"], cell["verdict"]) == ("ok", "ok", "ok")
    assert min(plain["p_value"], cell["p_value"], cell["p_value_against_plain"]) > ALPHA
    assert cell["broken_p_value"] < ALPHA
    assert cell["num_drafts"] < cell["num_draft_tokens"] < 2 * cell["num_drafts"]
    assert 0 < cell["num_accepted_tokens"] < cell["num_draft_tokens"]
    assert cell["faults"] == 0
