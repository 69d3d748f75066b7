"""What operators call, against a stand-in for an LLM, and the fingerprint of a vocabulary."""

from types import SimpleNamespace

import pytest
from stand_ins import LLM

import vllm_specx
from vllm_specx.config import ConfigError
from vllm_specx.memory.namespaces import adapter_of
from vllm_specx.memory.vocabulary import fingerprint_of, fingerprint_of_model


def test_purge_and_forget_reach_the_workers_by_name():
    lora = SimpleNamespace(lora_name="a", lora_int_id=1, lora_path="/a")
    llm = LLM([None, 3, 3])
    assert vllm_specx.purge(llm, cache_salt="s") == 3
    assert vllm_specx.purge(llm, lora_request=lora) == 3
    assert vllm_specx.purge(llm, cache_salt="s", lora_request=lora) == 3
    assert vllm_specx.forget(llm) == 3
    assert llm.calls == [
        ("call_drafter", "purge", "s", None),
        ("call_drafter", "purge", None, adapter_of(lora)),
        ("call_drafter", "purge", "s", adapter_of(lora)),
        ("call_drafter", "forget"),
    ]


def test_purge_of_nobody():
    with pytest.raises(ValueError, match=r"vllm_specx\.forget"):
        vllm_specx.purge(LLM([1]))


def test_engine_without_a_proposer():
    with pytest.raises(RuntimeError, match="no proposer of vllm_specx"):
        vllm_specx.forget(LLM([None]))


def test_fingerprint_is_of_the_mapping():
    one = fingerprint_of({"a": 0, "b": 1})
    assert fingerprint_of({"b": 1, "a": 0}) == one
    others = [{"a": 1, "b": 0}, {"a": 0}, {"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 2}, {"a": 0, "b 1": 1}, {}]
    assert len({one, *map(fingerprint_of, others)}) == 1 + len(others)
    assert fingerprint_of({"\ud800": 0})


def test_engine_without_a_tokenizer(monkeypatch):
    tokenizers = pytest.importorskip("vllm.tokenizers")
    monkeypatch.setattr(tokenizers, "cached_tokenizer_from_config", lambda config: None)
    with pytest.raises(ConfigError, match="remove skip_tokenizer_init"):
        fingerprint_of_model(None)
