"""What is promised when memory runs out, a disk is full or read-only, a clock jumps, or a drafter loses its mind."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numba
import numpy as np
import pytest
from fuzz_suffix_tree import check_integrity
from proposer_world import OPTIONS, World, make_proposer

import drafters.memory
from drafters import Draft, FallbackDrafter, LookaheadDrafter, SuffixTreeDrafter, lookahead, memory_file
from drafters import _live_store as live_store
from vllm_specx.fleet.messages import Join, Joined, Settings, Sync, Synced, encode
from vllm_specx.fleet.server import FleetServer
from vllm_specx.fleet.texts import Text, pack, texts_of, unpack
from vllm_specx.memory.keeper import MemoryKeeper

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # hashes wrap

LINE = [5, 6, 7, 8, 9, 10, 11, 12]
YEARS = 10 * 365.25 * 86400.0
KINDS = list(OPTIONS)


# Memory that runs out.


@contextlib.contextmanager
def no_more_memory() -> Iterator[None]:
    """The process gets 4 MiB beyond what it has: arrays beyond that fail as they do on a machine that is full."""
    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + (4 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


MAKES: dict[str, Callable[[], Any]] = {
    "suffix tree": lambda: SuffixTreeDrafter(memory_bytes=1 << 20),
    "Lookahead": lambda: LookaheadDrafter(pool_ngrams=1 << 22),  # 144 MiB for each request
}
MAKES["both"] = lambda: FallbackDrafter(MAKES["suffix tree"](), MAKES["Lookahead"]())


@pytest.mark.parametrize("kind", MAKES)
def test_where_memory_runs_out_the_others_go_on(kind: str) -> None:
    """A request for which there is no room is refused with MemoryError; once there is some, it is taken."""
    drafter, twin = MAKES[kind](), MAKES[kind]()
    long = np.random.default_rng(0).integers(
        0, 1000, 2_000_000
    )  # 72 MB: more than this process has lying about
    for made in (drafter, twin):
        made.start("a", [], namespace=None)
        made.observe("a", LINE * 4)
    expected = twin.propose(["a"], 8)[0].token_ids.tolist()
    assert expected

    def start() -> None:
        drafter.start("b", long, namespace=None)
        drafter.propose(["b"], 8)

    with no_more_memory(), pytest.raises(MemoryError):
        start()
    assert drafter.propose(["a"], 8)[0].token_ids.tolist() == expected
    with contextlib.suppress(KeyError):  # where only its tokens had no room it was live
        drafter.stop("b")
    start()
    assert len(drafter.propose(["a", "b"], 8)) == 2
    if kind == "suffix tree":
        check_integrity(drafter)


def test_a_memory_that_cannot_be_cleared_is_as_it_was() -> None:
    drafter = SuffixTreeDrafter(memory_bytes=1 << 30)
    drafter.add_document(LINE * 4)
    with no_more_memory(), pytest.raises(MemoryError):
        drafter.clear()
    check_integrity(drafter)
    assert drafter.num_documents == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_memory_costs_its_drafts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault; what was shared is kept, and the next step drafts again."""
    monkeypatch.setattr(live_store, "FIRST_TOKENS", 1 << 10)
    world = World(make_proposer(kind, monkeypatch))
    truth = dict.fromkeys("abcd", LINE * 60)
    world.add("a", LINE * 3)
    for _ in range(4):
        world.say({"a": truth["a"]})

    def full(*_: Any) -> Any:
        raise MemoryError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(live_store, "new_store", full)
        patch.setattr(lookahead, "_grown", full)
        for name in "bcd":
            world.add(name, LINE * 40)
        assert not any(world.say(truth).values())
    assert world.proposer.faults == 1
    for _ in range(3):
        found = world.say(truth)
    assert all(found.values())
    assert world.proposer.faults == 1


