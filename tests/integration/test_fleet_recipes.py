"""The recipes of a fleet: through vLLM's parser, and as Ray Serve would build them."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_specx.config import SpecxConfig

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes" / "fleet"


def options(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_says_what_it_is_for(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 60
    for word in ("For:", "Needs:", "Run:", f"recipes/fleet/{path.name}", "Override:"):
        assert any(line.startswith("#") and word in line for line in lines), word


def test_a_plain_replica(model_dir: Path) -> None:
    path = str(FOLDER / "replica.yaml")
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", path, "--model", str(model_dir)])
    config = EngineArgs.from_cli_args(args).create_engine_config()
    fleet = SpecxConfig.from_vllm(config).fleet
    assert fleet is not None
    assert (fleet.name, fleet.required, config.model_config.served_model_name) == ("chat", False, "chat")


def test_serve_llm() -> None:
    (app,) = options("serve-llm.yaml")["applications"]
    (llm,) = app["args"]["llm_configs"]
    assert llm["engine_kwargs"].keys() <= {f.name for f in fields(EngineArgs)}
    fleet = SpecxConfig.from_mapping(llm["engine_kwargs"]["additional_config"]["specx"]).fleet
    assert fleet is not None
    assert fleet.snapshot_path.startswith("s3://")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # Ray's own
def test_serve_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc_reflection", reason="of ray[serve]")
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    from ray.serve.schema import ServeDeploySchema

    (app,) = ServeDeploySchema.model_validate(options("serve-cpu.yaml")).applications
    module, _, name = app.import_path.partition(":")
    __import__(module)
    made = getattr(sys.modules[module], name)(app.args)
    (command,) = made._bound_deployment.init_args
    assert command[1:] == ["serve", "--config", str(FOLDER / "replica.yaml")]
    assert [d.name for d in app.deployments] == [made._bound_deployment.name]
