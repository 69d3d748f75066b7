"""`specx warm`: corpus rows of every kind, bad ones by line, and a file that an engine with this tokenizer loads."""

import json

import pytest
from stand_ins import complaint
from typer.testing import CliRunner

from drafters import SuffixTreeDrafter, memory_file
from vllm_specx.bench.errors import BenchError
from vllm_specx.cli.main import app
from vllm_specx.memory.namespaces import namespace_of
from vllm_specx.memory.vocabulary import fingerprint_of
from vllm_specx.warm import BadRow, Row, WarmSettings, read_corpus, run_warm

WORDS = {letter: i for i, letter in enumerate("?abcdefgh")}
KEYS = ["rows", "bad_rows", "tokens", "documents", "document_tokens", "bytes"]
ROWS = [
    {"prompt": "a b", "output": "c d e f"},
    {"text": "d e f"},
    {
        "messages": [
            {"role": "assistant", "content": "a"},
            {"role": "user"},
            {"role": "assistant", "content": "g h"},
        ]
    },
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of single letters, as a model folder has it."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tokenizer")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    return path


@pytest.fixture
def arguments(corpus, tokenizer, tmp_path):
    return ["--corpus", corpus, "--tokenizer", tokenizer, "--out", tmp_path / "memory"]


def specx(*arguments):
    return CliRunner().invoke(app, ["warm", *map(str, arguments)])


def texts(path, fingerprint=None):
    """Namespace and tokens of each document in a file."""
    snapshot = memory_file.read(path, fingerprint or fingerprint_of(WORDS))
    ends = snapshot.lengths.cumsum().tolist()
    starts = [0, *ends[:-1]]
    return [
        (snapshot.names[n], snapshot.token_ids[a:b].tolist())
        for n, a, b in zip(snapshot.namespaces.tolist(), starts, ends, strict=True)
    ]


