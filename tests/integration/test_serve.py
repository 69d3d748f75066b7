"""`vllm serve` as operators run it: its own processes, options from the command line alone, requests over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import threading
import time

import pytest
from engines import SPECULATIVE, accepted, make_engine, proposer_of
from serving import START_SECONDS, Server, arguments, command, environment, free_port

from drafters import memory_file
from vllm_specx.memory.namespaces import namespace_of
from vllm_specx.memory.vocabulary import fingerprint_of


@pytest.fixture(scope="module")
def server(model_dir, tmp_path_factory):
    log = tmp_path_factory.mktemp("serve") / "log"
    options = {"memory_bytes": 8 << 20, "memory_path": str(log.with_name("memory")), "autosave_s": 0.1}
    with Server(arguments(model_dir, options), log) as server:
        server.memory = log.with_name("memory")
        yield server


def test_served_answers_equal_plain_decoding(server, model_dir):
    from vllm import SamplingParams

    # Of its own: test_sampling_engine.py has closed an engine, and that takes the shared ones along.
    plain = make_engine(model_dir)

    prompt = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\n" * 2
    answer = server.complete(prompt, 48)
    expected = plain.generate([prompt], SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
    assert answer == expected[0].outputs[0].text
    metrics = server.metrics()
    accepted_tokens = metrics["vllm:spec_decode_num_accepted_tokens_total"]
    assert accepted_tokens > 16
    # What the worker counts, in a process of its own, is served beside it.
    assert metrics["specx_accepted_tokens_total"] == accepted_tokens
    assert metrics["specx_draft_tokens_total"] == metrics["vllm:spec_decode_num_draft_tokens_total"]
    assert metrics["specx_drafts_total"] == metrics["vllm:spec_decode_num_drafts_total"]
    assert metrics["specx_drafting_faults_total"] == 0
    assert 0 < metrics["specx_draft_seconds_total"] < metrics["specx_step_seconds_total"]


LIST = "Write the numbers from one to twenty in words, separated by commas, twice:\n"


@pytest.fixture(scope="module")
def fingerprint(model_dir):
    from transformers import AutoTokenizer

    return fingerprint_of(AutoTokenizer.from_pretrained(str(model_dir)).get_vocab())


def ask(server: Server, prompt: str, max_tokens: int, **options) -> None:
    server.complete(prompt, max_tokens, ignore_eos=True, **options)


def ask_in_vain(*request) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(*request)


def test_memory_is_saved_while_serving(server, fingerprint):
    for i in range(20):
        ask(server, f"{i} is", 4)
        if server.memory.exists() and len(memory_file.read(server.memory, fingerprint)) > 1:
            break
    else:
        pytest.fail("no file after 20 requests:\n" + server.log.read_text()[-4000:])


def test_memory_is_saved_at_sigterm_and_speeds_up_the_next_engine(server, model_dir, fingerprint):
    """The engine's process is told to end while a request is running: what it has said by then counts too."""
    ask(server, LIST, 64)
    ask(server, LIST, 16, cache_salt="tenant")
    running = threading.Thread(target=ask_in_vain, args=(server, "Once upon a time", 450), daemon=True)
    before = server.metrics()["vllm:generation_tokens_total"]
    running.start()
    while server.metrics()["vllm:generation_tokens_total"] < before + 20:
        time.sleep(0.05)  # there is no other sign of how far it is
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
    found = memory_file.read(server.memory, fingerprint)
    assert set(found.names) == {"", namespace_of("tenant", None)}
    assert {16 + 64, 16 + 16} <= set(found.lengths.tolist())
    assert found.lengths.max() < 450

    from vllm import SamplingParams

    llm = make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        additional_config={"specx": {"memory_path": str(server.memory)}},
    )
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    gains = []
    for _ in range(2):
        before = accepted(llm)
        llm.generate([LIST], params, use_tqdm=False)
        gains.append(accepted(llm) - before)
        proposer_of(llm).on_weights_changed()
    warm, cold = gains
    assert warm > cold


def test_bad_option_ends_the_start_with_the_reason(model_dir):
    result = subprocess.run(
        command(arguments(model_dir, {"memory_byts": 1}), free_port()),
        env=environment(), capture_output=True, text=True, timeout=START_SECONDS, check=False,
    )  # fmt: skip
    assert result.returncode != 0
    assert "unknown option specx.memory_byts: did you mean 'memory_bytes'?" in result.stdout + result.stderr
