"""`specx replay`: trace files, the tokenizer, and one line with exit code 2 for whatever is wrong with them."""

import json
import sys

import pytest
from letters import save_tokenizer
from stand_ins import only_complaint as complaint
from typer.testing import CliRunner

from vllm_specx.bench.errors import BenchError
from vllm_specx.cli.main import app
from vllm_specx.replay import load_traces
from vllm_specx.replay.traces import read_rows

ROW = {"id": "a", "prompt": "a b c d e f", "output": "a b c d e f"}
KEYS = [
    "steps",
    "tokens_per_step",
    "draft_per_step",
    "accept_rate",
    "speedup",
    "us_per_step",
    "calibration_error",
    "brier_skill",
]


@pytest.fixture
def traces(tmp_path):
    path = tmp_path / "words.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n")
    return path


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer of single letters."""
    save_tokenizer(tmp_path)
    return tmp_path


def specx(*arguments):
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


@pytest.mark.parametrize("drafter", ["suffix-tree", "prompt-lookup", "oracle"])
def test_json_is_one_object(traces, tokenizer, drafter):
    result = specx("--traces", traces, "--tokenizer", tokenizer, "--drafter", drafter, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert list(found) == KEYS
    if drafter == "prompt-lookup":
        assert (found["steps"], found["speedup"], found["calibration_error"]) == (2, 2.0, None)


def test_options_reach_the_formula(traces, tokenizer):
    base = ["--traces", traces, "--tokenizer", tokenizer, "--drafter", "oracle", "--json"]
    result = specx(*base, "--options", '{"n": 2}', "--alpha", "0.25", "--draft-cost", "0.5", "--max-n", "2")
    assert json.loads(result.stdout)["speedup"] == 1.25  # 5 tokens; 2 steps of 1 + 0.5, 4 drafts of 0.25


def test_table(traces, tokenizer):
    result = specx("--traces", traces, "--tokenizer", tokenizer, "--drafter", "prompt-lookup")
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    assert lines[0] == "words.jsonl, prompt-lookup, alpha 0.1"
    assert [line.rsplit(maxsplit=1)[0].replace(" ", "_") for line in lines[1:]] == KEYS
    assert lines[5].split() == ["speedup", "2.0"]
    assert lines[7].split() == ["calibration", "error", "-"]


def test_rows_are_cut(traces, tokenizer):
    rows = [
        {"id": 1, "prompt": "b " * 5 + "a " * 3000, "output": "c " * 600 + "d " * 9, "more": None},
        {"id": "two tokens", "prompt": "a", "output": "b c"},
        {"id": "three", "prompt": "", "output": "b c d"},
    ]
    traces.write_text("\n".join(map(json.dumps, rows)))
    long, short = load_traces(traces, tokenizer)
    assert (long.id, set(long.prompt_ids), len(long.prompt_ids)) == ("1", {1}, 3000)
    assert (set(long.output_ids), len(long.output_ids)) == ({3}, 600)
    assert (short.id, short.prompt_ids, short.output_ids) == ("three", [], [2, 3, 4])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object, got list"),
        (b'{"id": "b", "prompt": "p"}', '"output" is missing'),
        (b'{"prompt": "p", "output": "o"}', '"id" is missing'),
        (b'{"id": null, "prompt": "p", "output": "o"}', '"id" must be a string or a whole number, got null'),
        (b'{"id": 1, "prompt": ["p"], "output": "o"}', '"prompt" must be a string, got list'),
        (b'{"id": 1, "prompt": "p", "output": null}', '"output" must be a string, got NoneType'),
        (b'{"id": 1, "prompt": "p", "output": "\xff"}', "not UTF-8 text (byte 36)"),
        (b'{"id": 1, "prompt": "p", "output": "x\\ud800"}', '"output" has half a surrogate pair'),
        (b'{"id": ' + b"9" * 5000 + b"}", "not JSON that can be read"),
        (b"[" * 200_000, "not JSON that can be read"),
    ],
    ids=range(11),
)
def test_bad_row_is_named(traces, line, said):
    traces.write_bytes(json.dumps(ROW).encode() + b"\n" + line + b"\n{}\n")
    with pytest.raises(BenchError) as caught:
        read_rows(traces)
    assert str(caught.value).startswith(f"{traces}:2: ")
    assert said in str(caught.value)
    assert str(caught.value).endswith("(and 1 more bad rows)")


def test_separators_inside_strings_end_no_row(traces):
    row = {**ROW, "output": "a\u2028b\x85c\rd"}
    traces.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8", newline="")
    assert [found["output"] for found in read_rows(traces)] == [row["output"]]


def test_bad_row_on_the_command_line(traces, tokenizer):
    traces.write_text('{"id": 1}\n')
    assert f"{traces}:1: " in complaint(specx("--traces", traces, "--tokenizer", tokenizer))


def test_files_that_are_not_there_or_hold_nothing(traces, tokenizer, tmp_path):
    assert "No such file" in complaint(specx("--traces", tmp_path / "no", "--tokenizer", tokenizer))
    assert "directory" in complaint(specx("--traces", tmp_path, "--tokenizer", tokenizer))
    assert "tokenizer.json" in complaint(specx("--traces", traces, "--tokenizer", tmp_path / "no"))
    traces.write_text("\n")
    assert "holds no rows" in complaint(specx("--traces", traces, "--tokenizer", tokenizer))
    traces.write_text(json.dumps({**ROW, "output": "a b"}))
    assert "3 tokens or more" in complaint(specx("--traces", traces, "--tokenizer", tokenizer))
    (tokenizer / "tokenizer.json").write_text("{}")
    assert "cannot be read" in complaint(specx("--traces", traces, "--tokenizer", tokenizer))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--alpha", "x"], "--alpha"),
        (["--alpha", "inf"], "--alpha"),
        (["--max-n", "0"], "--max-n"),
        (["--draft-cost", "-1"], "--draft-cost"),
        (["--drafter", "artic"], "did you mean 'arctic'?"),
        (["--options", "{"], "--options is not JSON"),
        (["--options", "[1]"], "--options must be a JSON object"),
        (["--options", "[" * 50_000], "--options is not JSON"),
        (["--options", '{"n": 1}'], "suffix-tree takes none"),
        (["--jsn"], "--jsn"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_options(traces, tmp_path, arguments, said):
    assert said in complaint(specx("--traces", traces, "--tokenizer", tmp_path, *arguments))


@pytest.mark.parametrize("missing", ["--traces", "--tokenizer"])
def test_missing_options(traces, missing):
    given = {"--traces": traces, "--tokenizer": traces.parent}
    del given[missing]
    assert missing in complaint(specx(*(word for pair in given.items() for word in pair)))


def test_without_the_package_of_a_peer(traces, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    line = complaint(specx("--traces", traces, "--tokenizer", tokenizer, "--drafter", "arctic"))
    assert "arctic-inference" in line
    assert "`make arctic` installs it" in line


def test_without_the_tokenizers_package(traces, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    line = complaint(specx("--traces", traces, "--tokenizer", tmp_path))
    assert "pip install tokenizers" in line
