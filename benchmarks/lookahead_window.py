"""Would Lookahead's true two-dimensional window pay? Run it outside vLLM; price it with step times of vLLM.

    python benchmarks/lookahead_window.py --model DIR --prompts chat.jsonl --prompts math.jsonl --costs costs.json

After Fu et al. 2024, section 3: beside the last token go a window of W columns and N-1 rows, each token of which sees
the text, the first row up to its column and its own column above, and up to G n-grams of the pool that begin with the
last token. With what the last row says, W columns are new n-grams. Only committed tokens stay in the KV cache. Greedy,
float32, one request, one thread. `W:N:G` is the paper's: the window alone fills the pool. `W:N:G+text` adds the n-grams
of the answer; W = 0 has only these. `linear:M`: the drafter of this package, up to M tokens of 5 % reach or more.

Prints JSON lines, then a table. equal: prompts whose text is that of `generate`; window, verify: mean extra tokens in a
pass; break_even: cost of an extra token, in plain steps, at which nothing is gained; pass_here, speedup_here: by the
processor time of the passes here; speedup_NAME: by NAME.json, a table of `specx calibrate`, for one request.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from drafters import LookaheadDrafter
from vllm_specx.bench.prompts import read_prompts, workloads
from vllm_specx.bench.tokens import tokenise
from vllm_specx.tuner import CostTable

DEFAULT = "0:3:5,0:5:5,3:3:3,5:3:5,10:3:10,5:5:5,5:5:5+text,15:5:15,linear:8"


class Window:
    """The paper's window and pool; W = 0: a pool of the answer's n-grams alone."""

    def __init__(self, name: str, prompt: list[int]) -> None:
        sizes, _, text = name.partition("+")
        self.w, self.n, self.g = map(int, sizes.split(":"))
        self.text = text == "text" or self.w == 0
        self.history = prompt[-1:]
        self.pool: dict[int, dict[tuple[int, ...], None]] = defaultdict(dict)  # newest last
        rng = random.Random(0)  # the window starts with tokens of the prompt
        self.rows = [[rng.choice(prompt) for _ in range(self.w)] for _ in range(self.n - 1)] if self.w else []
        self.young = self.n - 1  # steps until no row is of those

    def candidates(self) -> list[list[int]]:
        """Up to G guesses of N-1 tokens behind the last token, the newest first."""
        return [list(tail) for tail in islice(reversed(self.pool[self.history[-1]]), self.g)]

    def learn(self, last_row: list[int], first: list[int], committed: list[int]) -> None:
        """Take what the window's last row said, what was said along the first guess, and the step's tokens."""
        if last_row:
            self.rows[0][0] = self.history[-1]
            self.young -= 1
            for column in zip(*self.rows, last_row, strict=True) if self.young < 0 else ():
                self._add(column)
            self.rows = [*self.rows[1:], last_row]
        for token in committed:
            self.history.append(token)
            if self.text and len(self.history) > self.n:
                self._add(tuple(self.history[-self.n :]))

    def _add(self, ngram: tuple[int, ...]) -> None:
        bucket = self.pool[ngram[0]]
        bucket.pop(ngram[1:], None)
        bucket[ngram[1:]] = None
        if len(bucket) > self.g:
            del bucket[next(iter(bucket))]


class Linear:
    """The drafter of this package: one draft, and no tokens but it."""

    def __init__(self, drafter: LookaheadDrafter, prompt: list[int]) -> None:
        self.drafter, self.rows = drafter, list[list[int]]()
        drafter.start(0, prompt)

    def candidates(self) -> list[list[int]]:
        draft = self.drafter.propose([0], self.drafter.max_n)[0].token_ids.tolist()
        return [draft] if draft else []

    def learn(self, last_row: list[int], first: list[int], committed: list[int]) -> None:
        if first:
            self.drafter.verified(0, first)
        self.drafter.observe(0, committed)


@lru_cache(maxsize=256)
def layout(w: int, rows: int, lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Places behind the last token's, int64[q]; who sees whom, bool[q, q]; whose choice is wanted, int64[k]."""
    q = max(1, w * rows) + sum(lengths)
    offset, sees = torch.zeros(q, dtype=torch.int64), torch.eye(q, dtype=torch.bool)
    sees[:, 0] = True
    for row in range(rows):
        for column in range(w):
            at = row * w + column
            offset[at] = row + column
            sees[at, : column + 1] = True
            sees[at, column : at + 1 : w] = True
    wanted, start = [0, *range(max(0, rows - 1) * w, rows * w)], max(1, w * rows)
    for length in lengths:
        end = start + length
        offset[start:end] = torch.arange(1, length + 1)
        sees[start:end, start:end] = torch.ones(length, length).tril().bool()
        wanted += range(start, end)
        start = end
    return offset, sees, torch.tensor(wanted)


