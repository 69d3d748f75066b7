"""A fleet on a real Ray cluster: two replicas share, and whatever of Ray is killed, they go on and meet again.

No engine: a replica here is a drafter with its member, as a worker has them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fleet import Replica, status_of, wait_for
from ray_cluster import Cluster, running
from serving import free_port

from vllm_specx.config import ConfigError
from vllm_specx.fleet import member as member_module
from vllm_specx.fleet.link import Link
from vllm_specx.fleet.messages import settings_of
from vllm_specx.fleet.options import FleetConfig
from vllm_specx.memory.namespaces import namespace_of

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree
FAST = {"sync_interval_s": 0.1, "snapshot_interval_s": 0.2, "required": True, "join_timeout_s": 60.0}


def ids(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 50_000, n)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as made:
        yield made


@pytest.fixture
def replica(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Make replicas of a fleet that is this test's own."""
    made: list[Replica] = []
    name = request.node.name.replace("[", "-").replace("]", "")

    def make(*, start: bool = True, more: dict[str, Any] | None = None, **identity: str) -> Replica:
        options = FleetConfig(
            **(
                {"address": cluster.address, "name": name, "snapshot_path": str(tmp_path / "store")}
                | FAST
                | (more or {})
            )
        )
        made.append(Replica(options, Link(options.address, settings_of(options)), **identity))
        return made[-1].start() if start else made[-1]

    yield make
    for each in made:
        each.member.close()


def status(replica: Replica, shard: int = 0) -> dict[str, Any]:
    return status_of(replica.member._options, shard)


def is_shared(writer: Replica, reader: Replica, seed: int) -> None:
    """What one says from now on is drafted by the other."""
    answer = ids(60, seed)
    writer.answer(answer)
    absorbed = reader.member.num_absorbed
    wait_for(lambda: reader.member.num_absorbed > absorbed, writer, reader)
    wait_for(lambda: reader.draft(answer[:12]) == answer[12:20].tolist(), writer, reader)


def steps_go_on(replica: Replica, seconds: float, holds: Any) -> int:
    """Draft all the time until something holds; no step may wait for the network. Returns the number of steps."""
    answer, steps, longest = ids(60, 12345), 0, 0.0
    replica.answer(answer)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        begin = time.perf_counter()
        assert replica.draft(answer[:12]) == answer[12:20].tolist()
        longest = max(longest, time.perf_counter() - begin)
        steps += 1
        time.sleep(0.001)  # what a forward pass would take
    assert longest < 2  # calls time out after 10 s
    return steps


def test_two_replicas_and_a_third_that_comes_late(replica: Any) -> None:
    a, b = replica(), replica()
    is_shared(a, b, 1)
    is_shared(b, a, 2)
    c = replica()
    assert c.drafter.num_documents == 2
    assert status(c)["texts"] == 2


def test_shards(replica: Any) -> None:
    a, b = replica(more={"shards": 2}), replica(more={"shards": 2})
    for seed in range(20):
        a.answer(ids(20, seed))
    wait_for(lambda: b.member.num_absorbed == 20, a, b)
    assert status(a, 0)["texts"] + status(a, 1)["texts"] == 20
    with pytest.raises(ConfigError, match="has 2 shards, this replica wants 1"):
        replica()


def test_another_model_is_refused(replica: Any) -> None:
    replica()
    with pytest.raises(ConfigError, match=r"another model: 'm', and this replica has 'n'"):
        replica(model="n")
    with pytest.raises(ConfigError, match=r"another vocabulary: 'v', and this replica has 'w'"):
        replica(vocabulary="w")


def test_no_cluster(replica: Any) -> None:
    nowhere = {"address": f"127.0.0.1:{free_port()}", "join_timeout_s": 5.0}
    with pytest.raises(ConfigError, match=r"specx.fleet is required, and fleet .* was not joined"):
        replica(more=nowhere)
    alone = replica(more=nowhere | {"required": False})
    assert steps_go_on(alone, 10, lambda: True) == 0
    assert alone.drafter.num_documents == 1


