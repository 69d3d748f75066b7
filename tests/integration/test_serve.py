"""`vllm serve` as operators run it: its own processes, options from the command line alone, requests over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from engines import SPECULATIVE, make_engine

START_SECONDS = 240


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(model_dir: Path, port: int, speculative: dict, options: dict) -> list[str]:
    return [
        str(Path(sys.executable).with_name("vllm")), "serve", str(model_dir), "--served-model-name", "demo",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
        "--max-model-len", "512", "--max-num-seqs", "4",
        "--speculative-config", json.dumps(speculative), "--additional-config", json.dumps({"specx": options}),
    ]  # fmt: skip


def environment() -> dict[str, str]:
    # The layout of `vllm serve`: API server and engine core are processes of their own.
    return {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


class Server:
    def __init__(self, model_dir: Path, log: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command(model_dir, port, SPECULATIVE, {"memory_bytes": 8 << 20}),
                env=environment(), stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)  # polling a process that has no other sign of being ready
        pytest.fail(f"no answer after {START_SECONDS} s:\n" + self.log.read_text()[-4000:])

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {
            line.partition("{")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("vllm:spec_decode_num")
        }


@pytest.fixture(scope="module")
def server(model_dir, tmp_path_factory):
    server = Server(model_dir, tmp_path_factory.mktemp("serve") / "log")
    try:
        server.wait()
        yield server
    finally:
        os.killpg(server.process.pid, signal.SIGTERM)
        server.process.wait(timeout=60)


def test_served_answers_equal_plain_decoding(server, model_dir):
    from vllm import SamplingParams

    # Of its own: test_sampling_engine.py has closed an engine, and that takes the shared ones along.
    plain = make_engine(model_dir)

    prompt = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\n" * 2
    answer = server.post(
        "/v1/completions", {"model": "demo", "prompt": prompt, "max_tokens": 48, "temperature": 0}
    )
    expected = plain.generate([prompt], SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
    assert answer["choices"][0]["text"] == expected[0].outputs[0].text
    metrics = server.metrics()
    assert metrics["vllm:spec_decode_num_accepted_tokens_total"] > 16


def test_bad_option_ends_the_start_with_the_reason(model_dir):
    result = subprocess.run(
        command(model_dir, free_port(), SPECULATIVE, {"memory_byts": 1}),
        env=environment(), capture_output=True, text=True, timeout=START_SECONDS, check=False,
    )  # fmt: skip
    assert result.returncode != 0
    assert "unknown option specx.memory_byts: did you mean 'memory_bytes'?" in result.stdout + result.stderr
