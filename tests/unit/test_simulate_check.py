"""benchmarks/simulate_check.py, as far as it needs no engine."""

import json
import sys
from pathlib import Path

import pytest
import scripts
from bench_documents import bench_document, save
from simulated import flat_table, line_table

from vllm_specx.bench.document import read_document
from vllm_specx.bench.errors import BenchError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "simulate_check.py"


@pytest.fixture(scope="module")
def check():
    return scripts.load(SCRIPT)


SAID = {"ids": ["a"], "prompts": [[1, 2, 3, 4, 1, 2, 3, 4]], "outputs": [[1, 2, 3, 4] * 5]}


def documented(tmp_path):
    made = bench_document({"suffix-tree": 1.5, "ngram": 1.2}, workloads=("chat",), warm=True)
    return read_document(save(made, tmp_path / "bench.json"))


def test_a_closed_loop_keeps_as_many_requests_in_flight(check):
    outputs = [[1] * 5, [2] * 5, [3] * 5, [4] * 3]
    found = check.simulated([[]] * 4, outputs, flat_table(0.1), method="none", concurrency=2, max_n=4)
    assert found["tokens_per_s"] == pytest.approx(18 / 1.0)  # 5 steps, then 5 more
    assert found["tokens_per_step"] == 1.0
    assert found["largest_batch"] == 2
    drafted = check.simulated(
        [[1] * 20] * 4, outputs, line_table(draft=0.0), method="suffix-tree", concurrency=2, max_n=4
    )
    assert drafted["tokens_per_step"] > 1.0
    assert drafted["cold"] > 0


def test_every_cold_cell_is_compared(check, tmp_path):
    document = documented(tmp_path)
    rows = list(check.compare(document, check.check_answers(document, {"chat": SAID}), line_table(), 16))
    assert [(row["concurrency"], row["method"]) for row in rows] == [
        (1, "none"),
        (1, "suffix-tree"),
        (8, "none"),
        (8, "suffix-tree"),
    ]
    plain = rows[0]
    assert plain["tokens_per_step"] == {"measured": 1.0, "simulated": 1.0, "ratio": 1.0}
    assert plain["acceptance"] == {"measured": None, "simulated": None, "ratio": None}
    speed = plain["tokens_per_s"]
    assert speed["ratio"] == pytest.approx(speed["simulated"] / speed["measured"])
    assert rows[1]["tokens_per_s"]["simulated"] > speed["simulated"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids": ["b"]}, "not those to the prompts"),
        ({"prompts": [[1]]}, "other lengths"),
        ({"outputs": [[1]]}, "shorter than in the bench"),
    ],
)
def test_answers_must_be_those_of_the_bench(check, tmp_path, change, said):
    document = documented(tmp_path)
    with pytest.raises(BenchError, match=said):
        check.check_answers(document, {"chat": {**SAID, **change}})
    with pytest.raises(BenchError, match="not those"):
        check.check_answers(document, {})


def test_from_files_to_a_table(check, tmp_path, monkeypatch, capsys):
    documented(tmp_path)
    (tmp_path / "answers.json").write_text(json.dumps({"chat": SAID}))
    line_table().save(tmp_path / "costs.json")
    files = [str(tmp_path / name) for name in ("bench.json", "costs.json", "answers.json", "out.json")]
    monkeypatch.setattr(
        sys,
        "argv",
        ["simulate_check.py", files[0], "--costs", files[1], "--answers", files[2], "--out", files[3]],
    )
    check.main()
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert len(json.loads(Path(files[3]).read_text())["rows"]) == 4
    Path(files[2]).write_text("{")
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code == 2
