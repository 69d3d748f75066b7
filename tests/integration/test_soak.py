"""The soak for a minute; `make soak` is an hour of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from serving import environment

SOAK = Path(__file__).parents[1] / "soak.py"


@pytest.mark.usefixtures("model_dir")
def test_a_minute_of_mixed_traffic(tmp_path: Path) -> None:
    """Nothing wrong, nothing lost; and every kind of request and of control had its turn."""
    out = tmp_path / "soak.json"
    done = subprocess.run(
        [sys.executable, str(SOAK), "--minutes", "1", "--longest", "24", "--json", str(out)],
        env=environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["wrong"] == found["lost"] == found["faults"] == found["left_in_engine"] == 0
    assert found["aborted"] > 0
    assert all(found["served_by_kind"][kind] > 0 for kind in found["served_by_kind"] if kind != "abort"), (
        found
    )
    assert found["served"] + found["aborted"] == found["sent"]
    assert {name.split()[0] for name in found["controls"]} == {"purge", "set_enabled", "forget"}
    assert found["accepted"] > 0
    assert {stretch["n"] for stretch in found["n_over_time"]} - {None, 0}
