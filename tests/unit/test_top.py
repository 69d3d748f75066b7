"""`specx top`: what it makes of two scrapes, in a real terminal too; what it says of servers without the plug-in."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from typer.testing import CliRunner

from vllm_specx.bench.errors import BenchError
from vllm_specx.cli.main import app
from vllm_specx.metrics import collector, page
from vllm_specx.metrics.meter import DraftMeter
from vllm_specx.top.scrape import Scrape, scrape
from vllm_specx.top.view import view
from vllm_specx.tuner import Decision, Step


class Server:
    """Answers /metrics as an engine's API server does; the numbers are a real meter's."""

    def __init__(self, pages: Path) -> None:
        self.meter = DraftMeter(page.new_page("i", 0))
        own = collector.PageCollector()
        own.watch("i", "model")
        registry = CollectorRegistry()
        registry.register(own)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(generate_latest(registry))

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def step(self) -> None:
        self.meter.chosen([4, 0], Decision(2, 4, 9, 3.0, 9.0, 1.4, 0.2, 0.03, "price"), "price", 0.001)
        self.meter.verified([("suffix_tree", np.array([0.9, 0.8, 0.5, 0.4]), 3)])
        self.meter.stepped(Step(2, 4, 5, 0.05), lambda _: 0.03)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(page, "folder", lambda: tmp_path / "pages")
    server = Server(tmp_path)
    server.step()
    yield server
    server.close()


def text_of(before: Scrape, now: Scrape) -> str:
    terminal = Console(width=80, force_terminal=False)
    with terminal.capture() as captured:
        terminal.print(view(before, now))
    return captured.get()


def test_only_what_happened_in_between_counts(server: Server) -> None:
    first = scrape(server.url)
    for _ in range(4):
        server.step()
    text = text_of(first, scrape(server.url))
    for line, value in (
        ("speedup, realised", "1.50x"),  # five tokens of two requests in 50 ms, plain 30 ms for two
        ("speedup, estimated", "1.40x"),
        ("draft length, mean", "2.00"),
        ("steps without a draft", "0%"),
        ("accepted of verified", "75%"),
        ("alpha", "0.20"),
        ("drafting faults", "0"),
    ):
        assert any(line in row and value in row for row in text.splitlines()), (line, text)
    assert any(row.split()[1:6:2] == ["1", "4", "100%"] for row in text.splitlines() if "100%" in row)
    assert any("price" in row and "4" in row for row in text.splitlines())


def test_nothing_happened(server: Server) -> None:
    now = scrape(server.url)
    assert "nan" not in text_of(now, now).lower()


def test_once(server: Server) -> None:
    result = CliRunner().invoke(app, ["top", server.url, "--once"])
    assert result.exit_code == 0, result.output
    assert "acceptance by position" in result.stdout


def test_in_a_real_terminal(server: Server, tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    socket = str(tmp_path / "tmux")

    def tmux(*arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-S", socket, *arguments], check=True, capture_output=True, text=True
        ).stdout

    command = (
        f"{sys.executable} -c 'from vllm_specx.cli.main import main; main()' top {server.url} --every 0.2"
    )
    tmux("new-session", "-d", "-x", "90", "-y", "50", command)
    try:
        end = time.monotonic() + 60
        while "speedup, realised" not in (shown := tmux("capture-pane", "-p")) and time.monotonic() < end:
            time.sleep(0.2)
        assert "speedup, realised" in shown
        while "1.50x" not in (shown := tmux("capture-pane", "-p")) and time.monotonic() < end:
            server.step()
            time.sleep(0.1)
        assert "1.50x" in shown
        tmux("send-keys", "C-c")
    finally:
        subprocess.run(["tmux", "-S", socket, "kill-server"], check=False, capture_output=True)


def test_a_server_without_the_plug_in_and_none_at_all(server: Server) -> None:
    server.meter = DraftMeter(np.zeros(1000))  # its page goes
    with pytest.raises(BenchError, match="no metrics of vllm-specx"):
        scrape(server.url)
    url = server.url
    server.close()
    result = CliRunner().invoke(app, ["top", url])
    assert result.exit_code == 2
    assert "/metrics: " in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
