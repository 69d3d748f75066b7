"""A few seconds of `make fuzz`, and that it finds what it looks for."""

from __future__ import annotations

import contextlib
import json
import math
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fuzz_drafters
import fuzz_formats
import msgspec
import numba
import numpy as np
import pytest
from fuzz import Crashes, run_target
from fuzz_drafters import KINDS, STREAMS, lives, read_aloud
from fuzz_formats import TARGETS, Counts, Target, fuzz
from hypothesis import strategies as st
from letters import save_tokenizer

from drafters import Draft, SuffixTreeDrafter
from vllm_specx.bench.errors import BenchError
from vllm_specx.fleet import messages
from vllm_specx.fleet.inbox import Inbox
from vllm_specx.fleet.messages import Join, Joined, Prior, Settings, Sync, Synced, Texts, encode
from vllm_specx.fleet.peer import Peer
from vllm_specx.fleet.priors import Learner
from vllm_specx.fleet.server import FleetServer
from vllm_specx.fleet.texts import pack, pieces
from vllm_specx.simulate.texts import load_texts

pytestmark = [
    pytest.mark.skipif(numba.config.DISABLE_JIT, reason="slow in plain Python"),
    # hypothesis's own, where it is told to write out an input.
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_what_is_damaged_is_taken_or_refused(target: Target, tmp_path: Path) -> None:
    pytest.importorskip("torch") if "head" in target.name else None
    counts = Counts()
    fuzz(target, 1, 150, tmp_path, counts)
    assert 0 < counts.taken < counts.inputs


@pytest.mark.parametrize("kind", KINDS)
def test_what_holds_of_every_draft(kind: str) -> None:
    counts = sum((of_life for of_life, _ in lives(kind, 6000, 1, length=2000)), start=Counter())
    assert counts["tokens drafted"] > 1000
    assert {name for name in fuzz_drafters.OPERATIONS if not counts[name]} <= {"clear", "save", "load"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", STREAMS)
def test_a_hard_text_takes_no_more_as_it_grows(kind: str, text: str) -> None:
    found = read_aloud(kind, STREAMS[text](3 * fuzz_drafters.WINDOW), tenants=2)
    assert found["drafted"] > 0


def test_hard_texts_are_what_they_are_called() -> None:
    words = STREAMS["de Bruijn of 2"](2**10)
    assert len({tuple((words + words[:9])[i : i + 10]) for i in range(2**10)}) == 2**10
    word = STREAMS["Fibonacci"](1000)
    assert [len({tuple(word[i : i + n]) for i in range(900)}) for n in range(1, 9)] == list(range(2, 10))


def test_a_draft_of_another_tenant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SuffixTreeDrafter.propose

    def leaky(self: Any, requests: Any, limits: Any) -> Any:
        drafts = real(self, requests, limits)
        return [Draft(np.flip(d.token_ids) ^ fuzz_drafters.SPAN, d.reach) for d in drafts]

    monkeypatch.setattr(SuffixTreeDrafter, "propose", leaky)
    with pytest.raises(AssertionError, match="a token of another tenant") as caught:
        list(lives("suffix tree", 2000, 0))
    assert "--seed 0 --life 0: operation" in caught.value.__notes__[0]


def crash(value: Any, folder: Path) -> bool:
    if value > 10:
        raise KeyError(value)
    return True


def spin(value: Any, folder: Path) -> bool:
    while value > 10:
        pass
    return True


@pytest.mark.parametrize(("take", "said"), [(crash, "KeyError: 11"), (spin, "more than 0.2 s of CPU time")])
def test_a_reader_that_fails_is_found_shrunk_and_repeated(
    take: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_formats, "MOST_SECONDS", 0.2)
    target = Target("bad", lambda: st.integers(0, 1000), take, (ValueError,))
    crashes = Crashes(tmp_path / "crashes")
    run_target(target, 5, tmp_path, Counts(), crashes)
    (file,) = (tmp_path / "crashes").iterdir()
    text = file.read_text()
    assert text.startswith("python tests/fuzz.py --target 'bad' --seed 5\n")
    assert said in text
    assert text.endswith("\n11")
    assert len(crashes.found) == 1


def test_a_reader_that_swells_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_formats, "MOST_MEGABYTES", -1)  # the peak of this process may be any by now
    counts = Counts()
    with pytest.raises(AssertionError, match="more than -1 MiB"):
        fuzz(Target("bad", lambda: st.integers(0, 1000), lambda *_: True), 5, 100, tmp_path, counts)
    assert counts.inputs >= 1


def test_a_life_repeats() -> None:
    (once,), (again,) = (
        [of_life for of_life, _ in lives("both", 1500, 3, first=4, length=1500)] for _ in "12"
    )
    assert once == again


# What was found by it, each in its smallest form.

DEEP = b"[" * 20_000
BOMB: list[Any] = [1] * 9
for _ in range(9):
    BOMB = [BOMB] * 9
PROMPT = b'{"id": "a", "messages": [{"role": "user", "content": %s}]}'
TRACE = b'{"id": 1, "prompt": "a b", "output": "a b c d", "at": 1%s}' % (b"0" * 400)
CONFIG = json.dumps(fuzz_formats._MEDUSA).encode()
EAGLE3 = json.dumps(fuzz_formats._EAGLE3).encode()


def weights(**tensors: tuple[str, list[int]]) -> bytes:
    """A safetensors file of zeros; underscores in names stand for dots."""
    header, end = {}, 0
    for name, (kind, shape) in tensors.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name.replace("_", ".")] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * end


