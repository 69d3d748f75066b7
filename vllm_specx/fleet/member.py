"""A replica's place in a fleet: a thread that speaks to the store, and what a step of the worker has to do with it.

A step appends what it has to say to a list, and takes in what has arrived, within its budget. All else, the line to the
store with its delays and failures, is the thread's.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from drafters import SuffixTreeDrafter
from vllm_specx.config import ConfigError
from vllm_specx.fleet import messages
from vllm_specx.fleet.inbox import Inbox
from vllm_specx.fleet.link import CALL_SECONDS, LinkError
from vllm_specx.fleet.messages import Join, Prior
from vllm_specx.fleet.options import PREFIX, FleetConfig
from vllm_specx.fleet.peer import Parts, Peer, Refused, Unknown, shard_of, spread
from vllm_specx.fleet.priors import Learner
from vllm_specx.fleet.texts import piece_at, pieces

_FIRST_RETRY: Final = 1.0  # seconds, then twice as many, up to
_LAST_RETRY: Final = 30.0
_PRIOR_SECONDS: Final = 10.0  # between two reports of what was learnt
_MOST_TOLD: Final = 1 << 14  # things that wait for the thread
_CLOSE_SECONDS: Final = 3.0

Report = Callable[[Mapping[str, float]], None]

logger = logging.getLogger("vllm.specx")


class Line(Protocol):
    """How the store is reached, see `link.Link`; all of it raises LinkError."""

    def open(self) -> None:
        """Connect."""

    def call(self, shard: int, method: str, message: bytes = b"", seconds: float = CALL_SECONDS) -> bytes:
        """Ask a shard."""

    def interrupt(self) -> None:
        """Make a call that is under way in another thread fail."""

    def close(self) -> None:
        """Disconnect."""


class Member:
    """Shares what a drafter remembers. Nothing is raised by it but at the start, where the fleet is required.

    Args:
        options: of the fleet.
        line: to it.
        model, vocabulary: see `Join`.
        vocab_size: ids beyond it are refused.
        capacity: tokens that the drafter's memory holds.
        learner: what else is shared.

    """

    def __init__(
        self,
        options: FleetConfig,
        line: Line,
        *,
        model: str,
        vocabulary: str,
        vocab_size: int,
        capacity: int,
        learner: Learner,
    ) -> None:
        """Start to join."""
        self._options = options
        self._line = line
        self._learner = learner
        join = Join(secrets.token_hex(8), model, vocabulary, options.shards)
        most_bytes = max(4 * capacity, messages.MESSAGE_BYTES)
        self._peers = [Peer(join, vocab_size, most_bytes // options.shards) for _ in range(options.shards)]
        self._inbox = Inbox(most_bytes)
        self._told: deque[tuple[Any, ...]] = deque()
        self._priors: dict[str, Prior] | None = None  # to be reported
        self._given: dict[str, Prior] = {}  # of the store, when it was joined
        self._priors_due = time.monotonic() + _PRIOR_SECONDS
        self._turn = 0
        self._failure = ""
        self._warned: set[str] = set()
        self._is_over = False
        self._report: Report | None = None
        self._num_sent = self._num_received = self._num_failures = 0
        self._last_exchange = 0.0
        self.is_joined = False
        self.num_joins = 0
        self._answered = threading.Event()  # it is known whether the fleet can be joined
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specx-fleet", daemon=True)
        self._thread.start()

    # What the worker calls.

    def attach(self, drafter: SuffixTreeDrafter) -> None:
        """Hear of this drafter's answers from now on."""
        drafter.on_answer = self._on_answer
        drafter.memory.ring.touch()  # or steps would wait for pages

    def report_to(self, report: Report) -> None:
        """Have numbers told as they change, by the thread: a replica without requests has no steps."""
        self._report = report
        self._tell_numbers()

    def wait(self, drafter: SuffixTreeDrafter) -> None:
        """At the start, wait for what the fleet has learnt, and take it in.

        Raises:
            ConfigError: the fleet is required, and was not joined.

        """
        options = self._options
        self._answered.wait(options.join_timeout_s)
        if not self.is_joined and options.required:
            failure = self._failure or f"no answer within {options.join_timeout_s:g} s"
            self.close()
            raise ConfigError(
                f"{PREFIX} is required, and fleet {options.name!r} at {options.address!r} was not joined: {failure}"
            )
        try:
            self._inbox.absorb(drafter)
            taken = self._learner.start_from(drafter, self._given)
            if taken:
                logger.info("specx: started from what the fleet has learnt: %s", "; ".join(taken))
        except Exception as error:  # what others said is never worth a failure
            self._warn_once("what the fleet has learnt could not be used", error)

    def tick(self, drafter: SuffixTreeDrafter, purge: Callable[[Parts], None]) -> None:
        """At the end of a step: take in what has arrived, note what is of use.

        Args:
            drafter: whose thread this is.
            purge: forgets what the drafter knows of namespaces with these parts.

        """
        try:
            for parts in self._inbox.take_purges():
                purge(parts)
            self._inbox.absorb(drafter, 1e-3 * self._options.absorb_budget_ms)
            self._turn += 1
            led = drafter.leading(self._turn)
            if led is not None and led[3] > 0:
                self._tell("credit", *led)
            now = time.monotonic()
            if now >= self._priors_due:
                self._priors_due = now + _PRIOR_SECONDS
                self._priors = self._learner.export(drafter)
        except Exception as error:
            self._inbox.clear()
            self._warn_once("taking in what the fleet said failed", error)

    def purge(self, parts: Sequence[str]) -> None:
        """Have the whole fleet forget what was said in namespaces with these parts; all if there are none."""
        self._inbox.forget(tuple(parts))
        self._told.append(("purge", tuple(parts)))

    def clear(self) -> None:
        """Forget what has arrived: the drafter's memory was cleared."""
        self._inbox.clear()

    def close(self) -> None:
        """Tell what is left to tell, if that is quick, and leave."""
        self._stop.set()
        if not self.is_joined:
            self._line.interrupt()
        self._thread.join(_CLOSE_SECONDS)

    @property
    def numbers(self) -> dict[str, float]:
        """Metrics of one number, see `metrics.layout`."""
        return {
            "specx_fleet_joined": float(self.is_joined),
            "specx_fleet_pushed_texts": sum(peer.num_pushed for peer in self._peers),
            "specx_fleet_pulled_texts": sum(peer.num_pulled for peer in self._peers),
            "specx_fleet_absorbed_texts": self._inbox.num_absorbed,
            "specx_fleet_sent_bytes": self._num_sent,
            "specx_fleet_received_bytes": self._num_received,
            "specx_fleet_last_sync_timestamp_seconds": self._last_exchange,
            "specx_fleet_failures": self._num_failures,
        }

    @property
    def num_absorbed(self) -> int:
        """Texts of others taken in so far."""
        return self._inbox.num_absorbed

    def _on_answer(self, token_ids: NDArray[np.int32], name: str) -> None:
        self._tell("answer", token_ids.copy(), name)

    def _tell(self, *thing: Any) -> None:
        if not self._is_over and len(self._told) < _MOST_TOLD:
            self._told.append(thing)

    # What the thread does.

    def _run(self) -> None:
        pause = _FIRST_RETRY
        try:
            while not self._stop.is_set():
                try:
                    self._stay()
                    return
                except Refused as error:
                    self._failure = str(error)
                    self._num_failures += 1
                    self._warn_once("this replica goes on by itself", error)
                    return
                except (
                    Exception
                ) as error:  # LinkError, or a message that makes no sense: both ends start anew
                    self._lose(error)
                pause = _FIRST_RETRY if self.is_joined else min(2 * pause, _LAST_RETRY)
                self.is_joined = False
                self._num_failures += 1
                self._tell_numbers()
                self._line.close()
                self._answered.set()
                self._listen()
                self._stop.wait(pause)
        finally:
            self._is_over = True
            self.is_joined = False
            self._tell_numbers()
            self._told.clear()
            self._line.close()
            self._answered.set()

    def _stay(self) -> None:
        """Join, and exchange until the end."""
        self._line.open()
        self._join()
        while True:
            try:
                self._exchange()
            except Unknown:
                self._join()
                continue
            if not self.is_joined:
                self.is_joined = True
                self.num_joins += 1
                logger.info("specx: joined fleet %r", self._options.name)
            self._last_exchange = time.time()
            self._tell_numbers()
            self._answered.set()
            if self._stop.is_set():
                return
            self._stop.wait(self._options.sync_interval_s)

    def _join(self) -> None:
        for shard, peer in enumerate(self._peers):
            joined = peer.join(self._ask(shard))
            self._given |= joined.priors
            if joined.notice:
                self._warn_once(f"fleet {self._options.name!r}", joined.notice)

    def _exchange(self) -> None:
        self._listen()
        priors, self._priors = self._priors, None
        for shard, peer in enumerate(self._peers):
            try:
                peer.sync(self._ask(shard), self._inbox, priors if shard == 0 else None)
            except (LinkError, Unknown):
                self._priors = self._priors or priors
                raise

    def _ask(self, shard: int) -> Callable[[str, bytes], bytes]:
        def ask(method: str, message: bytes) -> bytes:
            answer = self._line.call(shard, method, message)
            self._num_sent += len(message)
            self._num_received += len(answer)
            return answer

        return ask

    def _tell_numbers(self) -> None:
        if self._report is not None:
            self._report(self.numbers)

    def _listen(self) -> None:
        """Hand on what the steps had to say."""
        peers = self._peers
        while self._told:
            kind, *rest = self._told.popleft()
            if kind == "answer":
                token_ids, name = rest
                spread(pieces(name, token_ids), peers)
            elif kind == "credit":
                token_ids, place, name, credit = rest
                text = piece_at(name, token_ids, place)
                share = credit * len(text.token_ids) // (4 * len(token_ids))
                peers[shard_of(text.key, len(peers))].credit(text.key, share)
            else:
                for peer in peers:
                    peer.purge(rest[0])

    def _lose(self, error: Exception) -> None:
        self._failure = str(error) or type(error).__name__
        where = f"fleet {self._options.name!r} at {self._options.address!r}"
        if not self._warned:
            self._warn_once(f"{where} cannot be reached; this replica goes on by itself until it can", error)
        else:
            logger.log(
                logging.INFO if self.is_joined else logging.DEBUG, "specx: %s was lost: %s", where, error
            )

    def _warn_once(self, what: str, why: object) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("specx: %s (said once): %s", what, why)
