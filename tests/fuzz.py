"""The long run of the fuzzers: `make fuzz`, or `python tests/fuzz.py --operations 100000 --format-minutes 1`.

Runs are added to the JSON file if it exists, so that long ones may be made in slices. What fails is written to the
folder of crashes, with the command that repeats it:

    python tests/fuzz.py --drafter "suffix tree" --seed 3 --life 17
    python tests/fuzz.py --target "cost table" --seed 3000017
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from resource import RLIMIT_DATA, RUSAGE_SELF, getrusage, setrlimit
from typing import Any, Final

import fuzz_drafters
import fuzz_formats
from fuzz_formats import Counts, Target

from vllm_specx.bench.provenance import provenance

EXAMPLES: Final = 300  # inputs of a target before the next one has its turn
SEEDS: Final = 1_000_000  # of one run: two runs with seeds of their own share none
MOST_BYTES: Final = 8 << 30  # of the process: what asks for more fails here, not the machine
_TENANTS: Final = 2


class Crashes:
    """What failed, in a folder: a file for each, with the command that repeats it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[str] = []

    @contextlib.contextmanager
    def kept(self, name: str, repeat: Callable[[], str], value: Callable[[], Any] = lambda: None) -> Any:
        """Write down what is raised; go on."""
        try:
            yield
        except Exception as error:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{name.replace(' ', '-')}-{len(self.found)}.txt"
            given = value()
            text = f"{repeat()}\n\n{''.join(traceback.format_exception(error))[-20_000:]}\n\n"
            path.write_text(text + _shown(given), encoding="utf-8", errors="backslashreplace")
            self.found.append(f"{name}: {type(error).__name__}: {str(error)[:200]} ({path})")
            print(f"FAILED {self.found[-1]}", file=sys.stderr)


def _shown(value: Any) -> str:
    try:
        return ascii(value)
    except ValueError:  # numbers that Python does not write
        return f"{type(value).__name__}, not shown"


