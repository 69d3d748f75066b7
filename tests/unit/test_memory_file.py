"""The memory file: what comes back, what is refused, and what a failed write leaves."""

import contextlib
import hashlib
import json
import os
import resource
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from fuzz_suffix_tree import SMALL, check_integrity

from drafters import SuffixTreeDrafter, memory_file
from drafters.memory_file import MemoryFileError, Snapshot

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree

PREFIX = struct.Struct("<8sIQQ")


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def time_of_day(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of day, 1e9 until it is told to pass."""
    wall = Clock(1e9)
    monkeypatch.setattr("time.time", wall)
    return wall


def new_drafter(**options: Any) -> SuffixTreeDrafter:
    return SuffixTreeDrafter(**({"memory_bytes": 16 * SMALL, "min_reach": 0.0} | options))


def answer(drafter: SuffixTreeDrafter, token_ids: list[int], namespace: str | None = "") -> None:
    drafter.start("answer", [], namespace=namespace)
    drafter.observe("answer", token_ids)
    drafter.stop("answer")


def filled(clock: Clock | None = None) -> SuffixTreeDrafter:
    """Three documents of two namespaces, ten seconds apart, the second of which has earned something."""
    clock = clock or Clock()
    drafter = new_drafter(clock=clock)
    answer(drafter, [1, 2, 3, 4])
    clock.now += 10.0
    answer(drafter, [1, 2, 5, 6, 2**31 - 2, 0], "tenant é\ud800")
    clock.now += 10.0
    answer(drafter, [1, 2, 7])
    drafter.start("r", [1, 2], namespace="tenant é\ud800")
    drafter.propose(["r"], 4)
    drafter.observe("r", [5, 6, 9])
    return drafter


def same(a: Snapshot, b: Snapshot) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in Snapshot.__slots__
        if name != "taken_at"
    )


def test_what_was_saved_comes_back_in_another_drafter(tmp_path: Path) -> None:
    clock = Clock(5000.0)
    before = filled(Clock())
    before.save(tmp_path / "m", fingerprint="vocabulary")
    after = new_drafter(clock=clock)
    assert after.load(tmp_path / "m", fingerprint="vocabulary") == 3
    check_integrity(after)
    snapshot = after.snapshot()
    assert same(snapshot, before.snapshot())
    assert snapshot.lengths.tolist() == [4, 6, 3]
    assert snapshot.credits.tolist() == [0, 2, 0]
    assert snapshot.ages.tolist() == [20.0, 10.0, 0.0]
    assert [d.birth for d in after.memory._documents] == [4980.0, 4990.0, 5000.0]
    after.start("common", [1, 2])
    after.start("tenant", [1, 2], namespace="tenant é\ud800")
    after.start("none", [1, 2], namespace=None)
    drafts = after.propose(["common", "tenant", "none"], 8)
    assert [d.token_ids.tolist() for d in drafts] == [[7], [5, 6, 2**31 - 2, 0], []]


@pytest.mark.parametrize("memory_bytes", [0, SMALL])
def test_an_empty_memory_is_a_file_too(tmp_path: Path, memory_bytes: int) -> None:
    new_drafter(memory_bytes=memory_bytes).save(tmp_path / "m")
    drafter = filled()
    assert drafter.load(tmp_path / "m") == 0
    assert drafter.memory.num_documents == 3
    filled().save(tmp_path / "m")
    nothing = new_drafter(memory_bytes=0)
    assert nothing.load(tmp_path / "m") == 0
    check_integrity(nothing)


def test_a_memory_that_was_forgotten_in_part_is_saved_without_it(tmp_path: Path) -> None:
    drafter = filled()
    drafter.purge("")
    drafter.save(tmp_path / "m")
    assert b"".join(np.array([n], "<i4").tobytes() for n in (1, 2, 7)) not in (tmp_path / "m").read_bytes()
    snapshot = memory_file.read(tmp_path / "m")
    assert snapshot.token_ids.tolist() == [1, 2, 5, 6, 2**31 - 2, 0]
    assert snapshot.names == ("tenant é\ud800",)


def test_loading_adds_to_what_is_there(tmp_path: Path) -> None:
    filled().save(tmp_path / "m")
    drafter = new_drafter()
    answer(drafter, [8, 9, 10])
    assert drafter.load(tmp_path / "m") == 3
    assert drafter.load(tmp_path / "m") == 3  # held already: nothing is doubled
    snapshot = drafter.snapshot()
    assert snapshot.lengths.tolist() == [3, 4, 6, 3]
    assert snapshot.credits.tolist() == [0, 0, 2, 0]
    check_integrity(drafter)


def test_time_goes_on_while_the_file_lies(tmp_path: Path, time_of_day: Clock) -> None:
    filled().save(tmp_path / "m")
    time_of_day.now += 1000.0
    assert memory_file.read(tmp_path / "m").ages.tolist() == [1020.0, 1010.0, 1000.0]
    assert new_drafter(ttl=1015.0, clock=Clock()).load(tmp_path / "m") == 2
    time_of_day.now -= 5000.0  # a clock that was set back makes nothing younger
    assert memory_file.read(tmp_path / "m").ages.tolist() == [20.0, 10.0, 0.0]


def test_expired_documents_are_neither_saved_nor_loaded(tmp_path: Path) -> None:
    filled().save(tmp_path / "all")
    drafter = new_drafter(ttl=15.0, clock=Clock())
    assert drafter.load(tmp_path / "all") == 2
    assert drafter.snapshot().lengths.tolist() == [6, 3]
    drafter.memory._clock.now += 10.0
    drafter.save(tmp_path / "rest")
    assert memory_file.read(tmp_path / "rest").lengths.tolist() == [3]


def snapshot_of(lengths: list[int], credits: list[int]) -> Snapshot:
    n = len(lengths)
    return Snapshot(
        np.arange(sum(lengths), dtype=np.int32),
        np.array(lengths, dtype=np.int64),
        ("",),
        np.zeros(n, dtype=np.int64),
        np.zeros(n),
        np.array(credits, dtype=np.int64),
        1e9,
    )


def test_of_more_than_fits_the_valued_and_then_the_newest_are_taken(tmp_path: Path) -> None:
    memory_file.write(tmp_path / "m", snapshot_of([60] * 10, [0, 0, 50, 0, 0, 0, 0, 1, 0, 0]))
    drafter = new_drafter(memory_bytes=SMALL)  # 256 tokens
    assert drafter.load(tmp_path / "m") == 4
    held = drafter.snapshot()
    assert held.token_ids[::60].tolist() == [2 * 60, 7 * 60, 8 * 60, 9 * 60]
    assert held.credits.tolist() == [50, 1, 0, 0]
    check_integrity(drafter)


def test_loading_leaves_what_live_requests_read(tmp_path: Path) -> None:
    memory_file.write(tmp_path / "m", snapshot_of([60] * 10, [0] * 10))
    drafter = new_drafter(memory_bytes=SMALL)
    answer(drafter, list(range(5000, 5100)))
    drafter.start("reader", [5000])
    drafter.propose(["reader"], 1)
    assert drafter.load(tmp_path / "m") == 2
    assert drafter.memory.num_refused == 0
    drafter.observe("reader", [5001])
    assert drafter.propose(["reader"], 1)[0].token_ids.tolist() == [5002]
    check_integrity(drafter)


def test_a_document_larger_than_the_budget_is_loaded_from_its_end(tmp_path: Path) -> None:
    memory_file.write(tmp_path / "m", snapshot_of([1000], [3]))
    drafter = new_drafter(memory_bytes=SMALL)
    assert drafter.load(tmp_path / "m") == 1
    assert drafter.snapshot().token_ids.tolist() == list(range(745, 1000))


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text("old")
    path.chmod(0o644)
    filled().save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["m"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "m")
    filled().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert len(memory_file.read(tmp_path / "folder" / "m")) == 3


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 100 bytes: not even pytest's own log, so keep it short."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    drafter = filled()
    (tmp_path / "m").write_bytes(b"old")
    with pytest.raises(OSError), full_disk():
        drafter.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_write_that_breaks_off_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: type[BaseException]
) -> None:
    def fail(*_: Any) -> None:
        raise error

    drafter = filled()
    (tmp_path / "m").write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(error):
        drafter.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m"]


def test_a_target_that_cannot_be_written_raises_oserror(tmp_path: Path) -> None:
    drafter = filled()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "m", tmp_path / "folder"):
        with pytest.raises(OSError):
            drafter.save(path)
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError):
        drafter.load(tmp_path / "missing")


def rewritten(data: bytes, change: Callable[[dict[str, Any]], Any] | None = None, **prefix: int) -> bytes:
    """A memory file with another header or beginning, and a checksum that fits."""
    _, version, size, num_tokens = PREFIX.unpack(data[: PREFIX.size])
    body = data[PREFIX.size : -32]
    fields, tokens = body[:size], body[size:]
    if change is not None:
        loaded = json.loads(fields)
        changed = change(loaded)
        fields = changed if isinstance(changed, bytes) else json.dumps(changed or loaded).encode()
    numbers = {"version": version, "header": len(fields), "tokens": num_tokens} | prefix
    whole = (
        PREFIX.pack(b"DRAFTMEM", numbers["version"], numbers["header"], numbers["tokens"]) + fields + tokens
    )
    return whole + hashlib.sha256(whole).digest()


def documents(**columns: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["documents"].update(columns)


def tokens_of(value: int) -> Callable[[bytes], bytes]:
    """Another first token."""

    def change(data: bytes) -> bytes:
        at = PREFIX.size + PREFIX.unpack(data[: PREFIX.size])[2]
        whole = data[:at] + struct.pack("<i", value) + data[at + 4 : -32]
        return whole + hashlib.sha256(whole).digest()

    return change


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "not a draft memory file"),
    "text": (lambda _: b"some text\n" * 100, "not a draft memory file"),
    "cut in the magic": (lambda d: d[:5], "not a draft memory file"),
    "cut in the beginning": (lambda d: d[:20], "truncated"),
    "cut in the header": (lambda d: d[:60], "truncated"),
    "cut in the digest": (lambda d: d[:-1], "truncated"),
    "longer": (lambda d: d + b"\0", "inconsistent"),
    "version": (lambda d: rewritten(d, version=2), "version 2"),
    "a bit": (lambda d: d[:70] + bytes([d[70] ^ 1]) + d[71:], "checksum"),
    "a bit of the digest": (lambda d: d[:-1] + bytes([d[-1] ^ 1]), "checksum"),
    "huge header": (lambda d: rewritten(d, header=2**63), "truncated"),
    "huge tokens": (lambda d: rewritten(d, tokens=2**64 - 1), "truncated"),
    "a header longer by a token": (
        lambda d: rewritten(d, header=PREFIX.unpack(d[:28])[2] + 4, tokens=PREFIX.unpack(d[:28])[3] - 1),
        "inconsistent",
    ),
    "no JSON": (lambda d: rewritten(d, lambda _: b"{"), "inconsistent"),
    "no UTF-8": (lambda d: rewritten(d, lambda _: b'"\xff"'), "inconsistent"),
    "nested": (lambda d: rewritten(d, lambda _: b"[" * 100_000), "inconsistent"),
    "a list": (lambda d: rewritten(d, lambda _: [1]), "inconsistent"),
    "no documents": (lambda d: rewritten(d, lambda h: h.pop("documents") and None), "inconsistent"),
    "no ages": (lambda d: rewritten(d, lambda h: h["documents"].pop("age") and None), "inconsistent"),
    "a fingerprint of numbers": (lambda d: rewritten(d, lambda h: h.update(fingerprint=7)), "fingerprint"),
    "a time in words": (lambda d: rewritten(d, lambda h: h.update(saved_at="now")), "saved_at"),
    "names that repeat": (lambda d: rewritten(d, lambda h: h.update(namespaces=["", ""])), "namespaces"),
    "names of numbers": (lambda d: rewritten(d, lambda h: h.update(namespaces=["", 1])), "namespaces"),
    "an unknown namespace": (lambda d: rewritten(d, documents(namespace=[0, 2, 0])), "namespaces"),
    "a negative namespace": (lambda d: rewritten(d, documents(namespace=[0, -1, 0])), "namespaces"),
    "lengths too long": (lambda d: rewritten(d, documents(length=[4, 6, 4])), "lengths"),
    "lengths too short": (lambda d: rewritten(d, documents(length=[4, 6, 2])), "lengths"),
    "a huge length": (lambda d: rewritten(d, documents(length=[4, 6, 10**400])), "lengths"),
    "a negative length": (lambda d: rewritten(d, documents(length=[-4, 14, 3])), "lengths"),
    "a length of one": (lambda d: rewritten(d, documents(length=[1, 9, 3])), "lengths"),
    "a broken length": (lambda d: rewritten(d, documents(length=[4.0, 6, 3])), "lengths"),
    "a length of true": (lambda d: rewritten(d, documents(length=[True, 9, 3])), "lengths"),
    "too few documents": (lambda d: rewritten(d, documents(age=[1, 1])), "ages"),
    "an endless age": (lambda d: rewritten(d, documents(age=[1, float("inf"), 1])), "ages"),
    "no number for an age": (lambda d: rewritten(d, documents(age=[1, float("nan"), 1])), "ages"),
    "a negative age": (lambda d: rewritten(d, documents(age=[1, -1, 1])), "ages"),
    "a negative credit": (lambda d: rewritten(d, documents(credit=[0, -1, 0])), "credits"),
    "a huge credit": (lambda d: rewritten(d, documents(credit=[0, 2**41, 0])), "credits"),
    "credits in words": (lambda d: rewritten(d, documents(credit="000")), "credits"),
    "a negative token": (tokens_of(-1), "token ids"),
    "a token beyond the ids": (tokens_of(2**31 - 1), "token ids"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path: Path, name: str) -> None:
    damage, reason = DAMAGES[name]
    path = tmp_path / "m"
    drafter = filled()
    drafter.save(path)
    assert len(memory_file.read(path)) == 3
    path.write_bytes(damage(path.read_bytes()))
    before = drafter.snapshot()
    with pytest.raises(MemoryFileError, match=reason) as caught:
        drafter.load(path)
    assert str(path) in str(caught.value)
    assert same(drafter.snapshot(), before)
    check_integrity(drafter)


def test_every_cut_and_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m"
    filled().save(path)
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(MemoryFileError):
                memory_file.read(path)


def test_a_file_for_another_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    drafter = filled()
    drafter.save(tmp_path / "m", fingerprint="this one")
    with pytest.raises(MemoryFileError, match=r"'this one'.*'that one'"):
        drafter.load(tmp_path / "m", fingerprint="that one")
    with pytest.raises(MemoryFileError, match=r"'this one'.*''"):
        drafter.load(tmp_path / "m")


def test_a_fingerprint_that_is_no_str_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="fingerprint must be a str"):
        new_drafter().save(tmp_path / "m", fingerprint=None)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_clock_that_went_back_makes_no_file_that_cannot_be_read(tmp_path: Path) -> None:
    clock = Clock(100.0)
    drafter = filled(clock)
    clock.now = 50.0
    drafter.save(tmp_path / "m")
    assert memory_file.read(tmp_path / "m").ages.tolist() == [0.0, 0.0, 0.0]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(MemoryFileError, match="not a file"):
            new_drafter().load(path)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="slow in plain Python")
def test_a_snapshot_is_a_copy(tmp_path: Path) -> None:
    """It can be written while requests go on."""
    drafter = filled()
    snapshot = drafter.snapshot()
    memory_file.write(tmp_path / "before", snapshot, "f")
    for seed in range(60):
        answer(drafter, np.random.default_rng(seed).integers(0, 99, 200).tolist())
    memory_file.write(tmp_path / "after", snapshot, "f")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
