"""A request's own draft length, the switch, and how a wrong option is refused: in process and over HTTP."""

from __future__ import annotations

import json

import pytest
from engine_prompts import token_prompts
from engines import N, proposer_of
from serving import Server, arguments
from vllm import SamplingParams

import vllm_specx
from vllm_specx.memory.namespaces import namespace_of


def wanted(num_tokens: int, **extra_args) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=num_tokens, ignore_eos=True, extra_args=extra_args or None
    )


def run(llm, prompts, params) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture
def drafted(specx, monkeypatch) -> dict[int, list[int]]:
    """Lengths of all drafts, by the number of the request."""
    proposer = proposer_of(specx)
    proposer.reset_memory()
    propose, lengths = proposer.propose, {}

    def spy(*args, context=None, **kwargs):
        drafts = propose(*args, context=context, **kwargs)
        for request_id, draft in zip(context.req_ids, drafts, strict=True):
            lengths.setdefault(int(request_id.partition("-")[0]), []).append(len(draft))
        return drafts

    monkeypatch.setattr(proposer, "propose", spy)
    yield lengths
    assert proposer.set_enabled(True) is True


def test_each_request_has_its_own_longest_draft(plain, specx, drafted):
    """Whatever they want, all say what they say in plain vLLM."""
    prompts = [token_prompts(plain)[10]] * 5
    params = [
        wanted(48),
        wanted(48, specx_max_n=0),
        wanted(48, specx_max_n=2, specx_drafter="suffix_tree"),
        wanted(48, specx_max_n=128),
        wanted(1),
    ]
    assert run(specx, prompts, params) == run(plain, prompts, [wanted(48)] * 4 + [wanted(1)])
    free, none, two, many, short = (drafted[i] for i in sorted(drafted))
    assert max(none) == max(short) == 0
    assert max(two) == 2
    assert 2 < max(free) <= N
    assert 2 < max(many) <= N


def test_a_request_without_drafts_is_learnt_from(specx, drafted):
    proposer = proposer_of(specx)
    before = proposer.num_draft_tokens
    prompt = token_prompts(specx)[10] | {"cache_salt": "learnt"}
    run(specx, [prompt], wanted(48, specx_max_n=0))
    run(specx, [{"prompt_token_ids": [1, 2]}], wanted(1))  # the first one's end is heard of in the next step
    assert proposer.num_draft_tokens == before
    snapshot = proposer.drafter.snapshot()
    assert namespace_of("learnt", None) in {snapshot.names[i] for i in snapshot.namespaces.tolist()}
    run(specx, [prompt], wanted(48))
    assert proposer.num_draft_tokens > before


@pytest.mark.parametrize(
    ("extra_args", "reason"),
    [
        ({"specx_max_n": -1}, r"specx_max_n must be an integer within \[0, 128\], got -1"),
        ({"specx_max_n": "4"}, r"specx_max_n must be an integer within \[0, 128\], got '4'"),
        ({"specx_maxn": 4}, "did you mean 'specx_max_n'"),
        ({"specx_drafter": "eagle"}, "specx_drafter must be one of 'suffix_tree'"),
    ],
)
def test_a_wrong_option_is_an_error_of_that_request_alone(plain, specx, drafted, extra_args, reason):
    prompts = token_prompts(plain)[8:10]
    engine = specx.llm_engine
    engine.add_request("7", prompts[0], wanted(12))
    engine.step()
    with pytest.raises(ValueError, match=reason):
        engine.add_request("8", prompts[1], wanted(12, **extra_args))
    answers = {}
    while engine.has_unfinished_requests():
        answers |= {o.request_id: list(o.outputs[0].token_ids) for o in engine.step() if o.finished}
    assert answers == {"7": run(plain, prompts[:1], wanted(12))[0]}
    with pytest.raises(ValueError, match=reason):
        run(specx, prompts, [wanted(12), wanted(12, **extra_args)])
    assert run(specx, prompts, wanted(12)) == run(plain, prompts, wanted(12))


def test_where_nothing_drafts(plain):
    """Every longest draft is kept there; a drafter that is asked for is missing."""
    prompts = token_prompts(plain)[8:9]
    assert run(plain, prompts, wanted(4, specx_max_n=3)) == run(plain, prompts, wanted(4))
    with pytest.raises(ValueError, match="'suffix_tree' is not at work here"):
        run(plain, prompts, wanted(4, specx_drafter="suffix_tree"))


