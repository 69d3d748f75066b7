"""`specx simulate`: what it prints and writes, and one line with exit code 2 for whatever is wrong."""

import json

import pytest
from letters import save_tokenizer
from simulated import flat_table, line_table
from stand_ins import only_complaint
from typer.testing import CliRunner

from vllm_specx.cli.main import app
from vllm_specx.simulate.run import FORMAT

OUTPUTS = ("a b c d e f a b c d e f", "a c b d d a c a f e b b", "b c d e f a b", "e f a b c d e f")


@pytest.fixture
def folder(tmp_path):
    """A tokenizer of single letters, traces with times, and a table."""
    save_tokenizer(tmp_path)
    rows = [{"id": k, "prompt": "a b c d e f", "output": text, "at": 5 + k} for k, text in enumerate(OUTPUTS)]
    (tmp_path / "letters.jsonl").write_text("\n".join(map(json.dumps, rows)))
    line_table().save(tmp_path / "costs.json")
    return tmp_path


def specx(folder, *arguments, traces="letters.jsonl"):
    files = ["--traces", folder / traces, "--tokenizer", folder, "--costs", folder / "costs.json"]
    return CliRunner().invoke(app, ["simulate", *map(str, (*files, *arguments))])


SMALL = ("--replicas", "2", "--rate", "4", "--duration", "20")


def test_json(folder):
    out = folder / "out.json"
    result = specx(folder, *SMALL, "--memory", "all", "--json", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["format"] == FORMAT
    assert {"command", "git_commit", "versions", "machine", "time"} <= {*found["provenance"]}
    assert found["settings"]["replicas"] == 2
    assert found["texts"]["rows"] == 4
    assert found["curve"]["answers_in_memory"] == [0, 1, 2, 3]
    assert [run["memory"] for run in found["runs"]] == ["plain", "private", "shared"]
    plain, private, _shared = found["runs"]
    for run in found["runs"]:
        assert run["finished"] == run["requests"] == plain["requests"]
        assert run["tenants"] == -(-run["requests"] // 4)
        for name in ("first_token_s", "per_token_ms", "end_to_end_s"):
            assert 0 < run[name]["p50"] <= run[name]["p95"] <= run[name]["p99"]
        assert len(run["tokens_per_step_over_time"]) == 10
    assert plain["tokens_per_step"] == 1.0
    assert plain["acceptance"] is None
    assert private["tokens_per_step"] > 1.0
    assert result.stdout.splitlines()[-1] == f"every number: {out}"
    assert result.stderr.splitlines()[-1] == "[3/3] done"


def test_table(folder):
    result = specx(folder, *SMALL)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert result.stdout.startswith("2 replicas, round-robin, up to 64 requests each, recorded drafts; ")
    assert ["private", "shared"] in lines
    names = {" ".join(words[:3]) for words in lines}
    assert {"first token, s,", "per token, ms,", "end to end,"} <= names
    assert {"tokens/step", "accepted", "cold", "busy"} <= {words[0] for words in lines}


def test_sweep(folder):
    out = folder / "out.json"
    result = specx(folder, *SMALL, "--sweep", "replicas=1,3", "--memory", "shared", "--json", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["sweep"] == {"name": "replicas", "values": [1, 3]}
    assert [(run["replicas"], run["rate"]) for run in found["runs"]] == [(1, 2.0), (3, 6.0)]
    firsts = [line.split()[:2] for line in result.stdout.splitlines() if "shared" in line]
    assert firsts == [["1", "shared"], ["3", "shared"]]


def test_times_of_the_rows(folder):
    out = folder / "out.json"
    result = specx(folder, "--replicas", "1", "--memory", "plain", "--json", out)
    assert result.exit_code == 0, result.output
    (run,) = json.loads(out.read_text())["runs"]
    assert (run["requests"], run["duration_s"], run["tenants"]) == (4, 3.0, 1)
    assert "finished in time" in result.stdout
    # By hand: a prompt of 6 tokens, then as many steps as there are tokens; requests do not meet.
    assert run["first_token_s"]["p50"] == pytest.approx(0.021 + 6 * 0.0005)
    assert run["per_token_ms"]["p99"] == pytest.approx(21.0)


def test_exact(folder):
    result = specx(folder, "--replicas", "1", "--drafting", "exact", "--limit", "3")
    assert result.exit_code == 0, result.output
    assert "exact drafts" in result.stdout


def test_too_much_is_said(folder):
    (folder / "costs.json").unlink()
    flat_table(1.0).save(folder / "costs.json")
    arguments = ("--replicas", "1", "--max-num-seqs", "100", "--rate", "20", "--duration", "10")
    result = specx(folder, *arguments, "--memory", "plain", "--max-num-batched-tokens", "100")
    assert "overloaded; latencies are of the others" in result.stdout
    assert "the table was measured up to 64, and goes on as a line" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replicas", "0"], "--replicas must be within [1, 10000], got 0"),
        (["--replicas", "x"], "--replicas"),
        (["--rate", "0"], "--rate must be within"),
        (["--rate", "nan"], "--rate must be within"),
        (
            ["--memory", "share"],
            "--memory 'share' is not known, did you mean 'shared'?; allowed: shared, private",
        ),
        (["--routing", "sticky"], "allowed: round-robin, random, least-loaded"),
        (["--drafting", "exakt"], "did you mean 'exact'?"),
        (["--drafting", "exact"], "--drafting exact is for up to 16 replicas, got 64"),
        (
            ["--drafting", "exact", "--replicas", "1", "--rate", "9", "--tenants", "1"],
            "would repeat the file's 4 rows",
        ),
        (["--sync-interval", "-1"], "--sync-interval must be within [0, 3600]"),
        (["--transfer", "inf"], "--transfer"),
        (["--churn", "-1"], "--churn"),
        (["--away", "-1"], "--away"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--max-num-batched-tokens", "8"], "--max-num-batched-tokens 8 must be at least --max-num-seqs 64"),
        (["--max-n", "999"], "--max-n must be within [1, 128]"),
        (["--prefill-us", "-1"], "--prefill-us"),
        (["--duration", "0"], "--duration"),
        (["--tenants", "0"], "--tenants"),
        (["--tenants", "2"], "--tenants needs --rate"),
        (["--rate", "1", "--tenants", "100000", "--replicas", "9999"], "must be at most 250,000,000"),
        (["--rate", "1000000"], "more than 20,000,000 requests; take a shorter --duration"),
        (["--rate", "0.001", "--duration", "0.01"], "no request comes within 0.01 s"),
        (["--seed", "-1"], "--seed"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--sweep", "colour=1"], "--sweep 'colour=1' must be NAME=V1,V2,..."),
        (
            ["--rate", "1", "--sweep", "replicas=1,20", "--drafting", "exact", "--replicas", "2"],
            "--sweep: --drafting",
        ),
        (["--costs", "/no/table.json"], "--costs /no/table.json: No such file"),
        (
            ["--json", "/no/folder/out.json"],
            "--json /no/folder/out.json: the folder /no/folder does not exist",
        ),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None,
)
def test_wrong_options(folder, arguments, said):
    assert said in only_complaint(specx(folder, *arguments))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"id": 9, "prompt": "a", "output": "a b c"},
            ':5: without --rate, each row needs its time in seconds as "at"',
        ),
        ({"id": 9, "prompt": "a", "output": "a b c", "at": "soon"}, 'as "at"'),
        ({"id": 9, "prompt": "a", "output": "a b c", "at": True}, 'as "at"'),
        (
            {"id": 9, "prompt": "a", "output": "a b c", "at": 1},
            '"at" must not fall from row to row, got 1 after 8',
        ),
        ({"id": 3, "prompt": "a", "output": "a b c", "at": 9}, 'needs an "id" of its own, got 3 again'),
        ({"id": 9, "prompt": "a", "at": 9}, '"output" is missing'),
    ],
)
def test_wrong_rows(folder, row, said):
    path = folder / "letters.jsonl"
    path.write_text(path.read_text() + "\n" + json.dumps(row))
    assert said in only_complaint(specx(folder))


