"""The parent's side of the worker processes: start, ask, notice a death, stop."""

from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm_specx.bench.engine import serve
from vllm_specx.bench.errors import EngineFailed
from vllm_specx.bench.loop import CellResult, Job

_STOP_SECONDS = 20


class Worker:
    """One method's engine in a process of its own. Idle, it waits on its pipe and uses no CPU.

    Args:
        method: its name.
        spec: what `serve` builds the engine from.
        log_path: where its output goes.
        serve: runs in the process, with its end of the pipe, `spec` and `log_path`; see `engine.answer`.

    """

    def __init__(
        self, method: str, spec: Any, log_path: Path, serve: Callable[[Connection, Any, str], None] = serve
    ) -> None:
        self.method = method
        self.log_path = log_path
        # Spawned, not forked: each engine must import torch and bind its threads by itself.
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, spec, str(log_path)), name=f"specx-{method}", daemon=True
        )
        self._process.start()
        theirs.close()
        self.facts: dict[str, Any] = {}

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def build(self) -> None:
        """Build the engine and warm it up; one at a time, or they would slow down each other's start."""
        self._send("build")
        self.facts = self._answer("ready")

    def start(self, job: Job) -> None:
        """Begin a job; nothing is computed yet."""
        self._ask("start", job)

    def advance(self, num_tokens: int | None = None) -> bool:
        """Go on until the job has so many output tokens, or to its end; returns whether that was its end."""
        return bool(self._ask("advance", num_tokens))

    def result(self) -> CellResult:
        """What the job gave."""
        result: CellResult = self._ask("result")
        return result

    def reset(self) -> None:
        """Clear prefix cache and draft memory."""
        self._ask("reset")

    def stop(self) -> None:
        """End the process: asked first, killed if it does not listen."""
        with suppress(OSError):  # it may be gone already
            self._connection.send(("stop",))
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()

    def _ask(self, *command: Any) -> Any:
        self._send(*command)
        return self._answer("done")

    def _send(self, *command: Any) -> None:
        try:
            self._connection.send(command)
        except OSError as error:
            raise self._died() from error

    def _answer(self, wanted: str) -> Any:
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if kind != wanted:
            raise EngineFailed(f"the engine of method {self.method!r} failed: {value} (log: {self.log_path})")
        return value

    def _died(self) -> EngineFailed:
        self._process.join(_STOP_SECONDS)
        return EngineFailed(
            f"the engine of method {self.method!r} died "
            f"(exit code {self._process.exitcode}; log: {self.log_path})"
        )
