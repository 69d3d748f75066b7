"""What a fleet costs a step, what its store takes, and what a second replica gains. It needs a Ray cluster:

    ray start --head --num-cpus 1
    python benchmarks/fleet.py absorb                  # another process says 1,000 answers a second
    python benchmarks/fleet.py store                   # 10^7 tokens
    python benchmarks/fleet.py replicas --model DIR    # tokens per step of a replica, with and without the fleet

`absorb` drives a drafter with 64 requests as a worker would, a step every 20 ms, and prints what `Member.tick` takes of
the thread's CPU time in a step. `replicas` has one engine answer some prompts, and then another one prompts like them.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import secrets
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

ANSWER = 256  # tokens
MODEL, VOCABULARY, VOCAB_SIZE = "benchmark", "benchmark", 1 << 16
WORKLOADS = Path(__file__).parents[1] / "vllm_specx" / "demo" / "workloads"


def make_member(name: str, address: str, **options: Any) -> Any:
    """A drafter with the memory of the defaults, and its member, joined."""
    from drafters import SuffixTreeDrafter
    from vllm_specx.fleet.link import Link
    from vllm_specx.fleet.member import Member
    from vllm_specx.fleet.messages import settings_of
    from vllm_specx.fleet.options import FleetConfig
    from vllm_specx.fleet.priors import Learner

    fleet = FleetConfig(address=address, name=name, required=True, **options)
    drafter = SuffixTreeDrafter(max_n=16)
    member = Member(
        fleet,
        Link(address, settings_of(fleet)),
        model=MODEL,
        vocabulary=VOCABULARY,
        vocab_size=VOCAB_SIZE,
        capacity=drafter.memory.capacity,
        learner=Learner("", None),
    )
    member.attach(drafter)
    member.wait(drafter)
    return drafter, member


def answers(seed: int) -> Any:
    """Endless answers of words of a Zipf law."""
    rng = np.random.default_rng(seed)
    while True:
        yield (rng.zipf(1.3, ANSWER) % 30_000).astype(np.int32)


def say(name: str, address: str, rate: float, seconds: float, ready: Connection) -> None:
    """Say so many answers a second, in another process."""
    drafter, member = make_member(name, address)
    ready.send(None)
    start, source, said = time.perf_counter(), answers(1), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        while said < rate * elapsed:
            drafter.on_answer(next(source), "")
            said += 1
        time.sleep(0.01)
    member.close()


def absorb(args: argparse.Namespace) -> None:
    """Print percentiles of the CPU time that a step spends on the fleet."""
    name = f"absorb-{secrets.token_hex(4)}"
    drafter, member = make_member(name, args.address)
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(
        target=say, args=(name, args.address, args.rate, args.seconds, there)
    )
    other.start()
    here.recv()
    source, requests = answers(2), list(range(64))
    for request in requests:
        drafter.start(request, next(source))
    texts = [np.concatenate([next(source) for _ in range(64)]).tolist() for _ in requests]
    drafter.propose(requests, 16)
    gc.freeze()  # as vLLM does before it serves
    times, steps = [], 0
    while other.is_alive():
        begin = time.perf_counter()
        for request in requests:
            at = 3 * steps % (len(texts[request]) - 3)
            drafter.observe(request, texts[request][at : at + 3])
        drafter.propose(requests, 16)
        cpu = time.thread_time()
        member.tick(drafter, lambda parts: None)
        times.append(time.thread_time() - cpu)
        steps += 1
        time.sleep(max(0.0, args.step - (time.perf_counter() - begin)))
    other.join()
    ms = 1e3 * np.array(times)
    print_line(
        what="CPU time of a step for the fleet",
        steps=steps,
        rate=args.rate,
        tokens_per_answer=ANSWER,
        p50_ms=np.percentile(ms, 50),
        p99_ms=np.percentile(ms, 99),
        p999_ms=np.percentile(ms, 99.9),
        max_ms=ms.max(),
        absorbed_per_second=member.num_absorbed / args.seconds,
        messages_dropped=member._inbox.num_dropped,
    )
    member.close()


def store(args: argparse.Namespace) -> None:
    """Print what a store of so many tokens takes, of its budget and of the process."""
    from vllm_specx.fleet.store import Store
    from vllm_specx.fleet.texts import pieces

    made, source = Store(args.bytes), answers(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    num_said = args.tokens // ANSWER
    for _ in range(num_said):
        made.add(pieces("", next(source))[0], "a")
    seconds = time.process_time() - begin
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print_line(
        what="store",
        said_tokens=num_said * ANSWER,
        held_tokens=made.num_tokens,
        budget_mb=args.bytes / 1e6,
        counted_mb=made.num_bytes / 1e6,
        resident_mb=grown / 1e3,
        us_per_answer=1e6 * seconds / num_said,
    )


def serve(model: str, options: dict[str, Any], line: Connection) -> None:
    """An engine in a process of its own: answers the prompts that it is sent with tokens per step."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 16},
        additional_config={"specx": {"alpha": 0.05} | options},
    )
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    proposer = worker.model_runner.drafter
    line.send(None)
    while (prompts := line.recv()) is not None:
        accepted = proposer.num_accepted_tokens
        params = SamplingParams(temperature=0, max_tokens=128)
        done = llm.chat(prompts, params, use_tqdm=False)
        tokens = sum(len(answer.outputs[0].token_ids) for answer in done)
        line.send(tokens / (tokens - (proposer.num_accepted_tokens - accepted)))


