"""The drafter against its plain-Python oracle, and the compile cost it owns.

The same tests run on the kernels' Python source, slower:
`NUMBA_DISABLE_JIT=1 python -m pytest tests/unit/test_suffix_tree_fuzz.py` (any of tests/unit/test_*.py may be named).
"""

import subprocess
import sys

import numba
import pytest
from fuzz_suffix_tree import SMALL, fuzz, rebase_at

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree

OPS = 700


@pytest.mark.parametrize("seed", [1, 2])
def test_same_drafts_as_the_oracle(seed: int) -> None:
    counts = fuzz(OPS, seed, ops_per_life=OPS // 3)
    met = (
        "start",
        "observe",
        "propose",
        "stop",
        "drafts",
        "refused",
        "anchored",
        "near votes",
        "live votes",
        "led by own text",
    )
    assert {name: counts[name] for name in met if not counts[name]} == {}


def test_same_drafts_as_the_oracle_while_documents_positions_and_outcomes_age() -> None:
    with rebase_at(520) as shifts:
        counts = fuzz(
            1000,
            6,
            ops_per_life=500,
            memory_bytes=SMALL,
            alphabet=[5, 6, 7],
            max_n=8,
            min_reach=0.0,
            ttl=15.0,
        )
    met = ("dropped", "moved", "pinned", "twins", "purged", "expired", "loaded", "sated", "led by memory")
    assert {name: counts[name] for name in met if not counts[name]} == {}
    assert sum(shift > 0 for shift in shifts) > 0


FRESH = """
import tempfile

from drafters import SuffixTreeDrafter
from drafters import _suffix_tree_kernels as kernels

drafter = SuffixTreeDrafter(memory_bytes=1 << 16)
kernel = {name: k for name, k in vars(kernels).items() if hasattr(k, "signatures")}
before = {name: set(k.signatures) for name, k in kernel.items()}
for cycle in range(30):
    live = list(range(cycle % 5 + 1))
    for request in live:
        drafter.start(request, list(range(cycle * request)), namespace=None if request == 1 else "x" * (request % 2))
    for step in range(10):
        drafter.propose(live, 8 if step % 2 else [3] * len(live))
        for request in live:
            drafter.observe(request, [1, 2, 3] * (step * request * 3))
    for request in live:
        drafter.stop(request)
with tempfile.TemporaryDirectory() as folder:
    drafter.save(folder + "/memory")
    drafter.load(folder + "/memory")
    drafter.add_document([1, 2, 3])
    drafter.purge("")
drafter.clear()
for name in ("_append", "_step", "_observe_batch"):  # what Python calls; these bring the others along
    assert before[name], f"{name} was not compiled at construction"
for name, k in kernel.items():
    assert set(k.signatures) == before[name], f"{name} was compiled while serving"
print("served", drafter.memory.num_documents)
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_construction_compiles_all_that_serving_needs() -> None:
    """In a process of its own, since any earlier test may have compiled something."""
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("served")
