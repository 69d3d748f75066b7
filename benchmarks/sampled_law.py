"""The sampled part of `specx verify` in full, on a target so small that 20,000 samples take a minute.

    python benchmarks/sampled_law.py [--samples 20000] [--methods suffix-tree,medusa] [--json out.json] [--folder DIR]

The target is a random Llama in float32 whose tokens are characters; Medusa heads and an EAGLE-3 head are trained on
what it says, for seconds. Engines, drafters, rejection sampler and tests are those of any other target. Prints the
report of `specx verify`; the exit code is 1 if anything is wrong or nothing was proved.
"""

import argparse
import string
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch

from drafters.eagle3 import train as eagle3
from drafters.eagle3.export import export as export_eagle3
from drafters.medusa import train as medusa
from drafters.medusa.checkpoint import export as export_medusa
from drafters.recordings import Conversation
from drafters.target import Target
from vllm_specx.bench.provenance import provenance
from vllm_specx.cli._edge import FAILED, edge, run_and_show, words
from vllm_specx.verify import VerifySettings, run_verify
from vllm_specx.verify.judge import OK
from vllm_specx.verify.report import show
from vllm_specx.verify.settings import built_in_prompts, default

_LETTERS: Final = "?" + string.ascii_letters + " ,."  # the first stands for any other
_LAYERS: Final = (0, 1, 2)  # whose inputs the EAGLE-3 head reads
_LOGITS: Final = 2.0  # standard deviation: the law is neither flat nor certain
_DRAFT_VOCAB: Final = 40  # some letters are never drafted by a head
_CONVERSATIONS, _HELD_OUT, _TOKENS = 192, 16, 48


@dataclass(frozen=True)
class Folders:
    """Where a target and its heads are."""

    model: str
    head: str
    medusa_heads: str


def make_target(folder: Path) -> Folders:
    """Write the target, its tokenizer, Medusa heads and an EAGLE-3 head into a folder."""
    folders = Folders(*(str(folder / name) for name in ("target", "eagle3", "medusa")))
    model = _save_model(folders.model)
    said = _said(model)
    target = Target.load(Path(folders.model))
    training: dict[str, Any] = {
        "steps": 150,
        "batch": 16,
        "draft_vocab_size": _DRAFT_VOCAB,
        "seed": 0,
        "evaluate_every": 150,
        "checkpoint_every": 150,
    }
    config = eagle3.TrainConfig(learning_rate=0.01, unroll=2, **training)
    state = eagle3.start(target, _LAYERS, said[_HELD_OUT:], config)
    _train(eagle3, state, target, said, config)
    export_eagle3(state.head, state.ids, Path(folders.head))
    heads = medusa.TrainConfig(learning_rate=0.01, num_heads=2, num_layers=1, token_input=True, **training)
    state = medusa.start(target, said[_HELD_OUT:], heads)
    _train(medusa, state, target, said, heads)
    export_medusa(state.head.folded(), state.ids, Path(folders.medusa_heads), {})
    return folders


def _save_model(folder: str) -> Any:
    import tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {letter: number for number, letter in enumerate(_LETTERS)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(letters, [], unk_token=_LETTERS[0]))
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token=_LETTERS[0]).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(_LETTERS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    torch.nn.init.normal_(model.lm_head.weight, std=_LOGITS / config.hidden_size**0.5)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def _said(model: Any) -> list[Conversation]:
    """What the target says after each letter, and its states."""
    first = torch.arange(_CONVERSATIONS)[:, None] % len(_LETTERS)
    ids = model.generate(
        first,
        attention_mask=torch.ones_like(first),
        do_sample=True,
        top_k=0,
        max_new_tokens=_TOKENS,
        pad_token_id=0,
    )
    *layers, finals = (h.to(torch.bfloat16) for h in model(ids, output_hidden_states=True).hidden_states)
    states = torch.cat([layers[layer] for layer in _LAYERS], dim=-1)
    return [
        Conversation(row.numpy().astype(np.int32), 1, *rows)
        for row, *rows in zip(ids, states, finals, strict=True)
    ]


def _train(kind: Any, state: Any, target: Target, said: list[Conversation], config: Any) -> None:
    with TemporaryDirectory() as checkpoints:
        kind.train(
            state, target, said[_HELD_OUT:], said[:_HELD_OUT], config, Path(checkpoints), lambda *news: None
        )
    print(
        kind.__name__,
        "held-out acceptance by draft token:",
        *state.history[-1]["acceptance"],
        file=sys.stderr,
    )


def settings_of(folders: Folders, **others: Any) -> VerifySettings:
    """The settings of a verification of its sampled part alone."""
    return VerifySettings(prompts=built_in_prompts(), num_prompts=0, **asdict(folders), **others)


def main() -> None:
    """Make the target, verify, show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=20_000, help="of each configuration")
    parser.add_argument(
        "--methods", type=words, default=default("methods"), help="comma-separated; all by default"
    )
    parser.add_argument("--temperatures", type=_numbers, default=(0.6, 1.0), help="comma-separated")
    parser.add_argument(
        "--folder", type=Path, help="for target and heads, made now; a temporary one by default"
    )
    parser.add_argument("--json", type=Path, help="every cell, as `specx verify --json` writes it")
    arguments = parser.parse_args()

    def verify(tell: Callable[..., None], save: Callable[..., None]) -> dict[str, Any]:
        with TemporaryDirectory() as folder:
            tell("making target and heads", 0, 1)
            settings = settings_of(
                make_target(arguments.folder or Path(folder)),
                methods=tuple(arguments.methods),
                samples=arguments.samples,
                temperature=arguments.temperatures,
            )
            return run_verify(settings, provenance(sys.argv), tell, save)

    with edge():
        document = run_and_show(verify, show, arguments.json, "every cell")
    if document["verdict"] != OK:
        sys.exit(FAILED)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, words(text)))


if __name__ == "__main__":
    main()
