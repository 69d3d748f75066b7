"""Prompt files: both row forms, and every fault named by file and line."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.prompts import read_prompts, workloads

GOOD = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7}
SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["first", "second"]}


def write(tmp_path, *lines):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_both_forms(tmp_path):
    path = write(tmp_path, GOOD, "", SPEC_BENCH)
    ours, theirs = read_prompts(path, max_tokens=99)
    assert (ours.id, ours.max_tokens, ours.where) == ("a", 7, f"{path}:1")
    assert ours.messages == ({"role": "user", "content": "hi"},)
    assert (theirs.id, theirs.max_tokens, theirs.where) == ("81", 99, f"{path}:3")
    assert theirs.messages == ({"role": "user", "content": "first"},)


def test_missing_cap_takes_the_default(tmp_path):
    row = {key: GOOD[key] for key in ("id", "messages")}
    assert read_prompts(write(tmp_path, row), max_tokens=33)[0].max_tokens == 33


def test_line_separators_inside_strings_do_not_split_rows(tmp_path):
    row = {**GOOD, "messages": [{"role": "user", "content": "one\u2028two\x85three"}]}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_prompts(path)[0].messages[0]["content"] == "one\u2028two\x85three"


def test_limit_keeps_the_first_rows_but_checks_all(tmp_path):
    rows = [{**GOOD, "id": str(number)} for number in range(5)]
    assert [prompt.id for prompt in read_prompts(write(tmp_path, *rows), limit=2)] == ["0", "1"]
    with pytest.raises(BenchError, match=r":6: "):
        read_prompts(write(tmp_path, *rows, "{"), limit=2)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{oops", "not JSON"),
        ("[1]", "must be a JSON object, got list"),
        ({"messages": GOOD["messages"]}, '"id" is missing'),
        ({"id": "b"}, '"messages" is missing'),
        ({**GOOD, "id": ""}, '"id" must be'),
        ({**GOOD, "id": True}, '"id" must be'),
        ({**GOOD, "id": 1.5}, '"id" must be'),
        ({**GOOD, "id": "b", "messages": []}, '"messages" must be'),
        ({**GOOD, "id": "b", "messages": "hi"}, '"messages" must be'),
        ({**GOOD, "id": "b", "messages": [{"role": "user"}]}, '"messages" must be'),
        ({**GOOD, "id": "b", "messages": [{"role": "user", "content": 3}]}, '"messages" must be'),
        ({**GOOD, "id": "b", "max_tokens": 0}, '"max_tokens" must be'),
        ({**GOOD, "id": "b", "max_tokens": 2.5}, '"max_tokens" must be'),
        ({**GOOD, "id": "b", "max_tokens": True}, '"max_tokens" must be'),
        ({**GOOD, "id": "b", "max_tokens": None}, '"max_tokens" must be'),
        (GOOD, "was used before, in"),
        ({"turns": ["x"]}, '"question_id" is missing'),
        ({"question_id": 1, "turns": []}, '"turns" must be'),
        ({"question_id": 1, "turns": "x"}, '"turns" must be'),
        ({"question_id": 1, "turns": [""]}, '"turns" must be'),
    ],
)
def test_bad_row_is_named_by_file_and_line(tmp_path, row, complaint):
    path = write(tmp_path, GOOD, "", row)
    with pytest.raises(BenchError) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert complaint in str(caught.value)


def test_further_bad_rows_are_counted(tmp_path):
    with pytest.raises(BenchError, match=r"rows\.jsonl:2: .*\(and 2 more bad rows\)"):
        read_prompts(write(tmp_path, GOOD, "{", "{", "{"))


def test_bad_files(tmp_path):
    with pytest.raises(BenchError, match="No such file"):
        read_prompts(tmp_path / "nowhere.jsonl")
    with pytest.raises(BenchError, match="directory"):
        read_prompts(tmp_path)
    with pytest.raises(BenchError, match="holds no rows"):
        read_prompts(write(tmp_path, "", " "))
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b'{"id": "\xff"}')
    with pytest.raises(BenchError, match="not UTF-8"):
        read_prompts(binary)


def test_workloads_are_named_by_stem():
    assert workloads([Path("x/chat.jsonl"), Path("math.jsonl")]) == {
        "chat": Path("x/chat.jsonl"),
        "math": Path("math.jsonl"),
    }
    with pytest.raises(BenchError, match="two files named 'chat'"):
        workloads([Path("x/chat.jsonl"), Path("y/chat.jsonl")])


@pytest.mark.parametrize("name", ["code_edit", "structured", "chat"])
def test_our_own_workloads_are_good(name):
    prompts = read_prompts(Path(str(files("vllm_specx.demo") / "workloads" / f"{name}.jsonl")))
    assert len(prompts) == 8
    assert all(60 <= prompt.max_tokens <= 160 for prompt in prompts)
