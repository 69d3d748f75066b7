"""The shared memory of a real engine: cleared with the weights, purged, kept in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import memory_run
import numpy as np
import pytest
from engine_prompts import token_prompts
from engines import proposer_of
from vllm import SamplingParams

import vllm_specx
from drafters import SuffixTreeDrafter, memory_file
from vllm_specx.memory.namespaces import namespace_of
from vllm_specx.memory.vocabulary import fingerprint_of


def wanted(num_tokens: int) -> SamplingParams:
    """A new one each time: `LLM.generate` changes what it is given."""
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


def learn(llm, *salts: str | None) -> None:
    """Have one prompt answered for each tenant, and let the proposer hear of the ends."""
    prompt = token_prompts(llm)[10]
    llm.generate([prompt | ({"cache_salt": s} if s else {}) for s in salts], wanted(24), use_tqdm=False)
    llm.generate([{"prompt_token_ids": [1, 2]}], wanted(1), use_tqdm=False)


def held(llm) -> set[str]:
    """Namespaces in which something is held."""
    snapshot = proposer_of(llm).drafter.snapshot()
    return {snapshot.names[i] for i in snapshot.namespaces.tolist()}


def is_untaught(llm) -> bool:
    """Whether nothing is left of what was learnt: no text, no statistics."""
    drafter = proposer_of(llm).drafter
    fresh = SuffixTreeDrafter(memory_bytes=0)
    same = all(
        np.array_equal(mine, new)
        for mine, new in zip(drafter.calibration.model, fresh.calibration.model, strict=True)
    )
    return same and drafter.memory.num_documents == 0 and drafter._usual_luck == fresh._usual_luck


def sleep(llm) -> None:
    llm.sleep(level=1)
    llm.wake_up()


def reload(llm) -> None:
    llm.collective_rpc("reload_weights")


def load_into_the_model(llm) -> None:
    """As trainers do it, with a worker extension that calls the model itself."""

    def load(model) -> None:
        name, weight = next(iter(model.named_parameters()))
        model.load_weights([(name, weight.detach().clone())])

    llm.llm_engine.engine_core.engine_core.model_executor.collective_rpc("apply_model", args=(load,))


@pytest.mark.parametrize("change", [sleep, reload, load_into_the_model])
def test_a_change_of_weights_clears_all(specx, change):
    learn(specx, None, "tenant")
    assert held(specx) >= {"", namespace_of("tenant", None)}
    assert not is_untaught(specx)
    change(specx)
    assert is_untaught(specx)
    learn(specx, None)
    assert held(specx) == {""}


def test_what_a_request_said_before_the_change_stays_out(specx, plain):
    """A request that lives through a sleep answers as if nothing had been, and shares nothing."""
    prompt = token_prompts(plain)[3]
    (expected,) = plain.generate([prompt], wanted(48), use_tqdm=False)
    proposer_of(specx).on_weights_changed()
    engine, steps = specx.llm_engine, []
    engine.add_request("survivor", prompt, wanted(48))
    while len(steps) < 3:
        steps += engine.step()
    assert not any(output.finished for output in steps)
    answer = []
    specx.sleep(level=1, mode="keep")
    specx.wake_up()
    while engine.has_unfinished_requests():
        answer += [list(o.outputs[0].token_ids) for o in engine.step() if o.finished]
    assert answer == [list(expected.outputs[0].token_ids)]
    specx.generate([{"prompt_token_ids": [1, 2]}], wanted(1), use_tqdm=False)
    assert proposer_of(specx).drafter.memory.num_documents == 0


def test_purge_and_forget(specx):
    learn(specx, None, "tenant-a", "tenant-b")
    a, b = namespace_of("tenant-a", None), namespace_of("tenant-b", None)
    assert held(specx) >= {"", a, b}
    assert vllm_specx.purge(specx, cache_salt="tenant-a") == 1
    assert held(specx) >= {"", b}
    assert a not in held(specx)
    assert vllm_specx.purge(specx, cache_salt="tenant-a") == 0
    assert vllm_specx.forget(specx) >= 2
    assert is_untaught(specx)


def saved(path: Path, llm) -> set[str]:
    """Namespaces in a memory file."""
    # Not the tokenizer's vocabulary of now: structured output adds a token to it.
    return set(memory_file.read(path, proposer_of(llm)._keeper._fingerprint).names)


def test_the_file_follows_the_memory(specx_memory):
    """Saved in the background at intervals, and at once where something was forgotten."""
    llm, path = specx_memory
    keeper = proposer_of(llm)._keeper
    learn(llm, None, "tenant-a")
    keeper._due = 0.0
    learn(llm, None)
    keeper._wait()
    assert keeper.num_saves == 1
    assert saved(path, llm) == {"", namespace_of("tenant-a", None)}
    before = path.read_bytes()
    sleep(llm)
    assert path.read_bytes() == before
    learn(llm, "tenant-b", None)
    assert vllm_specx.purge(llm, cache_salt="tenant-b") == 1
    assert saved(path, llm) == {""}
    assert vllm_specx.forget(llm) > 0
    assert saved(path, llm) == set()
    assert (keeper.num_failures, proposer_of(llm).faults) == (0, 0)


_STARTS = """
import sys
from engines import SPECULATIVE, make_engine
for path in sys.argv[2:]:
    try:
        make_engine(
            sys.argv[1],
            speculative_config=SPECULATIVE,
            additional_config={"specx": {"memory_path": path}},
        )
    except Exception as error:
        print("refused:", error)
"""


def python(*arguments: object) -> str:
    """Run Python with what the tests import at hand; return what it prints."""
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(memory_run.__file__).parent)]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_a_damaged_file_ends_the_start_and_stays(model_dir, tmp_path):
    """In a process of its own: an engine that goes takes those of the other tests along."""
    foreign, diary = tmp_path / "foreign", tmp_path / "diary"
    memory_file.write(foreign, SuffixTreeDrafter(memory_bytes=1 << 20).snapshot(), "of another model")
    diary.write_bytes(b"my diary")
    before = [path.read_bytes() for path in (foreign, diary)]
    out = python("-c", _STARTS, model_dir, foreign, diary)
    refusals = [line for line in out.splitlines() if line.startswith("refused: ")]
    assert len(refusals) == 2
    for line, path, reason in zip(
        refusals, (foreign, diary), ("'of another model'", "not a draft memory file"), strict=True
    ):
        assert f"specx.memory_path: {path}: " in line
        assert reason in line
    assert [path.read_bytes() for path in (foreign, diary)] == before


def test_purge_and_the_last_save_reach_a_worker_process(model_dir, tmp_path):
    """Engine core and worker in processes of their own, no insecure serialization."""
    path = tmp_path / "memory"
    out = python(memory_run.__file__, model_dir, path)
    assert "forgotten: 1" in out
    from transformers import AutoTokenizer

    vocabulary = AutoTokenizer.from_pretrained(str(model_dir)).get_vocab()
    snapshot = memory_file.read(path, fingerprint_of(vocabulary))
    assert set(snapshot.names) == {"", namespace_of("tenant-b", None)}
    assert snapshot.lengths.tolist() == [16 + memory_run.MAX_TOKENS] * 3  # one of them ended after the purge
