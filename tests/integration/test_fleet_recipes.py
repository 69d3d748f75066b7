"""The recipes of a fleet: through vLLM's parser, as Ray Serve would build them, and on a real Serve if there is one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from ray_cluster import running
from serving import START_SECONDS, Server, free_port
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


class Serve(Server):
    """`serve run` with a configuration; a context in which its application answers."""

    def __init__(self, config: dict[str, Any], address: str, folder: Path) -> None:
        port, path = free_port(), folder / "serve.yaml"
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "log"
        path.write_text(yaml.safe_dump(config | {"http_options": {"host": "127.0.0.1", "port": port}}))
        command = [str(Path(sys.executable).with_name("serve")), "run", str(path), "--address", address]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def until(self, holds: Callable[[dict[str, float]], bool]) -> None:
        """Wait until something holds of the metrics of a replica."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            with suppress(OSError):
                if holds(self.metrics()):
                    return
            time.sleep(0.5)  # other processes are at work


def hosted() -> list[psutil.Process]:
    """The servers that replicas host."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if {"serve", str(FOLDER / "replica.yaml")} <= set(process.info["cmdline"] or [])
    ]


def test_serve_on_cpus_for_real(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests reach an engine and come back, streamed too; a new one for one that died starts with what is known."""
    pytest.importorskip("grpc_reflection", reason="ray[serve] is not installed")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # replicas inherit what the head has
    config = options("serve-cpu.yaml")
    config["applications"][0]["args"]["model"] = str(model_dir)
    (deployment,) = config["applications"][0]["deployments"]
    with (
        running(deployment["ray_actor_options"]["num_cpus"]) as cluster,
        Serve(config, cluster.address, tmp_path) as server,
    ):
        body = {"model": "chat", "prompt": "1, 2, 3, 4, 5, 6, 7, 8,", "max_tokens": 24, "temperature": 0}
        status, answer = server.post("/v1/completions", body)
        assert status == 200
        said = answer["choices"][0]["text"]
        assert "9, 10, 11" in said
        status, _ = server.post("/v1/completions", body | {"model": "another"})
        assert status == 404  # vLLM's own answer
        server.until(lambda now: now["specx_fleet_joined"] == 1 and now["specx_fleet_pushed_texts_total"] > 0)
        (old,) = hosted()
        children = old.children(recursive=True)
        old.kill()
        server.until(lambda now: now["specx_fleet_joined"] == 1 and now["specx_fleet_pulled_texts_total"] > 0)
        assert old not in hosted()
        psutil.wait_procs(children, timeout=30)
        assert not [child for child in children if child.is_running()]
        status, answer = server.post("/v1/completions", body)
        assert (status, answer["choices"][0]["text"]) == (200, said)
        assert server.metrics()["specx_memory_hits_total"] > 0
        request = urllib.request.Request(
            f"{server.url}/v1/completions",
            json.dumps(body | {"stream": True}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as stream:
            *chunks, last = [line[6:] for line in stream.read().decode().splitlines() if line]
        assert last == "[DONE]"
        assert len(chunks) > 1
        assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == said
    assert not hosted()
