"""The memory file of a proposer: what is loaded and refused, when it is saved, and that nothing of it is raised."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from drafters import SuffixTreeDrafter, memory_file
from vllm_specx.config import ConfigError
from vllm_specx.memory import keeper as keeper_module
from vllm_specx.memory._signals import watch_signals
from vllm_specx.memory.keeper import MemoryKeeper

TEXT = list(range(10, 40))


class Owner:
    """Stands for the proposer."""


class Tracker:
    """A tracker with requests that the drafter has not heard the end of."""

    def __init__(self, drafter):
        self.drafter = drafter
        self.num_ended = 0
        self.open = []

    def say(self, token_ids, namespace=""):
        self.num_ended += 1
        self.drafter.add_document(token_ids, namespace)

    def clear(self):
        while self.open:
            self.say(self.open.pop())


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def make(tmp_path):
    def made(every=0.0, fingerprint="v", path=tmp_path / "memory"):
        drafter = SuffixTreeDrafter(memory_bytes=1 << 20)
        keeper = MemoryKeeper(path, fingerprint, every, Clock())
        keeper.attach(drafter, Tracker(drafter))
        return keeper

    return made


def documents(keeper):
    """Number of documents in the file, and whether it is in order."""
    return len(memory_file.read(keeper.path, "v"))


def test_what_ended_unheard_is_saved_at_the_end_and_loaded_at_the_start(make):
    keeper, owner = make(), Owner()
    keeper.open(owner)
    assert not keeper.path.exists()
    keeper._tracker.say(TEXT)
    keeper._tracker.open.append(TEXT[::-1])
    del owner
    gc.collect()
    assert (documents(keeper), keeper.num_saves) == (2, 1)
    again = make()
    again.open(Owner())
    assert again._drafter.memory.num_documents == 2


def test_a_process_that_ends(tmp_path):
    """In a child of multiprocessing, where atexit does not run."""
    code = f"""
import multiprocessing, sys
from pathlib import Path
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_memory_keeper import *
def child(path):
    drafter = SuffixTreeDrafter(memory_bytes=1 << 20)
    keeper = MemoryKeeper(Path(path), "v", 0.0)
    keeper.attach(drafter, Tracker(drafter))
    globals()["kept"] = owner = Owner()
    keeper.open(owner)
    keeper._tracker.say(TEXT)
    sys.exit(0)
if __name__ == "__main__":
    for kind in ("fork", "spawn"):
        process = multiprocessing.get_context(kind).Process(target=child, args=(str(Path(sys.argv[1]) / kind),))
        process.start()
        process.join()
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    subprocess.run([sys.executable, "-W", "ignore", str(script), str(tmp_path)], check=True, timeout=120)
    assert [len(memory_file.read(tmp_path / kind, "v")) for kind in ("fork", "spawn")] == [1, 1]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"something else", "not a draft memory file"), (b"", "not a draft memory file")]
)
def test_another_file_is_refused_and_left_alone(make, content, reason):
    keeper, owner = make(), Owner()
    keeper.path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        keeper.open(owner)
    assert str(keeper.path) in str(error.value)
    assert reason in str(error.value)
    keeper._tracker.say(TEXT)
    del owner
    gc.collect()
    assert keeper.path.read_bytes() == content


def test_a_file_of_another_vocabulary_and_a_damaged_one(make):
    keeper = make(fingerprint="other")
    keeper.open(Owner())
    keeper._tracker.say(TEXT)
    keeper.save()
    with pytest.raises(ConfigError, match=r"'other'.*'v'"):
        make().open(Owner())
    data = bytearray(keeper.path.read_bytes())
    data[-50] ^= 1
    keeper.path.write_bytes(data)
    with pytest.raises(ConfigError, match="checksum"):
        make(fingerprint="other").open(Owner())
    assert keeper.path.read_bytes() == data


def test_autosave(make):
    keeper = make(every=10.0)
    keeper.open(owner := Owner())
    keeper._tracker.say(TEXT)
    keeper.tick()
    assert keeper._writer is None
    keeper._clock.now = 10.0
    keeper.tick()
    keeper._writer.join()
    assert (documents(keeper), keeper.num_saves) == (1, 1)
    keeper.tick()
    keeper._clock.now = 20.0
    keeper.tick()  # nothing new
    assert keeper.num_saves == 1
    keeper._tracker.say(TEXT[::-1])
    keeper._clock.now = 30.0
    keeper.tick()
    keeper._writer.join()
    assert (documents(keeper), keeper.num_saves) == (2, 2)
    assert owner