# A disk that is full, or read-only.


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A file system of its own, with room for 32 KiB."""
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "t", folder], check=False).returncode
    ):
        pytest.skip("file systems cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


class Owner:
    """Stands for the proposer."""


@pytest.mark.parametrize(
    ("bad", "said"),
    [("rw", "No space left on device"), ("ro", "Read-only file system")],
)
def test_what_cannot_be_saved_is_told_once_and_saved_later(
    bad: str,
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("vllm", "vllm.specx"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    now = SimpleNamespace(time=0.0)
    drafter = SuffixTreeDrafter(memory_bytes=8 << 20)
    tracker: Any = SimpleNamespace(num_ended=0, clear=lambda: None)
    with mounted(tmp_path):
        keeper = MemoryKeeper(tmp_path / "memory", "v", 1.0, lambda: now.time)
        keeper.attach(drafter, tracker)
        keeper.open(owner := Owner())
        drafter.add_document(LINE)
        tracker.num_ended += 1
        keeper.save()
        before = keeper.path.read_bytes()
        remount(tmp_path, bad)
        for _ in range(3):
            drafter.add_document(np.random.default_rng(tracker.num_ended).integers(0, 9, 12_000))
            tracker.num_ended += 1
            now.time += 2.0
            keeper.tick()
            keeper._wait()
        assert keeper.num_failures == 3
        assert keeper.path.read_bytes() == before
        assert os.listdir(tmp_path) == ["memory"]
        (message,) = [record.getMessage() for record in caplog.records]
        assert said in message
        remount(tmp_path, "rw,size=8m")
        now.time += 2.0
        keeper.tick()
        keeper._wait()
        assert len(memory_file.read(keeper.path, "v")) == 4
    assert owner


def test_a_fleet_on_a_full_disk_keeps_what_it_had_and_saves_later(tmp_path: Path) -> None:
    with mounted(tmp_path):
        server = FleetServer(
            encode(Settings("f", snapshot_path=str(tmp_path / "s"), snapshot_interval_s=1e6))
        )
        say(server, 0)
        server.save()
        before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
        for number in range(1, 100):
            say(server, number, 100)
        with pytest.raises(OSError, match="No space left"):
            server.save()
        assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
        remount(tmp_path, "size=8m")
        server.save()
        assert len(memory_file.read(tmp_path / "s", "v")) == 100


# A clock that jumps.


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the time of day; the clock that cannot be set goes on."""
    real, shift = time.time, SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(time, "time", lambda: real() + shift.seconds)

    def to(seconds: float) -> None:
        shift.seconds = seconds

    return to


def drafts(drafter: SuffixTreeDrafter) -> bool:
    """Whether it remembers LINE."""
    drafter.start("r", LINE[:4])
    (draft,) = drafter.propose(["r"], 4)
    drafter.stop("r")
    return len(draft) > 0


@pytest.mark.parametrize("seconds", [YEARS, -YEARS])
def test_an_answer_expires_by_a_clock_that_nobody_sets(seconds: float, jump: Any, tmp_path: Path) -> None:
    drafter = SuffixTreeDrafter(memory_bytes=1 << 16, ttl=3600.0)
    drafter.add_document(LINE)
    jump(seconds)
    assert drafts(drafter)
    drafter.save(tmp_path / "m")
    snapshot = memory_file.read(tmp_path / "m")
    assert 0.0 <= snapshot.ages[0] < 60.0


def test_a_file_from_the_future_is_new_and_one_from_long_ago_is_old(jump: Any, tmp_path: Path) -> None:
    drafter = SuffixTreeDrafter(memory_bytes=1 << 16)
    drafter.add_document(LINE)
    drafter.save(tmp_path / "m")
    for seconds, ttl, is_kept in ((-YEARS, 3600.0, True), (YEARS, 3600.0, False), (YEARS, None, True)):
        jump(seconds)
        loaded = SuffixTreeDrafter(memory_bytes=1 << 16, ttl=ttl)
        assert loaded.load(tmp_path / "m") == is_kept
        assert drafts(loaded) == is_kept
        loaded.save(tmp_path / "again")  # as good a file as the first
        assert len(memory_file.read(tmp_path / "again")) == is_kept


def test_saves_come_when_they_are_due_whatever_the_time_of_day(jump: Any, tmp_path: Path) -> None:
    drafter = SuffixTreeDrafter(memory_bytes=1 << 16)
    tracker: Any = SimpleNamespace(num_ended=0, clear=lambda: None)
    keeper = MemoryKeeper(tmp_path / "memory", "v", 0.02)
    keeper.attach(drafter, tracker)
    slow = MemoryKeeper(tmp_path / "slow", "v", 3600.0)
    slow.attach(drafter, tracker)
    for number, seconds in enumerate((YEARS, -YEARS, 0.0), start=1):
        jump(seconds)
        drafter.add_document([*LINE, number])
        tracker.num_ended += 1
        deadline = time.monotonic() + 20.0
        while keeper.num_saves < number and time.monotonic() < deadline:
            keeper.tick()
            keeper._wait()
        slow.tick()
    assert (keeper.num_saves, slow.num_saves) == (3, 0)


def say(server: FleetServer, number: int, length: int = 4) -> str:
    """Join, and tell the fleet a text of its own."""
    joined = msgspec.msgpack.decode(server.join(encode(Join("a", "m", "v"))), type=Joined)
    text = Text("", np.arange(number, number + length, dtype="<i4").tobytes())
    server.sync(encode(Sync("a", joined.epoch, joined.last, texts=pack([text]))))
    return joined.epoch


