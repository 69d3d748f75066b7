"""kill -9 of each process of `vllm serve`: memory is on disk and in order, the port is free, the next one starts.

One server after the other, on one port and one memory file.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import serving
from serving import Server, arguments, free_port

from drafters import memory_file
from vllm_specx.memory.vocabulary import fingerprint_of

PROMPT = "Write the numbers from one to twenty in words, separated by commas:\n"
END_SECONDS = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def fingerprint(model_dir: Path) -> str:
    from transformers import AutoTokenizer

    return fingerprint_of(AutoTokenizer.from_pretrained(str(model_dir)).get_vocab())


def start(model_dir: Path, place: Path, port: int, log: str) -> Server:
    options = {"memory_bytes": 8 << 20, "memory_path": str(place / "memory"), "autosave_s": 0.1}
    # A worker of its own process, as several ranks have.
    more = ["--distributed-executor-backend", "mp"]
    with mock.patch.object(serving, "free_port", return_value=port):
        return Server([*arguments(model_dir, options), *more], place / log, VLLM_LOGGING_LEVEL="INFO")


def processes(server: Server) -> dict[str, int]:
    """The processes of a server by what they are called, its API server among them."""
    found = {"API server": server.process.pid}
    for pid in group(server):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
            if name.startswith("VLLM::"):
                found["engine core" if "EngineCore" in name else "worker"] = pid
    return found


def group(server: Server) -> list[int]:
    """What lives of a server's session, itself included."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == server.process.pid and state != "Z":
                alive.append(int(stat.parent.name))
    return alive


def until(holds: object, what: str) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.1)  # polling other processes, which have no other sign


@contextlib.contextmanager
def speaking(server: Server) -> Iterator[None]:
    """A request that is under way."""

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            server.complete("Once upon a time", 400, ignore_eos=True)

    before = server.metrics()["vllm:generation_tokens_total"]
    running = threading.Thread(target=ask, daemon=True)
    running.start()
    until(lambda: server.metrics()["vllm:generation_tokens_total"] > before + 10, "no request runs")
    yield
    running.join(END_SECONDS)
    assert not running.is_alive()  # whoever asked has an answer or an error


@pytest.mark.parametrize("victim", ["worker", "engine core", "API server"])
def test_kill(victim: str, model_dir: Path, place: Path, port: int, fingerprint: str) -> None:
    memory = place / "memory"
    server = start(model_dir, place, port, victim)
    held = len(memory_file.read(memory, fingerprint)) if memory.exists() else 0
    try:
        with server:
            if held:
                assert f"{held} answers loaded" in server.log.read_text()
            said = server.complete(PROMPT, 32, ignore_eos=True)

            def is_saved() -> bool:
                server.complete(f"Say {time.monotonic()}", 2)  # it is a step that saves
                return memory.exists() and len(memory_file.read(memory, fingerprint)) > held

            until(is_saved, "nothing is saved")
            found = processes(server)
            assert set(found) == {"worker", "engine core", "API server"}
            with speaking(server):
                os.kill(found[victim], signal.SIGKILL)
                server.process.wait(END_SECONDS)
                if victim == "API server":  # vLLM's engine goes on without one, whoever drafts: docs/trust.md
                    os.kill(found["engine core"], signal.SIGTERM)
            until(lambda: not group(server), f"left over: {group(server)}")
    finally:
        for pid in group(server):
            os.kill(pid, signal.SIGKILL)
    assert len(memory_file.read(memory, fingerprint)) > held
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does
        again.bind(("127.0.0.1", port))
    (place / "said").write_text(said)


def test_the_next_one_starts_and_knows_what_was_said(
    model_dir: Path, place: Path, port: int, fingerprint: str
) -> None:
    held = len(memory_file.read(place / "memory", fingerprint))
    with start(model_dir, place, port, "next") as server:
        assert f"{held} answers loaded" in server.log.read_text()
        assert server.complete(PROMPT, 32, ignore_eos=True) == (place / "said").read_text()
        assert server.metrics()["specx_accepted_tokens_total"] > 16
