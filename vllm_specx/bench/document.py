"""The file that `specx bench --json` writes, read back and checked; and files made from it, written whole."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, Final

from vllm_specx.bench.cells import MEASURES
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.methods import BASELINE
from vllm_specx.bench.report import check_writable, write_text
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.bench.stats import paired_ratio

FORMAT: Final = 1

Row = Mapping[str, Any]  # an entry of "summary"

_NUMBER: Final = (int, float)
_ROW: Final = {
    "workload": str,
    "concurrency": int,
    "phase": str,
    "method": str,
    **dict.fromkeys(MEASURES, (*_NUMBER, NoneType)),
    "ratio": {"values": [_NUMBER]},
    **dict.fromkeys(("identical", "compared", "num_preemptions", "faults"), int),
    "lengths_over_time": [_NUMBER],
    "kept": [[_NUMBER]],
}
_NOT_THERE: Final[dict[str, Any]] = {"lengths_over_time": [], "kept": []}  # in older files
# What readers rely on: a type or several, a mapping with these keys at least, or a list of one shape.
_SHAPE: Final = {
    "complete": bool,
    "provenance": {"command": [str], "time": str, "machine": dict, "engine": {"dtype": str}},
    "settings": {"model": str, "prompts": dict, "natural": bool, "warm": bool, "repeats": int},
    "methods": dict,
    "left_out": dict,
    "summary": [_ROW],
}
_LARGEST: Final = 1e15  # of any number; formatting and sums stay finite
_RATIOS: Final = (1e-6, 1e6)


def read_document(path: Path) -> dict[str, Any]:
    """Read and check a file of `specx bench --json`.

    Every cell then holds the same methods, the baseline among them, over the same repeats; each row's "ratio" is made
    anew from its values.

    Raises:
        BenchError: it cannot be read, or is something else; one line that names it.

    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()  # no NaN, no half characters
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path}: not JSON, or cut off: {error}") from error
    wanted = f"{path}: not a file of `specx bench --json`"
    if not isinstance(document, dict) or "summary" not in document or "format" not in document:
        raise BenchError(f'{wanted}: "format" and "summary" are missing')
    if type(document["format"]) is not int or document["format"] != FORMAT:
        raise BenchError(f"{path}: has format {document['format']!r}, and only {FORMAT} is known")
    for row in document["summary"] if isinstance(document["summary"], list) else ():
        if isinstance(row, dict):
            row |= {name: value for name, value in _NOT_THERE.items() if not row.get(name)}
    try:
        _check(document, _SHAPE, "")
        _check_cells(document)
    except BenchError as error:
        raise BenchError(f"{wanted}: {error}") from error
    for row in document["summary"]:
        values = row["ratio"]["values"]
        row["ratio"] = asdict(paired_ratio(values, [1.0] * len(values)))
    return document


def settings_of(document: Mapping[str, Any]) -> BenchSettings:
    """The settings that a document was measured with. Raises BenchError."""
    known = {field.name for field in fields(BenchSettings)}
    given = {name: value for name, value in document["settings"].items() if name in known}
    for name in ("methods", "concurrency"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    try:
        given["prompts"] = {name: Path(path) for name, path in given["prompts"].items()}
        return BenchSettings(**given)
    except (TypeError, BenchError) as error:
        raise BenchError(f"the settings in the file: {error}") from error


def check_out(out: Path, sources: Sequence[Path], force: bool, flag: str = "--out") -> None:
    """Refuse an output that could not be written, or would replace what it must not. Raises BenchError."""
    try:
        check_writable(out, flag)
        if not out.exists():
            return
        if any(source.exists() and out.samefile(source) for source in sources):
            raise BenchError(f"{flag} {out}: is {'the' if len(sources) == 1 else 'a'} file that is read")
        if not out.is_file():
            raise BenchError(f"{flag} {out}: is not a regular file")
    except OSError as error:
        raise BenchError(f"{flag} {out}: {error.strerror or error}") from error
    if not force:
        raise BenchError(f"{flag} {out} exists: replace it with --force")


def write_out(out: Path, text: str) -> None:
    """Write the whole file or nothing. Raises BenchError."""
    try:
        write_text(out, text)
    except OSError as error:
        raise BenchError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def one_line(text: object) -> str:
    """Text of a file on one line, without control characters: it ends no comment and turns no line around."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(str(text).split()))


def count(number: int, thing: str) -> str:
    """'1 cell', '2 cells'."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _check(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, dict):
        _check(value, dict, where)
        for key, inner in shape.items():
            name = f"{where}.{key}" if where else key
            if key not in value:
                raise BenchError(f"{name} is missing")
            _check(value[key], inner, name)
    elif isinstance(shape, list):
        _check(value, list, where)
        for number, item in enumerate(value):
            _check(item, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        raise BenchError(f"{where} cannot be {_short(value)}")
    elif isinstance(value, _NUMBER) and abs(value) > _LARGEST:
        raise BenchError(f"{where} is beyond {_LARGEST:g}")


def _check_cells(document: Mapping[str, Any]) -> None:
    cells: dict[tuple[str, int, str], dict[str, int]] = {}
    for row in document["summary"]:
        key, method, values = cell_of(row), row["method"], row["ratio"]["values"]
        where = f"{method!r} in {row['workload']} at {row['concurrency']}"
        if method not in document["methods"]:
            raise BenchError(f"methods: {method!r} is missing")
        if not isinstance(document["methods"][method], dict):
            raise BenchError(f"methods: {method!r} is not an object")
        if method in cells.setdefault(key, {}):
            raise BenchError(f"summary: {where} is there twice")
        if len(row["kept"]) not in (0, 3) or len({*map(len, row["kept"])}) > 1:
            raise BenchError(f'summary: {where} has a "kept" that is not three rows of one length')
        if not all(_RATIOS[0] <= value <= _RATIOS[1] for value in values):
            raise BenchError(f"summary: {where} has a ratio beyond {_RATIOS[0]:g} to {_RATIOS[1]:g}")
        cells[key][method] = len(values)
    if not cells:
        raise BenchError("summary: no cell was measured")
    methods = next(iter(cells.values())).keys()
    if BASELINE not in methods or any(cell.keys() != methods for cell in cells.values()):
        raise BenchError(f"summary: every cell must hold the same methods, {BASELINE!r} among them")
    numbers = {number for cell in cells.values() for number in cell.values()}
    if len(numbers) != 1 or 0 in numbers:
        raise BenchError("summary: every cell must hold the same number of repeats")


def cell_of(row: Row) -> tuple[str, int, str]:
    """(workload, concurrency, phase): what is compared within."""
    return row["workload"], row["concurrency"], row["phase"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
