"""A very small calibration on a real engine: a table that loads, and says what is true of any machine."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from vllm_specx.cli.main import app
from vllm_specx.tuner import CostModel, CostTable


@pytest.fixture(scope="module")
def table(model_dir, tmp_path_factory) -> CostTable:
    out = tmp_path_factory.mktemp("calibrate") / "costs.json"
    arguments = ["calibrate", "--model", model_dir, "--out", out, "--batch", "1,8", "--drafts", "0,8"]
    arguments += ["--repeats", 2, "--steps", 3, "--max-model-len", 256, "--kv-cache-gib", 1, "--json"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads(out.read_text())
    assert "8 requests, 8 draft tokens each, repeat 2" in result.stderr
    return CostTable.load(out)


def test_times_are_those_of_real_steps(table):
    assert table.requests.tolist() == [1, 8]
    assert table.drafts.tolist() == [0, 8]
    assert np.all((table.seconds > 1e-4) & (table.seconds < 30))
    # 72 tokens take longer than 8 and 9 do.
    assert table.seconds[1, 1] > table.seconds[1, 0]
    assert table.seconds[1, 1] > table.seconds[0, 1]


def test_it_says_where_it_comes_from(table):
    source = table.source
    assert source["engine"]["max_model_len"] == 256
    assert {"python", "torch"} <= source["versions"].keys()
    assert source["settings"]["steps"] == 3
    assert source["num_steps"] == 6
    assert np.shape(source["relative_quartile_distance"]) == (2, 2)


def test_a_cost_model_starts_from_it(table):
    costs = CostModel(table)
    for b, row in zip(table.requests.tolist(), table.seconds, strict=True):
        assert costs.seconds(b, b * table.drafts) == pytest.approx(np.maximum.accumulate(row), rel=0.25)