def test_a_file_that_an_engine_loads(arguments, tmp_path):
    result = specx(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert list(found) == KEYS
    assert found == {
        "rows": 3, "bad_rows": 0, "tokens": 9, "documents": 3, "document_tokens": 11,
        "bytes": (tmp_path / "memory").stat().st_size,
    }  # fmt: skip
    assert texts(tmp_path / "memory") == [("", [1, 2, 3, 4, 5, 6]), ("", [4, 5, 6]), ("", [7, 8])]
    drafter = SuffixTreeDrafter(memory_bytes=1 << 20, min_reach=0.0)
    assert drafter.load(tmp_path / "memory", fingerprint=fingerprint_of(WORDS)) == 3
    drafter.start("r", [2, 3, 4])
    assert drafter.propose(["r"], 2)[0].token_ids.tolist() == [5, 6]


def test_lines_of_the_summary(arguments):
    result = specx(*arguments)
    assert [line.rsplit(maxsplit=1)[0].replace(" ", "_") for line in result.stdout.splitlines()] == KEYS


def test_memory_of_a_tenant_and_an_addition(arguments, tmp_path):
    assert specx(*arguments, "--salt", "tenant").exit_code == 0
    mine = namespace_of("tenant", None)
    assert {name for name, _ in texts(tmp_path / "memory")} == {mine}
    assert b"tenant" not in (tmp_path / "memory").read_bytes()
    assert "--append or replace it with --force" in complaint(specx(*arguments))
    assert specx(*arguments, "--append").exit_code == 0
    assert [name for name, _ in texts(tmp_path / "memory")] == [mine] * 3 + [""] * 3
    assert specx(*arguments, "--force").exit_code == 0
    assert {name for name, _ in texts(tmp_path / "memory")} == {""}
    assert "exclude each other" in complaint(specx(*arguments, "--force", "--append"))


def test_append_to_a_file_that_is_no_memory(arguments, tmp_path):
    (tmp_path / "memory").write_text("mine")
    assert "not a draft memory file" in complaint(specx(*arguments, "--append"))
    assert (tmp_path / "memory").read_text() == "mine"


def test_append_to_nothing_makes_a_file(arguments, tmp_path):
    assert specx(*arguments, "--append").exit_code == 0
    assert len(texts(tmp_path / "memory")) == 3


BAD = [
    (b"{", "not JSON: "),
    (b"[1]", "a row must be a JSON object, got list"),
    (b"{}", 'none of "output", "text", "messages" is there'),
    (b'{"id": 1, "prompt": "p"}', 'none of "output"'),
    (b'{"text": 3}', '"text" must be a string, got int'),
    (b'{"output": null}', '"output" must be a string, got NoneType'),
    (b'{"output": "a", "prompt": ["p"]}', '"prompt" must be a string, got list'),
    (b'{"text": "  "}', '"text" is empty'),
    (b'{"text": ""}', '"text" is empty'),
    (b'{"messages": "a"}', '"messages" must be a list of objects'),
    (b'{"messages": ["a"]}', '"messages" must be a list of objects'),
    (b'{"messages": []}', '"messages" has none of the role "assistant"'),
    (b'{"messages": [{"role": "assistant"}]}', '"messages" must be a string, got NoneType'),
    (b'{"text": "\xff"}', "not UTF-8 text (byte 10)"),
    (b'{"text": "x\\ud800"}', '"text" has half a surrogate pair at character 1'),
    (b'{"text": ' + b"9" * 5000 + b"}", "not JSON that can be read"),
    (b"[" * 200_000, "not JSON that can be read"),
]


def test_bad_rows_are_told_by_line_and_the_rest_is_kept(arguments, corpus, tmp_path):
    lines = [b'{"text": "a b c"}', *(line for line, _ in BAD), b"", b'{"text": "b c d"}']
    corpus.write_bytes(b"\n".join(lines))
    result = specx(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["rows"], found["bad_rows"], found["documents"]) == (len(BAD) + 2, len(BAD), 2)
    told = result.stderr.splitlines()
    assert len(told) == len(BAD)
    for number, (line, (_, reason)) in enumerate(zip(told, BAD, strict=True), start=2):
        assert line.startswith(f"specx: {corpus}:{number}: {reason}"), line
    assert texts(tmp_path / "memory") == [("", [1, 2, 3]), ("", [2, 3, 4])]


def test_text_key(corpus):
    corpus.write_text('{"answer": "a b", "output": "c"}\n{"output": "c"}\n')
    assert list(read_corpus(corpus, "answer")) == [Row("a b"), BadRow(f"{corpus}:2", '"answer" is missing')]
    assert [row.text for row in read_corpus(corpus)] == ["c", "c"]


def test_separators_inside_strings_end_no_row(corpus):
    corpus.write_text(
        json.dumps({"text": "a\u2028b\x85c\rd"}, ensure_ascii=False), encoding="utf-8", newline=""
    )
    assert list(read_corpus(corpus)) == [Row("a\u2028b\x85c\rd")]


def test_no_row_that_can_be_used(arguments, corpus, tmp_path):
    for content in ("", "\n", "{}\n"):
        corpus.write_text(content)
        assert "holds no row that can be used" in complaint(specx(*arguments))
    assert not (tmp_path / "memory").exists()


def test_what_fits_stays(corpus, tokenizer, tmp_path):
    corpus.write_text(
        "".join(json.dumps({"text": "a b c d " * 20 + "e " * (i % 7) + "f " * i}) + "\n" for i in range(900))
    )
    settings = {"corpus": corpus, "tokenizer": tokenizer, "out": tmp_path / "memory"}
    result = run_warm(WarmSettings(**settings, memory_bytes=1 << 20), pytest.fail)
    assert result["rows"] == 900 > result["documents"] > 0
    assert texts(tmp_path / "memory")[-1][1].count(WORDS["f"]) == 899


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--memory-bytes": "5"}, "--memory-bytes: specx.memory_bytes must be within"),
        ({"--corpus": "/no/such/file"}, "--corpus /no/such/file: No such file"),
        ({"--corpus": "/"}, "--corpus /: Is a directory"),
        ({"--out": "/no/such/file"}, "the folder /no/such does not exist"),
        ({"--out": "/"}, "it is a folder"),
        ({"--tokenizer": "/no/such"}, "--tokenizer /no/such: must be a folder"),
        ({"--text-key": "t"}, "holds no row that can be used"),
    ],
    ids=str,
)
def test_wrong_options(arguments, changes, said):
    flat = [word for pair in changes.items() for word in pair]
    assert said in complaint(specx(*arguments, *flat))  # of an option given twice the last one counts


def test_a_tokenizer_that_cannot_be_read(arguments, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert "cannot be read" in complaint(specx(*arguments, "--tokenizer", tmp_path))


def test_a_disk_that_is_full(arguments, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vllm_specx.warm.run.memory_file.write", full)
    assert "was not written: [Errno 28]" in complaint(specx(*arguments), code=1)


def test_settings_refuse_early(tokenizer, tmp_path):
    with pytest.raises(BenchError, match="--out"):
        WarmSettings(corpus=tmp_path, tokenizer=tokenizer, out=tmp_path / "no" / "f", memory_bytes=1 << 20)
