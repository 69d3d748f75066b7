"""Compare the simulator with a real engine: one replica, the prompts of a bench, its concurrency.

    specx calibrate --model DIR --out costs.json
    specx bench --model DIR --prompts A.jsonl --methods none,suffix-tree --concurrency 1,8 --json bench.json
    python benchmarks/simulate_check.py bench.json --costs costs.json --answers answers.json [--out check.json]

Answers are token ids; where the file does not exist, plain vLLM writes them once, with the lengths of the bench: this
alone needs an engine. Then each cold cell of the methods none and suffix-tree is simulated with the real drafter and
tuner, and the table's step times: tokens per step and tokens per second, measured and simulated, and the ratio of the
two. Prefix caching, if the bench had it, is not simulated. (Two replicas, and their fleet: simulate_replicas.py.)
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drafters.replay import Trace
from vllm_specx.bench.costs import load_costs
from vllm_specx.bench.document import read_document, settings_of
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.report import write_json
from vllm_specx.simulate.curve import no_curve
from vllm_specx.simulate.exact import ExactDrafting
from vllm_specx.simulate.loop import run
from vllm_specx.simulate.outcome import measure
from vllm_specx.simulate.recorded import rules_of, run_recorded, world_of
from vllm_specx.simulate.settings import SimulateSettings
from vllm_specx.simulate.stream import Stream
from vllm_specx.simulate.texts import Texts
from vllm_specx.simulate.times import StepTimes
from vllm_specx.tuner import CostTable

METHODS = {"none": "plain", "suffix-tree": "private"}
_LONG = 1e6  # seconds, in which every cell ends
_CONCURRENCY = 8  # of the pass that writes the answers


def closed_loop(prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> tuple[Texts, Stream]:
    """All requests wait from the start, in order: with as many slots as the bench had requests in flight, its loop."""
    texts = Texts.of(
        [
            Trace(str(k), prompt, output)
            for k, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]
    )
    num, none = len(texts), np.zeros(0)
    zeros = np.zeros(num)
    tenant = zeros.astype(np.int64)
    return texts, Stream(
        _LONG, zeros, np.arange(num), tenant, 1, zeros, zeros, np.zeros(1), none, none.astype(np.int64)
    )


def simulated(
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    table: CostTable,
    *,
    method: str,
    concurrency: int,
    max_n: int,
    prefill_us: float | None = None,
) -> dict[str, Any]:
    """Tokens per step and per second, and what else `measure` gives."""
    texts, stream = closed_loop(prompts, outputs)
    settings = SimulateSettings(replicas=1, max_num_seqs=concurrency, max_n=max_n, drafting="exact")
    times = StepTimes.of(table, max_num_seqs=concurrency, max_n=max_n, prefill_us=prefill_us)
    world = world_of(settings, texts, stream, no_curve(texts), times)
    rules = rules_of(settings, stream, times, METHODS[method], most_seen=0)
    if method == "none":
        state = run_recorded(world, rules)
    else:
        state = run(world, rules, ExactDrafting(texts, world, table, max_n=max_n, seed=0))
    found = measure(world, rules, state)
    return {**found, "tokens_per_s": float(texts.outputs.sum() / state.finish.max())}


def compare(
    document: Mapping[str, Any],
    answers: Mapping[str, Any],
    table: CostTable,
    max_n: int,
    prefill_us: float | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for each cold cell of a method that can be simulated."""
    for row in document["summary"]:
        method, _, given = row["method"].partition(":")
        if method not in METHODS or row["phase"] != "cold":
            continue
        said = answers[row["workload"]]
        made = simulated(
            said["prompts"],
            said["outputs"],
            table,
            method=method,
            concurrency=row["concurrency"],
            max_n=int(given or max_n),
            prefill_us=prefill_us,
        )
        yield {
            "workload": row["workload"],
            "concurrency": row["concurrency"],
            "method": row["method"],
            **{
                name: {
                    "measured": row[name],
                    "simulated": made[name],
                    "ratio": made[name] / row[name] if row[name] and made[name] is not None else None,
                }
                for name in ("tokens_per_step", "draft_tokens_per_step", "acceptance", "tokens_per_s")
            },
        }


