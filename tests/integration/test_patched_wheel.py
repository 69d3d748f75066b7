"""Both forms of the patches, the diffs and the runtime wrappers, give a proposer the same contexts.

Each engine has a process of its own: one process cannot hold the pristine and the patched vLLM.
"""

import itertools
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import patching
import pytest

TESTS = Path(patching.__file__).parent
PATCH_NAMES = [
    "proposer-context",
    "cpu-rejection-expand",
    "cpu-kernel-rebind",
    "no-draft-sampling",
    "drafter-calls",
    "v2-speculators",
    "shutdown-window",
]
TENANTS = {"0": "tenant-a", "1": None, "2": "tenant-b", "3": "tenant-a", "4": None, "5": None}


def run_python(*arguments: str, first: Path | None = None, **env: str) -> str:
    path = os.pathsep.join(str(p) for p in (first, TESTS) if p is not None)
    result = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return result.stdout


def record(model: Path, out: Path, *options: str, first: Path | None = None) -> dict[str, Any]:
    """Run context_recorder.py: {"classes", "records", "summary"}."""
    run_python(str(TESTS / "context_recorder.py"), str(model), str(out), *options, first=first)
    # vLLM appends eight random digits to a request id.
    lines = [
        json.loads(re.sub(r'"(\d+)-[0-9a-f]{8}"', r'"\1"', line)) for line in out.read_text().splitlines()
    ]
    return {
        "classes": {line["class"] for line in lines[:-1]},
        "records": [line["record"] for line in lines[:-1]],
        "summary": lines[-1],
    }


@pytest.fixture(scope="module")
def wrapped(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(model_dir, tmp_path_factory.mktemp("wrapped") / "log")


@pytest.fixture(scope="module")
def patched(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("patched")
    return record(model_dir, folder / "log", first=patching.patched_copy(folder / "site"))


def test_wrappers_on_the_pristine_wheel(wrapped: dict[str, Any]) -> None:
    assert (wrapped["summary"]["applied"], wrapped["summary"]["present"]) == (PATCH_NAMES, [])
    assert wrapped["classes"] == {"vllm_specx._compat.context"}


def test_patched_wheel_needs_no_wrapper(patched: dict[str, Any]) -> None:
    assert (patched["summary"]["applied"], patched["summary"]["present"]) == ([], PATCH_NAMES)
    assert patched["classes"] == {"vllm.v1.spec_decode.custom_class_proposer"}
    assert "/site/vllm/" in patched["summary"]["vllm"]


def test_engine_tests_on_the_patched_wheel(tmp_path: Path) -> None:
    """The same engine tests, with the diffs applied and no wrapper in place (the conftest checks that)."""
    tests = [
        str(TESTS / "integration" / f"test_{name}.py")
        for name in ("identity", "requests", "faults", "memory")
    ]
    out = run_python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests),
        first=patching.patched_copy(tmp_path / "site"),
        SPECX_TEST_PATCHED_WHEEL="1",
    )
    assert re.search(r"\d+ passed", out.splitlines()[-1]), out[-2000:]


def test_same_contexts_and_outputs(wrapped: dict[str, Any], patched: dict[str, Any]) -> None:
    assert wrapped["records"] == patched["records"]
    assert wrapped["summary"]["outputs"] == patched["summary"]["outputs"]
    assert wrapped["summary"]["finish_reasons"] == patched["summary"]["finish_reasons"]


def test_rows_are_the_requests_they_claim_to_be(wrapped: dict[str, Any]) -> None:
    """Sampled tokens put together by request id are the outputs, although rows move and are reused."""
    outputs: dict[str, list[int]] = {}
    for step in wrapped["records"]:
        for request, new in zip(step["req_ids"], step["sampled"], strict=True):
            outputs.setdefault(request, []).extend(new)
        assert set(step["req_ids"]) <= set(step["alive"])
        assert not {*step["alive"]} & {*step["finished"]}
    rows = [step["req_ids"] for step in wrapped["records"]]
    assert any(a.index(r) != b.index(r) for a, b in itertools.pairwise(rows) for r in {*a} & {*b})
    for i, output in enumerate(wrapped["summary"]["outputs"]):
        # A block that goes past the end of a request is cut by the scheduler, after drafting.
        assert outputs[str(i)][: len(output)] == output


def test_target_choices_are_what_greedy_requests_get(wrapped: dict[str, Any]) -> None:
    """Also for the request under a grammar; shapes agree with the counts, and without a draft there are none."""
    accepted = 0
    for step in wrapped["records"]:
        counts = step["num_draft_tokens"] or [0] * len(step["req_ids"])
        if not any(counts):
            assert step["target_token_ids"] is None
            continue
        assert len(step["target_token_ids"]) == sum(counts) + len(counts) == step["hidden_shape"][0]
        assert step["target_dtype"] == "torch.int32"
        start = 0
        for count, new in zip(counts, step["sampled"], strict=True):
            assert len(new) <= count + 1
            assert step["target_token_ids"][start : start + len(new)] == (new if count else [-1] * len(new))
            accepted += max(0, len(new) - 1)
            start += count + 1
    assert accepted > 20


