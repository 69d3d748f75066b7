"""The tables of what was run where are those of the tests."""

import subprocess
import sys

import support_matrix


def test_the_tables_are_up_to_date() -> None:
    """In a process of its own: it collects these tests."""
    done = subprocess.run(
        [sys.executable, support_matrix.__file__, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
