"""One calibration, from settings to the file."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.calibrate.engine import serve
from vllm_specx.calibrate.measure import Measured, Tell
from vllm_specx.calibrate.settings import CalibrateSettings, check_model
from vllm_specx.tuner import CostTable

_STOP_SECONDS = 20


def run_calibrate(settings: CalibrateSettings, origin: Mapping[str, Any], tell: Tell) -> CostTable:
    """Measure and write the file.

    Args:
        settings: what to measure.
        origin: where the numbers come from; goes into the table's source.
        tell: called as work starts, with what it is, how much is done and how much there is.

    Raises:
        BenchError: the model cannot be loaded, or is too short for the prompts.
        EngineFailed: the engine did not start, died, or could not do what was to be measured; or the file cannot be
            written.

    """
    check_model(settings.model)
    folder = Path(mkdtemp(prefix="specx-calibrate-"))
    log_path = folder / "engine.log"
    keep_log = False
    try:
        measured, facts = _measure(settings, tell, log_path)
    except EngineFailed:
        keep_log = True  # its message points there
        raise
    finally:
        if not keep_log:
            shutil.rmtree(folder)
    table = CostTable(
        np.array(settings.batch),
        np.array(settings.drafts),
        measured.seconds,
        _source(settings, origin, measured, facts),
    )
    try:
        table.save(settings.out)
    except OSError as error:
        raise EngineFailed(f"--out {settings.out}: cannot be written: {error.strerror or error}") from error
    return table


def _source(
    settings: CalibrateSettings, origin: Mapping[str, Any], measured: Measured, facts: Mapping[str, Any]
) -> dict[str, Any]:
    told = {name: value for name, value in asdict(settings).items() if name not in ("out", "force")}
    return {
        "what": "medians of whole-step times, from propose to propose, without prefill; eager mode",
        **origin,
        "settings": told,
        "engine": dict(facts),
        "num_steps": measured.num_steps,
        "relative_quartile_distance": measured.spread.round(4).tolist(),
    }


def _measure(settings: CalibrateSettings, tell: Tell, log_path: Path) -> tuple[Measured, dict[str, Any]]:
    tell("starting the engine", 0, len(settings.batch) * len(settings.drafts) * settings.repeats)
    # Spawned, not forked: the engine must import torch and bind its threads by itself.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=serve, args=(theirs, settings, str(log_path)), name="specx-calibrate", daemon=True
    )
    process.start()
    theirs.close()
    try:
        while True:
            kind, value = ours.recv()
            if kind == "progress":
                tell(*value)
            elif kind == "done":
                measured, facts = value
                return measured, facts
            elif kind == "bad_input":
                raise BenchError(value)
            else:
                raise EngineFailed(f"the engine failed: {value} (log: {log_path})")
    except (EOFError, OSError) as error:
        process.join(_STOP_SECONDS)
        raise EngineFailed(f"the engine died (exit code {process.exitcode}; log: {log_path})") from error
    except KeyboardInterrupt:
        process.kill()
        raise
    finally:
        with suppress(OSError):
            ours.close()
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
