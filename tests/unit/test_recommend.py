"""`specx recommend`: the method that the measurements support, the recipe, and one line for whatever is wrong."""

import os

import pytest
import yaml
from bench_documents import bench_document, save
from stand_ins import only_complaint
from typer.testing import CliRunner

from vllm_specx.bench import methods
from vllm_specx.bench.document import read_document
from vllm_specx.cli.main import app
from vllm_specx.recommend import recommend, select

SPEEDS = {"ngram": (1.2, 1.21, 1.22), "suffix-tree": (1.5, 1.52, 1.55)}


def specx(*arguments):
    return CliRunner().invoke(app, ["recommend", *map(str, arguments)])


def recipe(made, tmp_path, *arguments):
    """The sentence on the terminal, the recipe's header and its content."""
    out = tmp_path / "my.yaml"
    result = specx(save(made, tmp_path / "bench.json"), "-o", out, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    sentence, where = result.stdout.splitlines()
    assert where == f"recipe: {out}"
    text = out.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert header[0] == f"# {sentence}."
    for word in ("For:", "Needs:", f"Run:       vllm serve --config {out}", "Override:"):
        assert any(line.startswith(f"# {word}") for line in header), word
    return sentence, header, yaml.safe_load(text)


def test_the_largest_geometric_mean_and_its_reasons(tmp_path):
    sentence, header, content = recipe(bench_document(SPEEDS), tmp_path)
    assert sentence == "suffix-tree: 1.45x [1.39, 1.51] over plain decoding, geometric mean of 4 cells"
    assert content == {
        "model": "some/model",
        "dtype": "float32",
        "max-model-len": 512,
        "speculative-config": {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 16},
        "additional-config": {"specx": {}},
    }
    assert (
        "#   suffix-tree  1.45x [1.39, 1.51]; 1.37x [1.32, 1.43] code at 1, 1.52x [1.46, 1.59] chat at 1"
        in header
    )
    assert any(line.startswith("#   ngram        1.15x [") for line in header)
    assert any("specx bench --model some/model" in line for line in header)
    assert "# For:       chat, code; requests at a time: 1, 8;" in "\n".join(header)


def test_the_configuration_is_that_of_the_bench(tmp_path, monkeypatch):
    changed = methods.Method("x", {"method": "ngram", "num_speculative_tokens": 9, "prompt_lookup_max": 3})
    monkeypatch.setitem(methods.METHODS, "ngram", changed)
    options = {"specx_options": {"alpha": 0.1}, "num_speculative_tokens": 7, "head": "/heads/one"}
    for name, speculative, additional in (
        ("ngram", dict(changed.speculative_config), None),
        ("ngram:2", {**changed.speculative_config, "num_speculative_tokens": 2}, None),
        (
            "suffix-tree",
            {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 7},
            {"alpha": 0.1},
        ),
        ("eagle3", {"method": "eagle3", "num_speculative_tokens": 3, "model": "/heads/one"}, None),
        (
            "hybrid",
            {"model": "vllm_specx.HybridProposer:/heads/one", "num_speculative_tokens": 7},
            {"alpha": 0.1},
        ),
    ):
        folder = tmp_path / name.replace(":", "-")
        folder.mkdir()
        _, _, content = recipe(bench_document({name: 1.4}, **options), folder)
        assert content["speculative-config"] == speculative
        assert content.get("additional-config") == (None if additional is None else {"specx": additional})


def test_what_was_measured_but_is_configured_otherwise_now(tmp_path):
    made = bench_document(SPEEDS)
    made["methods"]["suffix-tree"]["speculative_config"]["num_speculative_tokens"] = 5
    out = tmp_path / "my.yaml"
    line = only_complaint(specx(save(made, tmp_path / "bench.json"), "-o", out))
    assert "'suffix-tree' was measured with" in line
    assert "measure again" in line
    assert not out.exists()


def test_a_head_may_lie_elsewhere_by_now(tmp_path):
    made = bench_document({"eagle3": 1.4}, head="/heads/one")
    made["methods"]["eagle3"]["speculative_config"]["model"] = "/elsewhere/one"
    _, _, content = recipe(made, tmp_path)
    assert content["speculative-config"]["model"] == "/heads/one"


def test_a_bundled_head_of_a_model_that_is_gone(tmp_path):
    pytest.importorskip("transformers")
    made = bench_document({"eagle3": 1.4}, head="/heads/one")
    made["settings"] |= {"head": None, "model": str(tmp_path / "gone")}
    line = only_complaint(specx(save(made, tmp_path / "bench.json"), "-o", tmp_path / "my.yaml"))
    assert "cannot be read here" in line
    assert os.listdir(tmp_path) == ["bench.json"]


@pytest.mark.parametrize(
    ("speeds", "repeats", "said"),
    [
        ({"ngram": 0.9, "suffix-tree": 1.0}, 3, "the best is suffix-tree at 0.95x"),
        ({"ngram": (0.9, 1.6, 1.5)}, 3, "no method beats plain decoding beyond its 95 % interval"),
        (SPEEDS, 1, "one repeat gives no interval, so that the best, suffix-tree at 1.42x, may be noise"),
        ({}, 3, "nothing else was measured"),
    ],
)
def test_do_not_speculate(tmp_path, speeds, repeats, said):
    sentence, _, content = recipe(bench_document(speeds, repeats=repeats), tmp_path)
    assert sentence.startswith("do not speculate: ")
    assert said in sentence
    assert content == {"model": "some/model", "dtype": "float32", "max-model-len": 512}


def test_a_sure_gain_goes_before_a_larger_one_that_may_be_noise(tmp_path):
    sentence, header, _ = recipe(bench_document({"ngram": (1.0, 2.5, 3.0), "suffix-tree": 1.3}), tmp_path)
    assert sentence.startswith("suffix-tree: ")
    assert any(line.startswith("#   ngram ") for line in header)


def test_cells_can_be_restricted(tmp_path):
    made = bench_document(SPEEDS)
    for row in made["summary"]:
        if (row["workload"], row["concurrency"], row["method"]) == ("chat", 8, "ngram"):
            row["ratio"]["values"] = [3.0, 3.01, 3.02]
    sentence, _, content = recipe(made, tmp_path, "--workload", "chat", "--concurrency", "8")
    assert sentence.startswith("ngram: 3.01x [2.99, 3.03] over plain decoding, geometric mean of 1 cell")
    assert content["speculative-config"]["method"] == "ngram"
    sentence, header, _ = recipe(
        made, tmp_path, "--workload", "code", "--workload", "chat", "--concurrency", "1", "--force"
    )
    assert sentence.endswith("geometric mean of 2 cells")
    assert "# For:       chat, code; requests at a time: 1;" in "\n".join(header)


def test_warm_cells_do_not_count(tmp_path):
    made = bench_document(SPEEDS, warm=True)
    for row in made["summary"]:
        if (row["phase"], row["method"]) == ("warm", "ngram"):
            row["ratio"]["values"] = [9.0] * 3
    path = save(made, tmp_path / "bench.json")
    assert len(select(read_document(path))) == 12
    assert recommend(select(read_document(path))).method == "suffix-tree"


def test_the_interval_is_that_of_the_repeats_means(tmp_path):
    """Cells that differ say nothing against a gain: only repeats that do."""
    made = bench_document({"ngram": 1.0}, workloads=("chat", "math"), concurrency=(1,))
    for row in made["summary"]:
        if row["method"] == "ngram":
            row["ratio"]["values"] = [4.0] * 3 if row["workload"] == "chat" else [1.0] * 3
    (found,) = recommend(select(read_document(save(made, tmp_path / "bench.json")))).ranking
    assert (found.ratio.geometric_mean, found.ratio.low) == (pytest.approx(2.0), pytest.approx(2.0))


def test_text_from_the_file_stays_in_its_comment(tmp_path):
    evil = "chat\nmodel: other\x85x: 1\u2028y: 2\x07\u202e"
    made = bench_document(SPEEDS, workloads=(evil,))
    made["left_out"] = {evil: evil}
    made["provenance"] |= {"command": [evil], "time": evil}
    made["provenance"]["machine"]["cpu"] = evil
    made["provenance"]["engine"]["dtype"] = evil
    _, _, content = recipe(made, tmp_path)
    assert list(content) == ["model", "dtype", "max-model-len", "speculative-config", "additional-config"]
    assert content["model"] == "some/model"


def test_many_methods_stay_readable(tmp_path):
    recipe(bench_document({f"suffix-tree:{n}": 1 + n / 100 for n in range(1, 41)}), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--workload", "chta"],
            "--workload 'chta' leaves no cell, did you mean 'chat'?; measured are chat, code",
        ),
        (["--concurrency", "2"], "--concurrency 2 leaves no cell; measured are 1, 8"),
        (["--concurrency", "x"], "--concurrency 'x' must be whole numbers"),
    ],
)
def test_no_cells_left(tmp_path, arguments, said):
    path = save(bench_document(SPEEDS), tmp_path / "bench.json")
    assert said in only_complaint(specx(path, "-o", tmp_path / "my.yaml", *arguments))
    assert os.listdir(tmp_path) == ["bench.json"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_speculative_tokens": 0}, "--num-speculative-tokens must be at least 1"),
        ({"num_speculative_tokens": "x"}, "the settings in the file"),
        ({"prompts": {"chat": 1}}, "the settings in the file"),
        ({"specx_options": {"alhpa": 1}}, "did you mean 'alpha'?"),
    ],
)
def test_settings_that_are_none(tmp_path, settings, said):
    made = bench_document(SPEEDS)
    made["settings"] |= settings
    assert said in only_complaint(specx(save(made, tmp_path / "bench.json"), "-o", tmp_path / "my.yaml"))


