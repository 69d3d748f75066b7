"""What the clients of a soak ask a server for, and which answers are right."""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema

from vllm_specx.bench.prompts import read_prompts

MODEL = "demo"
WORKLOADS = Path(__file__).parents[1] / "vllm_specx" / "demo" / "workloads"
TIE = 1e-4  # nats between the two likeliest tokens of plain decoding, below which either is right
TIMEOUT_S = 300.0  # without an answer by then a request is lost
SALTS = (None, "tenant a", "tenant b")
# Share of each kind of request. What is said of a sample can be right or wrong only where its law leaves no choice: the
# kind "certain" draws at temperature 1 from the likeliest token alone.
KINDS = {"greedy": 6, "stream": 4, "abort": 3, "json": 2, "json sampled": 2, "certain": 2, "sampled": 3}
SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "size": {"enum": ["small", "large"]},
        "parts": {"type": "array", "items": {"enum": ["stem", "peel", "seed"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["color", "size", "parts"],
    "additionalProperties": False,
}
JSON_TOKENS = 64  # more than the longest text of the schema has


class Lost(Exception):
    """A request without an answer; the message says what came instead."""


@dataclass(frozen=True)
class Question:
    """A conversation, and whether its answer is JSON of `SCHEMA`."""

    messages: tuple[dict[str, str], ...]
    is_json: bool = False


@dataclass(frozen=True)
class Plain:
    """What plain decoding answers: token ids, and the gap between the two likeliest at each place, in nats."""

    token_ids: list[int]
    gaps: list[float]
    has_ended: bool  # by itself, not by max_tokens


@dataclass(frozen=True)
class Answer:
    """What came back: token ids of each choice, its text, and why it ended (None: it was left)."""

    token_ids: list[list[int]]
    texts: list[str]
    reasons: list[str | None]


def questions(long_words: int = 500) -> list[Question]:
    """Three of each of the demo's workloads, two with long prompts, two for JSON."""
    found = []
    for path in sorted(WORKLOADS.glob("*.jsonl")):
        found += [Question(tuple(map(dict, prompt.messages))) for prompt in read_prompts(path, limit=3)]
    for seed, task in enumerate(("Repeat the first ten words.", "Which word comes most often?")):
        rng = random.Random(seed)
        text = " ".join(
            rng.choice(("red", "tree", "seven", "paper", "cup", "moon")) for _ in range(long_words)
        )
        found.append(Question(({"role": "user", "content": f"{text}\n{task}"},)))
    for fruit in ("apple", "plum"):
        text = f"Describe a {fruit} as JSON with color, size and parts."
        found.append(Question(({"role": "user", "content": text},), is_json=True))
    return found


def body(question: Question, max_tokens: int, **options: Any) -> dict[str, Any]:
    """Of a chat request."""
    wanted = {"model": MODEL, "messages": question.messages, "temperature": 0, "max_tokens": max_tokens}
    if question.is_json:
        schema = {"name": "thing", "schema": SCHEMA, "strict": True}
        wanted |= {
            "max_tokens": JSON_TOKENS,
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
    return wanted | {"return_token_ids": True} | options


def request(rng: random.Random, asked: Sequence[Question], longest: int) -> tuple[str, int, dict[str, Any]]:
    """Draw a request: its kind, the index of its question, its body."""
    (kind,) = rng.choices(list(KINDS), KINDS.values())
    index = rng.choice([i for i, question in enumerate(asked) if question.is_json == kind.startswith("json")])
    options: dict[str, Any] = {"max_tokens": rng.randint(1, longest)}
    if kind in ("stream", "abort"):
        options |= {"stream": True}
    if kind == "abort":
        options |= {"max_tokens": longest}
    if kind == "certain":
        options |= {"temperature": 1.0, "top_k": 1, "n": 2}
    if kind == "sampled":
        options |= {"temperature": 0.8, "top_p": 0.95, "n": rng.randint(1, 3), "ignore_eos": True}
    if kind == "json sampled":
        options |= {"temperature": 1.0}
    if kind.startswith("json"):
        del options["max_tokens"]
    salt = rng.choice(SALTS)
    if salt is not None:
        options["cache_salt"] = salt
    if rng.random() < 0.3:
        options["vllm_xargs"] = {"specx_max_n": rng.choice((0, 1, 3, 16, 128))}
    return kind, index, body(asked[index], **{"max_tokens": longest} | options)


async def ask(http: aiohttp.ClientSession, body: dict[str, Any], leave_after: int | None = None) -> Answer:
    """Post a chat request and return its answer, streamed or not; leave a stream after so many of its events.

    Raises:
        Lost: an error came, or the answer has no end.

    """
    try:
        async with http.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise Lost(f"status {response.status}: {(await response.text())[:500]}")
            if body.get("stream"):
                return await _streamed(response, leave_after)
            choices = (await response.json())["choices"]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Lost(repr(error)) from error
    if len(choices) != body.get("n", 1) or any(choice["finish_reason"] is None for choice in choices):
        raise Lost(f"{len(choices)} choices of {body.get('n', 1)}, or one without an end")
    return Answer(
        [choice["token_ids"] for choice in choices],
        [choice["message"]["content"] or "" for choice in choices],
        [choice["finish_reason"] for choice in choices],
    )


async def _streamed(response: aiohttp.ClientResponse, leave_after: int | None) -> Answer:
    token_ids: list[int] = []
    text, reason, is_done, num_events = "", None, False, 0
    async for event in _events(response):
        if event == "[DONE]":
            is_done = True
            break
        found = json.loads(event)
        if "error" in found:
            raise Lost(f"an error in the stream: {event[:500]}")
        for choice in found["choices"]:
            token_ids += choice.get("token_ids") or []
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
        num_events += 1
        if num_events == leave_after:
            return Answer([token_ids], [text], [reason])
    if not is_done or reason is None:
        raise Lost(f"a stream that ends after {num_events} events without saying so")
    return Answer([token_ids], [text], [reason])


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].decode().strip()


def plain_answer(answer: dict[str, Any]) -> Plain:
    """Of a response to a request with `logprobs` and `top_logprobs` 2; without them no place counts as a tie."""
    (choice,) = answer["choices"]
    token_ids = choice["token_ids"]
    gaps = [math.inf] * len(token_ids)
    if choice["logprobs"] is not None:
        tops = [place["top_logprobs"] for place in choice["logprobs"]["content"]]
        gaps = [abs(first["logprob"] - second["logprob"]) for first, second in tops]
    return Plain(token_ids, gaps, choice["finish_reason"] == "stop")


def judge(kind: str, body: dict[str, Any], answer: Answer, plain: Plain) -> str:
    """Return "right", "tie" (it left plain decoding where that was undecided), or what is wrong with it."""
    if kind == "sampled":
        lengths = {len(token_ids) for token_ids in answer.token_ids}
        return "right" if lengths == {body["max_tokens"]} else f"{lengths} tokens, not {body['max_tokens']}"
    if kind.startswith("json"):
        try:
            jsonschema.validate(json.loads(answer.texts[0]), SCHEMA)
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{answer.texts[0]!r} is not what the schema asks for: {error}"
        if kind == "json sampled":
            return "right"
    verdicts = [
        _compare(token_ids, reason, body["max_tokens"], plain)
        for token_ids, reason in zip(answer.token_ids, answer.reasons, strict=True)
    ]
    return next((verdict for verdict in verdicts if verdict not in ("right", "tie")), max(verdicts))


def _compare(token_ids: list[int], reason: str | None, max_tokens: int, plain: Plain) -> str:
    """See `judge`; of a stream that was left (no reason) what came must be how plain decoding begins."""
    expected = plain.token_ids[: max_tokens if reason is not None else len(token_ids)]
    for place, (said, right) in enumerate(zip(token_ids, expected, strict=False)):
        if said != right:
            if plain.gaps[place] < TIE:
                return "tie"
            return f"token {place} is {said}, not {right} ({plain.gaps[place]:.2g} nats ahead)"
    if len(token_ids) != len(expected):
        return f"{len(token_ids)} tokens, not {len(expected)}"
    ends = "stop" if plain.has_ended and len(expected) == len(plain.token_ids) else "length"
    return "right" if reason in (None, ends) else f"it ended by {reason}, not {ends}"
