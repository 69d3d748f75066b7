"""A fleet in plain Python, with drafts of any kind: what `_kernels` does with recorded ones, for few replicas."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vllm_specx.simulate import state as names
from vllm_specx.simulate._kernels import _last_sync, _next_sync, _seconds
from vllm_specx.simulate.state import MEMORIES, NUM_PARTS, ROUTINGS, Rules, State, World, new_state
from vllm_specx.tuner import Step


class Drafting(Protocol):
    """Drafts of a fleet; q is a request, r a replica."""

    def hear(self, r: int, until: float) -> None:
        """Take in what the store had at `until`; -inf: nothing."""

    def start(self, r: int, q: int, seen: int) -> None:
        """Begin a request; the replica knows `seen` answers to its tenant."""

    def decode(self, r: int, requests: Sequence[int], known: Sequence[int]) -> tuple[list[int], list[int]]:
        """Draft tokens for each request, and tokens that its step will commit; `known` is how many it has."""

    def observe(self, r: int, q: int, begin: int, end: int) -> None:
        """The answer has grown from `begin` to `end` tokens."""

    def stop(self, r: int, q: int, stored: float) -> None:
        """A request has its answer, which the store has from `stored` on."""

    def account(self, r: int, step: Step) -> None:
        """A step has ended."""

    def restart(self, r: int) -> None:
        """A replica forgets everything."""


@dataclass
class _Replica:
    number: int
    next_event: float = math.inf
    is_up: bool = True
    boot: float = 0.0
    shift: float = 0.0
    began: float = 0.0
    num_drafts: int = 0
    num_prompt: int = 0
    running: list[int] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    coming: list[int] = field(default_factory=list)  # of each that runs

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)


def run(world: World, rules: Rules, drafting: Drafting) -> State:
    """Run a fleet to its end; of the state, what is by request and what is counted."""
    return _Fleet(world, rules, drafting).run()


class _Fleet:
    def __init__(self, world: World, rules: Rules, drafting: Drafting) -> None:
        self._w, self._rules, self._drafting = world, rules, drafting
        self._replicas = [_Replica(r, shift=shift) for r, shift in enumerate(world.shift.tolist())]
        self._state = new_state(len(self._replicas), len(world.arrival), len(world.first_of), 1)
        self._texts: dict[int, list[tuple[float, int, float]]] = {}  # by tenant: end, replica, when stored
        self._prompt_left: dict[int, int] = {}
        self._turn = 0

    def run(self) -> State:
        arrivals = deque(enumerate(self._w.arrival.tolist()))
        restarts = deque(zip(self._w.restart_of.tolist(), self._w.restart_at.tolist(), strict=True))
        while True:
            arrival = arrivals[0][1] if arrivals else math.inf
            restart = restarts[0][1] if restarts else math.inf
            replica = min(self._replicas, key=lambda each: each.next_event)
            now = min(arrival, restart, replica.next_event)
            if now > self._rules.end or now == math.inf:
                return self._state
            if now == restart:
                self._restart(self._replicas[restarts.popleft()[0]], now)
            elif now == arrival:
                self._queue(arrivals.popleft()[0], now)
            else:
                replica.is_up = True
                self._end_step(replica, now)
                self._admit(replica, now)
                replica.next_event = self._begin_step(replica, now) if replica.running else math.inf

    def _restart(self, replica: _Replica, now: float) -> None:
        state, moved = self._state, [*replica.running, *replica.waiting]
        if replica.running:
            state.counts[names.BUSY] += now - replica.began
        for q in replica.running:
            state.counts[names.LOST] += state.known[q]
            state.counts[names.IN_TIME] -= state.known[q]
            state.known[q], state.first[q] = 0, math.nan
        boot = now + self._rules.away
        self._replicas[replica.number] = _Replica(replica.number, boot, False, boot, replica.shift)
        self._drafting.restart(replica.number)
        for q in moved:
            self._queue(q, now)

    def _queue(self, q: int, now: float) -> None:
        up = [replica for replica in self._replicas if replica.is_up] or self._replicas
        num = len(self._replicas)

        def distance(replica: _Replica) -> int:
            return (replica.number - self._turn) % num

        routing = self._rules.routing
        if routing == ROUTINGS["round-robin"]:
            chosen = min(up, key=distance)
        elif routing == ROUTINGS["random"]:
            chosen = up[int(self._w.pick[q] * len(up))]
        else:
            chosen = min(up, key=lambda each: (each.load, distance(each)))
        self._turn = (chosen.number + 1) % num
        chosen.waiting.append(q)
        if chosen.is_up and chosen.next_event == math.inf:
            chosen.next_event = now

    def _end_step(self, replica: _Replica, now: float) -> None:
        if not replica.running:
            return
        state, w, left = self._state, self._w, []
        num_decoding = tokens = firsts = 0
        for q, coming in zip(replica.running, replica.coming, strict=True):
            known = int(state.known[q])
            num_decoding += known > 0
            if coming:
                if known == 0:
                    state.first[q] = now
                    firsts += 1
                else:
                    tokens += coming
                state.known[q] += coming
                self._drafting.observe(replica.number, q, known, known + coming)
            if state.known[q] < w.outputs[w.row[q]]:
                left.append(q)
                continue
            state.finish[q], state.where[q] = now, replica.number
            rules = self._rules
            stored = _next_sync(now, replica.boot + replica.shift, rules.interval) + rules.transfer
            self._texts.setdefault(int(w.tenant[q]), []).append((now, replica.number, stored))
            self._drafting.stop(replica.number, q, stored)
        self._drafting.account(
            replica.number,
            Step(num_decoding, replica.num_drafts, tokens, now - replica.began, replica.num_prompt),
        )
        replica.running = left
        counts, in_time = state.counts, now <= self._rules.duration
        state.parts[:, min(NUM_PARTS - 1, int(NUM_PARTS * now / self._rules.duration))] += (
            num_decoding,
            replica.num_drafts,
            tokens,
        )
        counts[names.STEPS] += 1
        counts[names.REQUEST_STEPS] += num_decoding
        counts[names.DRAFTS] += replica.num_drafts
        counts[names.STEP_TOKENS] += tokens
        counts[names.FIRST_TOKENS] += firsts
        counts[names.IN_TIME] += (tokens + firsts) * in_time
        counts[names.BUSY] += now - replica.began

    def _admit(self, replica: _Replica, now: float) -> None:
        rules = self._rules
        heard = _last_sync(now - rules.transfer, replica.boot + replica.shift, rules.interval)
        if rules.memory == MEMORIES["shared"]:
            self._drafting.hear(replica.number, heard)
        while replica.waiting and len(replica.running) < rules.max_num_seqs:
            q = replica.waiting.popleft()
            replica.running.append(q)
            self._prompt_left[q] = int(self._w.prompts[self._w.row[q]])
            self._state.seen[q] = seen = self._num_seen(replica, int(self._w.tenant[q]), heard)
            self._drafting.start(replica.number, q, seen)

    def _num_seen(self, replica: _Replica, tenant: int, heard: float) -> int:
        memory, texts = self._rules.memory, self._texts.get(tenant, ())
        if memory == MEMORIES["plain"]:
            return 0
        seen = sum(
            (said_by == replica.number and end >= replica.boot)
            or (memory == MEMORIES["shared"] and stored <= heard)
            for end, said_by, stored in texts
        )
        return min(seen, self._rules.most_seen)

    def _begin_step(self, replica: _Replica, now: float) -> float:
        """Return when the step ends."""
        known = {q: int(self._state.known[q]) for q in replica.running}
        decoding = [q for q in replica.running if known[q]]
        drafts, commits = (
            self._drafting.decode(replica.number, decoding, [known[q] for q in decoding])
            if decoding
            else ([], [])
        )
        coming = dict(zip(decoding, commits, strict=True))
        b, m, num_prompt = len(decoding), sum(drafts), 0
        room = max(0, self._rules.max_num_batched_tokens - b - m)
        for q in replica.running:
            if known[q] == 0:
                chunk = min(room - num_prompt, self._prompt_left[q])
                self._prompt_left[q] -= chunk
                num_prompt += chunk
                coming[q] = int(self._prompt_left[q] == 0)
        replica.coming = [coming[q] for q in replica.running]
        replica.began, replica.num_drafts, replica.num_prompt = now, m, num_prompt
        largest = max(self._state.counts[names.LARGEST], len(replica.running))
        self._state.counts[names.LARGEST] = largest
        return now + (float(_seconds(self._w.grid, b, m)) + num_prompt * self._rules.per_prompt_token)