def test_one_save_at_a_time_and_not_on_the_step_s_path(make, monkeypatch):
    """While a save hangs, steps go on; the last save waits for it and so is the one that stays."""
    keeper = make(every=1.0)
    hang, real = threading.Event(), memory_file.write
    threads = []

    def slow(*arguments):
        threads.append(threading.current_thread())
        if len(threads) == 1:
            assert hang.wait(30)
        real(*arguments)

    monkeypatch.setattr(keeper_module.memory_file, "write", slow)
    for second in range(1, 4):
        keeper._tracker.say([*TEXT, second])
        keeper._clock.now = float(second)
        keeper.tick()
    assert len(threads) <= 1
    threading.Timer(0.05, hang.set).start()
    keeper.close()
    assert (len(threads), documents(keeper)) == (2, 3)
    assert threads[0] is not threading.main_thread() is threads[1]


def test_failures_are_counted_and_told_once_a_kind(make, monkeypatch, caplog):
    keeper = make(every=1.0)
    keeper._tracker.say(TEXT)
    keeper.save()
    before = keeper.path.read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "vllm.specx"):
        patch.setattr(logging.getLogger("vllm.specx"), "propagate", True)
        patch.setattr(logging.getLogger("vllm"), "propagate", True)
        patch.setattr(keeper_module.memory_file, "write", full)
        for second in range(1, 4):
            keeper._tracker.say([*TEXT, second])
            keeper._clock.now = float(second)
            keeper.tick()
            keeper._wait()
        patch.setattr(keeper._drafter, "snapshot", lambda: 1 / 0)
        keeper.close()
    assert keeper.num_failures == 4
    assert keeper.path.read_bytes() == before
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "No space left on device" in messages[0]
    assert str(keeper.path) in messages[0]
    keeper.close()  # what was not saved is saved at the next occasion
    assert documents(keeper) == 4


def test_an_empty_memory_takes_no_file_away_unless_it_was_purged(make):
    keeper = make()
    keeper._tracker.say(TEXT)
    keeper.save()
    keeper._tracker.num_ended += 1
    keeper._drafter.clear()  # the engine slept
    keeper.close()
    assert documents(keeper) == 1
    keeper.rewrite()
    assert documents(keeper) == 0


def test_leftovers_of_killed_processes_go(make, tmp_path):
    old, young, other = (
        tmp_path / name for name in (".memory.abcdefgh.tmp", ".memory.ijklmnop.tmp", ".memory.x.tmp")
    )
    for file in (old, young, other):
        file.touch()
    for file in (old, other):
        os.utime(file, (1, 1))
    make().open(Owner())
    assert [file.exists() for file in (old, young, other)] == [False, True, True]


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_before_it_does_what_it_did(make, handlers, number):
    keeper, seen = make(), []
    signal.signal(number, lambda *arguments: seen.append((arguments[0], documents(keeper))))
    watch_signals(keeper)
    keeper._tracker.say(TEXT)
    signal.raise_signal(number)
    assert seen == [(number, 1)]
    with keeper.within_work():
        keeper._tracker.say(TEXT[::-1])
        signal.raise_signal(number)
        assert seen == [(number, 1)]  # the drafter is at work: later
        keeper._tracker.say(TEXT[::2])
    assert seen == [(number, 1), (number, 3)]


def test_signals_that_are_left_alone(make, handlers):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watch_signals(make())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    thread = threading.Thread(target=watch_signals, args=(make(),))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_keeper_that_is_gone_stops_no_signal(make, handlers):
    seen = []
    signal.signal(signal.SIGTERM, lambda *arguments: seen.append(arguments[0]))
    watch_signals(make())
    gc.collect()
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_a_plain_process_still_dies_of_sigterm(tmp_path):
    """No handler but ours: the memory is saved, and the exit status says what ended the process."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from pathlib import Path
from test_memory_keeper import *
drafter = SuffixTreeDrafter(memory_bytes=1 << 20)
keeper = MemoryKeeper(Path({str(tmp_path / "memory")!r}), "v", 0.0)
keeper.attach(drafter, Tracker(drafter))
keeper.open(owner := Owner())
keeper._tracker.say(TEXT)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, timeout=120)
    assert done.returncode == -signal.SIGTERM
    assert len(memory_file.read(tmp_path / "memory", "v")) == 1
