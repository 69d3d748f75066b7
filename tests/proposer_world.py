"""A proposer without an engine: requests in rows, and steps in which the test says what each of them commits."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

N, MAX_MODEL_LEN, VOCAB = 8, 512, 1000
_NUMBERS = itertools.count()  # each proposer has a page of metrics of its own

# What each proposer is made with; alpha 0: whatever can be drafted is offered.
OPTIONS: dict[str, dict[str, Any]] = {
    "suffix_tree": {"alpha": 0.0, "shared": False},
    "lookahead": {"alpha": 0.0, "lookahead_prompt": True},
    "both": {
        "alpha": 0.0,
        "shared": False,
        "drafters": ["suffix_tree", "lookahead"],
        "lookahead_prompt": True,
    },
}


def make_proposer(kind: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """The proposer of a kind, as vLLM would make it; options on top of those of its kind."""
    pytest.importorskip("vllm.logger")
    from vllm_specx import plugin
    from vllm_specx.proposers.lookahead import LookaheadProposer
    from vllm_specx.proposers.suffix_tree import SuffixTreeProposer

    for name in ("register", "check_config"):  # there is no engine to change or to check
        monkeypatch.setattr(plugin, name, lambda *_: None)
    proposer = LookaheadProposer if kind == "lookahead" else SuffixTreeProposer
    return proposer(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=N),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=8192, async_scheduling=False),
            use_v2_model_runner=False,
            model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=1, prefill_context_parallel_size=1, rank=0, world_size=1
            ),
            instance_id=f"test-{os.getpid()}-{next(_NUMBERS)}",
            additional_config={"specx": OPTIONS[kind] | options},
        )
    )


class World:
    """The runner's side of a proposer.

    Attributes:
        text: what each request has said so far, its prompt included.
        offered: drafts that wait to be verified, by request.
        counted: draft tokens verified and accepted, step by step.

    """

    def __init__(self, proposer: Any) -> None:
        self.proposer = proposer
        self.requests: dict[str, Any] = {}
        self.text: dict[str, list[int]] = {}
        self.offered: dict[str, list[int]] = {}
        self.counted = [0, 0]
        self._new: list[Any] = []

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        *,
        salt: str | None = None,
        max_tokens: int | None = None,
        eos: int | None = None,
        mm: Iterable[tuple[int, int]] = (),
    ) -> None:
        """A request that arrives; `mm` are the places of its images, (first token, tokens)."""
        params = SimpleNamespace(
            max_tokens=max_tokens, extra_args=None, eos_token_id=eos, stop_token_ids=None
        )
        features = [
            SimpleNamespace(mm_position=SimpleNamespace(offset=at, length=length)) for at, length in mm
        ]
        self.requests[name] = SimpleNamespace(
            prompt_token_ids=list(prompt),
            prompt_embeds=None,
            num_prompt_tokens=len(prompt),
            lora_request=None,
            sampling_params=params,
            mm_features=features,
        )
        self.text[name] = list(prompt)
        self.offered.pop(name, None)
        self._new.append(SimpleNamespace(req_id=name, cache_salt=salt, lora_request=None))

    def end(self, name: str) -> None:
        """A request that is finished or aborted: the next step does not have it."""
        del self.requests[name]
        self.offered.pop(name, None)

    def step(
        self,
        said: Mapping[str, Sequence[int]],
        *,
        n: int = N,
        verified: Mapping[str, int] | None = None,
        choices: Mapping[str, Sequence[int]] | None = None,
    ) -> dict[str, list[int]]:
        """One step; return the drafts, by request.

        Args:
            said: the rows of the step in their order, and what each commits; nothing for a part of a prompt.
            n: most draft tokens that the next step has room for.
            verified: draft tokens verified for a request; where it is not among them, all that it was offered.
            choices: the target's choices at the draft positions and after; where left out, what was said, its last
                token over and over.

        """
        names = list(said)
        counts = [(verified or {}).get(name, len(self.offered.get(name, ()))) for name in names]
        for name, count in zip(names, counts, strict=True):
            self.text[name] += said[name]
            offered = self.offered.pop(name, [])[:count]
            if said[name] and offered:
                self.counted[0] += len(offered)
                self.counted[1] += len(said[name]) - 1
        token_ids = np.zeros((len(names), MAX_MODEL_LEN + N + 1), dtype=np.int32)
        for row, name in enumerate(names):
            token_ids[row, : len(self.text[name])] = self.text[name]
        told = []
        for name, count in zip(names, counts, strict=True):
            own = list((choices or {}).get(name, said[name])) or [0]
            told += [*own, *own[-1:] * (count + 1)][: count + 1]
        context = SimpleNamespace(
            scheduler_output=SimpleNamespace(
                scheduled_new_reqs=self._new,
                total_num_scheduled_tokens=sum(map(len, said.values())),
            ),
            req_ids=names,
            requests=dict(self.requests),
            num_draft_tokens=counts if any(counts) else None,
            target_token_ids=np.array(told, dtype=np.int32) if any(counts) else None,
            num_spec_tokens=n,
            max_model_len=MAX_MODEL_LEN,
        )
        self._new = []
        drafts = self.proposer.propose(
            [list(said[name]) for name in names],
            np.array([len(self.text[name]) for name in names]),
            token_ids,
            context=context,
        )
        found = dict(zip(names, drafts, strict=True))
        self.offered |= {name: draft for name, draft in found.items() if draft}
        return found

    def say(self, truth: Mapping[str, Sequence[int]], **more: Any) -> dict[str, list[int]]:
        """One step of a target that says `truth`: of each draft the right prefix is committed, and a token after it."""
        said = {}
        for name, line in truth.items():
            at = len(self.text[name])
            draft = self.offered.get(name, [])[: (more.get("verified") or {}).get(name, N)]
            right = 0
            while right < len(draft) and at + right < len(line) and draft[right] == line[at + right]:
                right += 1
            said[name] = list(line[at : at + right + 1])
        return self.step(said, **more)
