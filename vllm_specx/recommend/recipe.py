"""A recommendation as a recipe: a file for `vllm serve --config`, with its reasons in the header."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import yaml

from vllm_specx.bench.document import Row, count, one_line, settings_of
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.methods import Method, engine_options, method_of
from vllm_specx.bench.ranking import Ranked, mean_text, where_text
from vllm_specx.bench.report import notes
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.recommend.choice import Recommendation

_WIDTH: Final = 118
_MOST_RIVALS: Final = 12
_COMMENTS: Final = {
    "dtype": "As measured: another one has other step times.",
    "num_speculative_tokens": "The longest draft, as measured. vLLM reserves room for it in every request.",
}


def recipe(
    document: Mapping[str, Any], rows: Sequence[Row], recommendation: Recommendation, out: Path
) -> str:
    """The text of the recipe; `rows` are the cells that it rests on, `out` is where it will lie.

    Raises:
        BenchError: the method is not known here, or is not configured as it was measured.

    """
    settings = settings_of(document)
    options = _options(document, settings, recommendation.method)
    body: dict[str, Any] = {"model": settings.model}
    if settings.dtype != "auto":
        body["dtype"] = settings.dtype
    if settings.max_model_len is not None:
        body["max-model-len"] = settings.max_model_len
    body |= {name.replace("_", "-"): value for name, value in options.items()}
    header = [*_use(document, rows, recommendation, out), "", *_reasons(document, recommendation)]
    comments = [f"# {line}".rstrip() for line in header]
    dumped = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return "\n".join([*comments, *_commented(dumped.splitlines())]) + "\n"


def _options(document: Mapping[str, Any], settings: BenchSettings, name: str) -> dict[str, Any]:
    try:
        options = engine_options(name, settings)
    except (OSError, ValueError) as error:
        if isinstance(error, BenchError):
            raise
        raise BenchError(
            f"the head for {name!r} is found by the model, and {settings.model!r} cannot be read here: {error}"
        ) from error
    measured = document["methods"][name]
    if _without_paths(measured) != _without_paths(options):
        raise BenchError(
            f"{name!r} was measured with {measured}, and this vllm-specx configures it as {options}: measure again"
        )
    return options


def _without_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """Heads move with the installation: where one lies is no part of what was measured."""
    speculative = options.get("speculative_config")
    if not isinstance(speculative, dict) or "method" not in speculative:
        return dict(options)
    rest = {key: value for key, value in speculative.items() if key != "model"}
    return {**options, "speculative_config": rest}


def _use(
    document: Mapping[str, Any], rows: Sequence[Row], recommendation: Recommendation, out: Path
) -> list[str]:
    origin = document["provenance"]
    engine, machine = origin["engine"], origin["machine"]
    workloads = ", ".join(dict.fromkeys(one_line(row["workload"]) for row in rows))
    concurrency = ", ".join(map(str, sorted({row["concurrency"] for row in rows})))
    device = engine.get("device_name")
    where = machine.get("cpu") if device in (None, "", "cpu") else device
    run = f"vllm serve --config {one_line(shlex.quote(str(out)))}"
    return [
        f"{recommendation.sentence}.",
        "",
        *_entry("For:", f"{workloads}; requests at a time: {concurrency}; on {one_line(where)}."),
        *_entry("Needs:", _needs(method_of(recommendation.method))),
        *_entry("Run:", run),
        *_entry("Override:", f"{run} --max-num-seqs 16"),
    ]


def _needs(method: Method) -> str:
    speculative = method.speculative_config or {}
    is_specx = str(speculative.get("model", "")).startswith("vllm_specx.")
    needs = ["vllm-specx installed beside vLLM" if is_specx else "vLLM", *method.needs]
    if method.head:
        kind = "Medusa heads" if method.head == "option" else "an EAGLE-3 head"
        needs.append(f"{kind} for this model (unless named below, what comes with vllm-specx)")
    return f"{', '.join(needs)}."


def _reasons(document: Mapping[str, Any], recommendation: Recommendation) -> list[str]:
    origin = document["provenance"]
    lines = [
        "Over plain decoding, geometric mean of the cells [95 %]; the cells with the least and the most:"
    ]
    rivals = sorted(recommendation.ranking, key=lambda entry: entry.method != recommendation.method)
    width = max((len(entry.method) for entry in rivals), default=0)
    lines += [_line(entry, width) for entry in rivals[:_MOST_RIVALS]]
    if len(rivals) > _MOST_RIVALS:
        lines.append(f"  and {count(len(rivals) - _MOST_RIVALS, 'method')} with less")
    said = [
        *notes(document),
        f"measured in vLLM's eager mode, in {one_line(origin['engine']['dtype'])}, {one_line(origin['time'])}, by",
    ]
    for note in said:
        lines += wrap(one_line(note), _WIDTH - 4, initial_indent="- ", subsequent_indent="  ")
    return lines + _wrapped(one_line(shlex.join(origin["command"])), "    ")


def _line(entry: Ranked, width: int) -> str:
    least, most = (
        choose(entry.rows, key=lambda row: row["ratio"]["geometric_mean"]) for choose in (min, max)
    )
    cells = ", ".join(f"{mean_text(row['ratio'])} {where_text(row)}" for row in (least, most))
    return f"  {one_line(entry.method):{width}}  {entry.text}; {cells}"


def _entry(name: str, text: str) -> list[str]:
    first, *more = _wrapped(text, " " * 11)
    return [f"{name:11}{first.lstrip()}", *more]


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(
        text,
        _WIDTH - 2,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _commented(lines: Sequence[str]) -> list[str]:
    commented: list[str] = []
    for line in lines:
        key = line.strip().partition(":")[0]
        if key in _COMMENTS:
            commented.append(f"{line[: len(line) - len(line.lstrip())]}# {_COMMENTS[key]}")
        commented.append(line)
    return commented
