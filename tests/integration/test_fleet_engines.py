"""A fleet of two real engines on a real Ray cluster, in traffic, and what is killed under them, with -9.

Every answer of each round is compared with plain vLLM's, in float32 (`replicas.Engine`): whatever happens to the fleet,
no request fails and no token changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_prompts import CHAT, RAW, token_prompts
from fleet import Replica, status_of
from ray_cluster import Cluster, running
from replicas import MAX_TOKENS, Engine, Report, until

from vllm_specx.config import ConfigError
from vllm_specx.fleet.link import Link, LinkError
from vllm_specx.fleet.messages import settings_of
from vllm_specx.fleet.options import FleetConfig
from vllm_specx.memory.namespaces import namespace_of

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree
INTERVAL = 0.5  # seconds between two exchanges
_SLACK = 0.5  # of an exchange, which shares a core with two engines


class Fleet:
    """Two engines, their cluster, and how they are started."""

    def __init__(self, cluster: Cluster, model_dir: Path, plain: Any, snapshot: Path) -> None:
        self.cluster, self._model_dir, self._plain = cluster, model_dir, plain
        self.options = {
            "address": cluster.address,
            "name": "engines",
            "required": True,
            "join_timeout_s": 60.0,
            "sync_interval_s": INTERVAL,
            "snapshot_path": str(snapshot),
            "snapshot_interval_s": 2.0,
        }
        self.a, self.b = self.start("a"), self.start("b")
        self.a.wait()
        self.b.wait()
        status = self.status()
        self.identity = {key: status[key] for key in ("model", "vocabulary")}

    def start(self, name: str) -> Engine:
        return Engine(self._model_dir, name, self.options, self._plain)

    def status(self) -> dict[str, Any]:
        return status_of(FleetConfig(**self.options))

    def held(self) -> set[str]:
        """Namespaces of which the store has answers: those that a replica hears of when it joins."""
        options = FleetConfig(**self.options)
        reader = Replica(options, Link(options.address, settings_of(options)), **self.identity)
        try:
            return set(reader.start().drafter.namespaces)
        finally:
            reader.member.close()


@pytest.fixture(scope="module")
def fleet(plain: Any, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    from vllm import SamplingParams

    prompts = token_prompts(plain)
    prompts = prompts[: len(CHAT)] + prompts[-len(RAW) :]
    done = plain.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_TOKENS), use_tqdm=False)
    answers = [list(output.outputs[0].token_ids) for output in done]
    with running() as cluster:
        made = Fleet(
            cluster,
            model_dir,
            list(zip(prompts, answers, strict=True)),
            tmp_path_factory.mktemp("fleet") / "store",
        )
        yield made
        for engine in (made.a, made.b):
            engine.kill()


@pytest.fixture
def traffic(fleet: Fleet) -> Iterator[None]:
    """Both engines answer all the time."""
    engines = fleet.a, fleet.b
    for engine in engines:
        engine.go()
    rounds = [len(engine.reports) for engine in engines]
    until(lambda: all(len(e.reports) > n + 2 for e, n in zip(engines, rounds, strict=True)), *engines)
    yield
    for engine in (fleet.a, fleet.b):
        engine.halt()


def salts(engine: Engine, before: float) -> set[str]:
    """Namespaces of what had been answered by then."""
    return {
        namespace_of(salt, None)
        for report in engine.reports
        if report.ended < before
        for _, salt in report.asked
        if salt is not None
    }


def drafts_on(engine: Engine, before: Report, *others: Engine) -> None:
    """Some more rounds, with drafts that are accepted."""
    rounds = len(engine.reports)
    until(lambda: len(engine.reports) > rounds + 2, engine, *others)
    assert engine.last.drafted > before.drafted
    assert engine.last.accepted > before.accepted


def test_tenants(fleet: Fleet) -> None:
    """What one tenant was told leads drafts of that tenant's elsewhere, and of no other's."""
    fleet.a.ask((4, "tenant 1"))
    name = namespace_of("tenant 1", None)
    deadline = time.monotonic() + 30
    while name not in (before := fleet.b.ask((0, "somebody"))).namespaces:
        assert time.monotonic() < deadline
    for other in ("tenant 2", None):
        after = fleet.b.ask((4, other))
        assert after.hits == before.hits, other
        before = after
    after = fleet.b.ask((4, "tenant 1"))
    assert after.hits > before.hits
    assert after.accepted > before.accepted


def test_the_actor_is_killed(fleet: Fleet, traffic: None) -> None:
    """Ray starts it again, and nothing is lost: what the snapshot does not have, the replicas tell once more."""
    a, b = fleet.a, fleet.b
    pid, before = fleet.status()["pid"], (a.last, b.last)
    psutil.Process(pid).kill()
    killed = time.monotonic()
    for engine, report in zip((a, b), before, strict=True):
        drafts_on(engine, report, a, b)

    def is_back() -> bool:
        with suppress(LinkError):  # until then
            found = fleet.status()
            return found["pid"] != pid and len(found["replicas"]) == 2
        return False

    until(is_back, a, b)
    said = salts(a, killed) | salts(b, killed)
    assert len(said) > 6
    until(lambda: said <= fleet.held(), a, b)
    until(lambda: all(e.last.ended > killed and e.last.fleet["joined"] for e in (a, b)), a, b)


def test_a_replica_is_killed(fleet: Fleet, traffic: None) -> None:
    """The other one goes on; of what the dead one said at most the last interval is lost; a new one begins warm."""
    a, b = fleet.a, fleet.b
    b.hear()
    b.kill()
    killed = time.monotonic()
    said = salts(b, killed - INTERVAL - _SLACK)
    assert len(said) > 3
    drafts_on(a, a.last)
    assert said <= fleet.held()
    fleet.b = fleet.start("c")
    until(fleet.b._line.poll, a, seconds=240)
    fleet.b.wait()
    first = fleet.b.ask((0, None))
    assert first.hits > 0
    assert first.fleet["joined"] == 1
    assert said <= first.namespaces
    fleet.b.go()


def test_the_head_is_killed(fleet: Fleet, traffic: None) -> None:
    """Without Ray both draft on with what they know; when it is back they make the fleet again, and nothing is lost."""
    a, b = fleet.a, fleet.b
    before = a.last, b.last
    for name in ("gcs_server", "raylet"):
        for process in fleet.cluster.processes(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    killed = time.monotonic()
    until(lambda: not a.last.fleet["joined"] and not b.last.fleet["joined"], a, b)
    for engine, report in zip((a, b), before, strict=True):
        drafts_on(engine, report, a, b)
        assert engine.last.fleet["joined"] == 0
        assert engine.last.fleet["failures"] > report.fleet["failures"]
    fleet.cluster.kill()  # the rest of it
    fleet.cluster.start()
    until(lambda: a.last.fleet["joined"] and b.last.fleet["joined"], a, b)
    said = salts(a, killed) | salts(b, killed)
    until(lambda: said <= fleet.held(), a, b)
    absorbed = b.last.fleet["absorbed_texts"]
    until(lambda: b.last.fleet["absorbed_texts"] > absorbed, a, b)


def test_another_tokenizer_is_refused(fleet: Fleet, model_dir: Path, tmp_path: Path) -> None:
    """By the actor that these engines made, and with a message that names both. (Another model: see test_fleet.)"""
    from vllm.engine.arg_utils import EngineArgs

    from vllm_specx import SuffixTreeProposer

    for path in model_dir.iterdir():
        (tmp_path / path.name).symlink_to(path)
    other = tmp_path / "tokenizer.json"
    tokenizer = json.loads(other.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    other.unlink()
    other.write_text(json.dumps(tokenizer))
    config = EngineArgs(
        model=str(model_dir),
        tokenizer=str(tmp_path),
        enforce_eager=True,
        max_model_len=256,
        speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 8},
        additional_config={"specx": {"fleet": fleet.options}},
    ).create_engine_config()
    ours = fleet.identity["vocabulary"]
    with pytest.raises(ConfigError, match=f"another vocabulary: {ours!r}, and this replica has '"):
        SuffixTreeProposer(config).load_model(object())
