"""A deployment of Ray Serve whose replicas host `vllm serve`: see serve-cpu.yaml.

vLLM runs in processes of its own, as it does without Ray; a replica starts it, watches it, and hands requests on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

START_SECONDS = 600
# Headers of one connection, which are not for the next one.
_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}


class Replica:
    """A server of its own on a free port of the loopback.

    Args:
        command: what starts it; the port is appended.

    """

    def __init__(self, command: list[str]) -> None:
        """Start it and wait until it is ready; Serve sends nothing before."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], start_new_session=True
        )
        self._session: aiohttp.ClientSession | None = None
        self._wait()

    async def __call__(self, request: Request) -> StreamingResponse:
        """Hand a request on, and its answer back as it comes."""
        body, headers = await request.body(), _passed(request.headers)
        url = f"{self._url}{request.url.path}?{request.url.query}".rstrip("?")
        answer = await self._http().request(request.method, url, data=body, headers=headers)

        async def chunks() -> AsyncIterator[bytes]:
            async with answer:  # closed by the client: vLLM aborts the request
                async for chunk in answer.content.iter_any():
                    yield chunk

        return StreamingResponse(chunks(), status_code=answer.status, headers=_passed(answer.headers))

    def check_health(self) -> None:
        """Have Serve replace a replica whose server has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"vllm serve has ended with status {self._process.returncode}")

    def _wait(self) -> None:
        for _ in range(START_SECONDS):
            self.check_health()
            with suppress(OSError), urllib.request.urlopen(f"{self._url}/health", timeout=5):
                return
            time.sleep(1)
        raise TimeoutError(f"vllm serve was not ready within {START_SECONDS} s")

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:  # made in the loop that it is used in
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return self._session

    def __del__(self) -> None:
        """End the server with the replica."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)


def _passed(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}


def app(args: dict[str, str]) -> Any:
    """The application: `config` is the recipe that each replica runs, `model` another model than its own."""
    command = [str(Path(sys.executable).with_name("vllm")), "serve"]
    if "model" in args:
        command.append(args["model"])
    return serve.deployment(health_check_period_s=10)(Replica).bind(
        [*command, "--config", str(Path(args["config"]).absolute())]
    )
