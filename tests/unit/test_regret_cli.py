"""`specx regret`: what it prints, and one line with exit code 2 for whatever is wrong."""

import json
import math

import pytest
from letters import save_tokenizer
from typer.testing import CliRunner

from vllm_specx.cli.main import app
from vllm_specx.regret import BASELINES, POLICIES
from vllm_specx.regret.harness import ladder, mean_interval, summary

RULES = ["tuner", "tuner_calibrated", "best_fixed", "oracle", "none", *BASELINES]


@pytest.fixture
def folder(tmp_path):
    """A tokenizer of single letters and two trace files."""
    save_tokenizer(tmp_path)
    for name, output in (("copy", "a b c d e f a b c d e f"), ("mixed", "a c b d d a c a f e b b")):
        rows = [{"id": k, "prompt": "a b c d e f", "output": output[2 * k :]} for k in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def specx(folder, *arguments, traces=("copy", "mixed")):
    files = [word for name in traces for word in ("--traces", f"{folder / name}.jsonl")]
    return CliRunner().invoke(app, ["regret", *files, "--tokenizer", str(folder), *map(str, arguments)])


SMALL = ("--batch", "1,2", "--seeds", "2", "--steps", "5", "--phase", "4", "--max-n", "2")


def test_json(folder):
    result = specx(folder, *SMALL, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found) == ["settings", "costs", "cells", "summary"]
    names = [cell["name"] for cell in found["cells"]]
    assert names == [
        *("copy/b1", "copy/b2", "mixed/b1", "mixed/b2", "switch/b1", "switch/b2"),
        *("ramp/copy", "ramp/mixed", "ramp+switch"),
    ]
    assert list(POLICIES) == RULES
    for cell in found["cells"]:
        assert cell["stationary"] == (cell["name"][0] in "cm")
        assert cell["best_fixed_n"] in (0, 1, 2)
        for name in RULES:
            low, high = cell[name]["interval"]
            assert cell[name]["mean"] > 0
            assert low <= cell[name]["mean"] <= high
        assert cell["best_fixed"]["mean"] == max(cell["fixed"].values())
        assert cell["none"]["mean"] == cell["fixed"]["0"]
        assert {*cell["ratios"]} == {*RULES} - {"tuner"}
        assert {*cell["parameters"]} == {*BASELINES}
    assert {kind: of["cells"] for kind, of in found["summary"].items()} == {
        "all": 9,
        "stationary": 4,
        "shifting": 5,
    }
    assert result.stderr.splitlines()[-1] == "[9/9] ramp+switch"


def test_processes_change_nothing(folder):
    arguments = ("--batch", "1,2", "--seeds", "1", "--steps", "5", "--max-n", "1", "--json")
    alone = json.loads(specx(folder, *arguments, traces=["copy"]).stdout)
    spread = json.loads(specx(folder, *arguments, "--jobs", "2", traces=["copy"]).stdout)
    assert alone["cells"] == spread["cells"]
    assert alone["cells"][0]["tuner"]["interval"] is None  # one seed


def test_table(folder):
    result = specx(folder, *SMALL, "--seeds", "1", "--limit", "2", traces=["copy"])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    firsts = [words[0] for words in lines]
    assert [name for name in firsts if "/" in name] == ["copy/b1", "copy/b2", "ramp/copy"]
    assert {"oracle", "none", "ema", "bandit"} <= {*firsts}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "x"], "--batch 'x' must be whole numbers"),
        (["--batch", "0"], "--batch must be within [1, 256], got 0"),
        (["--batch", "2,2"], "twice"),
        (["--batch", ","], "at least one number"),
        (["--seeds", "0"], "--seeds"),
        (["--steps", "0"], "--steps"),
        (["--phase", "0"], "--phase"),
        (["--max-n", "0"], "--max-n"),
        (["--noise", "nan"], "--noise"),
        (["--stalls", "0.9"], "--stalls"),
        (["--jobs", "0"], "--jobs"),
        (["--limit", "0"], "--limit"),
        (["--costs", "/no/table.json"], "--costs /no/table.json: No such file"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_options(folder, arguments, said):
    result = specx(folder, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("specx: error: ")
    assert said in line


def test_wrong_files(folder):
    (folder / "costs.json").write_text("{}")
    result = specx(folder, "--costs", folder / "costs.json")
    assert result.exit_code == 2
    assert "costs.json" in result.stderr
    result = specx(folder, traces=["copy", "copy"])
    assert "two files of one name" in result.stderr


def test_intervals():
    assert mean_interval([2.0]) == {"mean": 2.0, "interval": None}
    found = mean_interval([1.0, 2.0, 3.0])
    reach = 4.302653 / math.sqrt(3)
    assert found["mean"] == 2.0
    assert found["interval"] == pytest.approx([2 - reach, 2 + reach])


def test_ladder():
    assert ladder(16) == [0, 1, 2, 4, 8, 16]
    assert ladder(1) == [0, 1]
    assert ladder(12) == [0, 1, 2, 4, 8, 12]


def test_summary_is_geometric_and_names_the_worst():
    def cell(name, stationary, tuner):
        rates = {rule: {"mean": 1.0} for rule in POLICIES}
        rates["tuner"] = {"mean": tuner}
        ratios = {rule: {"mean": tuner} for rule in POLICIES if rule != "tuner"}
        return {"name": name, "stationary": stationary, "ratios": ratios, **rates}

    found = summary([cell("a", True, 2.0), cell("b", True, 0.5), cell("c", False, 1.0)])
    assert found["stationary"]["over_none"]["tuner"] == pytest.approx(1.0)
    assert found["all"]["tuner_over"]["ema"] == {
        "geometric_mean": pytest.approx(1.0),
        "worst": 0.5,
        "worst_cell": "b",
    }
    assert found["shifting"]["cells"] == 1
