"""Whose text is whose: names of namespaces, and the tracker that gives them to requests."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from drafters import SuffixTreeDrafter
from vllm_specx.memory.namespaces import adapter_of, has_parts, namespace_of, parts_of
from vllm_specx.proposers._requests import RequestTracker


def lora(name="a", number=1, path="/adapters/a"):
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)


def test_names():
    names = [
        namespace_of(salt, adapter)
        for salt in (None, "", "tenant-a", "tenant-b")
        for adapter in (None, lora(), lora("b"), lora(number=2), lora(path="/adapters/b"))
    ]
    assert names[0] == ""
    assert len(set(names)) == len(names)
    assert namespace_of("tenant-a", lora()) == namespace_of("tenant-a", lora())


def test_a_name_does_not_tell_the_salt():
    assert "tenant" not in namespace_of("tenant-a", lora("tenant-a", path="tenant-a"))
    assert namespace_of("\ud800", None) != namespace_of("?", None)  # half a surrogate pair is a salt too


def test_what_is_within():
    mine, other = adapter_of(lora()), adapter_of(lora("b"))
    both = namespace_of("s", lora())
    assert has_parts(both, parts_of("s", None))
    assert has_parts(both, parts_of(None, mine))
    assert has_parts(both, parts_of("s", mine))
    assert not has_parts(both, parts_of("t", mine))
    assert not has_parts(both, parts_of("s", other))
    assert not has_parts(namespace_of("s", None), parts_of("s", mine))
    assert not has_parts(namespace_of(None, lora()), parts_of("s", None))
    assert not has_parts("", parts_of("s", None))
    assert has_parts(namespace_of("s", None), parts_of("s", None))


class Steps:
    """The runner's side of a tracker: requests in rows, each step giving every row its next tokens."""

    def __init__(self, drafter):
        self.tracker = RequestTracker(drafter, lambda reason: pytest.fail(reason))
        self.requests: dict[str, SimpleNamespace] = {}
        self.text: dict[str, list[int]] = {}

    def add(self, request_id, prompt, salt=None, adapter=None):
        self.requests[request_id] = SimpleNamespace(
            prompt_token_ids=prompt,
            prompt_embeds=None,
            num_prompt_tokens=len(prompt),
            lora_request=adapter,
            sampling_params=None,
        )
        self.text[request_id] = list(prompt)
        return SimpleNamespace(req_id=request_id, cache_salt=salt, lora_request=adapter)

    def step(self, new=(), **sampled):
        """One step in which the requests named say these tokens."""
        for request_id, tokens in sampled.items():
            self.text[request_id] += tokens
        ids = list(sampled)
        width = max((len(self.text[i]) for i in ids), default=0)
        token_ids = np.zeros((len(ids), width), dtype=np.int32)
        for row, i in enumerate(ids):
            token_ids[row, : len(self.text[i])] = self.text[i]
        context = SimpleNamespace(
            scheduler_output=SimpleNamespace(scheduled_new_reqs=list(new)),
            req_ids=ids,
            requests=self.requests,
        )
        lengths = [len(self.text[i]) for i in ids]
        return self.tracker.sync(context, list(sampled.values()), lengths, token_ids)

    def end(self, request_id):
        del self.requests[request_id]
        self.step()


class Recorder:
    """A drafter that remembers what it was told."""

    def __init__(self):
        self.started: dict[str, str | None] = {}
        self.stopped: list[str] = []

    def start(self, request_id, prompt_ids, *, namespace):
        self.started[request_id] = namespace

    def observe(self, request_id, token_ids):
        pass

    def stop(self, request_id):
        self.stopped.append(request_id)


def test_each_request_has_the_namespace_of_its_salt_and_adapter():
    drafter = Recorder()
    steps = Steps(drafter)
    new = [
        steps.add("plain", [1, 2]),
        steps.add("salted", [1, 2], "s"),
        steps.add("adapted", [1, 2], None, lora()),
        steps.add("both", [1, 2], "s", lora()),
    ]
    steps.add("unnoticed", [1, 2])
    steps.step(new, plain=[3], salted=[3], adapted=[3], both=[3], unnoticed=[3])
    assert drafter.started == {
        "plain": "",
        "salted": namespace_of("s", None),
        "adapted": namespace_of(None, lora()),
        "both": namespace_of("s", lora()),
        "unnoticed": None,
    }


def test_a_request_that_lives_on_after_clear_shares_nothing():
    drafter = Recorder()
    steps = Steps(drafter)
    steps.step([steps.add("a", [1, 2], "s"), steps.add("b", [1, 2], "t")], a=[3], b=[3])
    steps.tracker.clear_namespaces(lambda name: name == namespace_of("s", None))
    assert (drafter.stopped, steps.tracker.num_ended) == (["a"], 1)
    steps.step(a=[4], b=[4])
    assert drafter.started == {"a": None, "b": namespace_of("t", None)}
    steps.tracker.clear()
    assert (sorted(drafter.stopped), steps.tracker.num_ended) == (["a", "a", "b"], 3)
    steps.step(a=[5], b=[5])
    assert drafter.started == {"a": None, "b": None}


def test_a_complete_answer_can_be_shared_before_the_engine_forgets_its_request():
    drafter = Recorder()
    steps = Steps(drafter)
    new = [steps.add(name, [1, 2]) for name in ("a", "b", "c")]
    for request_id, limit in (("a", 2), ("b", 9)):
        steps.requests[request_id].sampling_params = SimpleNamespace(
            max_tokens=limit, eos_token_id=0, stop_token_ids=None, extra_args=None
        )
    steps.step(new, a=[3], b=[3], c=[3])
    steps.tracker.stop_ended()
    assert drafter.stopped == []
    assert steps.step(a=[4], b=[4, 0], c=[4]) == [2]
    steps.tracker.stop_ended()
    steps.tracker.stop_ended()
    assert (drafter.stopped, steps.tracker.num_ended) == (["a", "b"], 2)
    steps.step(a=[5], c=[5])  # an engine that schedules ahead may sample once more
    steps.end("a")
    steps.end("b")
    again = steps.add("a", [1, 2])
    assert steps.step([again], a=[3], c=[6]) == [0, 1]
    assert (drafter.stopped, steps.tracker.num_ended) == (["a", "b"], 2)
    steps.tracker.clear()
    assert sorted(drafter.stopped) == ["a", "a", "b", "c"]


def test_text_of_one_tenant_never_reaches_another():
    """Two tenants and an unsalted user say texts that begin alike: each is drafted his own, and only that."""
    drafter = SuffixTreeDrafter(max_n=8, memory_bytes=1 << 20, min_reach=0.0)
    steps = Steps(drafter)
    tails = {"s": [101, 102, 103, 104], "t": [201, 202, 203, 204], None: [301, 302, 303, 304]}
    prompt = [5, 6, 7, 8, 9]
    for round_ in range(3):
        for salt, tail in tails.items():
            request_id = f"r{round_}{salt}"
            new = steps.add(request_id, prompt, salt)
            rows = steps.step([new], **{request_id: [10]})
            assert rows == [0]
            (draft,) = drafter.propose([request_id], 8)
            seen = set(draft.token_ids.tolist()) & {t for other in tails.values() for t in other}
            assert seen <= set(tail)
            assert bool(seen) == (round_ > 0)
            steps.step(**{request_id: tail})
            steps.end(request_id)