@torch.inference_mode()
def decode(
    model: Any, method: Window | Linear, prompt: list[int], most: int, end: set[int]
) -> dict[str, Any]:
    """Decode up to `most` tokens; per step: tokens of the window and of guesses, seconds of the pass."""
    cache = DynamicCache()
    logits = model(torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1).logits
    text = [int(logits[0, -1].argmax())]
    method.learn([], [], text)
    steps = []
    while len(text) < most and text[-1] not in end:
        rows, guesses = method.rows, method.candidates()
        w, past = len(rows[0]) if rows else 0, len(prompt) + len(text) - 1
        offset, sees, wanted = layout(w, len(rows), tuple(map(len, guesses)))
        tokens = [text[-1], *[*chain(*rows)][1:], *chain(*guesses)]
        mask = torch.cat((torch.ones(len(tokens), past, dtype=torch.bool), sees), dim=1)[None, None]
        begin = time.process_time()
        logits = model(
            torch.tensor([tokens]),
            attention_mask=mask,
            position_ids=(past + offset)[None],
            past_key_values=cache,
            logits_to_keep=wanted,
        ).logits
        seconds = time.process_time() - begin
        said = dict(zip(wanted.tolist(), logits[0].argmax(-1).tolist(), strict=True))
        start, best, first = max(1, w * len(rows)), list[int](), list[int]()
        for guess in guesses:
            along = [said[0], *(said[start + i] for i in range(len(guess)))]
            right = next((i for i, token in enumerate(guess) if token != along[i]), len(guess))
            if right > len(best):
                best = list(range(start, start + right))
            first, start = first or along, start + len(guess)
        kept = torch.tensor([*range(past), past, *(past + i for i in best)])
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
        new = [*(tokens[i] for i in best), said[best[-1] if best else 0]]
        new = new[: next((i + 1 for i, token in enumerate(new) if token in end), len(new))]
        method.learn([said[i] for i in range((len(rows) - 1) * w, len(rows) * w)], first, new)
        text += new
        window = max(0, w * len(rows) - 1)
        steps.append((len(new), window, len(tokens) - 1 - window, seconds))
    return {"text": text[:most], "steps": steps}


def summary(
    steps: list[tuple[int, int, int, float]], plain: float, tables: list[tuple[str, CostTable]]
) -> dict[str, float]:
    """Means over steps; `plain` is the seconds of a pass with the last token alone."""
    new, window, verify, seconds = np.array(steps).T
    extra, made = window + verify, new.mean()
    found = {"tokens_per_step": made, "window": window.mean(), "verify": verify.mean()}
    found["break_even"] = (made - 1) / extra.mean() if extra.any() else 0.0
    found["pass_here"] = seconds.mean() / plain
    found["speedup_here"] = made / found["pass_here"]
    for name, costs in tables:
        found[f"speedup_{name}"] = made * float(costs(1, 0)) / costs(1, extra).mean()
    return {name: round(float(value), 4) for name, value in found.items()}


def main() -> None:
    """Run all methods prompt by prompt, so that none has a time of the day of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, type=Path, action="append")
    parser.add_argument("--costs", type=Path, action="append", default=[], help="tables of specx calibrate")
    parser.add_argument("--limit", type=int, default=8, help="prompts of each file")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--methods", default=DEFAULT, help="W:N:G, W:N:G+text or linear:M")
    args = parser.parse_args()
    tables = [(path.stem, CostTable.load(path)) for path in args.costs]
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    end = set(np.atleast_1d(model.generation_config.eos_token_id).tolist())
    plain = "0:2:0"
    methods = [plain, *args.methods.split(",")]
    table = []
    files = workloads(args.prompts)
    for load in tokenise(args.model, {name: read_prompts(path, args.limit) for name, path in files.items()}):
        steps, equal = defaultdict[str, list](list), defaultdict[str, int](int)
        drafters = {
            name: LookaheadDrafter(max_n=int(name[7:]), min_reach=0.05, new_seed=lambda: 0)
            for name in methods
            if name.startswith("linear:")
        }
        for ids in map(list, load.token_ids):
            inputs = torch.tensor([ids])
            made = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=args.tokens
            )[0, len(ids) :].tolist()
            for name in methods:
                method = Linear(drafters[name], ids) if name in drafters else Window(name, ids)
                result = decode(model, method, ids, args.tokens, end)
                if name in drafters:
                    drafters[name].stop(0)
                steps[name] += result["steps"]
                equal[name] += result["text"] == made
        alone = float(np.mean([step[3] for step in steps[plain]]))
        for name in methods:
            row = {"workload": load.name, "method": "plain" if name == plain else name}
            row |= {"prompts": len(load.token_ids), "equal": equal[name], "steps": len(steps[name])}
            table.append(row | summary(steps[name], alone, tables))
            print(json.dumps(table[-1]), flush=True)
    print("| " + " | ".join(table[0]) + " |\n" + "|---" * len(table[0]) + "|")
    for row in table:
        print("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


if __name__ == "__main__":
    main()
