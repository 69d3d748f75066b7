"""`specx plan`: the figures of the formula, the picture, and one line for whatever is wrong."""

import json
import sys

import numpy as np
import pytest
from stand_ins import only_complaint
from typer.testing import CliRunner

from vllm_specx.cli.main import app
from vllm_specx.regret import PACKAGED
from vllm_specx.tuner import CostTable


def specx(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def answer(*arguments):
    result = specx(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


def complaint(*arguments):
    return only_complaint(specx(*arguments))


@pytest.mark.parametrize(
    ("p", "alpha", "n"), [(0.8, 0.05, 8), (0.8, 0.1, 6), (0.9, 0.05, 13), (0.9, 0.1, 10)]
)
def test_optimum(p, alpha, n):
    found = answer("--p", p, "--alpha", alpha)
    assert found["optimal_n"] == n
    curve = found["curve"]
    assert [row["n"] for row in curve] == list(range(33))
    assert found["speedup"] == max(row["speedup"] for row in curve) == curve[n]["speedup"]
    assert found["ceiling"] == pytest.approx(1 / alpha)
    assert found["ceilings"] == {
        "perfect_acceptance": pytest.approx(1 / alpha),
        "free_drafts": pytest.approx(1 / (1 - p)),
    }
    tokens = 1 + sum(p**k for k in range(1, n + 1))
    assert curve[n] == {
        "n": n,
        "expected_tokens": pytest.approx(tokens, abs=1e-5),
        "cost": pytest.approx(1 + alpha * n),
        "speedup": pytest.approx(tokens / (1 + alpha * n), abs=1e-5),
    }
    assert curve[0] == {"n": 0, "expected_tokens": 1.0, "cost": 1.0, "speedup": 1.0}


def test_drafting_costs():
    found = answer("--p", 0.9, "--alpha", 0.1, "--draft-cost", 0.15, "--draft-cost-fixed", 0.5)
    assert found["ceiling"] == pytest.approx(4.0)
    assert found["curve"][4]["cost"] == pytest.approx(1 + 0.5 + 4 * 0.25)
    assert found["curve"][0]["cost"] == 1.0


def test_speculation_that_does_not_pay():
    found = answer("--p", 0.2, "--alpha", 0.5)
    assert (found["optimal_n"], found["speedup"]) == (0, 1.0)


def test_no_ceiling_is_null():
    found = answer("--p", 1, "--alpha", 0, "--max-n", 3)
    assert (found["ceiling"], found["ceilings"]["free_drafts"]) == (None, None)
    assert (found["optimal_n"], found["speedup"]) == (3, 4.0)


def test_acceptance_by_position():
    found = answer("--p", "0.9,0.5", "--alpha", 0.1, "--max-n", 3)
    assert found["p"] == [0.9, 0.5]
    assert found["curve"][3]["expected_tokens"] == pytest.approx(1 + 0.9 + 0.45 + 0.225)


def test_measured_costs():
    found = answer("--p", 0.8, "--costs", PACKAGED, "--batch", 32, "--max-n", 16)
    assert found["curve"][1]["cost"] == pytest.approx(86.4 / 52.8, abs=1e-5)
    assert found["optimal_n"] == 1
    assert found["ceiling"] == pytest.approx(52.8 / ((595.3 - 326.6) / 8), abs=1e-4)
    small = answer("--p", 0.8, "--costs", PACKAGED, "--batch", 1, "--max-n", 64)
    assert small["optimal_n"] > 4
    assert len(small["curve"]) == 65
    assert small["ceiling"] == pytest.approx(23.9 / 1.1, abs=1e-4)


def test_costs_between_the_rows(tmp_path):
    path = tmp_path / "table.json"
    CostTable(np.array([1, 3]), np.array([0, 2]), np.array([[1.0, 2.0], [3.0, 4.0]])).save(path)
    found = answer("--p", 0.5, "--costs", path, "--batch", 2, "--max-n", 2)
    assert [row["cost"] for row in found["curve"]] == [1.0, 1.25, 1.5]


def test_table():
    result = specx("--p", 0.8, "--alpha", 0.1, "--max-n", 7)
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    assert lines[0] == "p 0.8, alpha 0.1"
    assert lines[3].split() == ["0", "1.000", "1.000", "1.000"]
    assert lines[-3:] == [
        "best: N = 6, speedup 2.470",
        "ceiling if every draft were right: 10.000",
        "ceiling if drafts were free: 5.000",
    ]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_picture(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan.{suffix}"
    for arguments in (
        ("--p", 0.9, "--alpha", 0.1),
        ("--p", 1, "--alpha", 0),
        ("--p", 0.3, "--costs", PACKAGED, "--batch", 4, "--draft-cost", 0.1, "--draft-cost-fixed", 0.1),
    ):
        assert answer(*arguments, "--plot", path)["curve"]
        assert path.stat().st_size > 5000


def test_pictures_that_cannot_be_written(tmp_path):
    pytest.importorskip("matplotlib")
    assert "No such file" in complaint("--p", 0.9, "--alpha", 0.1, "--plot", tmp_path / "no" / "plan.png")
    assert "xyz" in complaint("--p", 0.9, "--alpha", 0.1, "--plot", tmp_path / "plan.xyz")


def test_without_matplotlib(tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    line = complaint("--p", 0.9, "--alpha", 0.1, "--plot", tmp_path / "plan.png")
    assert "pip install 'vllm-specx[plot]'" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--p", "1.1", "--alpha", "0.1"], "--p must be within [0, 1], got 1.1"),
        (["--p", "-0.1", "--alpha", "0.1"], "--p must be within [0, 1]"),
        (["--p", "nan", "--alpha", "0.1"], "--p must be within [0, 1]"),
        (["--p", "x", "--alpha", "0.1"], "--p 'x' must be a number"),
        (["--p", "0.9,", "--alpha", "0.1"], "--p '0.9,' must be a number"),
        (["--p", "0.5", "--alpha", "-1"], "--alpha must be a finite number of 0 or more, got -1"),
        (["--p", "0.5", "--alpha", "inf"], "--alpha"),
        (["--p", "0.5", "--alpha", "0.1", "--draft-cost", "-1"], "--draft-cost must"),
        (["--p", "0.5", "--alpha", "0.1", "--draft-cost-fixed", "nan"], "--draft-cost-fixed must"),
        (["--p", "0.5", "--alpha", "0.1", "--max-n", "0"], "--max-n must be within [1, 128]"),
        (["--p", "0.5"], "give --alpha, or --costs with --batch"),
        (["--p", "0.5", "--alpha", "0.1", "--costs", "t.json"], "contradict"),
        (["--p", "0.5", "--costs", "t.json"], "go together"),
        (["--p", "0.5", "--alpha", "0.1", "--batch", "2"], "go together"),
        (["--p", "0.5", "--costs", "t.json", "--batch", "0"], "--batch must be within"),
        (["--p", "0.5", "--costs", "/no/t.json", "--batch", "1"], "--costs /no/t.json: No such file"),
        (["--alpha", "0.5"], "--p"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_options(arguments, said):
    assert said in complaint(*arguments)


def test_a_table_that_is_none(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("[]")
    assert "not a cost table" in complaint("--p", "0.5", "--costs", path, "--batch", "1")
