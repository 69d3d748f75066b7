"""Members of a fleet for the tests: a drafter each, and the store behind a line that can be cut, or behind Ray."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from drafters import SuffixTreeDrafter
from vllm_specx.fleet.link import Link, LinkError
from vllm_specx.fleet.member import Line, Member
from vllm_specx.fleet.messages import encode, settings_of
from vllm_specx.fleet.options import FleetConfig
from vllm_specx.fleet.priors import Learner
from vllm_specx.fleet.server import FleetServer
from vllm_specx.memory.namespaces import has_parts

MEMORY_BYTES = 1 << 20


class Store:
    """The shards' servers, as a cluster would run them; `kill` loses what they hold."""

    def __init__(self, options: FleetConfig, ttl_s: float = 0.0) -> None:
        self._settings = settings_of(options, ttl_s)
        self.is_reachable = True
        self.kill()

    def kill(self) -> None:
        self.servers = [FleetServer(encode(s)) for s in self._settings]


class DirectLine:
    """A line without Ray between; what is sent arrives as the same bytes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self._check()

    def call(self, shard: int, method: str, message: bytes = b"", seconds: float = 0.0) -> bytes:
        self._check()
        return getattr(self._store.servers[shard], method)(*[message] if message else [])

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self._is_open = False

    def _check(self) -> None:
        if not self._is_open or not self._store.is_reachable:
            raise LinkError("the line is cut")


class Replica:
    """A drafter, its member, and what an engine's steps do with both."""

    def __init__(
        self, options: FleetConfig, line: Line, *, model: str = "m", vocabulary: str = "v", costs: Any = None
    ) -> None:
        self.drafter = SuffixTreeDrafter(memory_bytes=MEMORY_BYTES, min_reach=0.0)
        self.member = Member(
            options,
            line,
            model=model,
            vocabulary=vocabulary,
            vocab_size=1 << 16,
            capacity=self.drafter.memory.capacity,
            learner=Learner("this machine", costs),
        )
        self.member.attach(self.drafter)

    def start(self) -> Replica:
        self.member.wait(self.drafter)
        return self

    def answer(self, token_ids: Any, namespace: str | None = "") -> None:
        """Have a request answered."""
        self.drafter.start("answer", [], namespace=namespace)
        self.drafter.observe("answer", np.asarray(token_ids))
        self.drafter.stop("answer")

    def draft(self, context: Any, namespace: str | None = "") -> list[int]:
        """What a request that has said this would be drafted."""
        self.drafter.start("draft", context, namespace=namespace)
        (draft,) = self.drafter.propose(["draft"], 8)
        self.tick()
        self.drafter.stop("draft")  # it has said nothing that could be shared
        return draft.token_ids.tolist()

    def tick(self) -> None:
        """The end of a step."""
        self.member.tick(self.drafter, self._purge)

    def _purge(self, parts: Any) -> None:
        for name in self.drafter.namespaces:
            if has_parts(name, parts):
                self.drafter.purge(name)


def wait_for(holds: Callable[[], Any], *replicas: Replica, seconds: float = 60.0) -> None:
    """Let steps pass until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        for replica in replicas:
            replica.tick()
        time.sleep(0.005)  # threads and other processes are at work


def status_of(options: FleetConfig, shard: int = 0) -> dict[str, Any]:
    """What a shard says of itself; by a line of its own, as a line is one thread's."""
    line = Link(options.address, settings_of(options))
    line.open()
    try:
        return json.loads(line.call(shard, "status"))
    finally:
        line.close()
