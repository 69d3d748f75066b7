"""Compare methods on mixed prompts while the concurrency ramps up and down again; nothing is forgotten in between.

    python benchmarks/ramp.py --model DIR --prompts A.jsonl,B.jsonl --methods none,eagle3:1,eagle3:2,eagle3-adaptive \
        [--stages 1,2,4,8,16,32,16,8,4,2,1] [--tokens 48] [--repeats 3] [--limit 8] --out ramp.json

A stage keeps so many requests in flight and runs twice as many (four at least), of all prompts in turn; each answer has
a fixed length. The methods take turns within a stage. Prints seconds by stage, and each method's total over that of
every other one, paired by repeat, with a 95 % interval.
"""

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from vllm_specx.bench.engine import EngineSpec
from vllm_specx.bench.loop import Job
from vllm_specx.bench.methods import choose, engine_options
from vllm_specx.bench.prompts import read_prompts
from vllm_specx.bench.runner import rotation, take_turns
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.bench.stats import paired_ratio
from vllm_specx.bench.tokens import tokenise
from vllm_specx.bench.workers import Worker

_TURNS = 8


def main() -> None:
    """Run the ramp."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--methods", required=True)
    parser.add_argument("--stages", default="1,2,4,8,16,32,16,8,4,2,1")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, default=8, help="rows of each prompt file")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    stages = [int(stage) for stage in args.stages.split(",")]
    paths = {Path(path).stem: Path(path) for path in args.prompts.split(",")}
    settings = BenchSettings(
        model=args.model,
        prompts=paths,
        methods=tuple(args.methods.split(",")),
        concurrency=tuple(sorted(set(stages))),
        max_model_len=args.max_model_len,
        dtype=args.dtype,
        kv_cache_gib=1,
    )
    methods = choose(settings.methods).methods
    rows = {name: read_prompts(path, args.limit, args.tokens) for name, path in paths.items()}
    by_workload = [workload.token_ids for workload in tokenise(args.model, rows)]
    prompts = [
        prompt for group in itertools.zip_longest(*by_workload) for prompt in group if prompt is not None
    ]
    seconds: dict[str, list[list[float]]] = {method: [] for method in methods}
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as logs:
        try:
            for method in methods:
                spec = EngineSpec(
                    model=args.model,
                    dtype=args.dtype,
                    max_model_len=args.max_model_len,
                    max_num_seqs=max(stages),
                    prefix_caching=False,
                    gpu_share=0.85 / len(methods),
                    kv_cache_gib=1,
                    options=engine_options(method, settings),
                )
                workers[method] = Worker(method, spec, Path(logs, f"{method}.log"))
                workers[method].build()
            for repeat in range(args.repeats):
                for worker in workers.values():
                    worker.reset()
                supply = itertools.cycle(prompts[repeat:] + prompts[:repeat])
                for values in seconds.values():
                    values.append([])
                for index, stage in enumerate(stages):
                    chosen = list(itertools.islice(supply, max(4, 2 * stage)))
                    job = Job(f"{repeat}-{index}", chosen, [args.tokens] * len(chosen), stage)
                    order = rotation(methods, repeat + index)
                    for method, result in take_turns(workers, job, order, _TURNS).items():
                        seconds[method][-1].append(result.seconds)
                args.out.write_text(json.dumps({"stages": stages, "seconds": seconds}))
                print(f"repeat {repeat + 1} done", flush=True)
        finally:
            for worker in workers.values():
                worker.stop()
    _report(stages, seconds)


def _report(stages: list[int], seconds: dict[str, list[list[float]]]) -> None:
    print("method", *stages, "total", sep="\t")
    for method, repeats in seconds.items():
        means = [sum(stage) / len(stage) for stage in zip(*repeats, strict=True)]
        print(method, *(f"{mean:.1f}" for mean in means), f"{sum(means):.1f}", sep="\t")
    totals: dict[str, Any] = {
        method: [sum(repeat) for repeat in repeats] for method, repeats in seconds.items()
    }
    for ours, theirs in itertools.permutations(totals, 2):
        ratio = paired_ratio(totals[theirs], totals[ours])
        interval = "" if ratio.low is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"{ours} over {theirs}: {ratio.geometric_mean:.3f}{interval}")


if __name__ == "__main__":
    main()
