"""Drafters know tokens and no engine: they import where vLLM, torch and vllm_specx do not exist."""

import subprocess
import sys

import drafters

BLOCKED = """
import sys
for name in ("vllm", "torch", "vllm_specx", "transformers"):
    sys.modules[name] = None  # importing it raises
import drafters
drafter = drafters.SuffixTreeDrafter(memory_bytes=1 << 16)
drafter.start("a", [1, 2, 1])
print(drafter.propose(["a"], 2)[0].token_ids.tolist())
"""


def test_drafters_import_and_work_without_an_engine() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[2, 1]"


def test_the_exported_names_are_pinned() -> None:
    assert drafters.__all__ == [
        "NO_DRAFT",
        "Draft",
        "Drafter",
        "FallbackDrafter",
        "LookaheadDrafter",
        "RequestId",
        "SuffixTreeDrafter",
    ]
    assert all(hasattr(drafters, name) for name in drafters.__all__)


FLEET = """
import sys
for name in ("vllm", "torch", "transformers", "ray"):
    sys.modules[name] = None
from vllm_specx.config import SpecxConfig
SpecxConfig.from_mapping({"fleet": {"name": "f"}})
import vllm_specx.fleet.sidecar  # what a worker starts, and what Ray's processes import
assert not {"numba", "drafters"} & set(sys.modules)
import vllm_specx.fleet.member  # what a worker has
import vllm_specx.fleet.server
print("imported")
"""


def test_a_fleet_imports_no_engine_and_ray_only_on_demand() -> None:
    done = subprocess.run([sys.executable, "-c", FLEET], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr
