"""Recommended recipes through vLLM's own parser, as the recipes of the project."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from bench_documents import bench_document, save
from typer.testing import CliRunner
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_specx.cli.main import app


@pytest.mark.parametrize(
    "method", ["ngram", "suffix-tree", "suffix-tree:3", "eagle3", "eagle3-adaptive", "hybrid", None]
)
def test_vllm_reads_a_recommended_recipe(tmp_path: Path, model_dir: Path, method: str | None) -> None:
    speeds = {"ngram": 0.9} if method is None else {method: 1.4}
    bench = save(bench_document(speeds, model=str(model_dir), dtype="bfloat16"), tmp_path / "bench.json")
    out = tmp_path / "my.yaml"
    result = CliRunner().invoke(app, ["recommend", str(bench), "-o", str(out)])
    assert result.exit_code == 0, result.output
    written = yaml.safe_load(out.read_text())
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(
        ["--config", str(out), "--max-num-seqs", "16"]
    )
    assert (args.model, args.dtype, args.max_num_seqs) == (str(model_dir), "bfloat16", 16)
    assert args.speculative_config == written.get("speculative-config")
    assert ("additional-config" in written) == (method in ("suffix-tree", "suffix-tree:3", "hybrid"))
    speculative = EngineArgs.from_cli_args(args).create_engine_config().speculative_config
    if method is None:
        assert speculative is None
    else:
        assert speculative.num_speculative_tokens == args.speculative_config["num_speculative_tokens"]