def test_drafts_are_verified_in_the_next_step(wrapped: dict[str, Any]) -> None:
    for before, after in itertools.pairwise(wrapped["records"]):
        drafts = dict(zip(before["req_ids"], before["drafts"], strict=True))
        counts = after["num_draft_tokens"] or [0] * len(after["req_ids"])
        for request, count in zip(after["req_ids"], counts, strict=True):
            assert count <= len(drafts.get(request, []))


def test_row_near_max_model_len_silences_nobody(wrapped: dict[str, Any]) -> None:
    edge = [s for s in wrapped["records"] if max(s["num_tokens"]) > s["max_model_len"] - s["num_spec_tokens"]]
    assert any(any(step["drafts"]) for step in edge)
    assert wrapped["summary"]["finish_reasons"][4] == "length"
    assert wrapped["summary"]["prompt_lengths"][4] + len(wrapped["summary"]["outputs"][4]) == 96


def salts(run: dict[str, Any]) -> dict[str, str | None]:
    return {request: salt for step in run["records"] for request, salt in step["salts"].items()}


def test_salts_reach_the_proposer(wrapped: dict[str, Any]) -> None:
    assert salts(wrapped) == TENANTS


def test_salts_reach_a_worker_process(wrapped: dict[str, Any], model_dir: Path, tmp_path: Path) -> None:
    """As `vllm serve` runs it, with the worker in a third process: what the scheduler knows must be sent."""
    run = record(model_dir, tmp_path / "log", "mp")
    assert run["classes"] == {"vllm_specx._compat.context"}
    assert salts(run) == TENANTS
    assert run["summary"]["outputs"] == wrapped["summary"]["outputs"]


def test_salt_survives_pickling() -> None:
    from vllm import SamplingParams
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.request import Request

    from vllm_specx import _compat

    _compat.install()
    for salt in ("tenant-a", None):
        request = Request("r", [1, 2], SamplingParams(max_tokens=1), None, cache_salt=salt)
        data = NewRequestData.from_request(request, ([0],))
        assert pickle.loads(pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL)).cache_salt == salt
        assert "tenant" not in repr(data)
    # vLLM's warm-up makes such objects without a request.
    plain = NewRequestData("r", [1], [], None, None, ([0],), 0, None)
    assert plain.cache_salt is None


_EXPAND = """
import json, sys
import torch
from vllm.platforms import current_platform
from vllm_specx import _compat

def expand():
    from vllm.v1.sample import rejection_sampler as sampler
    results = []
    for dtype, scale in ((torch.float32, 1.0), (torch.int32, 10)):
        for replaced in ((0, 0), (0, 1)):
            values = torch.tensor([0.8, 0.5, 0.0]).mul(scale).to(dtype)
            ends = torch.tensor([2, 4, 5], dtype=torch.int32)
            results.append(sampler.expand_batch_to_tokens(values, ends, 5, *replaced).tolist())
    written = torch.full((2,), -1.0)
    sampler._expand(written, torch.tensor([0.8]), torch.tensor([2], dtype=torch.int32), 0, 0)
    return results, written.tolist()

order = sys.argv[1]
report = {}
if order == "install-first":
    _compat.install()
current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()
if order == "install-last":
    report["before"] = expand()
    report["applied"] = _compat.install().applied
report["after"] = expand()
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def expanded() -> dict[str, dict[str, Any]]:
    """expand_batch_to_tokens, by whether the repair comes before or after a worker registers the kernels."""
    orders = ("install-first", "install-last")
    return {o: json.loads(run_python("-c", _EXPAND, o, VLLM_PLUGINS="").splitlines()[-1]) for o in orders}


@pytest.mark.parametrize("order", ["install-first", "install-last"])
def test_cpu_expansion_is_repaired(expanded: dict[str, dict[str, Any]], order: str) -> None:
    results, written = expanded[order]["after"]
    assert results[0] == pytest.approx([0.8, 0.8, 0.5, 0.5, 0.0])
    assert results[1] == pytest.approx([0.8, 0.8, 0.5, 0.5, 1.0])
    assert results[2:] == [[8, 8, 5, 5, 0], [8, 8, 5, 5, 1]]
    assert written == pytest.approx([0.8, 0.8])


def test_cpu_expansion_of_the_pristine_wheel_writes_nothing(expanded: dict[str, dict[str, Any]]) -> None:
    report = expanded["install-last"]
    assert report["before"][1] == [-1.0, -1.0]
    assert report["before"][0] != report["after"][0]
    assert "cpu-rejection-expand" in report["applied"]