def test_the_switch(plain, specx, drafted):
    prompts = token_prompts(plain)[8:12]
    expected = run(plain, prompts, wanted(48))
    assert vllm_specx.set_enabled(specx, False) is True
    before = proposer_of(specx).num_draft_tokens
    assert run(specx, prompts, wanted(48)) == expected
    assert proposer_of(specx).num_draft_tokens == before
    assert vllm_specx.set_enabled(specx, True) is False
    assert run(specx, prompts, wanted(48)) == expected
    assert proposer_of(specx).num_draft_tokens > before
    assert proposer_of(specx).drafter.memory.num_documents >= len(prompts)


def test_drafts_leave_room_for_prompts(plain, specx, monkeypatch):
    proposer = proposer_of(specx)
    assert proposer._room == specx.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens // 2
    monkeypatch.setattr(proposer, "_room", 6)
    propose, steps = proposer.propose, []

    def spy(*args, **kwargs):
        drafts = propose(*args, **kwargs)
        steps.append(sum(map(len, drafts)))
        return drafts

    monkeypatch.setattr(proposer, "propose", spy)
    prompts = token_prompts(plain)[8:12]
    assert run(specx, prompts, wanted(48)) == run(plain, prompts, wanted(48))
    assert 0 < max(steps) <= 6


def test_the_switch_in_the_middle_of_a_request(plain, specx, drafted):
    """Off, no draft leaves the proposer from the next step on; and on again."""
    prompt = token_prompts(plain)[10]
    engine = specx.llm_engine
    engine.add_request("1", prompt, wanted(96))
    while max(drafted.get(1, [0])) == 0:
        engine.step()
    vllm_specx.set_enabled(specx, False)
    start = len(drafted[1])
    for _ in range(8):
        engine.step()
    vllm_specx.set_enabled(specx, True)
    assert drafted[1][start:] == [0] * 8
    answer = []
    while engine.has_unfinished_requests():
        answer += [list(o.outputs[0].token_ids) for o in engine.step() if o.finished]
    assert max(drafted[1][start + 8 :]) > 0
    assert answer == run(plain, [prompt], wanted(96))


@pytest.fixture(scope="module")
def server(model_dir, tmp_path_factory):
    """In development mode, which can call the drafter."""
    log = tmp_path_factory.mktemp("serve") / "log"
    options = {"alpha": 0.05, "memory_bytes": 1 << 20}
    with Server(arguments(model_dir, options), log, VLLM_SERVER_DEV_MODE="1") as server:
        yield server


def num_drafted(server: Server, **options) -> int:
    """Draft tokens that were verified for one request."""
    name = "vllm:spec_decode_num_draft_tokens_total"
    before = server.metrics()[name]
    prompt = "one, two, three, one, two, three, one, two, three, one,"
    server.complete(prompt, 32, ignore_eos=True, **options)
    return int(server.metrics()[name] - before)


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_option_is_a_400(server, stream):
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    for path, text in (("/v1/completions", {"prompt": "Hello"}), ("/v1/chat/completions", chat)):
        for key, value in (("specx_max_n", 129), ("specx_max_n", "4"), ("specx_maxn", 4)):
            body = {"model": "demo", "max_tokens": 4, "stream": stream, "vllm_xargs": {key: value}}
            status, answer = server.post(path, body | text)
            assert status == 400, answer
            error = json.loads(answer)["error"]
            assert (error["param"], "specx_max_n" in error["message"]) == (key, True)


def test_max_n_over_http(server):
    assert num_drafted(server) > 0
    assert num_drafted(server, vllm_xargs={"specx_max_n": 0}) == 0
    assert num_drafted(server, vllm_xargs={"specx_max_n": 8, "specx_drafter": "suffix_tree"}) > 0


def test_the_switch_over_http(server):
    def switch(is_enabled: bool) -> str:
        body = {"method": "call_drafter", "args": ["set_enabled", is_enabled]}
        status, answer = server.post("/collective_rpc", body)
        assert status == 200, answer
        return answer["results"]

    assert switch(False) == ["True"]
    assert num_drafted(server) == 0
    assert switch(True) == ["False"]
    assert num_drafted(server) > 0
