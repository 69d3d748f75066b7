"""What everything that reads a file, a message or options does with damaged ones: it takes them, or refuses them.

A target is what to draw and what to do with it. It returns whether it was taken; the error that its reader documents
counts as refused; any other exception, more than `MOST_SECONDS` of CPU time, and a leap in memory are findings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import yaml
from fuzz_inputs import ODD, Json, damaged, json_files, json_lines, mangled, packable
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from drafters import LookaheadDrafter, SuffixTreeDrafter, memory_file
from vllm_specx import recipes
from vllm_specx.bench.errors import BenchError
from vllm_specx.config import ConfigError, SpecxConfig
from vllm_specx.request_options import RequestOptionError, RequestOptions, max_n_of

MOST_SECONDS: Final = 5.0  # of CPU time, of one input; what is refused takes milliseconds
MOST_MEGABYTES: Final = 256  # that one input may add to the peak of the process
_MAGIC: Final = struct.Struct("<8sIQQ")


class TooSlow(BaseException):
    """No reader may catch it."""


@dataclass
class Counts:
    """What was tried on a target."""

    inputs: int = 0
    taken: int = 0
    cpu_s: float = 0.0
    slowest_ms: float = 0.0
    slowest_seed: int = -1
    failing: Any = None  # the last input that failed: hypothesis ends with the smallest


@dataclass(frozen=True)
class Target:
    """What is drawn, and what is done with it in a folder; `refusals` are the errors that are documented."""

    name: str
    inputs: Callable[[], st.SearchStrategy[Any]]
    take: Callable[[Any, Path], bool]
    refusals: tuple[type[Exception], ...] = field(default=())


def fuzz(target: Target, number: int, examples: int, folder: Path, counts: Counts) -> None:
    """Try so many inputs. Raises what a reader raised beyond its documented errors, with the smallest input found."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(target.inputs())
    def check(value: Any) -> None:
        begin, peak = time.thread_time(), getrusage(RUSAGE_SELF).ru_maxrss
        try:
            with _cpu_limit():
                counts.taken += target.take(value, folder)
        except target.refusals:
            pass
        except TooSlow as error:
            counts.failing = value
            raise AssertionError(f"more than {MOST_SECONDS:g} s of CPU time") from error
        except BaseException:
            counts.failing = value
            raise
        took = 1e3 * (time.thread_time() - begin)
        counts.inputs += 1
        counts.cpu_s += 1e-3 * took
        if took > counts.slowest_ms:
            counts.slowest_ms, counts.slowest_seed = took, number
        if (getrusage(RUSAGE_SELF).ru_maxrss - peak) >> 10 > MOST_MEGABYTES:
            counts.failing = value
            raise AssertionError(f"more than {MOST_MEGABYTES} MiB")

    check()


