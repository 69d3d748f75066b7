"""What tests of the edges share: an LLM that only records calls, and the one line of a command that refuses."""

from __future__ import annotations

from typing import Any


class LLM:
    """Answers every call to its workers with `results`."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results
        self.calls: list[tuple[Any, ...]] = []

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self.calls.append((method, *args))
        return self.results


def complaint(result: Any, code: int = 2) -> str:
    """The last line on stderr, after checking that the command failed and printed nothing."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    line: str = result.stderr.splitlines()[-1]
    assert line.startswith("specx: error: ")
    return line


def only_complaint(result: Any) -> str:
    """The same where that line must be the only one."""
    line = complaint(result)
    assert result.stderr.splitlines() == [line]
    return line