def test_a_method_that_is_not_known_here(tmp_path):
    made = bench_document(SPEEDS)
    made["methods"]["later"] = made["methods"].pop("suffix-tree")
    for row in made["summary"]:
        row["method"] = row["method"].replace("suffix-tree", "later")
    line = only_complaint(specx(save(made, tmp_path / "bench.json"), "-o", tmp_path / "my.yaml"))
    assert "'later' is not known" in line


def test_bad_files_and_outputs(tmp_path):
    path, out = save(bench_document(SPEEDS), tmp_path / "bench.json"), tmp_path / "my.yaml"
    cut = tmp_path / "cut.json"
    cut.write_text(path.read_text()[:-100])
    costs = save({"format": "specx-costs/1"}, tmp_path / "costs.json")
    later = save({**bench_document(SPEEDS), "format": 2}, tmp_path / "later.json")
    for source, target, said in (
        (tmp_path / "no.json", out, "no.json: No such file"),
        (cut, out, "not JSON, or cut off"),
        (costs, out, "not a file of `specx bench --json`"),
        (later, out, "has format 2"),
        (path, tmp_path, "is a folder"),
        (path, tmp_path / "no" / "my.yaml", "does not exist"),
        (path, "/proc/my.yaml", "cannot be written"),
        (path, cut, "exists: replace it with --force"),
    ):
        assert said in only_complaint(specx(source, "-o", target))
    assert sorted(os.listdir(tmp_path)) == ["bench.json", "costs.json", "cut.json", "later.json"]
    assert only_complaint(specx(path)).endswith("'--out' / '-o'.")
