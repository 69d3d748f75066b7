"""Faults of other engines, tried on our proposers without an engine: whose tokens, which rows, and for how long.

The numbers are those of docs/trust.md.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from proposer_world import MAX_MODEL_LEN, OPTIONS, VOCAB, N, World, make_proposer

from drafters import FallbackDrafter

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # hashes wrap

KINDS = list(OPTIONS)
LINE = [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(make_proposer(request.param, monkeypatch))


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(make_proposer("suffix_tree", monkeypatch))


def num_live(drafter: Any) -> int:
    """Requests that a drafter knows, or both of two."""
    parts = (drafter.first, drafter.second) if isinstance(drafter, FallbackDrafter) else (drafter,)
    return max(part.num_live for part in parts)


def alphabet(number: int, rng: random.Random, length: int) -> list[int]:
    return [100 * number + rng.randrange(4) for _ in range(length)]


def test_1_drafts_have_tokens_of_their_own_request_only(world: World) -> None:
    """Four disjoint alphabets in rows that move; the second request ends early, and a fifth comes."""
    rng = random.Random(0)
    live = ["0", "1", "2", "3"]
    drafted = dict.fromkeys("01234", 0)
    for name in live:
        world.add(name, alphabet(int(name), rng, 12))
    for step in range(80):
        if step == 20:
            world.end("1")
            world.add("4", alphabet(4, rng, 3))
            live = ["3", "4", "0", "2"]
        rng.shuffle(live)
        found = world.step({name: alphabet(int(name), rng, rng.randint(1, 3)) for name in live})
        for name, draft in found.items():
            assert {token // 100 for token in draft} <= {int(name)}
            drafted[name] += len(draft)
    assert min(drafted.values()) > 10
    assert world.proposer.faults == 0


def test_2_one_line_for_any_number_of_faults(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_specx.proposers import _base

    lines: list[str] = []
    logger = SimpleNamespace(
        warning=lambda text, *args: lines.append(text % args), isEnabledFor=lambda level: False
    )
    monkeypatch.setattr(_base, "logger", logger)

    def broken(ids: Any, limits: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(world.proposer.drafter, "propose", broken)
    world.add("a", LINE * 2)
    for _ in range(5):
        assert world.step({"a": [5]}) == {"a": []}
    assert world.proposer.faults == 5
    assert len(lines) == 1
    assert "out of order" in lines[0]
    assert world.proposer._state()["specx_drafting_faults"] == 5


@pytest.mark.parametrize("room", [26, 5, 3, 2, 1])
def test_3_no_draft_beyond_the_longest_text(world: World, room: int) -> None:
    """A row at the edge has a short draft or none; its neighbour drafts as ever."""
    long = (LINE * 64)[: MAX_MODEL_LEN - room]
    world.add("edge", long)
    world.add("short", LINE * 3)
    found = world.step({"edge": [(LINE * 64)[len(long)]], "short": [5]})
    assert len(found["edge"]) == max(
        0, min(N, room - 2)
    )  # a token was said, and the bonus token needs a place
    assert len(found["short"]) == N


def test_4_placeholders_are_neither_counted_nor_learnt_from(world: World) -> None:
    """vLLM pads a request from the prefix cache with N drafts of -1: nobody offered them."""
    world.add("cached", LINE * 3)
    assert world.step({"cached": [5]}, verified={"cached": N})["cached"]
    assert (world.proposer.num_draft_tokens, world.proposer.num_accepted_tokens) == (0, 0)
    assert world.proposer.faults == 0


def skip(world: World) -> None:
    """Every third step leaves the first of two requests out, and N is another one at every step."""
    truth = {"a": LINE * 40, "b": [*LINE[::-1]] * 40}
    world.add("a", truth["a"][:24])
    world.add("b", truth["b"][:24])
    rng = random.Random(1)
    for step in range(40):
        n = rng.choice([0, 1, 3, N])
        for draft in world.say({"b": truth["b"]} if step % 3 == 1 else truth, n=n).values():
            assert len(draft) <= n
            assert min(draft, default=0) >= 0


def test_4_a_request_skipped_while_n_changes(world: World) -> None:
    """What leaves the proposer is never a placeholder, and is never longer than the N of its step."""
    skip(world)
    assert world.proposer.faults == 0
    assert world.counted[0] > 100


def test_4_29_counters_where_requests_are_skipped(world: World) -> None:
    skip(world)
    assert [world.proposer.num_draft_tokens, world.proposer.num_accepted_tokens] == world.counted


def drafts_from(world: World, interrupted: bool, how: str) -> list[list[int]]:
    """Drafts of a request that stays away for a while in its middle, or does not."""
    truth = {"a": [*LINE, 20, 21, 22, 5, 6, 30] * 20, "b": [*LINE[::-1]] * 60}
    world.add("a", truth["a"][:20])
    world.add("b", truth["b"][:20])
    kept = []
    for step in range(24):
        kept.append(world.say(truth)["a"])
        if step == 8 and interrupted:
            if how == "preempted":
                world.offered.pop("a", None)  # its drafts are lost
            for _ in range(1 if how == "skipped" else 4):
                world.say({"b": truth["b"]})
            if how == "preempted":  # its text is computed again, in parts
                for _ in range(3):
                    assert world.step({"a": [], "b": [truth["b"][len(world.text["b"])]]})["a"] == []
    assert world.proposer.faults == 0
    return kept


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["skipped", "preempted"])
def test_5_6_who_was_away_drafts_as_if_it_had_not_been(
    kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State is kept while a step is missed, and rebuilt from prompt and earlier output after a preemption."""
    found = [
        drafts_from(World(make_proposer(kind, monkeypatch)), interrupted, how)
        for interrupted in (False, True)
    ]
    away, here = found[1], found[0]
    if how == "skipped":
        assert away == here
        return
    # The draft that was lost cost a step, in which one token was said instead of several: from there on the texts
    # are the same again at other steps.
    assert sum(map(len, away[12:])) > 20
    assert all(draft in here for draft in away[-4:])


