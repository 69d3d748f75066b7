"""Every recipe through vLLM's own parser; those of the demo model as far as an engine's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
DEMO = "HuggingFaceTB/SmolLM2-135M-Instruct"


def parsed(recipe: Path, *more: str) -> Any:
    return make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", str(recipe), *more])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_what_it_is_for_and_vllm_reads_it(recipe: Path) -> None:
    lines = recipe.read_text().splitlines()
    assert len(lines) < 60
    for word in ("For:", "Needs:", f"vllm serve --config recipes/{recipe.name}", "Override:"):
        assert any(line.startswith("#") and word in line for line in lines), word
    written = yaml.safe_load(recipe.read_text())
    args = parsed(recipe)
    assert args.speculative_config == written["speculative-config"]
    assert args.additional_config == written["additional-config"]
    assert args.model == written["model"]
    assert parsed(recipe, "--max-num-seqs", "16").max_num_seqs == 16  # its override


@pytest.mark.parametrize(
    "recipe",
    [path for path in RECIPES if yaml.safe_load(path.read_text())["model"] == DEMO],
    ids=lambda path: path.stem,
)
def test_a_recipe_of_the_demo_model_makes_a_configuration(recipe: Path, model_dir: Path) -> None:
    args = parsed(recipe, "--model", str(model_dir))
    config = EngineArgs.from_cli_args(args).create_engine_config()
    assert (
        config.speculative_config.num_speculative_tokens == args.speculative_config["num_speculative_tokens"]
    )
