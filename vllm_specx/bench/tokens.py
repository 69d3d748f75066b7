"""Prompts as token ids, made once so that every method gets the same ones, and checked for length."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.prompts import Prompt


@dataclass(frozen=True)
class Workload:
    """The prompts of one file and their token ids, row by row."""

    name: str
    prompts: Sequence[Prompt]
    token_ids: Sequence[Sequence[int]]

    @property
    def ids(self) -> list[str]:
        return [prompt.id for prompt in self.prompts]

    @property
    def caps(self) -> list[int]:
        return [prompt.max_tokens for prompt in self.prompts]


def tokenise(model: str, rows: Mapping[str, Sequence[Prompt]]) -> list[Workload]:
    """Apply the model's chat template; a model without one gets the messages' text. Raises BenchError."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise BenchError(
            f"--model {model!r} cannot be loaded: it must be a folder with a model and its tokenizer, "
            "or a name in the Hugging Face cache (HF_HUB_OFFLINE=0 allows a download)"
        ) from error

    def encode(prompt: Prompt) -> list[int]:
        messages = [dict(message) for message in prompt.messages]
        if tokenizer.chat_template is None:
            return list(tokenizer("\n".join(message["content"] for message in messages))["input_ids"])
        try:
            return list(
                tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            )
        except (
            Exception
        ) as error:  # a template is a program: it may raise anything on roles that it does not know
            raise BenchError(
                f"{prompt.where}: the model's chat template refuses this row: {error}"
            ) from error

    return [Workload(name, prompts, [encode(prompt) for prompt in prompts]) for name, prompts in rows.items()]


def check_lengths(workloads: Sequence[Workload], max_model_len: int) -> None:
    """Raise BenchError for the first row whose prompt and output do not fit together."""
    for workload in workloads:
        for prompt, token_ids in zip(workload.prompts, workload.token_ids, strict=True):
            if not token_ids:
                raise BenchError(f"{prompt.where}: the prompt has no tokens")
            if len(token_ids) + prompt.max_tokens > max_model_len:
                raise BenchError(
                    f"{prompt.where}: {len(token_ids)} prompt tokens and {prompt.max_tokens} output tokens "
                    f"exceed the model length of {max_model_len}"
                )