def test_6_state_goes_with_its_request(world: World) -> None:
    for name in "abc":
        world.add(name, LINE * 2)
    world.step({name: [5] for name in "abc"})
    for name in "ab":
        world.end(name)
    world.step({"c": [6]})
    assert set(world.proposer._requests._known) == {"c"}
    assert num_live(world.proposer.drafter) == 1


def test_7_29_what_a_grammar_cuts_is_no_rejection(world: World) -> None:
    """Of eight tokens offered two pass the grammar: two were verified, whatever was offered."""
    world.add("a", LINE * 3)
    offered = world.step({"a": [5]})["a"]
    assert len(offered) == N
    world.step({"a": [*offered[:2], 99]}, verified={"a": 2})
    assert (world.proposer.num_draft_tokens, world.proposer.num_accepted_tokens) == (2, 2)


def told(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, list[int]]]:
    """What the drafter is told from now on: start or observe, of which request, which tokens."""
    calls: list[tuple[str, str, list[int]]] = []
    for verb in ("start", "observe"):
        original = getattr(world.proposer.drafter, verb)

        def spy(name: str, tokens: Any, verb: str = verb, original: Any = original, **more: Any) -> None:
            calls.append((verb, name, list(tokens)))
            original(name, tokens, **more)

        monkeypatch.setattr(world.proposer.drafter, verb, spy)
    return calls


def test_10_what_follows_an_end_is_not_part_of_the_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOS in the middle of an accepted block: no draft any more, and the rest is not learnt."""
    eos = 99
    calls = told(world, monkeypatch)
    world.add("a", LINE * 2, eos=eos)
    assert world.step({"a": [5]})["a"]
    assert world.step({"a": [6, 7, eos, 40, 41]})["a"] == []
    assert world.step({"a": [42]})["a"] == []
    assert calls == [("start", "a", LINE * 2), ("observe", "a", [5]), ("observe", "a", [6, 7, eos])]


def test_12_an_id_that_comes_back_in_the_same_step(world: World) -> None:
    """Aborted in mid-draft and added again with another prompt: nothing of the old one is drafted."""
    rng = random.Random(2)
    world.add("same", alphabet(1, rng, 30))
    for _ in range(6):
        world.step({"same": alphabet(1, rng, 2)})
    assert world.offered["same"]
    world.end("same")
    world.add("same", alphabet(2, rng, 30))
    drafted = 0
    for _ in range(20):
        draft = world.step({"same": alphabet(2, rng, 2)})["same"]
        assert {token // 100 for token in draft} <= {2}
        drafted += len(draft)
    assert drafted > 10


def test_12_nothing_is_left_of_a_thousand_cycles(world: World) -> None:
    rng = random.Random(3)
    proposer = world.proposer
    sizes = []
    for cycle in range(1000):
        name = f"r{cycle % 3}"
        if name in world.requests:
            world.end(name)
        world.add(name, alphabet(rng.randrange(9), rng, rng.choice([1, 5, 40])))
        world.step({name: alphabet(rng.randrange(9), rng, rng.choice([0, 1, 4])) for name in world.requests})
        if cycle in (500, 999):
            tracker = proposer._requests
            sizes.append(proposer._state().get("specx_memory_bytes", 0))
            assert max(len(tracker._known), len(tracker._new), len(proposer._offered)) <= 3
            assert num_live(proposer.drafter) <= 3
    assert sizes[0] == sizes[1]
    assert proposer.faults == 0


def test_13_parts_of_a_prompt_are_learnt_once_and_draft_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt in chunks beside a request that decodes."""
    calls = told(world, monkeypatch)
    world.add("decodes", LINE * 2)
    world.step({"decodes": [5]})
    world.add("long", LINE * 20)
    for token in (6, 7, 8):
        found = world.step({"decodes": [token], "long": []})
        assert found["long"] == []
        assert found["decodes"]
    assert world.step({"decodes": [9], "long": [5]})["long"]
    assert [call for call in calls if call[1] == "long"] == [
        ("start", "long", LINE * 20),
        ("observe", "long", [5]),
    ]