def test_a_proposer_is_a_member(replica: Any, model_dir: Path) -> None:
    """From an engine's configuration, without the engine."""
    from vllm.engine.arg_utils import EngineArgs

    from vllm_specx import SuffixTreeProposer

    other = replica(more={"required": False}, model="another")  # makes the fleet
    options = {"address": other.member._options.address, "name": other.member._options.name}

    def proposer(**more: Any) -> SuffixTreeProposer:
        config = EngineArgs(
            model=str(model_dir),
            served_model_name="demo",
            enforce_eager=True,
            max_model_len=256,
            speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 8},
            additional_config={"specx": {"fleet": options | FAST | more}},
        ).create_engine_config()
        made = SuffixTreeProposer(config)
        made.load_model(object())
        return made

    with pytest.raises(
        ConfigError, match=r"another model: 'another', and this replica has 'demo [0-9a-f]{12}'"
    ):
        proposer()
    options["name"] += "-2"
    a, b = proposer(), proposer()
    a._text.start("r", [1, 2, 3], namespace=namespace_of("salt", None))
    a._text.observe("r", range(100, 140))
    a._text.stop("r")

    def comes_true(holds: Any) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, "it did not come true in time"
            for each in (a, b):
                each._share(each._member)
            time.sleep(0.01)  # threads and other processes are at work

    comes_true(lambda: b._text.num_documents == 1)
    assert a.purge("salt") == 1
    comes_true(lambda: b._text.num_documents == 0)
    b._text.start("r", [1, 2, 3])
    b._text.observe("r", range(100, 140))
    b.on_weights_changed()  # forgets, and tells nobody
    b._text.stop("r")  # which was said before, but ends after
    comes_true(lambda: a._text.num_documents == 1)
    assert b.forget() == 1
    comes_true(lambda: a._text.num_documents == 0)
    for each in (a, b):
        each._member.close()


def test_ray_stays_out_of_the_worker_s_process(replica: Any) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    a = replica()
    assert {number: signal.getsignal(number) for number in before} == before
    assert not ray.is_initialized()
    sidecar = psutil.Process(a.member._line.pid)
    assert "vllm_specx.fleet.sidecar" in sidecar.cmdline()
    a.member.close()
    assert not sidecar.is_running()


def test_the_actor_is_killed(replica: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts it again, it restores what was saved, and hears again what was not."""
    monkeypatch.setattr(member_module, "_FIRST_RETRY", 0.2)
    a, b = replica(), replica()
    for seed in range(30):
        a.answer(ids(40, seed))
    wait_for(lambda: b.member.num_absorbed == 30, a, b)
    actor = psutil.Process(status(a)["pid"])
    actor.kill()
    a.answer(ids(40, 100))
    assert steps_go_on(a, 60, lambda: not actor.is_running()) >= 0
    wait_for(lambda: status(a)["pid"] != actor.pid, a, b)
    is_shared(a, b, 101)
    wait_for(lambda: status(a)["texts"] >= 32, a, b)  # of 33: one is what steps_go_on said


def test_a_replica_is_killed(replica: Any) -> None:
    """What it had said for longer than an interval is not lost, and nobody waits for it."""
    a = replica()
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]);"
        "from fleet import Replica; from vllm_specx.fleet.link import Link;"
        "from vllm_specx.fleet.messages import settings_of; from vllm_specx.fleet.options import FleetConfig;"
        "options = FleetConfig(address=sys.argv[2], name=sys.argv[3], sync_interval_s=0.1);"
        "b = Replica(options, Link(options.address, settings_of(options))).start();"
        "b.answer(range(100, 160)); print('said', b.member._line.pid, flush=True); time.sleep(600)"
    )
    options = a.member._options
    other = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parents[1]), options.address, options.name],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout is not None
    word, pid = other.stdout.readline().split()
    sidecar = psutil.Process(int(pid))
    assert word == "said"
    wait_for(lambda: a.member.num_absorbed == 1, a)
    other.kill()
    other.wait()
    other.stdout.close()
    sidecar.wait(30)  # it ends with the process that it is for
    assert a.draft(range(100, 112)) == list(range(112, 120))
    is_shared(a, replica(), 3)


def test_the_head_is_killed_and_comes_back(
    replica: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of Ray dies at once, and is started anew: the replicas go on and make the fleet again by themselves."""
    monkeypatch.setattr(member_module, "_FIRST_RETRY", 0.2)
    monkeypatch.setattr(member_module, "_LAST_RETRY", 1.0)
    a, b = replica(), replica()
    for seed in range(30):
        a.answer(ids(40, seed))
    wait_for(lambda: b.member.num_absorbed == 30, a, b)
    cluster.kill()
    a.answer(ids(40, 100))
    assert steps_go_on(a, 60, lambda: not a.member.is_joined and not b.member.is_joined) > 0
    cluster.start()
    wait_for(lambda: a.member.is_joined and b.member.is_joined, a, b, seconds=120)
    wait_for(lambda: status(a)["texts"] >= 32, a, b)
    is_shared(a, b, 101)
    is_shared(b, a, 102)


def test_the_gcs_alone_is_killed(replica: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of Ray ends then ("Failed to connect to GCS within 60 seconds"); here it is a sidecar that ends."""
    monkeypatch.setattr(member_module, "_LAST_RETRY", 2.0)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
    a = replica()
    sidecar = psutil.Process(a.member._line.pid)
    (gcs,) = cluster.processes("gcs_server")
    gcs.kill()
    assert steps_go_on(a, 150, lambda: not sidecar.is_running() or sidecar.status() == "zombie") > 0
    cluster.kill()
    cluster.start()
    wait_for(lambda: a.member.is_joined, a, seconds=120)
    is_shared(a, replica(), 5)
