"""What the soak takes for wrong, and for growth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from soak import MAX_SLOPE, slope
from soak_traffic import TIE, Answer, Plain, judge

PLAIN = Plain([5, 6, 7, 8], [1.0, TIE / 2, 1.0, 1.0], has_ended=True)


@pytest.mark.parametrize(
    ("token_ids", "reason", "max_tokens", "verdict"),
    [
        ([5, 6, 7, 8], "stop", 9, "right"),
        ([5, 6, 7, 8], "stop", 4, "right"),
        ([5, 6], "length", 2, "right"),
        ([5, 6], None, 9, "right"),  # left by its client
        ([5, 9, 9], "length", 3, "tie"),
        ([5, 6, 9, 8], "stop", 9, "token 2 is 9, not 7"),
        ([9], None, 9, "token 0 is 9, not 5"),
        ([5, 6, 7], "length", 9, "3 tokens, not 4"),
        ([5, 6, 7, 8, 5], "length", 9, "5 tokens, not 4"),
        ([5, 6, 7, 8, 5], None, 9, "5 tokens, not 4"),
        ([5, 6, 7, 8], "length", 9, "it ended by length, not stop"),
        ([5, 6], "stop", 2, "it ended by stop, not length"),
    ],
)
def test_an_answer_against_plain_decoding(
    token_ids: list[int], reason: str | None, max_tokens: int, verdict: str
) -> None:
    found = judge("greedy", {"max_tokens": max_tokens}, Answer([token_ids], [""], [reason]), PLAIN)
    assert found.startswith(verdict)


def test_one_wrong_choice_is_enough() -> None:
    wanted = {"max_tokens": 2}
    both = Answer([[5, 6], [5, 6]], ["", ""], ["length"] * 2)
    assert judge("certain", wanted, both, PLAIN) == "right"
    assert "is 9, not 5" in judge(
        "certain", wanted, Answer([[5, 6], [9, 6]], ["", ""], ["length"] * 2), PLAIN
    )
    assert "1" in judge("sampled", wanted, Answer([[1, 2], [3]], ["", ""], ["length"] * 2), PLAIN)


@pytest.mark.parametrize(
    "text", ["", "{", '{"color": "red"}', '{"color": "red", "size": "huge", "parts": ["seed"]}']
)
def test_json_that_the_schema_refuses(text: str) -> None:
    assert "schema" in judge("json sampled", {}, Answer([[1]], [text], ["stop"]), PLAIN)


def test_json_that_it_takes() -> None:
    text = '{"color":"red","size":"small","parts":["seed"]}'
    assert judge("json sampled", {}, Answer([[1]], [text], ["stop"]), PLAIN) == "right"


def test_growth_is_told_from_noise() -> None:
    """Noise that has a memory of 30 s, as that of a server: of 200 flat hours at most 2 % pass for growth."""
    rng = np.random.default_rng(0)
    seconds = np.arange(0, 2400, 2.0)
    noise = np.empty((200, len(seconds)))
    noise[:, 0] = rng.normal(size=200)
    keep = math.exp(-2 / 30)
    for i in range(1, len(seconds)):
        noise[:, i] = keep * noise[:, i - 1] + math.sqrt(1 - keep**2) * rng.normal(size=200)
    noise *= 3.0  # MiB
    assert sum(slope(seconds, 900 + row).is_growth for row in noise) <= 4
    leak = 2 * MAX_SLOPE * seconds / 3600
    assert all(slope(seconds, 900 + row + leak).is_growth for row in noise)
    assert slope(seconds, 900 + noise[0] + leak).value == pytest.approx(2 * MAX_SLOPE, abs=MAX_SLOPE / 2)


def test_little_growth_is_none() -> None:
    seconds = np.arange(0, 2400, 2.0)
    exact = slope(seconds, 900 + MAX_SLOPE / 2 * seconds / 3600)
    assert exact.low > 0
    assert not exact.is_growth