def fuzz_lives(operations: int, seed: int, crashes: Crashes) -> dict[str, Any]:
    """Every kind of drafter has its third of the operations."""
    found = {}
    for kind in fuzz_drafters.KINDS:
        begin, cpu, counts = time.monotonic(), time.thread_time(), Counter[str]()
        slowest = dict.fromkeys(fuzz_drafters.OPERATIONS, 0.0)
        number = 0
        with crashes.kept(kind, lambda kind=kind: f"python tests/fuzz.py --drafter {kind!r} --seed {seed}"):
            for of_life, slow in fuzz_drafters.lives(kind, operations // len(fuzz_drafters.KINDS), seed):
                number += 1
                slowest = {name: max(most, slow[name]) for name, most in slowest.items()}
                counts += of_life
        wall = time.monotonic() - begin
        num = sum(counts[name] for name in fuzz_drafters.OPERATIONS)
        found[kind] = {
            "lives": number, "operations": num, "seconds": round(wall, 1), "per_s": round(num / wall),
            "us_per_token": round(1e6 * (time.thread_time() - cpu) / max(1, counts["tokens observed"]), 2),
            "slowest_ms": slowest, "counts": dict(counts),
        }  # fmt: skip
        print(
            f"{kind:24} {num:>10,} operations in {number} lives, {num / wall:,.0f}/s, "
            f"{counts['tokens observed']:,} tokens, slowest: "
            + ", ".join(f"{name} {most:.1f} ms" for name, most in slowest.items() if most >= 1.0),
            flush=True,
        )
    return found


def fuzz_hard_texts(crashes: Crashes, length: int = fuzz_drafters.STREAM) -> dict[str, Any]:
    """Every kind of drafter reads every hard text aloud, alone and with a second tenant that says the same."""
    found: dict[str, Any] = {}
    for kind in fuzz_drafters.KINDS:
        for name, make in fuzz_drafters.STREAMS.items():
            for tenants in (1, _TENANTS):
                label = f"{kind}, {name}, tenants: {tenants}"
                with crashes.kept(label, lambda: "python tests/fuzz.py --operations 3 --format-minutes 0"):
                    found[label] = fuzz_drafters.read_aloud(kind, make(length), tenants)
    for label, result in found.items():
        windows = result["us_per_token"]
        print(
            f"{label:44} {windows[0]:7.2f} us a token at first, {windows[-1]:7.2f} at last, "
            f"a prompt {result['prompt_us_per_token']:.2f}, {result['bytes'] / 2**20:.1f} MiB"
        )
    return found


def fuzz_targets(minutes: float, seed: int, crashes: Crashes) -> dict[str, Any]:
    """All formats in turn, as long as there is time. A target that failed is left out from then on."""
    counts = {target.name: Counts() for target in fuzz_formats.TARGETS}
    begin, left, slice_ = time.monotonic(), list(fuzz_formats.TARGETS), 0
    deadline = begin + 60 * minutes
    with tempfile.TemporaryDirectory(dir=_memory_disk()) as folder:
        while left and time.monotonic() < deadline:
            number = seed * SEEDS + slice_
            for target in list(left):
                if time.monotonic() >= deadline:
                    break
                failed = len(crashes.found)
                run_target(target, number, Path(folder), counts[target.name], crashes)
                if len(crashes.found) > failed:
                    left.remove(target)
            slice_ += 1
    for name, of_target in counts.items():
        print(
            f"{name:24} {of_target.inputs:>9,} inputs, {of_target.taken:,} taken, "
            f"{of_target.inputs / max(1e-9, of_target.cpu_s):,.0f}/s of CPU time, "
            f"slowest {of_target.slowest_ms:.1f} ms (--seed {of_target.slowest_seed})"
        )
    seconds = time.monotonic() - begin
    total = sum(of_target.inputs for of_target in counts.values())
    print(f"{'all formats':24} {total:>9,} inputs in {seconds:.0f} s, {total / max(seconds, 1e-9):,.0f}/s")
    kept = {name: asdict(of_target) | {"failing": None} for name, of_target in counts.items()}
    return {"seconds": round(seconds, 1), "inputs": total, "targets": kept}


def run_target(target: Target, number: int, folder: Path, counts: Counts, crashes: Crashes) -> None:
    """One turn of a target, which a seed repeats."""
    repeat = f"python tests/fuzz.py --target {target.name!r} --seed {number}"
    with crashes.kept(target.name, lambda: repeat, lambda: counts.failing):
        fuzz_formats.fuzz(target, number, EXAMPLES, folder, counts)


def _memory_disk() -> str | None:
    """Where files cost no disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def totals(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several runs."""
    formats = [run["formats"] for run in runs if run["formats"]]
    return {
        "drafter_operations": sum(kind["operations"] for run in runs for kind in run["lives"].values()),
        "tokens": sum(
            kind["counts"].get("tokens observed", 0) for run in runs for kind in run["lives"].values()
        ),
        "hard_texts": sum(len(run["hard_texts"]) for run in runs),
        "format_inputs": sum(part["inputs"] for part in formats),
        "format_minutes": round(sum(part["seconds"] for part in formats) / 60, 1),
        "slowest_input_ms": max(
            (target["slowest_ms"] for part in formats for target in part["targets"].values()), default=0.0
        ),
        "crashes": sum(len(run["crashes"]) for run in runs),
        "max_rss_mib": max(run["max_rss_mib"] for run in runs),
    }


def main() -> int:
    """Fuzz, print, write; 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=100_000, help="of drafters")
    parser.add_argument("--format-minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file to which this run is added")
    parser.add_argument("--crashes", type=Path, default=Path("results/crashes"), help="folder")
    parser.add_argument("--drafter", choices=fuzz_drafters.KINDS, help="repeat one life of it")
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument(
        "--target", choices=[target.name for target in fuzz_formats.TARGETS], help="repeat one turn"
    )
    options = parser.parse_args()
    setrlimit(RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    gc.freeze()  # what is imported is no drafter's garbage
    logging.disable(logging.WARNING)  # each damaged store is told of
    warnings.simplefilter("error", RuntimeWarning)
    if options.drafter:
        print(next(fuzz_drafters.lives(options.drafter, 5000, options.seed, options.life)))
        return 0
    for kind in fuzz_drafters.KINDS:  # compiles what no limit of time is meant for
        next(fuzz_drafters.lives(kind, 500, 0, 0))
    crashes = Crashes(options.crashes)
    if options.target:
        (target,) = (target for target in fuzz_formats.TARGETS if target.name == options.target)
        with tempfile.TemporaryDirectory(dir=_memory_disk()) as folder:
            run_target(target, options.seed, Path(folder), counts := Counts(), crashes)
        print(f"{counts.inputs} inputs, {counts.taken} taken, slowest {counts.slowest_ms:.1f} ms")
        return int(bool(crashes.found))
    run = {
        "provenance": provenance(["python", *sys.argv]),
        "seed": options.seed,
        "lives": fuzz_lives(options.operations, options.seed, crashes) if options.operations else {},
        "hard_texts": fuzz_hard_texts(crashes) if options.operations else {},
        "formats": fuzz_targets(options.format_minutes, options.seed, crashes)
        if options.format_minutes
        else {},
        "crashes": crashes.found,
        "max_rss_mib": getrusage(RUSAGE_SELF).ru_maxrss >> 10,
    }
    runs = [run]
    if options.json is not None:
        if options.json.exists():
            runs = [*json.loads(options.json.read_text(encoding="utf-8"))["runs"], run]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"totals": totals(runs), "runs": runs}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(totals(runs)))
    return int(bool(crashes.found))


if __name__ == "__main__":
    sys.exit(main())
