"""Engines of a fleet in processes of their own, which answer until they are told to stop, or killed."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MAX_TOKENS = 24
START_SECONDS = 240
_AT_ONCE = 4  # requests of a round, beside the salted one

Asked = tuple[int, str | None]  # number of a prompt, cache_salt


@dataclass(frozen=True)
class Report:
    """What a replica has to say after a round: what was asked, what got other tokens than plain vLLM's, counts."""

    ended: float  # time.monotonic(), which all processes share
    asked: tuple[Asked, ...]
    wrong: tuple[Asked, ...]
    drafted: int
    accepted: int
    hits: int  # drafts that were led by an earlier answer
    faults: int
    namespaces: frozenset[str]
    fleet: dict[str, float]  # the page of metrics


def serve(
    model_dir: Path, name: str, options: dict[str, Any], plain: Sequence[Any], line: Connection
) -> None:
    """Of the child: answer what is asked, or, told "go", prompts in turn, and one with a salt of its own a round."""
    from engines import SPECULATIVE, make_engine, proposer_of
    from vllm import SamplingParams

    from vllm_specx.fleet import member as member_module
    from vllm_specx.metrics.layout import OFFSETS
    from vllm_specx.metrics.page import read_pages

    member_module._LAST_RETRY = 2.0  # a test does not wait for half a minute
    llm = make_engine(
        model_dir,
        speculative_config=SPECULATIVE,
        additional_config={"specx": {"alpha": 0.05, "fleet": options}},
    )
    proposer, instance = proposer_of(llm), llm.llm_engine.vllm_config.instance_id
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def answer(asked: Sequence[Asked]) -> None:
        prompts = [plain[i][0] | ({} if salt is None else {"cache_salt": salt}) for i, salt in asked]
        done = llm.generate(prompts, params, use_tqdm=False)
        said = [list(output.outputs[0].token_ids) for output in done]
        page = read_pages(instance)[0]
        line.send(
            Report(
                time.monotonic(),
                tuple(asked),
                tuple(each for each, tokens in zip(asked, said, strict=True) if tokens != plain[each[0]][1]),
                proposer.num_draft_tokens,
                proposer.num_accepted_tokens,
                proposer._text.num_hits,
                proposer.faults,
                frozenset(proposer.drafter.namespaces),
                {key[12:]: float(page[at]) for key, at in OFFSETS.items() if key.startswith("specx_fleet_")},
            )
        )

    line.send("ready")
    turns, rounds = itertools.cycle(range(len(plain))), itertools.count()
    while True:
        message = line.recv()
        if message != "go":
            answer(message)
            continue
        while not line.poll():
            mine = next(turns), f"{name}-{next(rounds)}"
            answer([*((next(turns), None) for _ in range(_AT_ONCE)), mine])
        line.recv()
        line.send("halted")


class Engine:
    """A replica, as the tests see it."""

    def __init__(self, model_dir: Path, name: str, options: dict[str, Any], plain: Sequence[Any]) -> None:
        """Start it; `plain` has prompt and answer of each."""
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(model_dir, name, options, plain, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.reports: list[Report] = []

    def wait(self) -> Engine:
        """Until it is ready."""
        assert self._line.poll(START_SECONDS), "the engine does not start"
        assert self._line.recv() == "ready"
        return self

    def ask(self, *asked: Asked) -> Report:
        """Have these answered."""
        self._line.send(asked)
        return self._take(self._line.recv())

    def go(self) -> None:
        """Begin to answer all the time."""
        self._line.send("go")

    def halt(self) -> None:
        """Have it finish its round."""
        self._line.send("halt")
        while (message := self._line.recv()) != "halted":
            self._take(message)

    def hear(self) -> None:
        """Take in what it has reported. Raises EOFError if it is dead."""
        while self._line.poll():
            self._take(self._line.recv())

    @property
    def last(self) -> Report:
        """The newest report."""
        return self.reports[-1]

    def kill(self) -> None:
        """As the kernel would, where memory is short."""
        self.process.kill()
        self.process.join()
        self._line.close()

    def _take(self, report: Report) -> Report:
        assert not report.wrong, f"other tokens than plain vLLM's: {report}"
        assert report.faults == 0
        self.reports.append(report)
        return report


def until(holds: Callable[[], Any], *engines: Engine, seconds: float = 90.0) -> None:
    """Let engines answer until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it did not come true in time: {[e.last for e in engines]}"
        for engine in engines:
            engine.hear()
        time.sleep(0.05)  # other processes are at work