def test_16_no_draft_of_a_placeholder(world: World) -> None:
    """The answer says again what stands before the image: the image's tokens do not follow."""
    image, room = VOCAB - 1, 400
    world.add("a", [1, 2, 3, *[image] * room, 4, 5], mm=[(3, room)])
    world.step({"a": [9]})
    assert world.step({"a": [1]})["a"][:4] == [2, 3, 4, 5]
    for token in (2, 3):
        assert image not in world.step({"a": [token]})["a"]
    assert world.proposer.faults == 0


def test_20_a_short_request_after_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens as on a new engine: nothing is carried over where nothing is shared."""
    rng = random.Random(4)
    long = [rng.randrange(VOCAB) for _ in range(300)]
    for kind in ("suffix_tree", "lookahead"):
        used, fresh = (World(make_proposer(kind, monkeypatch)) for _ in range(2))
        used.add("long", long)
        for _ in range(40):
            used.step({"long": [rng.choice(long) for _ in range(3)]})
        used.end("long")
        used.step({})
        for each in (used, fresh):
            each.add("short", LINE * 2)
        num_drafted = 0
        for token in [*LINE, 40, *LINE, 41, *LINE[:5]]:
            here, there = (
                each.step({"short": [token]}, verified={"short": 0})["short"] for each in (used, fresh)
            )
            n = min(len(here), len(there))  # how far it goes is a matter of calibration, which all share
            assert here[:n] == there[:n]
            num_drafted += n
        assert num_drafted > 50


def test_29_counters_are_those_of_a_plain_loop(world: World) -> None:
    """Under cuts by a grammar, at max_tokens and by the room there is, with another N at every step."""
    rng = random.Random(5)
    lines = {"a": LINE, "b": LINE[:5], "c": LINE[::-1]}
    # The same over and over, with a surprise at each end.
    truth = {
        name: [t for _ in range(50) for t in (*line, 40 + rng.randrange(9))] for name, line in lines.items()
    }
    for name, line in truth.items():
        world.add(name, line[:20], max_tokens=60 if name == "c" else None)
    for _ in range(60):
        cut = {
            name: rng.randint(0, len(draft)) for name, draft in world.offered.items() if rng.random() < 0.4
        }
        rows = {name: line for name, line in truth.items() if len(world.text[name]) < 200}
        if not rows:
            break
        world.say(rows, n=rng.choice([0, 2, 5, N]), verified=cut)
    proposer = world.proposer
    metrics = proposer.metrics._views
    assert [proposer.num_draft_tokens, proposer.num_accepted_tokens] == world.counted
    assert world.counted[0] > world.counted[1] > 100
    from vllm_specx.metrics.layout import POSITIONS

    assert metrics["specx_draft_tokens"][: POSITIONS + 1].sum() == world.counted[0]
    assert metrics["specx_accepted_tokens"][: POSITIONS + 1].sum() == world.counted[1]
    by_position = metrics["specx_draft_tokens"][:N]
    assert (np.diff(by_position) <= 0).all()  # a position is counted for the drafts that had it


def test_33_salted_requests_share_within_a_tenant_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the proposer: suffix tree and Lookahead, both with shared memory."""
    answers = {
        "a": [101, 102, 103, 104, 105],
        "b": [201, 202, 203, 204, 205],
        None: [301, 302, 303, 304, 305],
    }
    kinds = {
        "suffix_tree": {"shared": True},
        "lookahead": {"lookahead_shared": True, "lookahead_prompt": False},
        "both": {"shared": True, "lookahead_shared": True},
    }
    for kind, options in kinds.items():
        world = World(make_proposer(kind, monkeypatch, **options))
        for turn in range(3):
            for salt, answer in answers.items():
                name = f"{turn}-{salt}"
                world.add(name, [1, 2, 3], salt=salt)
                first = world.step({name: answer[:2]})[name]
                assert set(first) <= {1, 2, 3, *answer}, (kind, salt)
                assert bool(set(first) & set(answer[2:])) == (turn > 0), (kind, salt)
                world.step({name: answer[2:]})
                world.end(name)
                world.step({})