@contextlib.contextmanager
def _cpu_limit() -> Iterator[None]:
    def too_slow(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# Memory files.

_HEADER: Final = {
    "fingerprint": "f",
    "saved_at": 1.0,
    "namespaces": ["", "salt=1"],
    "documents": {"length": [4, 6, 3], "namespace": [0, 1, 0], "age": [1.5, 0, 2], "credit": [0, 9, 1]},
}


@st.composite
def _memory_files(draw: st.DrawFn) -> bytes:
    """Most have a checksum that fits, so that what is behind it is reached."""
    header = json.dumps(draw(damaged(st.just(_HEADER)))).encode()
    tokens = draw(st.lists(st.integers(0, 9), min_size=13, max_size=13))
    if not draw(st.integers(0, 4)):
        tokens = draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
    body = header + np.array(tokens, dtype="<i4").tobytes()
    sizes = (len(header), len(tokens)) if draw(st.integers(0, 6)) else draw(st.tuples(_SIZES, _SIZES))
    data = _MAGIC.pack(b"DRAFTMEM", draw(st.sampled_from([1] * 9 + [0, 2])), *sizes) + body
    return data + hashlib.sha256(data).digest()


_SIZES: Final = st.one_of(st.integers(0, 400), st.integers(0, 2**64 - 1))


@cache
def _drafter() -> SuffixTreeDrafter:
    return SuffixTreeDrafter(memory_bytes=1 << 16, ttl=1e9)


def _take_memory(data: bytes, folder: Path) -> bool:
    from fuzz_suffix_tree import check_integrity

    drafter = _drafter()
    drafter.clear()
    path = _written(folder / "memory", data)
    held = drafter.load(path, fingerprint="f")
    check_integrity(drafter)
    drafter.start("a", [1, 2, 3])
    drafter.propose(["a"], 8)
    drafter.stop("a")
    drafter.save(path, fingerprint="f")
    assert len(memory_file.read(path, "f")) == drafter.num_documents >= held
    return True


# The fleet.


@cache
def _fleet_texts() -> Any:
    from vllm_specx.fleet.texts import pack, pieces

    texts = [t for name in ("", "salt=1") for t in pieces(name, np.arange(40, dtype=np.int32))]
    return pack(texts, ages=[1.0, 2.0], credits=[3, 4])


def _builtins(message: Any) -> Json:
    """A message as what MessagePack holds."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message))


def _packed(message: Any) -> st.SearchStrategy[bytes]:
    odd = st.one_of(ODD, st.binary(max_size=24), st.just(np.array([2, np.nan]).tobytes()))
    values = damaged(st.just(_builtins(message)), odd).map(packable)
    deep = st.sampled_from(
        [b"\x91" * 50_000, b"\x81\xa1a" * 50_000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    )
    return st.one_of(mangled(values.map(msgspec.msgpack.encode)), mangled(deep))


def _to_server() -> st.SearchStrategy[Any]:
    from vllm_specx.fleet.messages import Join, Prior, Sync

    prior = Prior(5.0, {"weights": b"\0" * 8})
    sync = Sync("a", "e", 1, 2, 3, _fleet_texts(), {b"\0" * 16: 7}, (("salt=1",),), {"reach": prior})
    sent = st.one_of(
        st.tuples(st.just("sync"), _packed(sync)), st.tuples(st.just("join"), _packed(Join("a", "m", "v")))
    )
    return st.lists(sent, min_size=1, max_size=3)


def _take_server(sent: list[tuple[str, bytes]], folder: Path) -> bool:
    from vllm_specx.fleet import texts
    from vllm_specx.fleet.messages import Join, Settings, Sync, Synced, encode
    from vllm_specx.fleet.server import FleetServer

    server = FleetServer(encode(Settings("f", max_bytes=4000)))
    server.join(encode(Join("b", "m", "v")))
    server._epoch = "e"
    refused = 0
    for method, message in sent:
        try:
            getattr(server, method)(message)
        except ValueError:
            refused += 1
    assert server._store.num_bytes <= 4000
    answer = msgspec.msgpack.decode(server.sync(encode(Sync("b", "e", texts=_fleet_texts()))), type=Synced)
    texts.unpack(answer.texts)
    json.loads(server.status())
    return refused < len(sent)


def _from_server() -> st.SearchStrategy[Any]:
    from vllm_specx.fleet.messages import Joined, Prior, Synced

    joined = Joined(
        "", "e", 5, "notice", {"reach": Prior(5.0, {"weights": b"\0" * 8, "information": b"\0" * 8})}
    )
    synced = Synced(False, 9, 0, 4, _fleet_texts(), (("salt=2",),))
    return st.tuples(_packed(joined), _packed(synced))


def _take_answers(answers: tuple[bytes, bytes], folder: Path) -> bool:
    """A replica goes on after any answer: to join again, or to be told."""
    from vllm_specx.fleet.inbox import Inbox
    from vllm_specx.fleet.messages import Join, Joined, Sync, Synced, encode
    from vllm_specx.fleet.peer import Peer, Refused, Unknown
    from vllm_specx.fleet.priors import Learner
    from vllm_specx.fleet.texts import pieces

    drafter, inbox = _drafter(), Inbox(1 << 20)
    peer = Peer(Join("a", "m", "v"), 1000, 1 << 20)
    (text,) = pieces("", np.arange(9, dtype=np.int32))
    peer.say(text)
    taken, told = 0, []

    def good(method: str, message: bytes) -> bytes:
        if method == "join":
            return encode(Joined(epoch="g", last=1))
        told.append(msgspec.msgpack.decode(message, type=Sync))
        return encode(Synced(last=1))

    for call in (
        lambda: Learner("here", None).start_from(drafter, peer.join(lambda *_: answers[0]).priors),
        lambda: peer.sync(lambda *_: answers[1], inbox),
    ):
        try:
            call()
            taken += 1
        except (ValueError, Refused, Unknown):
            continue
    inbox.absorb(drafter)
    peer.join(good)
    peer.sync(good, Inbox(1 << 20))
    assert told
    return taken > 0


def _framed() -> st.SearchStrategy[bytes]:
    frames = st.lists(st.binary(max_size=40), max_size=3)
    return mangled(frames.map(lambda parts: b"".join(struct.pack("<I", len(part)) + part for part in parts)))


def _take_frames(data: bytes, folder: Path) -> bool:
    from vllm_specx.fleet.link import receive

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        while receive(ours) is not None:
            pass
    return True


def _snapshots() -> st.SearchStrategy[Any]:
    from vllm_specx.fleet.messages import Prior
    from vllm_specx.fleet.snapshots import About
    from vllm_specx.fleet.store import Purge

    about = About("m", "f", {"reach": Prior(5.0, {"weights": b"\0" * 8})}, (Purge(3, ("salt=1",), "a"),))
    beside = json_files(st.just(json.loads(msgspec.json.encode(about))))
    return st.tuples(st.one_of(st.none(), mangled(_memory_files())), st.one_of(st.none(), beside))


def _take_snapshot(files: tuple[bytes | None, bytes | None], folder: Path) -> bool:
    """A damaged store is moved away, one of another vocabulary is refused in words; a replica is answered."""
    from vllm_specx.fleet.messages import Join, Joined, Settings, Sync, encode
    from vllm_specx.fleet.server import FleetServer

    place = folder / "store"
    for path, data in zip((place, folder / "store.json"), files, strict=True):
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
    settings = Settings("f", max_bytes=4000, snapshot_path=str(place), snapshot_interval_s=1e6)
    server = _unsaved(FleetServer)(encode(settings))
    joined = msgspec.msgpack.decode(server.join(encode(Join("a", "m", "f"))), type=Joined)
    if joined.refused:
        return False
    server.sync(encode(Sync("a", joined.epoch, joined.last, texts=_fleet_texts())))
    assert server._store.num_bytes <= 4000
    server.save()
    return not joined.notice


@cache
def _unsaved(server: Any) -> Any:
    """A server without the thread that saves now and then: there are many of them here."""
    place = server._place

    class Unsaved(server):  # type: ignore[misc]
        is_made = False

        def __init__(self, settings: bytes) -> None:
            super().__init__(settings)
            self.is_made = True

        @property
        def _place(self) -> str:
            return place.fget(self) if self.is_made else ""

    return Unsaved


# Options, recipes, cost tables.

_OPTIONS: Final = {
    "memory_bytes": 1 << 20, "costs": "", "memory_ttl_s": 5, "memory_path": "m", "autosave_s": 1.5, "shared": True,
    "drafters": ["suffix_tree", "lookahead"], "lookahead_window": 5, "medusa_heads": "", "max_draft_share": 0.5,
    "fleet": {"name": "f", "shards": 2, "bytes": 1 << 20, "required": False, "sync_interval_s": 1.0},
}  # fmt: skip
_PROPOSERS: Final = ("SuffixTreeProposer", "LookaheadProposer", "MedusaProposer", "HybridProposer", "?")


def _configs() -> st.SearchStrategy[Json]:
    return damaged(
        st.sampled_from([_OPTIONS, {"alpha": 0.1}, {"adaptive": True}, {"hybrid": True}, {}, None])
    )


def _take_config(options: Json, folder: Path) -> bool:
    config = SpecxConfig.from_mapping(options)
    for name in _PROPOSERS:
        with contextlib.suppress(ConfigError):
            config.check_proposer(f"vllm_specx.{name}")
    return True


_YAML: Final = (
    b"&a [1, *a]", b"*b", b"!!python/object/apply:os.getcwd []", b"!!binary x", b"2001-99-99", b"0x" + b"f" * 9000,
    b"1:59:59:59:59", b"[" * 3000, b"{" * 3000, b"{[1]: 2}", b"? {a: b}\n: c", b"<<: [1]", b"!!int 1_", b"\t", b".nan",
    b"&x [&y [&z [1,1,1,1,1,1,1,1,1],*z,*z,*z,*z,*z,*z,*z,*z],*y,*y,*y,*y,*y,*y,*y,*y]", b"- a\nb: c", b"|",
    b"\xff\xfe", b"! x", b"1" * 5000, b"12e" + b"9" * 400, b"&a {<<: *a}", b"%YAML 9.9\n---\n", b"=", b"!!set {a, b}",
    b"!!omap [1]", b"!!int", b"!!float ''", b"!!bool x", b"!!timestamp x",
)  # fmt: skip


def _recipes() -> st.SearchStrategy[bytes]:
    known = [(recipes.FOLDER / f"{name}.yaml").read_bytes() for name in recipes.names()]
    bodies = [yaml.safe_load(text) for text in known]

    @st.composite
    def planted(draw: st.DrawFn) -> bytes:
        value = draw(damaged(st.sampled_from(bodies), st.just("@raw@"), least=1))
        return yaml.safe_dump(value).encode().replace(b"'@raw@'", draw(st.sampled_from(_YAML)), 1)

    values = damaged(st.sampled_from(bodies)).map(lambda value: json.dumps(value).encode())  # JSON is YAML
    return mangled(st.one_of(st.sampled_from(known), planted(), values))


def _take_recipe(data: bytes, folder: Path) -> bool:
    options = recipes.recipe(_written(folder / "r.yaml", data))
    SpecxConfig.from_vllm(SimpleNamespace(additional_config=options.get("additional_config")))
    return True


_COSTS: Final = {
    "format": "specx-costs/1",
    "requests": [1, 4],
    "draft_tokens_per_request": [0, 2, 8],
    "seconds": [[0.02, 0.03, 0.04], [0.03, 0.05, 0.06]],
    "source": {"model": "m"},
}


def _take_costs(data: bytes, folder: Path) -> bool:
    from vllm_specx.bench.costs import load_costs
    from vllm_specx.costs import load_cost_table

    path = _written(folder / "costs.json", data)
    with contextlib.suppress(ConfigError):
        load_cost_table(SpecxConfig(costs=str(path)))
    table = load_costs(path)
    assert np.isfinite(table(1, np.arange(5))).all()
    return True


# What the command line reads.


def _benches() -> st.SearchStrategy[bytes]:
    from bench_documents import bench_document

    small = bench_document(
        {"suffix-tree": (1.1, 1.2, 1.3), "ngram:4": 0.9}, workloads=("chat",), concurrency=(1,)
    )
    warm = bench_document({"suffix-tree": 1.5}, workloads=("chat",), concurrency=(1, 8), repeats=1, warm=True)
    for document in (small, warm):
        document["runs"] = []  # which nobody reads
    return json_files(st.sampled_from([json.loads(json.dumps(document)) for document in (small, warm)]))


def _take_bench(data: bytes, folder: Path) -> bool:
    from vllm_specx.bench.document import read_document
    from vllm_specx.recommend import recipe, recommend, select
    from vllm_specx.report import page

    document = read_document(_written(folder / "bench.json", data))
    page(document, "bench.json").encode()
    rows = select(document)
    with contextlib.suppress(BenchError):  # most are configured otherwise than here
        yaml.safe_load(recipe(document, rows, recommend(rows), folder / "out.yaml"))
    return True


_PROMPTS: Final = st.sampled_from(
    [
        {"id": "a", "messages": [{"role": "user", "content": "say it"}], "max_tokens": 8},
        {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
    ]
)


def _take_prompts(data: bytes, folder: Path) -> bool:
    from vllm_specx.bench.prompts import read_prompts

    for prompt in read_prompts(_written(folder / "p.jsonl", data)):
        json.dumps([dict(message) for message in prompt.messages], ensure_ascii=False).encode()
    return True


_TRACES: Final = st.integers(0, 99).map(
    lambda n: {"id": n, "prompt": "a b c", "output": "a b c d e f", "at": n}
)


def _take_traces(data: bytes, folder: Path) -> bool:
    from letters import save_tokenizer

    from vllm_specx.simulate.texts import load_texts
    from vllm_specx.warm.corpus import read_corpus

    if not (folder / "tokenizer.json").exists():
        save_tokenizer(folder)
    path = _written(folder / "t.jsonl", data)
    for row in read_corpus(path):
        getattr(row, "text", "").encode()
    with contextlib.suppress(BenchError):
        load_texts(path, folder, timed=True)
    load_texts(path, folder)
    return True


# Heads.


@st.composite
def _tensor_files(draw: st.DrawFn, tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file, whose header is damaged; the weights are zeros."""
    sizes = {"F32": 4, "BF16": 2, "I64": 8}
    header: dict[str, Any] = {}
    end = 0
    for name, (kind, shape) in tensors.items():
        begin, end = end, end + sizes[kind] * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    odd = st.one_of(
        ODD,
        st.sampled_from([*tensors, "999999999.0.linear.weight", "0.999999.linear.bias", "BOOL", "F8_E4M3"]),
    )
    text = json.dumps(draw(damaged(st.just(header), odd))).encode()
    for old in draw(st.lists(st.sampled_from(list(tensors)), max_size=1)):  # a name, not a value, is another
        text = text.replace(json.dumps(old).encode(), json.dumps(draw(odd.map(str))).encode(), 1)
    return struct.pack("<Q", len(text)) + text + b"\0" * end


_HIDDEN, _VOCAB = 4, 6
_OWN: Final = {"weight.0": ("BF16", [2, 4, 4]), "bias.0": ("BF16", [2, 1, 4]), "ids": ("I64", [6])}
_PUBLISHED: Final = {
    name: ("F32", shape)
    for head in (0, 1)
    for name, shape in (
        (f"{head}.0.linear.weight", [4, 4]), (f"{head}.0.linear.bias", [4]), (f"{head}.1.weight", [6, 4]),
    )
}  # fmt: skip
_MEDUSA: Final = {"hidden_size": 4, "vocab_size": 6, "draft_vocab_size": 6, "num_heads": 2, "num_layers": 1,
                  "token_input": False, "has_output": False}  # fmt: skip


def _medusa() -> st.SearchStrategy[Any]:
    weights = st.one_of(_tensor_files(_OWN), _tensor_files(_PUBLISHED))
    return st.tuples(json_files(st.just(_MEDUSA)), mangled(weights), st.sampled_from(["cpu", "meta"]))


def _take_medusa(files: tuple[bytes, bytes, str], folder: Path) -> bool:
    from drafters.medusa import HeadsError, load

    config, weights, device = files
    try:
        heads, ids = load(_folder(folder / "medusa", config, weights), device)
    except HeadsError:
        return False
    assert heads.config.num_heads >= 1
    assert ids is None or ids.ndim == 1
    return True


_EAGLE3: Final = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4, "target_hidden_size": 4, "vocab_size": 6,
    "draft_vocab_size": 3, "max_position_embeddings": 64,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
}  # fmt: skip


