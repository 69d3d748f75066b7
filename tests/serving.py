"""`vllm serve` in its own processes, and HTTP requests to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from engines import SPECULATIVE

START_SECONDS = 240


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def arguments(model_dir: Path, options: dict[str, Any]) -> list[str]:
    """Of `vllm serve`, for our proposer with these options."""
    return [
        str(model_dir), "--served-model-name", "demo", "--dtype", "float32", "--enforce-eager",
        "--max-model-len", "512", "--max-num-seqs", "4",
        "--speculative-config", json.dumps(SPECULATIVE), "--additional-config", json.dumps({"specx": options}),
    ]  # fmt: skip


def command(arguments: list[str], port: int) -> list[str]:
    """`vllm serve` on a port of this machine."""
    vllm = str(Path(sys.executable).with_name("vllm"))
    return [vllm, "serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]


def environment(**more: str) -> dict[str, str]:
    # The layout of `vllm serve`: API server and engine core are processes of their own.
    return os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": "1"} | more


class Server:
    """`vllm serve` with these arguments; a context in which it is ready."""

    def __init__(self, arguments: list[str], log: Path, **variables: str) -> None:
        port = free_port()
        self.url, self.log = f"http://127.0.0.1:{port}", log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command(arguments, port),
                env=environment(**variables), stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Server:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=5):
                return self
            time.sleep(0.5)  # polling a process that has no other sign of being ready
        pytest.fail(f"no answer after {START_SECONDS} s:\n" + self.log.read_text()[-4000:])

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(timeout=60)

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return status and answer: of a good one its JSON, of others and streamed ones the text."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def complete(self, prompt: str, max_tokens: int, **options: Any) -> str:
        """Return what the model says."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | options
        status, answer = self.post("/v1/completions", body)
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    def metrics(self) -> dict[str, float]:
        """vLLM's metrics and ours; sums over all labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        sums: dict[str, float] = {}
        for line in lines:
            if line.startswith(("vllm:", "specx_")):
                name = line.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
        return sums


class Prometheus:
    """The real one, on a folder with a prometheus.yml; a context in which it is ready."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "log"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def __enter__(self) -> Prometheus:
        for _ in range(120):
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/-/ready", timeout=5):
                return self
            time.sleep(0.5)  # polling a process that has no other sign of being ready
        pytest.fail("Prometheus does not start:\n" + self.log.read_text()[-4000:])

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression is now, a sample per set of labels."""
        return list(self.get("query", query=expression)["result"])
