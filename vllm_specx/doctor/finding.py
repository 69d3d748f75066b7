"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result.

    Attributes:
        level: "fault": vLLM or vllm-specx will not work as documented; "warning": worth a look.
        text: what was found.
        remedy: what to do about it; where nothing is wrong, what could be had.

    """

    level: Level
    text: str
    remedy: str = ""


def ok(text: str, remedy: str = "") -> Finding:
    """Nothing is wrong."""
    return Finding("ok", text, remedy)


def warning(text: str, remedy: str) -> Finding:
    """It works, but perhaps not as wanted."""
    return Finding("warning", text, remedy)


def fault(text: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding("fault", text, remedy)