def heard(server: FleetServer, epoch: str, after: int) -> tuple[int, int]:
    """How many texts another replica hears, and up to which number it has heard."""
    answer = msgspec.msgpack.decode(server.sync(encode(Sync("b", epoch, after=after))), type=Synced)
    return len([*texts_of(unpack(answer.texts))]), answer.last


@pytest.mark.parametrize("seconds", [YEARS, -YEARS])
def test_a_fleet_goes_by_a_clock_that_nobody_sets(seconds: float, jump: Any) -> None:
    """Nothing expires because the time of day was set, and what is said after that is heard by all."""
    server = FleetServer(encode(Settings("f", ttl_s=3600.0)))
    epoch = say(server, 0)
    number, last = heard(server, epoch, 0)
    jump(seconds)
    say(server, 1)
    assert (number, heard(server, epoch, last)[0], heard(server, epoch, 0)[0]) == (1, 1, 2)


# A drafter that loses its mind.


def _rows(ids: Any, reach: Any) -> Callable[[Any, Any], Any]:
    return lambda names, limits: [Draft(np.asarray(ids), np.asarray(reach)) for _ in names]


def _raise(names: Any, limits: Any) -> Any:
    raise RuntimeError("out of order")


COUNTED: dict[str, Callable[[Any, Any], Any]] = {
    "raises": _raise,
    "negative ids": _rows([-1, 5], [0.9, 0.8]),
    "ids beyond the vocabulary": _rows([1000], [0.9]),
    "ids beyond 64 bits": _rows(np.array([2**64 - 1], dtype=np.uint64), [0.9]),
    "too many tokens": _rows([5] * 3000, [1.0] * 3000),
    "ids that are no numbers": _rows(["a"], [0.9]),
    "nothing": lambda names, limits: None,
    "no drafts": lambda names, limits: [7 for _ in names],
    "a row too few": lambda names, limits: _rows([5], [0.9])(names, limits)[1:],
}
UNSOUND = {
    "reach of NaN": _rows([5, 6], [np.nan, np.nan]),
    "a reach of NaN": _rows([5, 6], [0.9, np.nan]),
    "reach below 0": _rows([5, 6], [-1.0, -2.0]),
    "reach that rises": _rows([5, 6], [0.1, 0.9]),
    "too few reaches": _rows([5, 6, 7], [0.9]),
    "too many reaches": _rows([5], [0.9, 0.9]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_faults_at_random_steps_are_counted_told_once_and_forgotten(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No draft that leaves is wrong in kind; every bad step is counted; after it drafting goes on."""
    from vllm_specx.proposers import _base

    lines: list[str] = []
    logger = SimpleNamespace(
        warning=lambda text, *args: lines.append(text % args), isEnabledFor=lambda level: False
    )
    monkeypatch.setattr(_base, "logger", logger)
    world = World(make_proposer(kind, monkeypatch))
    truth = dict.fromkeys("ab", LINE * 200)
    for name in truth:
        world.add(name, LINE * 3)
    rng = random.Random(7)
    steps = [*COUNTED, *UNSOUND, *[""] * 12] * 2
    rng.shuffle(steps)
    drafted = 0
    for fault in steps:
        before, proposer = world.proposer.faults, world.proposer
        with monkeypatch.context() as patch:
            if fault:
                patch.setattr(proposer.drafter, "propose", (COUNTED | UNSOUND)[fault])
            found = world.say(truth)
        for draft in found.values():
            assert len(draft) <= 8
            assert all(type(token) is int and 0 <= token < 1000 for token in draft)
        if fault in COUNTED:
            assert proposer.faults > before, fault
        elif not fault:
            assert proposer.faults == before
            drafted += sum(map(len, found.values()))
        if min(len(world.text[name]) for name in truth) > 400:  # near the longest text: begin again
            for name in truth:
                world.end(name)
                world.add(name, LINE * 3)
    assert drafted > 100
    assert len(lines) == 1


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="slow in plain Python")
def test_a_budget_in_which_nothing_fits_is_refused_or_shares_nothing() -> None:
    with pytest.raises(ValueError, match="max_bytes must be 0"):
        SuffixTreeDrafter(memory_bytes=drafters.memory.MIN_TOKENS * drafters.memory.BYTES_PER_TOKEN - 1)
    smallest = SuffixTreeDrafter(memory_bytes=drafters.memory.MIN_TOKENS * drafters.memory.BYTES_PER_TOKEN)
    for number in range(300):  # each larger than all the room there is
        smallest.start(number, [1])
        smallest.observe(number, [(number * 7 + i) % 1000 for i in range(1000)])
        assert len(smallest.propose([number], 8)) == 1
        smallest.stop(number)
    check_integrity(smallest)
    assert smallest.memory.num_tokens < drafters.memory.MIN_TOKENS
