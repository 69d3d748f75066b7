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
