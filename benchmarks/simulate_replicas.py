"""Compare the simulator with two real engines, alone and in one fleet. It needs a Ray cluster:

    ray start --head --num-cpus 1
    specx calibrate --model DIR --batch 1,2,4 --prompt-tokens 128 --out costs.json
    python benchmarks/simulate_replicas.py --model DIR --costs costs.json [--out check.json]

Tenants ask for the rows of a prompt file, in three wordings each, as a Poisson process; requests go to the replicas in
turn. As the replicas share this machine, they take turns, too: the one whose clock is behind makes a step. Its clock
goes on by what that took, or to its next request where it has nothing to do. The clock on the wall is kept with theirs,
as the store's exchanges go by it: if it is behind, they wait; how far it came to be ahead is printed.

Then the same requests are simulated, with the answers that the engines gave, the real drafter and tuner, and step times
of the table. Printed are both, and the error: simulated over measured, less 1.
"""

import argparse
import json
import multiprocessing
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drafters.replay import Trace
from vllm_specx.bench.costs import load_costs
from vllm_specx.bench.prompts import read_prompts
from vllm_specx.bench.provenance import provenance
from vllm_specx.bench.report import write_json
from vllm_specx.simulate import state as names
from vllm_specx.simulate.curve import no_curve
from vllm_specx.simulate.outcome import measure
from vllm_specx.simulate.recorded import rules_of, world_of
from vllm_specx.simulate.run import simulate
from vllm_specx.simulate.settings import SimulateSettings
from vllm_specx.simulate.state import State, new_state
from vllm_specx.simulate.stream import Stream
from vllm_specx.simulate.texts import Texts
from vllm_specx.simulate.times import StepTimes
from vllm_specx.tuner import CostTable

WORKLOADS = Path(__file__).parents[1] / "vllm_specx" / "demo" / "workloads"
WORDINGS = ("", "Please do this for me. ", "Do what follows. ")
MAX_MODEL_LEN = 1024
MAX_N = 16
SHOWN = {
    "tokens per step": ("tokens_per_step",),
    "draft tokens per step": ("draft_tokens_per_step",),
    "accepted": ("acceptance",),
    "busy": ("busy",),
    "mean batch": ("batch",),
    "first token, s, p50": ("first_token_s", "p50"),
    "per token, ms, mean": ("per_token_ms", "mean"),
    "end to end, s, p50": ("end_to_end_s", "p50"),
    "end to end, s, p95": ("end_to_end_s", "p95"),
}


class Request(NamedTuple):
    """What a replica is asked."""

    number: int
    token_ids: list[int]
    salt: str


def serve(args: argparse.Namespace, options: dict[str, Any], line: Connection) -> None:
    """An engine in a process of its own: takes requests and makes a step, as often as it is told to."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=args.model,
        enforce_eager=True,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        enable_prefix_caching=False,
        speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": MAX_N},
        additional_config={"specx": {"costs": str(args.costs)} | options},
    )
    engine = llm.llm_engine
    proposer = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
    for size in (1, args.max_num_seqs):  # what is done once only is not measured
        prompts = [{"prompt_token_ids": list(range(100, 200)), "cache_salt": "warm-up"}] * size
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    line.send(None)
    while (requests := line.recv()) is not None:
        drafts, begin = proposer.num_draft_tokens, time.perf_counter()
        for request in requests:
            prompt = {"prompt_token_ids": request.token_ids, "cache_salt": request.salt}
            engine.add_request(str(request.number), prompt, params)
        done = engine.step()
        seconds = time.perf_counter() - begin
        answers = {int(each.request_id): (list(each.outputs[0].token_ids), each.finished) for each in done}
        line.send((seconds, proposer.num_draft_tokens - drafts, answers))


class Replica:
    """One of them, with its clock: seconds since the first request could have come."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(args, options, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.clock = 0.0
        self.waiting: deque[tuple[float, Request]] = deque()
        self.running: dict[int, int] = {}  # tokens of each request

    def wait(self) -> None:
        """Until it is ready."""
        self._line.recv()

    @property
    def due(self) -> float:
        """When it has something to do."""
        if self.running:
            return self.clock
        return max(self.clock, self.waiting[0][0]) if self.waiting else float("inf")

    def step(self) -> tuple[float, int, dict[int, tuple[list[int], bool]]]:
        """Make a step that begins when it is due; returns its seconds, draft tokens, and answers that grew."""
        begin, new = self.due, []
        while self.waiting and self.waiting[0][0] <= begin:
            new.append(self.waiting.popleft()[1])
            self.running[new[-1].number] = 0
        self._line.send(new)
        seconds, drafts, answers = self._line.recv()
        self.clock = begin + seconds
        return seconds, drafts, answers

    def stop(self) -> None:
        """End it."""
        self._line.send(None)
        self._process.join()