def test_two_rows_without_an_id(folder):
    row = json.dumps({"prompt": "a", "output": "a b c", "at": 9})
    path = folder / "letters.jsonl"
    path.write_text(path.read_text() + f"\n{row}\n{row}")
    assert 'needs an "id" of its own, got None again' in only_complaint(specx(folder))


def test_a_table_without_drafts(folder):
    (folder / "costs.json").write_text(
        '{"format": "specx-costs/1", "requests": [1], "draft_tokens_per_request": [0], "seconds": [[1.0]]}'
    )
    assert "the table has only steps without draft tokens" in only_complaint(specx(folder))


def test_nothing_is_replaced_unasked(folder):
    out = folder / "out.json"
    out.write_text("mine")
    assert "exists: replace it with --force" in only_complaint(specx(folder, *SMALL, "--json", out))
    for name in ("letters.jsonl", "costs.json"):
        before = (folder / name).read_text()
        complaint = only_complaint(specx(folder, *SMALL, "--json", folder / name, "--force"))
        assert "is a file that is read" in complaint
        assert (folder / name).read_text() == before
    assert "is a folder" in only_complaint(specx(folder, *SMALL, "--json", folder, "--force"))
    only_complaint(specx(folder, *SMALL, "--json", out, "--force", "--tenants", "0"))
    assert out.read_text() == "mine"
    assert specx(folder, *SMALL, "--json", out, "--force").exit_code == 0
    assert json.loads(out.read_text())["format"] == FORMAT
    assert not list(folder.glob(".out.json.*"))