class Engine:
    """A replica."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        """Start it, and return once it is ready."""
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(model, options, theirs))
        self._process.start()
        self._line.recv()

    def tokens_per_step(self, prompts: list[Any]) -> float:
        """Have prompts answered."""
        self._line.send(prompts)
        return float(self._line.recv())

    def stop(self) -> None:
        """End it."""
        self._line.send(None)
        self._process.join()


def replicas(args: argparse.Namespace) -> None:
    """Print tokens per step of A, of B, and of a replica that starts when both have answered.

    What A says with what it has heard itself is the measure: with a fleet it would hear from B, too.
    """
    rows = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    # Prompts like each other, whose answers are alike, but not the same.
    first, second, third = (
        [
            [*r["messages"][:-1], {"role": "user", "content": begin + r["messages"][-1]["content"]}]
            for r in rows
        ]
        for begin in ("", "Please do this for me. ", "Do what follows. ")
    )
    a = Engine(args.model, {})
    cold, warm, warmer = (a.tokens_per_step(prompts) for prompts in (first, second, third))
    a.stop()
    print_line(what="A alone", first=cold, second=warm, third=warmer)
    fleet = {"fleet": {"address": args.address, "name": f"replicas-{secrets.token_hex(4)}", "required": True}}
    for options in ({}, fleet):
        a, b = Engine(args.model, options), Engine(args.model, options)
        a.tokens_per_step(first)
        time.sleep(args.delay)
        other = b.tokens_per_step(second)
        a.stop()
        b.stop()
        late = Engine(args.model, options)
        restarted = late.tokens_per_step(third)
        late.stop()
        print_line(
            what="with the fleet" if options else "without",
            b=other,
            b_of_a=other / warm,
            restarted=restarted,
            restarted_of_a=restarted / warmer,
            b_began_s_after_a=args.delay,
        )


def print_line(**figures: Any) -> None:
    """One JSON object a line."""
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}), flush=True)


def main() -> None:
    """Run what is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    absorbing, storing, serving = (commands.add_parser(name) for name in ("absorb", "store", "replicas"))
    absorbing.set_defaults(run=absorb)
    absorbing.add_argument("--rate", type=float, default=1000.0)
    absorbing.add_argument("--seconds", type=float, default=30.0)
    absorbing.add_argument("--step", type=float, default=0.02)
    storing.set_defaults(run=store)
    storing.add_argument("--tokens", type=int, default=10**7)
    storing.add_argument("--bytes", type=int, default=256 << 20)
    serving.set_defaults(run=replicas)
    serving.add_argument("--model", required=True)
    serving.add_argument("--prompts", type=Path, default=WORKLOADS / "structured.jsonl")
    serving.add_argument(
        "--delay", type=float, default=3.0, help="seconds from A's last answer to B's first prompt"
    )
    for command in (absorbing, serving):
        command.add_argument("--address", default="auto")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
