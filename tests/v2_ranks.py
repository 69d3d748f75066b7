"""Worker extension: writes down what each rank's speculator returns, and makes the second rank a slow one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from vllm_specx.speculators.custom_class import CustomClassSpeculator

_propose = CustomClassSpeculator.propose


def propose(self: Any, input_batch: Any, *arguments: Any, **options: Any) -> Any:
    rank = self._tp.rank_in_group
    if rank and input_batch.num_reqs % 2:
        time.sleep(0.05)
    drafts = _propose(self, input_batch, *arguments, **options)
    if not options.get("dummy_run"):
        n = options["num_speculative_tokens"]
        with Path(os.environ["SPECX_TEST_RANKS"], f"rank{rank}").open("a") as file:
            file.write(json.dumps([list(input_batch.req_ids), drafts[:, :n].tolist()]) + "\n")
    return drafts


CustomClassSpeculator.propose = propose


class Extension:
    """Adds nothing to the worker."""
