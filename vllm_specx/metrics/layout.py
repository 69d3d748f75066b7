"""Every metric, with its place in a page of numbers: the one list that writers and readers share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from zlib import crc32

LENGTHS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
POSITIONS: Final = 16  # each by itself; one more for all later ones
REACH_BINS: Final = 10
DRAFTERS: Final = ("suffix_tree", "lookahead", "medusa", "eagle3", "eagle", "mtp", "draft_model", "ngram")
REASONS: Final = ("price", "keep", "probe", "off", "empty", "scheduler", "disabled")
_POSITION_NAMES: Final = (*map(str, range(1, POSITIONS + 1)), f"{POSITIONS + 1}+")
_BIN_NAMES: Final = tuple(f"{i / REACH_BINS:.1f}" for i in range(REACH_BINS))


@dataclass(frozen=True)
class Family:
    """One metric.

    Attributes:
        name: as scraped, without the suffixes that its kind adds.
        kind: of Prometheus.
        text: its help.
        label: name of its label, besides those that all have; empty: none.
        values: of that label; for a histogram the upper bounds of its buckets.

    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    label: str = ""
    values: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Numbers that it takes: one for each label value; a histogram's last two are +Inf and the sum."""
        if self.kind == "histogram":
            return len(self.values) + 2
        return max(1, len(self.values))


FAMILIES: Final = (
    Family(
        "specx_draft_length",
        "histogram",
        "Draft tokens chosen per request and step",
        "le",
        tuple(map(str, LENGTHS)),
    ),
    Family("specx_steps", "counter", "Steps, by the reason for their draft lengths", "reason", REASONS),
    Family("specx_steps_without_draft", "counter", "Steps in which no request had a draft"),
    Family(
        "specx_draft_tokens", "counter", "Draft tokens verified, by position", "position", _POSITION_NAMES
    ),
    Family(
        "specx_accepted_tokens", "counter", "Draft tokens accepted, by position", "position", _POSITION_NAMES
    ),
    Family(
        "specx_reach_tokens",
        "counter",
        "Draft tokens verified, by their reach (lower bound)",
        "reach",
        _BIN_NAMES,
    ),
    Family(
        "specx_reach_promised_tokens", "counter", "Sum of their reach: what was promised", "reach", _BIN_NAMES
    ),
    Family(
        "specx_reach_accepted_tokens", "counter", "Of these, accepted: what was kept", "reach", _BIN_NAMES
    ),
    Family("specx_drafts", "counter", "Drafts verified, by drafter", "drafter", DRAFTERS),
    Family(
        "specx_drafter_accepted_tokens", "counter", "Draft tokens accepted, by drafter", "drafter", DRAFTERS
    ),
    Family("specx_tokens", "counter", "Tokens committed in timed decode steps"),
    Family("specx_step_seconds", "counter", "Seconds of these steps, drafting included"),
    Family(
        "specx_plain_seconds",
        "counter",
        "Seconds of plain decoding for as many tokens, estimated",
    ),
    Family(
        "specx_plain_step_seconds", "counter", "Seconds of as many plain steps at the same batch, estimated"
    ),
    Family("specx_draft_seconds", "counter", "Seconds of drafting"),
    Family("specx_estimated_speedup", "gauge", "Speedup over plain decoding that the tuner expects"),
    Family("specx_alpha", "gauge", "Cost of verifying a draft token of each request, in plain steps"),
    Family("specx_memory_bytes", "gauge", "Bytes of the shared draft memory and live texts"),
    Family("specx_memory_answers", "gauge", "Answers in the shared draft memory"),
    Family("specx_memory_evictions", "counter", "Answers that made room for others"),
    Family("specx_memory_hits", "counter", "Drafts that were led by an earlier answer"),
    Family("specx_drafting_faults", "counter", "Faults in drafting, each of which was no draft"),
    Family("specx_fleet_joined", "gauge", "1 while the replica exchanges with its fleet's store"),
    Family("specx_fleet_pushed_texts", "counter", "Pieces of answers that the store was told"),
    Family("specx_fleet_pulled_texts", "counter", "Pieces of others' answers that the store told"),
    Family("specx_fleet_absorbed_texts", "counter", "Of these, taken into the shared draft memory"),
    Family("specx_fleet_sent_bytes", "counter", "Bytes of messages to the store"),
    Family("specx_fleet_received_bytes", "counter", "Bytes of its answers"),
    Family("specx_fleet_last_sync_timestamp_seconds", "gauge", "Unix time of the last exchange; 0: none"),
    Family(
        "specx_fleet_failures",
        "counter",
        "Times that the store was lost, not reached, or refused the replica",
    ),
)
OFFSETS: Final = {family.name: sum(f.size for f in FAMILIES[:i]) for i, family in enumerate(FAMILIES)}
NUM_VALUES: Final = sum(family.size for family in FAMILIES)
FINGERPRINT: Final = crc32(repr(FAMILIES).encode())
