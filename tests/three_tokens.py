"""Requests that sample four tokens out of three, and the exact law of what they may say."""

from __future__ import annotations

from itertools import product
from typing import Any

from sampling_laws import Law, processed, target_law

VOCAB, NUM_TOKENS = 3, 4
WORDS = (" red", " blue", " green")
# As digits into WORDS. With the token before them they fill a KV block of 32 and one token: a cached prefix
# leaves one token to compute.
PROMPTS = ("12222010120122010012012012012012", "12001201201012012010120120120012")
TEMPERATURES = (0.8, 1.2)


def allowed_ids(tokenizer: Any) -> list[int]:
    """Ids of WORDS."""
    return [tokenizer.encode(word, add_special_tokens=False)[0] for word in WORDS]


def prompts(tokenizer: Any) -> list[list[int]]:
    """Ids of PROMPTS."""
    allowed, start = allowed_ids(tokenizer), tokenizer.encode("The", add_special_tokens=False)
    return [start + [allowed[int(digit)] for digit in digits] for digits in PROMPTS]


class Requests:
    """The two kinds of requests in turn, each with a seed of its own."""

    def __init__(self, tokenizer: Any) -> None:
        self.allowed = allowed_ids(tokenizer)
        self.prompts = prompts(tokenizer)

    def sample(self, llm: Any, num_requests: int, first_seed: int) -> list[tuple[int, ...]]:
        """For each request its kind and then its output, as indices into WORDS."""
        from vllm import SamplingParams

        kinds = [i % 2 for i in range(num_requests)]
        params = [
            SamplingParams(
                temperature=TEMPERATURES[kind],
                max_tokens=NUM_TOKENS,
                ignore_eos=True,
                allowed_token_ids=self.allowed,
                seed=first_seed + i,
                detokenize=False,
            )
            for i, kind in enumerate(kinds)
        ]
        outputs = llm.generate(
            [{"prompt_token_ids": self.prompts[kind]} for kind in kinds], params, use_tqdm=False
        )
        return [
            (kind, *map(self.allowed.index, output.outputs[0].token_ids))
            for kind, output in zip(kinds, outputs, strict=True)
        ]


def joint_law(model_dir: Any) -> Law:
    """The exact law of (kind, four tokens), by transformers: one forward pass over all prefixes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    allowed = allowed_ids(tokenizer)
    joint = {}
    for kind, prompt in enumerate(prompts(tokenizer)):
        endings = list(product(range(VOCAB), repeat=NUM_TOKENS - 1))
        ids = torch.tensor([prompt + [allowed[i] for i in ending] for ending in endings])
        with torch.no_grad():
            logits = model(ids, logits_to_keep=NUM_TOKENS).logits[:, :, allowed].double().numpy()
        rows = {
            ending[:k]: processed(logits[i, k], TEMPERATURES[kind])
            for i, ending in enumerate(endings)
            for k in range(NUM_TOKENS)
        }
        for tokens, weight in target_law(rows.__getitem__, NUM_TOKENS).items():
            joint[kind, *tokens] = 0.5 * weight
    return joint
