"""The replayed numbers equal those of the reference evaluation, where that lies beside the repository."""

import json
import random

import pytest
import scripts
from conftest import ROOT

from drafters.replay import Trace
from vllm_specx.replay import ReplaySettings, run_replay

SHARED = ROOT.parent / "shared"
REFERENCE = SHARED / "bench" / "replay_eval.py"
ALPHAS = (0.0, 0.03, 0.1, 0.3, 0.8)

pytestmark = pytest.mark.skipif(not REFERENCE.is_file(), reason="no ../shared/bench/replay_eval.py here")


@pytest.fixture(scope="module")
def reference():
    return scripts.load(REFERENCE)


@pytest.fixture(scope="module")
def traces():
    """Two kinds of streams: text as bytes, and noise over few symbols whose answers come back."""
    made = []
    data = SHARED / "data" / "replay" / "sql.jsonl"
    if data.is_file():
        for line in data.read_text().split("\n")[:40]:
            row = json.loads(line)
            made.append(Trace(row["id"], list(row["prompt"].encode()), list(row["output"].encode())[:300]))
    rng = random.Random(11)
    answers = [[rng.randrange(12) for _ in range(80)] for _ in range(5)]
    for i in range(40):
        prompt = [rng.randrange(12) for _ in range(rng.randrange(0, 90))]
        answer = [t if rng.random() < 0.95 else rng.randrange(12) for t in rng.choice(answers)]
        made.append(Trace(f"noise-{i}", prompt, answer[: rng.randrange(3, 81)]))
    return made


def agree(reference, traces, drafter, theirs, options, oracle_n=None):
    rows = [(trace.id, list(trace.prompt_ids), list(trace.output_ids)) for trace in traces]
    expected = reference.run(theirs, rows, ALPHAS, oracle_n=oracle_n)
    for alpha in ALPHAS:
        found = run_replay(ReplaySettings(drafter=drafter, alpha=alpha, options=options), traces)
        for key in ("steps", "tokens_per_step", "draft_per_step", "accept_rate"):
            assert found[key] == expected[key], key
        assert found["speedup"] == expected[f"speedup@{alpha}"]
    assert expected["draft_per_step"] > 0.1


@pytest.mark.parametrize("options", [{}, {"lo": 1, "hi": 2, "n": 9}, {"lo": 3, "hi": 8, "n": 40}])
def test_prompt_lookup(reference, traces, options):
    agree(reference, traces, "prompt-lookup", reference.PLD(**options), options)


@pytest.mark.parametrize("n", [1, 5, 16, 32])
def test_oracle(reference, traces, n):
    agree(reference, traces, "oracle", None, {"n": n}, oracle_n=n)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"depth": 64, "factor": 4.0, "min_prob": 0.0, "max_spec": 64},
        {"depth": 3, "cached": 0},
        {"cached": 3, "min_prob": 0.5},
    ],
)
def test_arctic(reference, traces, options):
    pytest.importorskip("arctic_inference.suffix_decoding", reason="Arctic Inference is not installed")
    agree(reference, traces, "arctic", reference.Arctic(**options), options)