def measured(
    replicas: Sequence[Replica], requests: Sequence[Request], arrival: Any, seats: int
) -> tuple[State, list[list[int]], float]:
    """Have the engines answer all; returns what happened, the answers, and how far wall time was ahead, at most."""
    state = new_state(len(replicas), len(requests), 1, seats)
    outputs: list[list[int]] = [[] for _ in requests]
    for request, at in zip(requests, arrival.tolist(), strict=True):
        replicas[request.number % len(replicas)].waiting.append((at, request))
    start, ahead = time.perf_counter(), 0.0
    while (replica := min(replicas, key=lambda each: each.due)).due < float("inf"):
        time.sleep(max(0.0, start + replica.due - time.perf_counter()))
        ahead = max(ahead, time.perf_counter() - start - replica.due)
        seconds, drafts, answers = replica.step()
        counts, decoding = state.counts, sum(known > 0 for known in replica.running.values())
        counts[names.LARGEST] = max(counts[names.LARGEST], len(replica.running))
        counts[names.STEPS] += 1
        counts[names.REQUEST_STEPS] += decoding
        counts[names.DRAFTS] += drafts
        counts[names.BUSY] += seconds
        for number, (tokens, is_finished) in answers.items():
            grown = len(tokens) - replica.running[number]
            if replica.running[number] == 0:
                state.first[number] = replica.clock
                counts[names.FIRST_TOKENS] += 1
            else:
                counts[names.STEP_TOKENS] += grown
            replica.running[number], outputs[number] = len(tokens), tokens
            if is_finished:
                state.finish[number] = replica.clock
                del replica.running[number]
    return state, outputs, ahead


def compare(args: argparse.Namespace, memory: str, table: CostTable) -> dict[str, Any]:
    """Measure and simulate the fleet with one kind of memory."""
    tokenised, tenants, arrival = ask(args)
    fleet = {"address": args.address, "name": f"simulate-{secrets.token_hex(4)}", "required": True}
    options = {"fleet": fleet | {"sync_interval_s": args.sync_interval}} if memory == "shared" else {}
    replicas = [Replica(args, options) for _ in range(2)]
    for replica in replicas:
        replica.wait()
    requests = [
        Request(k, ids, f"tenant {t}") for k, (ids, t) in enumerate(zip(tokenised, tenants, strict=True))
    ]
    state, outputs, ahead = measured(replicas, requests, arrival, args.max_num_seqs)
    for replica in replicas:
        replica.stop()
    texts = Texts.of([Trace(str(k), p, o) for k, (p, o) in enumerate(zip(tokenised, outputs, strict=True))])
    num, none = len(texts), np.zeros(0)
    stream = Stream(
        num / args.rate,
        arrival,
        np.arange(num),
        np.array(tenants),
        args.tenants,
        np.zeros(num),
        np.zeros(num),
        np.full(2, 0.5),
        none,
        none.astype(np.int64),
    )
    settings = SimulateSettings(
        replicas=2,
        drafting="exact",
        max_n=MAX_N,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        sync_interval=args.sync_interval,
    )
    times = StepTimes.of(table, max_num_seqs=args.max_num_seqs, max_n=MAX_N, prefill_us=args.prefill_us)
    world = world_of(settings, texts, stream, no_curve(texts), times)
    rules = rules_of(settings, stream, times, memory, most_seen=0)
    return {
        "memory": memory,
        "requests": num,
        "prompt_tokens": float(texts.prompts.mean()),
        "output_tokens": float(texts.outputs.mean()),
        "prefill_us": 1e6 * times.per_prompt_token,
        "wall_ahead_s": ahead,
        "measured": measure(world, rules, state),
        "simulated": simulate(settings, texts, stream, None, times, table, memory),
    }


def ask(args: argparse.Namespace) -> tuple[list[list[int]], list[int], Any]:
    """Prompts of the requests as token ids, their tenants, and when they come; the same for every memory."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rng, rows = np.random.default_rng(0), []
    for wording in WORDINGS:
        for row in read_prompts(args.prompts):
            *before, last = row.messages
            messages = [*before, {"role": "user", "content": wording + last["content"]}]
            rows.append(
                tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            )
    pairs = [(list(row), tenant) for tenant in range(args.tenants) for row in rows]
    order = rng.permutation(len(pairs))
    arrival = np.sort(rng.random(len(pairs))) * len(pairs) / args.rate
    return [pairs[k][0] for k in order], [pairs[k][1] for k in order], arrival


def show(row: dict[str, Any]) -> None:
    """Print both sides and the error."""
    print(
        f"\n{row['memory']} memory: {row['requests']} requests, prompts of {row['prompt_tokens']:.0f} tokens "
        f"({row['prefill_us']:.0f} us each), answers of {row['output_tokens']:.0f}; "
        f"wall time was at most {row['wall_ahead_s']:.1f} s ahead"
    )
    print(f"{'':24}{'measured':>10}{'simulated':>11}{'error':>9}")
    for title, path in SHOWN.items():
        a, b = row["measured"], row["simulated"]
        for key in path:
            a, b = a[key], b[key]
        print(f"{title:24}{a:10.3f}{b:11.3f}{b / a - 1:+9.1%}")


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, default=WORKLOADS / "structured.jsonl")
    parser.add_argument("--tenants", type=int, default=2, help="each asks for all rows once")
    parser.add_argument("--rate", type=float, default=0.6, help="requests per second of both replicas")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=4)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--sync-interval", type=float, default=1.0)
    parser.add_argument("--prefill-us", type=float, help="for each prompt token; see specx simulate")
    parser.add_argument("--address", default="auto", help="of the Ray cluster")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    args = parser.parse_args()
    table, rows = load_costs(args.costs), []
    for memory in ("private", "shared"):
        rows.append(compare(args, memory, table))
        show(rows[-1])
    if args.out is not None:
        told = {name: value for name, value in vars(args).items() if name != "out"}
        settings = json.loads(json.dumps(told, default=str))
        write_json(
            args.out,
            {
                "provenance": provenance(sys.argv),
                "costs": dict(table.source),
                "settings": settings,
                "rows": rows,
            },
        )


if __name__ == "__main__":
    main()