def check_answers(document: Mapping[str, Any], answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answers to the very prompts of the bench, cut to its lengths. Raises BenchError."""
    made = {}
    for name, workload in document["workloads"].items():
        if "lengths" not in workload:
            raise BenchError("the bench was made with --natural: its methods have no common answers")
        said = answers.get(name)
        if said is None or said["ids"] != workload["ids"]:
            raise BenchError(f"--answers: they are not those to the prompts of {name!r}")
        if [len(prompt) for prompt in said["prompts"]] != workload["prompt_tokens"]:
            raise BenchError(f"--answers: prompts of {name!r} have other lengths; from another model?")
        outputs = [output[:n] for output, n in zip(said["outputs"], workload["lengths"], strict=True)]
        if [len(output) for output in outputs] != workload["lengths"]:
            raise BenchError(f"--answers: an answer of {name!r} is shorter than in the bench")
        made[name] = {**said, "outputs": outputs}
    return made


def collect(document: Mapping[str, Any]) -> dict[str, Any]:
    """Have plain vLLM write the answers: the only part that needs an engine."""
    from vllm_specx.bench.engine import EngineSpec
    from vllm_specx.bench.loop import Job
    from vllm_specx.bench.methods import engine_options
    from vllm_specx.bench.prompts import read_prompts
    from vllm_specx.bench.tokens import tokenise
    from vllm_specx.bench.workers import Worker

    settings = settings_of(document)
    rows = {
        name: read_prompts(path, settings.limit, settings.max_tokens)
        for name, path in settings.prompts.items()
    }
    spec = EngineSpec(
        model=settings.model,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        max_num_seqs=_CONCURRENCY,
        prefix_caching=False,
        gpu_share=0.85,
        kv_cache_gib=settings.kv_cache_gib,
        options=engine_options("none", settings),
    )
    answers = {}
    with tempfile.TemporaryDirectory() as logs:
        worker = Worker("none", spec, Path(logs, "none.log"))
        try:
            worker.build()
            for workload in tokenise(settings.model, rows):
                lengths = document["workloads"][workload.name]["lengths"]
                worker.start(Job(workload.name, workload.token_ids, lengths, _CONCURRENCY))
                worker.advance()
                answers[workload.name] = {
                    "ids": workload.ids,
                    "prompts": [list(prompt) for prompt in workload.token_ids],
                    "outputs": [trace.token_ids for trace in worker.result().traces],
                }
        finally:
            worker.stop()
    return answers


def main() -> None:
    """Read, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bench", type=Path)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True, help="made if it does not exist")
    parser.add_argument("--prefill-us", type=float, help="for each prompt token; see specx simulate")
    parser.add_argument("--out", type=Path, help="write the comparison as JSON")
    args = parser.parse_args()
    try:
        document, table = read_document(args.bench), load_costs(args.costs)
        if not args.answers.exists():
            write_json(args.answers, collect(document))
        answers = check_answers(document, json.loads(args.answers.read_text(encoding="utf-8")))
    except ValueError as error:  # BenchError is one
        parser.error(str(error))
    max_n = settings_of(document).num_speculative_tokens
    rows = list(compare(document, answers, table, max_n, args.prefill_us))
    print("workload", "conc.", "method", "tokens/step: measured", "simulated", "ratio", sep="\t", end="\t")
    print("tokens/s: measured", "simulated", "ratio", sep="\t")
    for row in rows:
        cells = [
            f"{value:.3f}" if (value := row[name][key]) is not None else "-"
            for name in ("tokens_per_step", "tokens_per_s")
            for key in ("measured", "simulated", "ratio")
        ]
        print(row["workload"], row["concurrency"], row["method"], *cells, sep="\t")
    if args.out is not None:
        write_json(args.out, {"bench": document["provenance"], "costs": dict(table.source), "rows": rows})


if __name__ == "__main__":
    main()