OWN = weights(weight_0=("F32", [2, 4, 4]), bias_0=("F32", [2, 1, 4]))
SCALARS = weights(
    **{"0_0_linear_weight": ("F32", []), "0_0_linear_bias": ("F32", []), "0_1_weight": ("F32", [6, 4])}
)
FOUND: list[tuple[str, Any]] = [
    ("prompts", DEEP),
    ("prompts", PROMPT % b'"\\ud83d"'),
    ("prompts", b'{"id": ' + b"1" * 5000 + b"}"),
    ("traces and corpora", DEEP),
    ("recipe", b"a: " + DEEP[:3000]),
    ("recipe", b"a: 1111-99-99"),
    ("options", {"drafters": BOMB}),
    ("options", {"memory_bytes": 10**5000}),
    ("options", {10**5000: 1}),
    ("options of a request", {"specx_max_n": 10**5000}),
    ("EAGLE-3 head", (DEEP, b"")),
    ("EAGLE-3 head", (EAGLE3.replace(b'["LlamaForCausalLMEagle3"]', b"5"), b"")),
    ("EAGLE-3 head", (EAGLE3.replace(b"[1, 2, 3]", b'"x"'), b"")),
    ("EAGLE-3 head", (EAGLE3.replace(b": 64", b": -" + b"9" * 4300), b"")),
    ("EAGLE-3 head", (EAGLE3.replace(b"[1, 2, 3]", b'["x"]'), b"")),
    ("Medusa heads", (DEEP, OWN, "cpu")),
    ("Medusa heads", (CONFIG.replace(b'"num_heads": 2', b'"num_heads": "2"'), OWN, "cpu")),
    ("Medusa heads", (CONFIG.replace(b'"num_layers": 1', b'"num_layers": 1000000000'), OWN, "meta")),
    ("Medusa heads", (CONFIG.replace(b'"hidden_size": 4', b'"hidden_size": -4'), OWN, "meta")),
    ("Medusa heads", (CONFIG, OWN.replace(b"F32", b"I32"), "cpu")),
    ("Medusa heads", (b"", weights(**{"999999999_0_linear_weight": ("F32", [4, 4])}), "cpu")),
    ("Medusa heads", (b"", weights(**{"999999_999999_linear_weight": ("F32", [4, 4])}), "cpu")),
    ("Medusa heads", (b"", SCALARS, "cpu")),
    ("tokens and limits", ([1.5], 2**70)),
    ("message to the fleet", [("sync", b"\x81\xa1a" * 50_000)]),
    ("answer of the fleet", (b"\x81\xa1a" * 50_000, b"\x81\xa1a" * 50_000)),
    ("snapshot of the fleet", (None, b'{"model": "m", "vocabulary": "f", "priors": ' + b'{"a":' * 20_000)),
]


@pytest.mark.parametrize(("name", "given"), FOUND, ids=range(len(FOUND)))
def test_what_was_found_is_refused(name: str, given: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch") if "head" in name else None
    (target,) = (target for target in TARGETS if target.name == name)
    begin = time.thread_time()
    with contextlib.suppress(*target.refusals):
        assert not target.take(given, tmp_path)
    assert time.thread_time() - begin < fuzz_formats.MOST_SECONDS


def test_times_that_no_clock_shows_are_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "t.jsonl").write_bytes(TRACE)
    with pytest.raises(BenchError, match="needs its time in seconds"):
        load_texts(tmp_path / "t.jsonl", tmp_path, timed=True)


@pytest.mark.parametrize("texts", [Texts(), pack(pieces("", np.arange(40, dtype=np.int32)))])
def test_a_store_that_never_ends_its_answer_is_left(texts: Texts) -> None:
    peer = Peer(Join("a", "m", "v"), 1000, 4 * messages.MESSAGE_BYTES)
    calls = []

    def endless(method: str, message: bytes) -> bytes:
        calls.append(method)
        assert len(calls) < 10
        return encode(Synced(last=9, more=5, texts=texts, purges=(("salt=2",),)))

    peer.sync(endless, Inbox(1 << 20))
    assert calls == ["sync"] * (4 if texts.token_ids else 1)


def test_what_replicas_have_learnt_is_bounded_and_sound() -> None:
    server = FleetServer(encode(Settings("f")))
    epoch = msgspec.msgpack.decode(server.join(encode(Join("a", "m", "v"))), type=Joined).epoch
    for number in range(1000):
        priors = {f"costs on {number}": Prior(1.0, {"mean": bytes(1000)}), "reach": Prior(math.nan, {})}
        server.sync(encode(Sync(f"replica {number}", epoch, priors=priors)))
    server.sync(encode(Sync("a", epoch, priors={"large": Prior(1.0, {"mean": bytes(2 << 20)})})))
    joined = msgspec.msgpack.decode(server.join(encode(Join("a", "m", "v"))), type=Joined)
    assert len(joined.priors) == 64
    assert "reach" not in joined.priors
    drafter = SuffixTreeDrafter(memory_bytes=0)
    with pytest.raises(ValueError, match="weights is missing"):
        Learner("here", None).start_from(drafter, {"reach": Prior(1.0, {})})
