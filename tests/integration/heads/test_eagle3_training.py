"""`specx train eagle3` on the demo model, killed on its way, and the head that it makes in vLLM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from engine_prompts import token_prompts
from engines import counters, make_engine
from vllm import SamplingParams

from drafters import training

_ALIVE: list[Any] = []  # an engine that goes takes what others of the process need along
OPTIONS = {
    "--conversations": 24,
    "--held-out": 4,
    "--answer-tokens": 16,
    "--slots": 12,
    "--dtype": "float32",  # bf16 is slow on a CPU without instructions for it
    "--steps": 10,
    "--batch": 4,
    "--draft-vocab": 256,
    "--evaluate-every": 5,
    "--checkpoint-every": 3,
}


def command(model_dir: Path, folder: Path, *more: str) -> list[str]:
    specx = Path(sys.executable).with_name("specx")
    out = ["--out", str(folder / "head"), "--model", str(model_dir)]
    options = [str(word) for pair in OPTIONS.items() for word in pair]
    return [str(specx), "train", "eagle3", *out, *options, *more]


@pytest.fixture(scope="module")
def trained(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A head whose training was killed once a checkpoint was there, and then started again."""
    folder = tmp_path_factory.mktemp("train")
    checkpoints = folder / "head.work" / "checkpoints"
    with subprocess.Popen(
        command(model_dir, folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as first:
        end = time.monotonic() + 240
        while not training.checkpoints(checkpoints) and first.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert first.poll() is None, first.stderr.read() if first.stderr else ""
        first.send_signal(signal.SIGKILL)
    shards = sorted((folder / "head.work" / "recordings").glob("shard-*"))
    written = [path.stat().st_mtime_ns for path in shards]
    done = subprocess.run(
        command(model_dir, folder, "--json"), capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [path.stat().st_mtime_ns for path in shards] == written  # not recorded again
    assert "the model writes" not in done.stderr
    return folder / "head", json.loads(done.stdout)


def test_it_goes_on_where_it_was_killed(trained: tuple[Path, dict[str, Any]]) -> None:
    head, document = trained
    assert [entry["step"] for entry in document["history"]] == [5, 10]
    assert document["recordings"]["held_out"] == 4
    assert document == json.loads((head / "training.json").read_text())
    first, last = (entry["loss"][0] for entry in document["history"])
    assert last < first + 0.5


def test_vllm_runs_the_head(trained: tuple[Path, dict[str, Any]], plain: Any, model_dir: Path) -> None:
    head, _ = trained
    llm = make_engine(
        model_dir,
        num_gpu_blocks_override=80,
        speculative_config={"method": "eagle3", "model": str(head), "num_speculative_tokens": 2},
    )
    _ALIVE.append(llm)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    prompts = token_prompts(plain)[:6]
    said = [
        [list(o.outputs[0].token_ids) for o in engine.generate(prompts, params, use_tqdm=False)]
        for engine in (llm, plain)
    ]
    assert said[0] == said[1]
    assert counters(llm)["vllm:spec_decode_num_draft_tokens"] > 50
