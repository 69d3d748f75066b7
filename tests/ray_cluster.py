"""A Ray cluster of the tests' own: a head on the loopback, which they may kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from serving import free_port


class Cluster:
    """A head on the loopback, with nothing of another cluster's."""

    def __init__(self, num_cpus: int = 1) -> None:
        self.port, self._num_cpus = free_port(), num_cpus
        self.address = f"127.0.0.1:{self.port}"
        self._folders: list[Path] = []

    def start(self) -> None:
        """Start it, or start it again where it was."""
        # The paths of sockets must be short.
        self._temporary = Path("/tmp") / f"specx-{os.getpid()}-{self.port}-{len(self._folders)}"
        self._folders.append(self._temporary)
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={self.port}",
                "--node-ip-address=127.0.0.1", f"--num-cpus={self._num_cpus}", "--include-dashboard=false",
                "--disable-usage-stats", "--object-store-memory=80000000", f"--temp-dir={self._temporary}",
            ],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Those of this cluster, by a word of their command line."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if str(self._temporary) in line and name in line:
                found.append(process)
        return found

    def kill(self) -> None:
        """End all of it."""
        while every := [p for parent in self.processes() for p in [parent, *children(parent)]]:
            for process in every:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(every, timeout=30)

    def stop(self) -> None:
        """End it and clear up."""
        self.kill()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextmanager
def running(num_cpus: int = 1) -> Iterator[Cluster]:
    """A cluster that is up, and what the processes that join it have to inherit."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray would take this machine's address for the loopback's; the head and the sidecars inherit this.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        made = Cluster(num_cpus)
        made.start()
        try:
            yield made
        finally:
            made.stop()
