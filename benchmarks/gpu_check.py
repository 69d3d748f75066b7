"""Check vllm-specx on a machine with a GPU and a stock vLLM, in one command.

    python benchmarks/gpu_check.py --model DIR --out gpu.json [--methods none,suffix-tree] [--concurrency 1,8,32,128]

For plain decoding and each method: which model runner and CUDA-graph mode vLLM chose, whether scheduling is
asynchronous, greedy outputs against plain decoding, tokens per second at each concurrency. Then a cost table
(`specx calibrate`) and the host time of a step (`v2_step_time.py`). Writes one JSON document and prints a short
verdict. Needs no network beyond what the model takes; every engine has processes of its own, one after another, plain
decoding first and last.
"""

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm_specx.bench.methods import BASELINE, METHODS

_TOKENS = 128
_TEXTS = (
    "Write a short story about a lighthouse keeper who finds a map.",
    "Repeat this list three times: apple, pear, plum, cherry, quince.",
    "def area(width, height):\n    return width * height\n\nWrite the same function for a triangle and for a circle.",
    "Summarise: The river rose twice in the spring. The river fell in the summer. The mill stood still, and the "
    "miller went to the town to look for work until the river rose again.",
)


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--methods", default="none,ngram,suffix-tree", help=", ".join(METHODS))
    parser.add_argument("--concurrency", default="1,8,32,128")
    parser.add_argument("--head", default="", help="EAGLE-3 head for the methods that need one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="where the host time of a step is measured")
    args = parser.parse_args()
    names = [name for name in args.methods.split(",") if name != BASELINE]
    if unknown := [name for name in names if name not in METHODS]:
        parser.error(f"unknown methods {unknown}; known are {', '.join(METHODS)}")
    concurrency = [int(c) for c in args.concurrency.split(",")]
    document: dict[str, Any] = {"model": args.model, "concurrency": concurrency, "methods": {}}
    for name in [BASELINE, *names, BASELINE]:
        key = f"{name} again" if name in document["methods"] else name
        print(f"{key} ...", flush=True)
        document["methods"][key] = _in_process(
            _run, args.model, _speculative(name, args.head), concurrency, args.repeats
        )
        args.out.write_text(json.dumps(document, indent=2))
    print("costs ...", flush=True)
    document["costs"] = _calibrate(args.model)
    document["step"] = _script("v2_step_time.py", "--model", args.model, "--device", args.device)
    args.out.write_text(json.dumps(document, indent=2))
    print("\n".join(_verdict(document)))


def _speculative(name: str, head: str) -> dict[str, Any] | None:
    method = METHODS[name]
    if method.speculative_config is None:
        return None
    config = dict(method.speculative_config)
    if method.head == "model":
        config["model"] = head
    elif method.head == "name" and head:
        config["model"] = f"{config['model']}:{head}"
    return config


def _in_process(function: Any, *arguments: Any) -> dict[str, Any]:
    """What the function puts into a queue, or what it died of."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=function, args=(queue, *arguments))
    process.start()
    while process.is_alive() and queue.empty():
        time.sleep(0.2)
    result: dict[str, Any] = (
        {"error": f"the process ended with code {process.exitcode}"} if queue.empty() else queue.get()
    )
    process.join(60)
    return result


def _run(
    queue: Any, model: str, speculative: dict[str, Any] | None, concurrency: list[int], repeats: int
) -> None:
    try:
        queue.put(_measure(model, speculative, concurrency, repeats))
    except Exception as error:
        queue.put({"error": f"{type(error).__name__}: {error}"})


def _measure(
    model: str, speculative: dict[str, Any] | None, concurrency: list[int], repeats: int
) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        max_num_seqs=max(concurrency),
        max_model_len=1024,
        speculative_config=speculative,
        disable_log_stats=False,
    )
    config = llm.llm_engine.vllm_config
    params = SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True)
    found: dict[str, Any] = {
        "runner": "V2" if config.use_v2_model_runner else "V1",
        "graphs": str(config.compilation_config.cudagraph_mode),
        "async_scheduling": config.scheduler_config.async_scheduling,
        "scheduler": str(config.scheduler_config.scheduler_cls),
        "outputs": [],
        "tokens_per_second": {},
    }
    for number in concurrency:
        # Each request has a prompt of its own, so that nothing comes from the prefix cache.
        prompts = [f"{i}. {_TEXTS[i % len(_TEXTS)]}" for i in range(number)]
        rates = []
        for repeat in range(repeats + 1):
            begin = time.perf_counter()
            outputs = llm.generate([f"({repeat}) {text}" for text in prompts], params, use_tqdm=False)
            if repeat:  # the first one warms up
                rates.append(number * _TOKENS / (time.perf_counter() - begin))
        found["tokens_per_second"][str(number)] = rates
        found["outputs"] += [list(output.outputs[0].token_ids) for output in outputs[:4]]
    found["counters"] = {
        metric.name: metric.value
        for metric in llm.get_metrics()
        if metric.name.startswith("vllm:spec_decode_num") and hasattr(metric, "value")
    }
    return found


def _calibrate(model: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "costs.json")
        specx = [sys.executable, "-c", "from vllm_specx.cli.main import main; main()"]
        command = [*specx, "calibrate", "--model", model, "--out", str(table)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return json.loads(table.read_text()) if table.exists() else {"error": result.stderr[-1000:]}


def _script(name: str, *arguments: str) -> Any:
    path = Path(__file__).with_name(name)
    result = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, check=False
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"error": result.stderr[-1000:]}


def _verdict(document: dict[str, Any]) -> list[str]:
    plain = document["methods"][BASELINE]
    lines = []
    for name, found in document["methods"].items():
        if "error" in found:
            lines.append(f"{name}: FAILED: {found['error']}")
            continue
        same = sum(a == b for a, b in zip(found["outputs"], plain.get("outputs", []), strict=False))
        ratios = [
            f"{number}: {statistics.median(rates) / statistics.median(plain['tokens_per_second'][number]):.2f}x"
            for number, rates in found["tokens_per_second"].items()
            if "error" not in plain
        ]
        lines.append(
            f"{name}: runner {found['runner']}, graphs {found['graphs']}, async {found['async_scheduling']}; "
            f"{same} of {len(found['outputs'])} outputs as plain; {', '.join(ratios)}"
        )
    step = document["step"]
    lines.append(f"host time of a step: {step.get('whole_ms', step)}")
    return lines


if __name__ == "__main__":
    main()
