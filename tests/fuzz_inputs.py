"""Damaged files and messages: valid ones of which parts were replaced, removed, doubled, cut, or nested.

Hypothesis draws them, so that a seed repeats a run and what fails is shrunk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

Json = Any  # what json.loads returns

_NUMBERS: Final = (
    0, 1, -1, 2, 3, 128, 129, 2**31 - 2, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, -(10**400),
    0.5, -0.0, 1e-320, 1e15, 1e300, 1.7e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
_WORDS: Final = (
    "", " ", "\0", "\ud800", "\u202e", "é" * 3, "x" * 3000, "a;b", "../..", "~", "0", "1", "none", "null", "cold",
    "NaN", "suffix_tree", "suffix-tree", "float32", "true",
)  # fmt: skip
ODD: Final[st.SearchStrategy[Json]] = st.one_of(
    st.sampled_from(_NUMBERS),
    st.sampled_from(_WORDS),
    st.sampled_from([None, True, False, [], {}, [[]], [0], [[0]], {"": 0}, [None], ["a", "a"]]),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(-2, 50), max_size=8),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)
# What no value says: text that takes a value's place in a file.
RAW: Final = (
    b"[" * 20_000, b'{"a":' * 20_000, b"[" * 500 + b"]" * 500, b"1" * 5000, b"-" + b"9" * 4299, b"1e99999", b"-1e99999",
    b"01", b"+1", b"NaN", b"-Infinity", b'"\\ud83d"', b'"\xff"', b"", b"nul", b"{,}", b"[1,]", b"0x10", b"'a'",
)  # fmt: skip
_MARK: Final = "@raw@"


def damaged(
    valid: st.SearchStrategy[Json], odd: st.SearchStrategy[Json] = ODD, least: int = 0
) -> st.SearchStrategy[Json]:
    """A value of which up to three parts (at least so many) are other than they should be."""

    @st.composite
    def draw_it(draw: st.DrawFn) -> Json:
        value = draw(valid)
        for _ in range(max(least, draw(st.sampled_from((0, 0, 1, 1, 2, 3))))):
            value = _edited(draw, value, odd)
        return value

    return draw_it()


def _edited(draw: st.DrawFn, value: Json, odd: st.SearchStrategy[Json]) -> Json:
    """A copy with one edit; only the way down to it is copied."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 7)):
        copy = value.copy()
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[draw(st.integers(0, len(keys) - 1))]
        action = draw(st.integers(0, 9))
        if action == 0:
            del copy[key]
        elif action == 1 and isinstance(copy, list):
            copy.insert(key, draw(odd))
        elif action == 1:
            copy[draw(st.one_of(st.text(max_size=8), st.sampled_from(list(value))))] = draw(odd)
        elif action == 2:
            other = keys[draw(st.integers(0, len(keys) - 1))]
            copy[key], copy[other] = copy[other], copy[key]
        elif action == 3 and isinstance(copy, list):
            copy.insert(key, copy[key])
        elif action == 4:
            copy[key] = [copy[key]]
        else:
            copy[key] = _edited(draw, copy[key], odd)
        return copy
    return draw(odd)


def mangled(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes of which often none, else up to three, places are cut out, flipped, doubled, or written over."""

    @st.composite
    def draw_it(draw: st.DrawFn) -> bytes:
        found = draw(data)
        for _ in range(draw(st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3)))):
            at = draw(st.integers(0, len(found)))
            length = draw(st.one_of(st.integers(0, 8), st.integers(0, len(found))))
            action = draw(st.integers(0, 4))
            if action == 0:
                found = found[:at]
            elif action == 1:
                found = found[:at] + found[at + length :]
            elif action == 2:
                found = found[:at] + found[at : at + length] + found[at:]
            elif action == 3:
                found = found[:at] + draw(st.binary(max_size=9)) + found[at + length % 9 :]
            elif found:
                at = min(at, len(found) - 1)
                found = found[:at] + bytes([found[at] ^ (1 << length % 8)]) + found[at + 1 :]
        return found

    return draw_it()


def json_files(
    valid: st.SearchStrategy[Json], dump: Callable[[Json], str] = json.dumps
) -> st.SearchStrategy[bytes]:
    """Files with one damaged JSON value, or what is not JSON at all."""

    @st.composite
    def draw_it(draw: st.DrawFn) -> bytes:
        if not draw(st.integers(0, 5)):
            value = draw(damaged(valid, st.just(_MARK), least=1))
            return dump(value).encode().replace(json.dumps(_MARK).encode(), draw(st.sampled_from(RAW)), 1)
        return dump(draw(damaged(valid))).encode()

    return mangled(draw_it())


def json_lines(valid: st.SearchStrategy[Json]) -> st.SearchStrategy[bytes]:
    """Files with up to four rows, damaged ones among them."""
    rows = st.one_of(valid.map(json.dumps).map(str.encode), json_files(valid))
    return mangled(st.lists(rows, max_size=4).map(b"\n".join))


def packable(value: Json) -> Json:
    """The value as MessagePack can hold it: numbers of 64 bits, and whole characters."""
    if isinstance(value, dict):
        return {packable(key): packable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [packable(inner) for inner in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if type(value) is int:
        return max(-(2**63), min(value, 2**64 - 1))
    return value
