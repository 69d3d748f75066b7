"""Conversations that a chat model writes by itself, user turns included: no outside data is needed.

The model continues the head of a user turn and the first words of it, then answers what it wrote (as in Xu et al. 2024,
Magpie, section 2, which leaves the first words out).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafters.recordings import Conversation
from vllm_specx.bench.errors import BenchError
from vllm_specx.train.openers import OPENERS
from vllm_specx.train.settings import TrainSettings

_MARK = "@@user@@"
USER_TOKENS = 64  # longest user turn
_USER_TEMPERATURE = 0.9


@dataclass(frozen=True)
class Template:
    """The tokens around a user turn, by the model's own chat template."""

    head: str
    tail: str
    tokenizer: Any

    @classmethod
    def of(cls, model: str) -> "Template":
        """Raises BenchError for a model without a chat template."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        if not tokenizer.chat_template:
            raise BenchError(
                f"--model {model}: its tokenizer has no chat template, so it cannot write both turns"
            )
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
        )
        head, mark, tail = text.partition(_MARK)
        if not mark:
            raise BenchError(f"--model {model}: its chat template does not carry a user turn")
        return cls(head, tail, tokenizer)

    def opening(self, opener: str) -> list[int]:
        return self._encode(self.head + opener)

    def prompt(self, turn: str) -> list[int]:
        return self._encode(self.head + turn + self.tail)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


def conversations(
    engine: Any, template: Template, settings: TrainSettings, first: int, number: int
) -> Iterator[Conversation]:
    """Yield conversations as they end, with the engine kept full.

    Args:
        engine: RecordingEngine.
        template: of the same model.
        settings: lengths, temperatures, seed.
        first: how many there are already: with the seed it fixes openers and kinds of answers.
        number: how many to yield.

    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    random = np.random.default_rng((settings.seed, first))
    openers: dict[str, str] = {}  # of user turns that are being written
    prompts: dict[str, list[int]] = {}  # of answers that are
    num_started = num_done = 0
    while num_done < number:
        while engine.num_free and num_started < number:
            name = f"user.{num_started}"
            openers[name] = OPENERS[int(random.integers(len(OPENERS)))]
            turn = SamplingParams(
                temperature=_USER_TEMPERATURE,
                max_tokens=USER_TOKENS,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            engine.add(name, template.opening(openers[name]), turn)
            num_started += 1
        for output in engine.step():
            name = output.request_id
            if name in openers:
                engine.drop(name)
                prompt = template.prompt((openers.pop(name) + output.outputs[0].text).strip())
                is_greedy = random.random() < settings.greedy_share
                answer = SamplingParams(
                    temperature=0.0 if is_greedy else settings.temperature,
                    max_tokens=settings.answer_tokens,
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                name = name.replace("user", "answer")
                prompts[name] = prompt
                engine.add(name, prompt, answer)
                continue
            prompt = prompts.pop(name)
            token_ids = np.array(prompt + list(output.outputs[0].token_ids), dtype=np.int32)
            num_done += 1
            yield Conversation(token_ids, len(prompt), *engine.take(name, len(token_ids)))


def max_len(template: Template, answer_tokens: int) -> int:
    """Longest conversation in tokens, with room for words that the tokenizer splits anew."""
    return len(template.prompt("")) + 2 * USER_TOKENS + 16 + answer_tokens
