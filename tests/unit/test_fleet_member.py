"""Members of a fleet and its store, without Ray between them: what arrives, what never does, what a cut line costs."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from fleet import DirectLine, Replica, Store, wait_for

from vllm_specx.config import ConfigError, SpecxConfig
from vllm_specx.fleet import member as member_module
from vllm_specx.fleet import peer as peer_module
from vllm_specx.fleet.inbox import Inbox
from vllm_specx.fleet.options import FleetConfig
from vllm_specx.fleet.texts import Text, pack, pieces, unpack
from vllm_specx.memory.namespaces import namespace_of, parts_of
from vllm_specx.tuner import CostModel, Step

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree
FAST = {"sync_interval_s": 0.05}


@pytest.fixture
def fleet(monkeypatch):
    """Make replicas of one store; they leave at the end."""
    monkeypatch.setattr(member_module, "_FIRST_RETRY", 0.05)
    made = []

    class Fleet:
        options = FleetConfig(**FAST)

        def __init__(self):
            self.store = Store(self.options)

        def replica(self, **identity):
            made.append(Replica(self.options, DirectLine(self.store), **identity).start())
            return made[-1]

        def tokens(self):
            return sum(server._store.num_tokens for server in self.store.servers)

    yield Fleet
    for replica in made:
        replica.member.close()


@pytest.fixture
def warnings_of(caplog, monkeypatch):
    """What was warned of."""
    for name in ("vllm.specx", "vllm"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    caplog.set_level(logging.INFO, "vllm.specx")
    return lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 50_000, n)


def test_b_drafts_what_a_was_told(fleet):
    made = fleet()
    a, b = made.replica(), made.replica()
    answer = ids(40)
    assert b.draft(answer[:12]) == []
    a.answer(answer)
    wait_for(lambda: b.member.num_absorbed, b)
    assert b.draft(answer[:12]) == answer[12:20].tolist()
    assert a.member.num_absorbed == 0


def test_a_long_answer_arrives_in_pieces(fleet):
    made = fleet()
    a, b = made.replica(), made.replica()
    answer = ids(3000)
    a.answer(answer)
    wait_for(lambda: b.member.num_absorbed == len(pieces("", answer)), b)
    for at in (0, 470, 485, 1500, 2900):
        assert b.draft(answer[at : at + 12]) == answer[at + 12 : at + 20].tolist()


def test_a_new_replica_starts_with_all_of_it(fleet):
    made = fleet()
    a = made.replica()
    answers = [ids(100, seed) for seed in range(20)]
    for answer in answers:
        a.answer(answer)
    wait_for(lambda: made.tokens() == 2000, a)
    b = made.replica()
    assert b.drafter.num_documents == 20
    assert b.draft(answers[7][:12]) == answers[7][12:20].tolist()


def test_tokens_of_two_tenants_never_leave_their_salt(fleet):
    made = fleet()
    a, b = made.replica(), made.replica()
    one, other = namespace_of("one", None), namespace_of("other", None)
    answers = {one: [*range(10), *range(100, 120)], other: [*range(10), *range(200, 220)], "": [*range(30)]}
    for namespace, answer in answers.items():
        a.answer(answer, namespace)
    wait_for(lambda: b.member.num_absorbed == 3, b)
    for namespace, answer in answers.items():
        assert b.draft(range(10), namespace) == answer[10:18]
    assert b.draft(range(10), namespace_of("third", None)) == []
    assert b.draft(range(10), None) == []
    a.answer(ids(50), None)  # shares nothing
    a.answer(ids(50, 1), one)
    wait_for(lambda: b.member.num_absorbed == 4, b)
    assert made.tokens() == 30 + 30 + 30 + 50


def test_no_salt_is_in_what_is_sent(fleet):
    made = fleet()
    sent = []
    line = DirectLine(made.store)
    call = line.call
    line.call = lambda shard, method, message=b"", seconds=0.0: (
        sent.append(message) or call(shard, method, message)
    )
    a = Replica(made.options, line).start()
    a.answer(ids(50), namespace_of("a secret salt", None))
    wait_for(lambda: made.tokens() == 50, a)
    a.member.close()
    assert not any(b"secret" in message for message in sent)


def test_purge_reaches_replicas_and_store(fleet):
    made = fleet()
    a, b = made.replica(), made.replica()
    one, other = namespace_of("one", None), namespace_of("other", None)
    for namespace in (one, other):
        a.answer(ids(50), namespace)
    wait_for(lambda: b.member.num_absorbed == 2, b)
    a.drafter.purge(one)
    a.member.purge(parts_of("one", None))
    wait_for(lambda: b.drafter.num_documents == 1, a, b)
    assert made.tokens() == 50
    assert b.draft(ids(50)[:12], one) == []
    assert b.draft(ids(50)[:12], other) != []
    b.answer(ids(60, 2), one)  # what is said from then on is shared again
    wait_for(lambda: a.member.num_absorbed == 1, a, b)


def test_a_purge_while_the_line_is_cut_is_carried_out_later(fleet):
    made = fleet()
    a, b = made.replica(), made.replica()
    one = namespace_of("one", None)
    a.answer(ids(50), one)
    wait_for(lambda: made.tokens() == 50 and b.member.num_absorbed, a, b)
    made.store.is_reachable = False
    wait_for(lambda: not a.member.is_joined and not b.member.is_joined, a, b)
    b.answer(ids(50, 1), one)
    a.member.purge(parts_of("one", None))
    made.store.is_reachable = True
    wait_for(lambda: made.tokens() == 0 and b.drafter.num_documents == 0, a, b)


@pytest.mark.parametrize("other", [{"vocabulary": "w"}, {"model": "n"}])
def test_another_tokenizer_or_model_is_refused(fleet, warnings_of, other):
    made = fleet()
    a = made.replica()
    c = made.replica(**other)
    assert not c.member.is_joined
    (warning,) = warnings_of()
    assert "goes on by itself" in warning
    assert f"another {next(iter(other))}" in warning
    c.answer(ids(50))
    a.answer(ids(60, 1))
    wait_for(lambda: made.tokens() == 60, a, c)
    assert c.drafter.num_documents == 1


def test_a_required_fleet_that_refuses_ends_the_start(fleet):
    made = fleet()
    made.replica()
    options = FleetConfig(**FAST, required=True)
    replica = Replica(options, DirectLine(made.store), model="n")
    with pytest.raises(ConfigError, match=r"specx.fleet is required.*another model: 'm'"):
        replica.start()


def test_an_unreachable_fleet(fleet, warnings_of):
    made = fleet()
    made.store.is_reachable = False
    with pytest.raises(ConfigError, match=r"specx.fleet is required.*'specx' at 'auto'.*the line is cut"):
        Replica(FleetConfig(**FAST, required=True), DirectLine(made.store)).start()
    assert warnings_of() != []
    a = made.replica()
    a.answer(ids(50))
    assert a.draft(ids(50)[:12]) != []
    made.store.is_reachable = True
    wait_for(lambda: made.tokens() == 50, a)


def test_a_cut_line_costs_nothing_but_the_news(fleet, warnings_of):
    """One warning; drafting goes on; what was said meanwhile arrives."""
    made = fleet()
    a, b = made.replica(), made.replica()
    made.store.is_reachable = False
    wait_for(lambda: not a.member.is_joined and not b.member.is_joined, a, b)
    a.answer(ids(50))
    assert a.draft(ids(50)[:12]) != []
    made.store.is_reachable = True
    wait_for(lambda: b.member.num_absorbed == 1, a, b)
    assert (a.member.num_joins, b.member.num_joins) == (2, 2)
    assert len(warnings_of()) == 2  # of two replicas


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_store_that_was_lost_is_told_again(fleet, tmp_path, is_saved):
    """Without a file all of it is told again, with one what came after the last save."""

    class Saving(fleet):
        options = FleetConfig(
            **FAST, snapshot_path=str(tmp_path / "store") if is_saved else "", snapshot_interval_s=1e4
        )

    made = Saving()
    a, b = made.replica(), made.replica()
    a.answer(ids(50))
    b.answer(ids(50, 1))
    wait_for(lambda: made.tokens() == 100, a, b)
    if is_saved:
        made.store.servers[0].save()
        last = made.store.servers[0]._durable
        wait_for(lambda: len(a.member._peers[0]._sent) == len(b.member._peers[0]._sent) == 0, a, b)
        assert last > 0
    a.answer(ids(50, 2))
    wait_for(lambda: made.tokens() == 150, a, b)
    made.store.kill()
    wait_for(lambda: made.tokens() == 150, a, b)
    b.answer(ids(50, 3))
    wait_for(lambda: made.tokens() == 200, a, b)
    c = made.replica()
    assert c.drafter.num_documents == 4


def test_answers_are_spread_over_shards(fleet):
    class Sharded(fleet):
        options = FleetConfig(**FAST, shards=3)

    made = Sharded()
    a, b = made.replica(), made.replica()
    for seed in range(40):
        a.answer(ids(20, seed))
    wait_for(lambda: b.member.num_absorbed == 40, a, b)
    assert all(len(server._store) > 3 for server in made.store.servers)
    assert made.tokens() == 800


def test_what_is_of_use_is_told_to_the_store(fleet):
    """The credit of an answer that leads drafts."""
    made = fleet()
    a = made.replica()
    answer = ids(64)
    a.answer(answer)
    wait_for(lambda: made.tokens() == 64, a)
    b = made.replica()
    b.drafter.start("r", answer[:8], namespace="")
    for at in range(8, 56, 8):
        b.drafter.propose(["r"], 8)
        b.tick()
        b.drafter.observe("r", answer[at : at + 8])
    b.drafter.propose(["r"], 8)
    (entry,) = made.store.servers[0]._store._entries.values()
    wait_for(lambda: entry.credit >= 40, b)


def test_what_was_learnt_is_passed_on(fleet, monkeypatch):
    """A new replica starts with step times and with the acceptance of features that others have found."""
    monkeypatch.setattr(member_module, "_PRIOR_SECONDS", 0.0)
    made = fleet()
    costs = CostModel()
    a = made.replica(costs=costs)
    for step in range(80):
        drafts = step % 8
        costs.update(Step(1, drafts, 1 + drafts // 2, 0.02 + 0.001 * drafts))
    answer = ids(400)
    a.answer(answer)
    a.drafter.start("r", answer[:8], namespace="")
    for at in range(8, 392, 4):
        a.drafter.propose(["r"], 8)
        a.drafter.observe("r", answer[at : at + 4])
    server = made.store.servers[0]
    wait_for(lambda: len(server._priors) == 2, a)
    fresh = CostModel()
    before = float(fresh.seconds(1, 4))
    b = made.replica(costs=fresh)
    assert before != pytest.approx(0.024, rel=0.05)
    assert float(fresh.seconds(1, 4)) == pytest.approx(float(costs.seconds(1, 4)), rel=0.02)
    mine, theirs = (r.drafter.calibration.export()[0] for r in (a, b))
    assert np.array_equal(mine, theirs)
    assert not np.array_equal(theirs, b.drafter.calibration.prior[: len(theirs)])
    fresh.update(Step(1, 4, 3, 0.03))  # and it goes on learning
    assert fresh.num_learned == 1


def test_step_times_that_cannot_be_are_refused():
    costs = CostModel()
    good = costs.export()
    for bad in (
        {},
        good | {"mean": good["mean"][1:]},
        good | {"scale": np.array([np.nan])},
        good | {"cov": -good["cov"]},
        good | {"noise": np.array([2.0])},
    ):
        with pytest.raises(ValueError, match="step times"):
            CostModel().start_from(bad)


# The inbox.


class CpuClock:
    """Seconds that each text takes."""

    def __init__(self, seconds):
        self.seconds, self.now = seconds, 0.0

    def __call__(self):
        return self.now


class Memory:
    """Takes texts in, and time."""

    def __init__(self, clock):
        self.clock, self.names, self.ages = clock, [], []

    def add_document(self, token_ids, name, *, credit, age):
        self.clock.now += self.clock.seconds
        self.names.append(name)
        self.ages.append(age)


def message(*names, n=4):
    return unpack(pack([Text(name, ids(n).astype("<i4").tobytes()) for name in names]))


def test_absorbing_keeps_to_its_budget():
    clock = CpuClock(seconds=1.0)
    memory, inbox = Memory(clock), Inbox(1 << 20, clock)
    for i in range(10):
        inbox.put(message(f"{i}", f"{i}"))
    spent = []
    for _ in range(40):
        before = clock.now
        inbox.absorb(memory, 2.5)
        spent.append(clock.now - before)
    assert memory.names == [f"{9 - i // 2}" for i in range(20)]  # the newest first, where time is short
    assert max(spent[1:]) <= 3.5  # one text beyond, once its cost is known
    assert sum(spent[:8]) <= 8 * 2.5 + 1
    inbox.absorb(memory, 2.5)
    assert len(inbox) == 0


def test_a_text_that_takes_more_than_the_budget_is_paid_off():
    clock = CpuClock(seconds=10.0)
    memory, inbox = Memory(clock), Inbox(1 << 20, clock)
    inbox.put(message(*"abc"))
    for step in range(30):
        inbox.absorb(memory, 1.0)
        assert len(memory.names) <= 1 + step // 9
    assert len(memory.names) == 3


def test_an_inbox_is_bounded_and_loses_the_oldest():
    clock = CpuClock(seconds=0.0)
    memory, inbox = Memory(clock), Inbox(3 * 16, clock)
    for name in "abcde":
        inbox.put(message(name))
    inbox.put(message("z"), is_older=True)
    assert inbox.num_dropped == 3
    inbox.absorb(memory)
    assert memory.names == ["c", "d", "e"]


def test_what_is_older_is_taken_in_first():
    clock = CpuClock(seconds=0.0)
    memory, inbox = Memory(clock), Inbox(1 << 20, clock)
    inbox.put(message("new"))
    inbox.put(message("old"), is_older=True)
    inbox.absorb(memory)
    assert memory.names == ["old", "new"]
    assert min(memory.ages) >= 0.0


def test_what_was_forgotten_is_left_out():
    clock = CpuClock(seconds=1.0)
    memory, inbox = Memory(clock), Inbox(1 << 20, clock)
    inbox.put(message("salt=1", "salt=2", "salt=1"))
    inbox.absorb(memory, 0.5)
    assert memory.names == ["salt=1"]
    inbox.put(message("salt=1", "salt=2"))
    inbox.put_purge(("salt=1",))
    assert inbox.take_purges() == [("salt=1",)]
    assert inbox.take_purges() == []
    inbox.absorb(memory)
    assert memory.names == ["salt=1", "salt=2", "salt=2"]
    inbox.put(message("salt=3"))
    inbox.clear()
    inbox.absorb(memory)
    assert len(memory.names) == 3


def test_what_waits_to_be_told_is_bounded(monkeypatch):
    monkeypatch.setattr(peer_module, "KEPT_BYTES", 10 * (40 + 128))
    waiting = peer_module.Waiting()
    texts = [Text("", ids(10, seed).astype("<i4").tobytes()) for seed in range(30)]
    for mark, text in enumerate(texts):
        waiting.add(text, mark)
    assert len(waiting) == 10
    waiting.drop(22)
    taken = waiting.take(80)
    assert taken == texts[23:25]
    waiting.put_back(taken)
    assert waiting.take(1 << 20) == texts[23:]
    assert waiting._num_bytes == 0


# What a proposer makes of it.


def proposer_config(**fleet):
    return (
        SpecxConfig.from_mapping({"fleet": fleet}),
        SimpleNamespace(
            parallel_config=SimpleNamespace(
                rank=0, world_size=1, tensor_parallel_size=1, prefill_context_parallel_size=1
            )
        ),
    )


def test_without_ray(monkeypatch, warnings_of):
    from vllm_specx.proposers import _fleet

    monkeypatch.setattr(_fleet, "find_spec", lambda name: None)
    options, vllm_config = proposer_config()
    assert _fleet.join_fleet(options, vllm_config, None, 1, None) is None
    assert ["needs Ray" in warning for warning in warnings_of()] == [True]
    options, vllm_config = proposer_config(required=True)
    with pytest.raises(ConfigError, match=r"needs Ray.*vllm-specx\[ray\]"):
        _fleet.join_fleet(options, vllm_config, None, 1, None)


def test_ranks_whose_drafts_are_not_used_do_not_join():
    from vllm_specx.proposers._fleet import join_fleet

    options, vllm_config = proposer_config(required=True)
    vllm_config.parallel_config.world_size = vllm_config.parallel_config.tensor_parallel_size = 2
    vllm_config.parallel_config.rank = 1
    assert join_fleet(options, vllm_config, None, 1, None) is None
    assert join_fleet(SpecxConfig(), vllm_config, None, 1, None) is None