def _eagle3() -> st.SearchStrategy[Any]:
    weights = _tensor_files({"fc.weight": ("F32", [4, 12]), "d2t": ("I64", [3])})
    return st.tuples(json_files(st.just(_EAGLE3)), mangled(weights))


def _take_eagle3(files: tuple[bytes, bytes], folder: Path) -> bool:
    from vllm_specx.heads import check_head

    sizes = SimpleNamespace(hidden_size=_HIDDEN, vocab_size=_VOCAB, num_hidden_layers=4)
    check_head(_folder(folder / "eagle3", *files), SimpleNamespace(model="m", hf_text_config=sizes), 8)
    return True


def _folder(folder: Path, config: bytes, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    _written(folder / "config.json", config)
    _written(folder / "model.safetensors", weights)
    return folder


# Requests.


def _extra_args() -> st.SearchStrategy[Json]:
    known = {"specx_max_n": 4, "specx_drafter": "suffix_tree", "other": {"specx_max_n": -1}}
    huge = st.just(10**5000)
    return damaged(st.sampled_from([known, {"specx_max_n": 0}, {}, None]), st.one_of(ODD, huge)).filter(
        lambda value: value is None or isinstance(value, dict)  # vLLM checks that
    )


def _take_request(extra_args: Json, folder: Path) -> bool:
    assert max_n_of(SimpleNamespace(extra_args=extra_args)) in (None, *range(129))
    options = RequestOptions.from_extra_args(extra_args)
    for model in ("vllm_specx.SuffixTreeProposer", "some/draft-model"):
        with contextlib.suppress(RequestOptionError):
            options.check_engine(SimpleNamespace(model=model, method="draft_model"))
    return True


def _tokens() -> st.SearchStrategy[Any]:
    numbers = st.one_of(
        st.integers(-2, 9), st.integers(-(2**70), 2**70), st.floats(), st.none(), st.text(max_size=2)
    )
    rows = st.lists(numbers, max_size=40)
    arrays = st.lists(st.integers(0, 99), max_size=40).flatmap(
        lambda row: st.sampled_from([np.uint8, np.int64, np.float32, np.bool_, object]).map(
            lambda kind: np.array(row, kind)
        )
    )
    return st.tuples(
        st.one_of(rows, arrays, st.lists(rows, max_size=3), ODD), st.one_of(st.integers(-3, 99), rows, ODD)
    )


@cache
def _lookahead() -> LookaheadDrafter:
    return LookaheadDrafter(pool_ngrams=256, max_n=8)


def _take_tokens(given: tuple[Any, Any], folder: Path) -> bool:
    """Tokens and limits that are none: refused, and nothing changes."""
    taken = 0
    for drafter in (_drafter(), _lookahead()):
        drafter.start("r", [1, 2, 1, 2, 1], namespace=None)
        try:
            before = [draft.token_ids.tolist() for draft in drafter.propose(["r"], 4)]
            for call in (
                lambda made=drafter: made.start("s", given[0], namespace=None),
                lambda made=drafter: made.propose(["r"], given[1]),
            ):
                try:
                    call()
                    taken += 1
                except (ValueError, TypeError):
                    continue
            assert [draft.token_ids.tolist() for draft in drafter.propose(["r"], 4)] == before
            with contextlib.suppress(ValueError, TypeError):
                drafter.observe("r", given[0])
            drafter.propose(["r"], 4)
        finally:
            with contextlib.suppress(KeyError):
                drafter.stop("s")
            drafter.stop("r")
    return taken > 0


TARGETS: Final = (
    Target("memory file", lambda: mangled(_memory_files()), _take_memory, (memory_file.MemoryFileError,)),
    Target("message to the fleet", _to_server, _take_server),
    Target("answer of the fleet", _from_server, _take_answers),
    Target("frame of a message", _framed, _take_frames, (ValueError,)),
    Target("snapshot of the fleet", _snapshots, _take_snapshot),
    Target("options", _configs, _take_config, (ConfigError,)),
    Target("recipe", _recipes, _take_recipe, (ValueError,)),
    Target("cost table", lambda: json_files(st.just(_COSTS)), _take_costs, (BenchError,)),
    Target("bench", _benches, _take_bench, (BenchError,)),
    Target("prompts", lambda: json_lines(_PROMPTS), _take_prompts, (BenchError,)),
    Target("traces and corpora", lambda: json_lines(_TRACES), _take_traces, (BenchError,)),
    Target("Medusa heads", _medusa, _take_medusa),
    Target("EAGLE-3 head", _eagle3, _take_eagle3, (ConfigError,)),
    Target("options of a request", _extra_args, _take_request, (RequestOptionError,)),
    Target("tokens and limits", _tokens, _take_tokens),
)
