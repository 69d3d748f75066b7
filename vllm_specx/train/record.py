"""The first half of a training: a process of its own in which the target writes conversations and is recorded."""

import os
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drafters.recordings import Recordings, write_atomically
from vllm_specx.bench.engine import settle
from vllm_specx.bench.errors import BenchError, EngineFailed
from vllm_specx.bench.runner import Tell
from vllm_specx.cluster import spread
from vllm_specx.train.settings import TrainSettings

PER_SHARD = 256
_STOP_SECONDS = 20


def record(settings: TrainSettings, tell: Tell) -> Recordings:
    """Record what is missing of the conversations that the settings ask for; a run that was stopped goes on.

    Raises:
        BenchError: the model has no chat template, or the folder holds recordings of other settings.
        EngineFailed: the engine failed, or a shard could not be written.

    """
    recordings = open_recordings(settings)
    if _num_missing(recordings, settings) == 0:
        return recordings
    if settings.ray:
        _record_on_ray(settings, recordings, tell)
        return recordings
    log = settings.work_folder / "engine.log"
    context = get_context("spawn")  # the engine must import torch and bind its threads by itself
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, settings, str(log)), name="specx-record", daemon=True
    )
    process.start()
    theirs.close()
    try:
        while (message := ours.recv())[0] == "progress":
            tell(*message[1:])
    except (EOFError, OSError) as error:
        process.join(_STOP_SECONDS)
        raise EngineFailed(f"the engine died (exit code {process.exitcode}; log: {log})") from error
    finally:
        ours.close()
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    if message[0] == "bad_input":
        raise BenchError(message[1])
    if message[0] == "failed":
        raise EngineFailed(f"the engine failed: {message[1]} (log: {log})")
    return recordings


def _record_on_ray(settings: TrainSettings, recordings: Recordings, tell: Tell) -> None:
    total = settings.conversations
    numbers = [number for number in range(-(-total // PER_SHARD)) if not recordings.path(number).exists()]
    sizes = [min(PER_SHARD, total - PER_SHARD * number) for number in numbers]
    num_done = total - sum(sizes)

    def done(index: int, node: str, content: bytes) -> None:
        nonlocal num_done
        write_atomically(recordings.path(numbers[index]), content)
        num_done += sizes[index]
        tell(f"the model writes conversations on {node}", num_done, total)

    tell("looking for nodes", num_done, total)
    spread(_shard, [(settings, PER_SHARD * k, size) for k, size in zip(numbers, sizes, strict=True)], done)


def _shard(settings: TrainSettings, first: int, number: int) -> bytes:
    """On a node: the file of one shard."""
    from vllm_specx.train.engine import RecordingEngine
    from vllm_specx.train.generate import Template, conversations, max_len

    with TemporaryDirectory() as folder:
        settle(os.devnull, None)
        template = Template.of(settings.model)
        length = max_len(template, settings.answer_tokens)
        engine = RecordingEngine(
            settings.model, settings.dtype, length, settings.slots, settings.seed + first
        )
        written = list(conversations(engine, template, settings, first, number))
        return Recordings(Path(folder), {}).add(written, engine.layers).read_bytes()


def open_recordings(settings: TrainSettings) -> Recordings:
    """The recordings of these settings. Raises BenchError if the folder holds others."""
    from drafters.recordings import RecordingError

    origin = {
        "model": Path(settings.model).name,
        **{
            name: getattr(settings, name)
            for name in ("answer_tokens", "greedy_share", "temperature", "seed", "dtype")
        },
    }
    try:
        return Recordings(settings.work_folder / "recordings", origin)
    except RecordingError as error:
        raise BenchError(f"--work: {error}") from error
    except OSError as error:
        raise BenchError(f"--work {settings.work_folder}: {error.strerror or error}") from error


def _num_missing(recordings: Recordings, settings: TrainSettings) -> int:
    return max(0, settings.conversations - PER_SHARD * len(recordings.shards))


def _serve(connection: Connection, settings: TrainSettings, log_path: str) -> None:
    settle(log_path, None)
    try:
        from vllm_specx.train.engine import RecordingEngine
        from vllm_specx.train.generate import Template, conversations, max_len

        template = Template.of(settings.model)
        recordings = open_recordings(settings)
        total = settings.conversations
        connection.send(
            ("progress", "starting the engine", total - _num_missing(recordings, settings), total)
        )
        engine = RecordingEngine(
            settings.model,
            settings.dtype,
            max_len(template, settings.answer_tokens),
            settings.slots,
            settings.seed,
        )
        written: list[Any] = []
        missing = _num_missing(recordings, settings)
        for conversation in conversations(engine, template, settings, total - missing, missing):
            written.append(conversation)
            done = PER_SHARD * len(recordings.shards) + len(written)
            if len(written) == PER_SHARD or done >= total:
                recordings.add(written, engine.layers)
                written = []
            connection.send(("progress", "the model writes conversations", min(done, total), total))
        connection.send(("done",))
    except (EOFError, KeyboardInterrupt):
        return
    except BenchError as error:
        connection.send(("bad_input", str(error)))
    except BaseException as error:
        traceback.print_exc()
        connection.send(("failed", f"{type(error).__name__}: {error}"))
