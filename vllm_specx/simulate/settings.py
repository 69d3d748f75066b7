"""What a simulation is told: one frozen dataclass, each knob declared once with default, range and help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.settings import closest, flag, knob_default, knob_help
from vllm_specx.config import MAX_SPECULATIVE_TOKENS

MEMORIES: Final = {
    "shared": ("shared",),
    "private": ("private",),
    "plain": ("plain",),
    "both": ("private", "shared"),
    "all": ("plain", "private", "shared"),
}
ROUTINGS: Final = ("round-robin", "random", "least-loaded")
DRAFTINGS: Final = ("recorded", "exact")
MOST_EXACT: Final = 16  # replicas whose drafters fit beside one another
SWEPT: Final = (
    "replicas",
    "rate",
    "sync_interval",
    "transfer",
    "churn",
    "away",
    "max_num_seqs",
    "tenants",
)


def _knob(default: Any, low: float, high: float, help: str) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "help": help})


def _choice(default: str, known: Sequence[str], help: str) -> Any:
    return field(default=default, metadata={"known": tuple(known), "help": f"{help}: {', '.join(known)}."})


@dataclass(frozen=True, kw_only=True)
class SimulateSettings:
    """Validated settings of a simulation; raises BenchError at construction. Seconds, unless a name says otherwise."""

    replicas: int = _knob(64, 1, 10_000, "Replicas of the fleet.")
    rate: float | None = _knob(
        None,
        1e-3,
        1e6,
        'Requests per second, all replicas together, as a Poisson process; unset: each row\'s "at".',
    )
    memory: str = _choice("both", tuple(MEMORIES), "Draft memory; plain is without drafts")
    sync_interval: float = _knob(
        1.0, 0.0, 3600.0, "Seconds between two exchanges of a replica with the store."
    )
    transfer: float = _knob(0.01, 0.0, 60.0, "Seconds that a message takes, to the store and from it.")
    churn: float = _knob(0.0, 0.0, 3600.0, "Restarts of a replica per hour, at random times.")
    away: float = _knob(30.0, 0.0, 3600.0, "Seconds that a restart takes.")
    routing: str = _choice("round-robin", ROUTINGS, "Where a request goes")
    max_num_seqs: int = _knob(64, 1, 1024, "Most requests in a step of a replica, as in vLLM.")
    max_num_batched_tokens: int = _knob(
        2048, 1, 1 << 20, "Most tokens in a step, prompts in chunks included."
    )
    max_n: int = _knob(16, 1, MAX_SPECULATIVE_TOKENS, "Most draft tokens of a request in a step.")
    prefill_us: float | None = _knob(
        None,
        0.0,
        1e6,
        "Microseconds for each prompt token; unset: as much as a draft token in the table's largest step.",
    )
    duration: float | None = _knob(
        None, 1e-3, 1e6, 'Seconds in which requests arrive (unset: 600, or up to the last row\'s "at").'
    )
    tenants: int | None = _knob(
        None, 1, 100_000, "Tenants, who share no memory; unset: so many that each asks for every row once."
    )
    drafting: str = _choice(
        "recorded", DRAFTINGS, f"Drafts; exact is slow, and for up to {MOST_EXACT} replicas"
    )
    seed: int = _knob(0, 0, 2**32 - 1, "Of all that is random.")

    def __post_init__(self) -> None:
        for knob in fields(self):
            name, value, about = flag(knob.name), getattr(self, knob.name), knob.metadata
            if "known" in about:
                if value not in about["known"]:
                    hint, known = closest(value, about["known"]), ", ".join(about["known"])
                    raise BenchError(f"{name} {value!r} is not known{hint}; allowed: {known}")
            # Written so that nan fails too.
            elif value is not None and not (math.isfinite(value) and about["low"] <= value <= about["high"]):
                raise BenchError(f"{name} must be within [{about['low']:g}, {about['high']:g}], got {value}")
        if self.drafting == "exact" and self.replicas > MOST_EXACT:
            raise BenchError(
                f"--drafting exact is for up to {MOST_EXACT} replicas, got {self.replicas}; take recorded"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise BenchError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} must be at least "
                f"--max-num-seqs {self.max_num_seqs}"
            )

    @property
    def memories(self) -> tuple[str, ...]:
        """The runs to make."""
        return MEMORIES[self.memory]


@dataclass(frozen=True)
class Sweep:
    """One setting and the values that it takes, in the order given."""

    name: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Read NAME=V1,V2,... Raises BenchError."""
        given, sign, rest = text.partition("=")
        name = given.strip().replace("-", "_")
        if not sign or name not in SWEPT:
            known = tuple(each.replace("_", "-") for each in SWEPT)
            hint = closest(given.strip(), known) if sign else ""
            raise BenchError(
                f"--sweep {text!r} must be NAME=V1,V2,...{hint}; names that are allowed: {', '.join(known)}"
            )
        kind = int if name in ("replicas", "max_num_seqs", "tenants") else float
        try:
            values = tuple(kind(word) for word in rest.split(","))
        except ValueError as error:
            wanted = "whole numbers" if kind is int else "numbers"
            raise BenchError(
                f"--sweep {text!r} must be {wanted} separated by commas, for example {given}=1,10"
            ) from error
        if len(set(values)) != len(values):
            raise BenchError(f"--sweep names a value twice: {rest}")
        return cls(name, values)

    def points(self, settings: SimulateSettings) -> list[SimulateSettings]:
        """The settings of each value; with the replicas the rate changes, so that each has as much to do as before.

        Raises BenchError for a value out of range.
        """
        made = []
        for value in self.values:
            changes: dict[str, Any] = {self.name: value}
            if self.name == "replicas" and settings.rate is not None:
                changes["rate"] = settings.rate * value / settings.replicas
            try:
                made.append(replace(settings, **changes))
            except BenchError as error:
                raise BenchError(f"--sweep: {error}") from error
        return made


default = partial(knob_default, SimulateSettings)
help_text = partial(knob_help, SimulateSettings)
