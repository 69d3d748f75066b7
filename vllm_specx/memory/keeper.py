"""The file of a shared memory: read at the start, written now and then and at the end."""

from __future__ import annotations

import glob
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from drafters import SuffixTreeDrafter, memory_file
from drafters.memory_file import MemoryFileError
from vllm_specx.config import KEY, ConfigError
from vllm_specx.memory._signals import watch_signals

if TYPE_CHECKING:
    from vllm_specx.proposers._requests import RequestTracker

_LEFTOVER_SECONDS: Final = 60  # a file this old is nobody's work any more

logger = logging.getLogger("vllm.specx")


class MemoryKeeper:
    """Keep a drafter's shared memory in a file. Once it is open, no failure of it is raised.

    The drafter is not thread-safe, and a signal may come at any time: so whoever drives the drafter does it
    `within_work`, a copy is taken between two pieces of work, and only writing the copy is left to a thread.

    Args:
        path: of the file; its folder exists.
        fingerprint: of the vocabulary, see `vocabulary`.
        every: seconds between two saves; 0 saves at the end only.
        clock: seconds.

    """

    def __init__(
        self, path: Path, fingerprint: str, every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self.num_saves = 0
        self.num_failures = 0
        self._fingerprint = fingerprint
        self._every = every
        self._clock = clock
        self._due = clock() + every
        self._writer: threading.Thread | None = None
        self._known_failures: set[str] = set()
        self._busy = 0
        self._deferred: list[Callable[[], None]] = []
        self._saved_ends = 0  # tracker.num_ended at the last save
        self._must_write = False

    def attach(self, drafter: SuffixTreeDrafter, tracker: RequestTracker) -> None:
        """Save what this drafter remembers, of the requests that this tracker passes on to it, from now on."""
        self._drafter, self._tracker = drafter, tracker
        self._saved_ends = 0

    def open(self, owner: Any) -> None:
        """Load the file, if there is one, and save when `owner` or its process ends.

        Raises:
            ConfigError: the file is damaged, not a memory file, or of another vocabulary. It stays as it is.

        """
        try:
            self.load()
        except (MemoryFileError, OSError) as error:
            raise ConfigError(
                f"{KEY}.memory_path: {error}. Nothing was changed: move that file away or name another one"
            ) from error
        self._remove_leftovers()
        # An engine's processes are children of multiprocessing, where atexit does not run; its own finalizers do.
        # Before this point an engine that failed to start would have emptied the file.
        Finalize(owner, self.close, exitpriority=10)
        watch_signals(self)

    def _remove_leftovers(self) -> None:
        """Remove what killed processes had not finished writing; `memory_file.write` has its files named so."""
        for file in self.path.parent.glob(f".{glob.escape(self.path.name)}.????????.tmp"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > _LEFTOVER_SECONDS:
                    file.unlink()

    def load(self) -> None:
        """Add what the file holds, if there is one, to the memory. Raises MemoryFileError and OSError."""
        if self.path.exists():
            num_documents = self._drafter.load(self.path, fingerprint=self._fingerprint)
            logger.info("specx: %d answers loaded from %s", num_documents, self.path)

    def load_again(self) -> None:
        """`load` into a drafter that takes the place of a broken one."""
        with self._failures_counted("read from"):
            self.load()

    @contextmanager
    def within_work(self) -> Iterator[None]:
        """Keep signals waiting while the drafter is at work."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            while self._deferred and not self._busy:
                self._end(self._deferred.pop())

    def end_by_signal(self, go_on: Callable[[], None]) -> None:
        """Save, then `go_on`; after the present piece of work if there is one."""
        if self._busy:
            self._deferred.append(go_on)
        else:
            self._end(go_on)

    def tick(self) -> None:
        """Start a save if it is time for one. Costs a copy of the memory when it does."""
        if not self._every or self._clock() < self._due:
            return
        self._due = self._clock() + self._every
        if (self._writer is not None and self._writer.is_alive()) or not self._is_changed():
            return
        with self._failures_counted():
            snapshot = self._snapshot()
            self._writer = threading.Thread(
                target=self._write, args=(snapshot,), name="specx-autosave", daemon=True
            )
            self._writer.start()

    def rewrite(self) -> None:
        """Save now, even an empty memory: what was purged must not stay in the file."""
        self._wait()
        self._must_write = True
        self.save()

    def save(self) -> None:
        """Save now, after the save that may be under way."""
        self._wait()
        if not self._is_changed():
            return
        with self._failures_counted():
            self._write(self._snapshot())

    def close(self) -> None:
        """Save for the last time. Also what requests have said of which nobody has heard yet that they ended."""
        with self.within_work():
            with self._failures_counted():
                self._tracker.clear()
            self.save()

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _end(self, go_on: Callable[[], None]) -> None:
        self.close()
        go_on()

    def _is_changed(self) -> bool:
        # An empty memory takes nobody's file away: it is what a sleep or new weights leave behind.
        if self._tracker.num_ended == self._saved_ends:
            return self._must_write
        return self._must_write or self._drafter.memory.num_documents > 0

    def _snapshot(self) -> Any:
        snapshot = self._drafter.snapshot()
        self._saved_ends = self._tracker.num_ended
        return snapshot

    def _write(self, snapshot: Any) -> None:
        with self._failures_counted():
            memory_file.write(self.path, snapshot, self._fingerprint)
            self._must_write = False
            self.num_saves += 1

    @contextmanager
    def _failures_counted(self, what: str = "saved into") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.num_failures += 1
            self._saved_ends = -1  # try again at the next occasion
            kind = f"{type(error).__name__} {getattr(error, 'errno', '')}"
            if kind not in self._known_failures:
                self._known_failures.add(kind)
                logger.warning(
                    "specx: the shared memory was not %s %s (logged once): %s", what, self.path, error
                )
