"""What a request may say about its drafts: how it is read and refused, and what the proposer makes of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from stand_ins import LLM

import vllm_specx
from vllm_specx import plugin, request_options
from vllm_specx.config import MAX_SPECULATIVE_TOKENS
from vllm_specx.heads import HYBRID, set_name
from vllm_specx.request_options import DRAFTERS, RequestOptionError, RequestOptions
from vllm_specx.scheduling.methods import SCHEDULER

SUFFIX_TREE = SimpleNamespace(model=DRAFTERS["suffix_tree"], method="custom_class")
NGRAM = SimpleNamespace(model="ngram", method="ngram")


@pytest.mark.parametrize("extra_args", [None, {}, {"mine": 1, 5: 6, "specx": 7}])
def test_nothing_said(extra_args):
    assert RequestOptions.from_extra_args(extra_args) == RequestOptions(max_n=None, drafter=None)


@pytest.mark.parametrize("max_n", [0, 1, MAX_SPECULATIVE_TOKENS])
def test_what_may_be_said(max_n):
    options = RequestOptions.from_extra_args(
        {"specx_max_n": max_n, "specx_drafter": "suffix_tree", "mine": 1}
    )
    assert options == RequestOptions(max_n=max_n, drafter="suffix_tree")


@pytest.mark.parametrize("value", [-1, MAX_SPECULATIVE_TOKENS + 1, True, 3.0, "3", [3], {}, np.int64(3)])
def test_a_wrong_max_n(value):
    with pytest.raises(
        RequestOptionError, match=r"specx_max_n must be an integer within \[0, 128\], got "
    ) as e:
        RequestOptions.from_extra_args({"specx_max_n": value})
    assert e.value.key == "specx_max_n"


@pytest.mark.parametrize("value", ["eagle", "", 1, ["suffix_tree"]])
def test_an_unknown_drafter(value):
    with pytest.raises(
        RequestOptionError,
        match="specx_drafter must be one of 'suffix_tree', 'lookahead', 'medusa', 'hybrid', got ",
    ):
        RequestOptions.from_extra_args({"specx_drafter": value})


@pytest.mark.parametrize(
    ("key", "close"),
    [("specx_maxn", "specx_max_n"), ("specx_draftr", "specx_drafter"), ("specx_", "specx_"), ("specx_?", "")],
)
def test_an_unknown_key_names_the_closest(key, close):
    with pytest.raises(RequestOptionError, match=f"unknown request option '.*': did you mean '{close}") as e:
        RequestOptions.from_extra_args({"specx_max_n": 1, key: 1})
    assert e.value.key == key
    assert "specx_max_n, specx_drafter" in str(e.value)


def test_what_is_shown_is_short():
    for extra_args in ({"specx_" + "x" * 1_000_000: 1}, {"specx_max_n": "x" * 1_000_000}):
        with pytest.raises(RequestOptionError) as e:
            RequestOptions.from_extra_args(extra_args)
        assert len(str(e.value)) < 200
        assert len(e.value.key) <= 64


def test_no_value():
    with pytest.raises(RequestOptionError, match="specx_max_n has no value"):
        RequestOptions.from_extra_args({"specx_max_n": None})


def test_what_an_engine_does():
    RequestOptions().check_engine(NGRAM)
    for speculative in (None, SUFFIX_TREE):
        RequestOptions(max_n=3).check_engine(speculative)
    RequestOptions(drafter="suffix_tree").check_engine(SUFFIX_TREE)
    for speculative in (None, NGRAM):
        with pytest.raises(RequestOptionError, match="'suffix_tree' is not at work here"):
            RequestOptions(drafter="suffix_tree").check_engine(speculative)
    with pytest.raises(RequestOptionError, match="vLLM's own method 'ngram'"):
        RequestOptions(max_n=3).check_engine(NGRAM)
    driven = SimpleNamespace(**vars(NGRAM))
    set_name(driven, SCHEDULER)
    RequestOptions(max_n=3).check_engine(driven)


def test_the_known_drafters_exist():
    assert set(DRAFTERS.values()) == {*(f"vllm_specx.{name}" for name in plugin.PROPOSERS), HYBRID}


class TestHooks:
    """The two functions of vLLM that are wrapped, on the real class."""

    @pytest.fixture
    def params_class(self, monkeypatch):
        module = pytest.importorskip("vllm.sampling_params")
        params_class = module.SamplingParams
        from vllm_specx._compat.apply import is_applied

        if not is_applied(params_class, "verify", "request-check"):
            for name in ("verify", "from_optional"):
                monkeypatch.setattr(params_class, name, vars(params_class)[name])  # put back at the end
        request_options.install()
        request_options.install()  # changes nothing
        return params_class

    @staticmethod
    def verify(params, speculative_config):
        model = SimpleNamespace(max_logprobs=20, is_diffusion=False)
        params.verify(model, speculative_config, None, None)

    def test_every_request_is_checked(self, params_class):
        from vllm.exceptions import VLLMClientError

        for extra_args in (None, {"specx_max_n": 2}, {"mine": "x"}):
            self.verify(params_class(extra_args=extra_args), SUFFIX_TREE)
        for wrong in ({"specx_max_n": "2"}, {"specx_maxn": 2}):
            with pytest.raises(ValueError, match="specx_max_n") as e:
                self.verify(params_class(extra_args=wrong), SUFFIX_TREE)
            assert isinstance(e.value, VLLMClientError)
        with pytest.raises(ValueError, match="vLLM's own method 'ngram'"):
            self.verify(params_class(extra_args={"specx_max_n": 2}), NGRAM)

    def test_http_requests_are_checked_before_a_stream_begins(self, params_class):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

        texts = {CompletionRequest: '"prompt": "x"', ChatCompletionRequest: '"messages": []'}
        for kind, text in texts.items():
            for value, is_right in (
                ("3", True),
                ("3.5", False),
                ('"3"', False),
                ("[3]", False),
                ("-1", False),
            ):
                request = kind.model_validate_json(
                    f'{{"model": "m", {text}, "stream": true, "vllm_xargs": {{"specx_max_n": {value}}}}}'
                )
                if is_right:
                    assert request.to_sampling_params(5, {}).extra_args == {"specx_max_n": 3}
                    continue
                with pytest.raises(RequestOptionError) as e:
                    request.to_sampling_params(5, {})
                error = create_error_response(e.value).error
                assert (error.code, error.type, error.param) == (400, "BadRequestError", "specx_max_n")
                assert "must be an integer within [0, 128]" in error.message


N = 8
LINE = [5, 6, 7, 8, 9, 10, 11, 12]


class Engine:
    """The runner's side of a proposer: every step commits the same line's next tokens for each request."""

    def __init__(self, monkeypatch):
        pytest.importorskip("vllm.logger")
        from vllm_specx.proposers.suffix_tree import SuffixTreeProposer

        for name in ("register", "check_config"):
            monkeypatch.setattr(plugin, name, lambda *_: None)
        self.proposer = SuffixTreeProposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(num_speculative_tokens=N),
                scheduler_config=SimpleNamespace(max_num_batched_tokens=2048, async_scheduling=False),
                use_v2_model_runner=False,
                model_config=SimpleNamespace(get_vocab_size=lambda: 100),
                parallel_config=SimpleNamespace(
                    tensor_parallel_size=1, prefill_context_parallel_size=1, rank=0, world_size=1
                ),
                instance_id="test",
                additional_config={"specx": {"alpha": 0.0, "shared": False}},
            )
        )
        self.requests: dict[str, SimpleNamespace] = {}
        self.text: dict[str, list[int]] = {}
        self.new: list[SimpleNamespace] = []

    def add(self, request_id, max_tokens=100, **extra_args):
        params = SimpleNamespace(
            max_tokens=max_tokens, extra_args=extra_args or None, eos_token_id=None, stop_token_ids=None
        )
        self.requests[request_id] = SimpleNamespace(
            prompt_token_ids=LINE * 3,
            prompt_embeds=None,
            num_prompt_tokens=len(LINE) * 3,
            lora_request=None,
            sampling_params=params,
        )
        self.text[request_id] = LINE * 3
        self.new.append(SimpleNamespace(req_id=request_id, cache_salt=None, lora_request=None))

    def step(self) -> dict[str, int]:
        """Commit one token for each request; return how many tokens each has as a draft."""
        ids = list(self.requests)
        for request_id in ids:
            self.text[request_id].append(LINE[len(self.text[request_id]) % len(LINE)])
        token_ids = np.zeros((len(ids), 256), dtype=np.int32)
        for row, request_id in enumerate(ids):
            token_ids[row, : len(self.text[request_id])] = self.text[request_id]
        context = SimpleNamespace(
            scheduler_output=SimpleNamespace(
                scheduled_new_reqs=self.new, total_num_scheduled_tokens=len(ids)
            ),
            req_ids=ids,
            requests=self.requests,
            num_draft_tokens=None,
            num_spec_tokens=N,
            max_model_len=256,
        )
        self.new = []
        drafts = self.proposer.propose(
            [[self.text[i][-1]] for i in ids], [len(self.text[i]) for i in ids], token_ids, context=context
        )
        assert self.proposer.faults == 0
        return dict(zip(ids, map(len, drafts), strict=True))

    def observed(self, request_id) -> int:
        """Tokens of a request that the drafter has taken in."""
        drafter = self.proposer.drafter
        return int(drafter._slots.end[drafter._requests[request_id].slot])


@pytest.fixture
def engine(monkeypatch):
    return Engine(monkeypatch)


def test_each_request_has_its_own_longest_draft(engine):
    engine.add("free")
    engine.add("three", specx_max_n=3)
    engine.add("none", specx_max_n=0)
    engine.add("many", specx_max_n=MAX_SPECULATIVE_TOKENS, specx_drafter="suffix_tree")
    engine.add("others'", mine=0)
    for _ in range(3):
        assert engine.step() == {"free": N, "three": 3, "none": 0, "many": N, "others'": N}


def test_a_request_without_drafts_costs_no_search_and_is_observed(engine, monkeypatch):
    asked: list[list[str]] = []
    propose = engine.proposer.drafter.propose

    def spy(ids, limits):
        asked.append(list(zip(ids, limits, strict=True)))
        return propose(ids, limits)

    monkeypatch.setattr(engine.proposer.drafter, "propose", spy)
    engine.add("none", specx_max_n=0)
    engine.add("three", specx_max_n=3)
    for _ in range(4):
        engine.step()
    assert asked == [[("three", 3)]] * 4
    assert engine.observed("none") == len(LINE) * 3 + 4


def test_options_that_came_past_the_check(engine):
    engine.add("wrong", specx_max_n="7")
    engine.add("free")
    assert engine.step() == {"wrong": 0, "free": N}


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 6])
def test_no_draft_beyond_max_tokens(engine, max_tokens):
    """With one token to say a request never drafts: it ends in the step that finishes its prefill."""
    engine.add("a", max_tokens=max_tokens)
    engine.add("b")
    drafts = [engine.step()["a"] for _ in range(max_tokens)]
    assert drafts == [max_tokens - 2 - i if i < max_tokens - 2 else 0 for i in range(max_tokens)]


def test_the_switch(engine, monkeypatch):
    engine.add("a")
    engine.add("b", specx_max_n=3)
    assert engine.step() == {"a": N, "b": 3}
    assert engine.proposer.set_enabled(False) is True
    with monkeypatch.context() as patch:  # its steps say nothing of what drafts are worth
        patch.setattr(engine.proposer._policy, "choose", lambda _: pytest.fail("asked"))
        for _ in range(5):
            assert engine.step() == {"a": 0, "b": 0}
        engine.add("c")
        assert engine.step() == {"a": 0, "b": 0, "c": 0}
    assert engine.observed("b") == len(LINE) * 3 + 7
    assert engine.proposer.set_enabled(False) is False
    assert engine.proposer.set_enabled(True) is False
    assert engine.step() == {"a": N, "b": 3, "c": N}


def test_the_switch_survives_a_drafter_that_had_to_be_replaced(engine):
    engine.proposer.set_enabled(False)
    engine.proposer._start_over()
    engine.add("a")
    assert engine.step() == {"a": 0}


def test_the_switch_takes_only_true_and_false(engine):
    for value in ("false", 0, None):
        with pytest.raises(TypeError):
            engine.proposer.set_enabled(value)
        with pytest.raises(TypeError):
            vllm_specx.set_enabled(None, value)


def test_the_switch_reaches_the_workers_by_name():
    llm = LLM([None, True, True])
    assert vllm_specx.set_enabled(llm, False) is True
    assert llm.calls == [("call_drafter", "set_enabled", False)]
    assert vllm_specx.set_enabled(LLM([None, False]), True) is False
    with pytest.raises(RuntimeError, match="no proposer of vllm_specx"):
        vllm_specx.set_enabled(LLM([None]), True)
