"""`specx report`: what the page shows, that nothing in a file becomes markup, and one line for whatever is wrong."""

import json
import os
import re
from html.parser import HTMLParser

import pytest
from bench_documents import bench_document, save
from stand_ins import only_complaint
from typer.testing import CliRunner

from vllm_specx.bench.document import read_document
from vllm_specx.cli.main import app
from vllm_specx.report import page
from vllm_specx.report.formula import fits
from vllm_specx.tuner import expected_tokens, speedup

EVIL = "<script>alert('1')</script>&\"><img src=x onerror=alert(1)>\u202e"
VOID = {"meta", "line", "circle", "polyline"}


def specx(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def bench(tmp_path):
    return save(bench_document({"ngram": 1.2, "suffix-tree": (1.5, 1.52, 1.55)}), tmp_path / "bench.json")


class Reader(HTMLParser):
    """Checks that elements are closed in order; keeps the tags, their attributes and the text of cells."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.cells = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[-1] += data


def formula_document(p=0.6, alpha=0.1, draft_cost=0.2):
    """EAGLE-3 at three lengths exactly as the formula says, in one cell."""
    lengths = (1, 2, 4)
    speeds = {f"eagle3:{n}": speedup(p, n, alpha, draft_cost) for n in lengths}
    made = bench_document(speeds, workloads=("chat",), concurrency=(1,), head="/heads/one")
    for row in made["summary"]:
        if row["method"] != "none":
            row["tokens_per_step"] = expected_tokens(p, int(row["draft_tokens_per_step"]))
    return made


def test_page_says_what_was_measured(bench, tmp_path):
    out = tmp_path / "report.html"
    result = specx(bench, "-o", out)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"page: {out}\n", "")
    text = out.read_text(encoding="utf-8")
    cells = Reader(text).cells
    for cell in ("suffix-tree", "1.52x [1.46, 1.59]", "1.37x [1.32, 1.43]", "46.1", "1.75", "0.75", "5/6"):
        assert cell in cells
    assert "suffix-tree: 1.45x [1.39, 1.51] over plain decoding, geometric mean of 4 cells" in text
    assert text.count('<svg class="trend"') == 8  # of two methods in four cells
    assert text.count('<svg class="curve"') == 1
    assert "<h2>Calibration</h2>" in text
    assert "suffix left out: arctic_inference cannot be imported" in text
    assert {"bench.json", "specx bench --model some/model", "cpu"} <= set(cells)
    assert sorted(os.listdir(tmp_path)) == ["bench.json", "report.html"]


def test_page_needs_nothing_else_and_fits_a_phone_and_the_dark(bench):
    text = page(read_document(bench), bench.name)
    read = Reader(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert not [
        found for found in read.attributes if found[1] in ("src", "href") or found[1].startswith("on")
    ]
    assert "url(" not in text
    assert "@import" not in text
    assert ("meta", "content", "width=device-width, initial-scale=1") in read.attributes
    assert "prefers-color-scheme: dark" in text
    assert read.tags.count("table") == len(re.findall(r'<div class="scroll"><table>', text)) > 4
    assert not re.findall(r"(?<!max-)(?<!min-)width: \d+(px|rem)", text)


def test_text_from_the_file_stays_text(tmp_path):
    made = bench_document({"ngram": 1.2}, workloads=(EVIL,), model=EVIL)
    made["left_out"] = {EVIL: EVIL}
    made["provenance"] |= {"command": [EVIL], "time": EVIL, EVIL: EVIL, "git_commit": EVIL}
    made["provenance"]["machine"][EVIL] = {EVIL: EVIL}
    made["provenance"]["engine"]["dtype"] = EVIL
    made["methods"][EVIL] = made["methods"].pop("ngram")
    for row in made["summary"]:
        row["method"] = row["method"].replace("ngram", EVIL)
    path = save(made, tmp_path / "<b>.json")
    text = page(read_document(path), path.name)
    read = Reader(text)
    assert not {"script", "img", "b"} & set(read.tags)
    assert not [found for found in read.attributes if found[1].startswith("on")]
    assert "\u202e" not in text
    assert "<b>.json" in read.cells


def test_formula_is_fitted_to_fixed_lengths(tmp_path):
    path = save(formula_document(), tmp_path / "bench.json")
    document = read_document(path)
    (found,) = fits(document["summary"], document["methods"])
    assert (found.drafter, found.lengths.tolist()) == ("eagle3", [1, 2, 4])
    assert (found.p, found.alpha, found.draft_cost) == pytest.approx((0.6, 0.1, 0.2), abs=1e-6)
    assert found.optimum.n == 3
    text = page(document, path.name)
    cells = Reader(text).cells
    for n in (1, 2, 4):
        assert f"{speedup(0.6, n, 0.1, 0.2):.2f}" in cells
    assert "p = 0.60, a = 0.100, d = 0.200; best by the formula: N = 3" in text
    assert text.count('<svg class="curve"') == 1


@pytest.mark.parametrize(
    "speeds", [{"ngram": 1.2, "suffix-tree:2": 1.1, "suffix-tree:4": 1.2}, {"eagle3:2": 1.2}]
)
def test_formula_is_left_out_where_lengths_are_not_fixed(tmp_path, speeds):
    document = read_document(save(bench_document(speeds, head="/heads/one"), tmp_path / "bench.json"))
    assert fits(document["summary"], document["methods"]) == []
    assert "at two fixed lengths or more" in page(document, "bench.json")


def test_a_length_that_the_drafter_does_not_fill_is_not_fixed(tmp_path):
    made = formula_document()
    made["summary"][-1]["draft_tokens_per_step"] = 3.0
    document = read_document(save(made, tmp_path / "bench.json"))
    (found,) = fits(document["summary"], document["methods"])
    assert found.lengths.tolist() == [1, 2]


@pytest.mark.parametrize("repeats", [1, 2])
def test_few_repeats_and_no_drafts(tmp_path, repeats):
    made = bench_document({"ngram": (0.5, 2.0)}, repeats=repeats, warm=True)
    for row in made["summary"]:
        row |= {"tokens_per_step": None, "acceptance": None, "draft_tokens_per_step": None}
    text = page(read_document(save(made, tmp_path / "bench.json")), "bench.json")
    assert "chat, warm memory" in text
    assert ("one repeat" in text) == (repeats == 1)
    assert ("&gt;99" in text) == (repeats == 2)
    Reader(text)


def test_only_the_baseline(tmp_path):
    text = page(read_document(save(bench_document({}), tmp_path / "bench.json")), "bench.json")
    assert "do not speculate: nothing else was measured" in text


def changed(**more):
    return {**bench_document({"ngram": 1.2}), **more}


def test_older_files_without_lengths_over_time_and_calibration(tmp_path):
    made = bench_document({"suffix-tree": 1.2})
    for row in made["summary"]:
        del row["lengths_over_time"], row["kept"]
    text = page(read_document(save(made, tmp_path / "bench.json")), "bench.json")
    assert "Draft lengths over time" not in text
    assert "Calibration" not in text


def edited(edit):
    made = bench_document({"ngram": 1.2})
    edit(made)
    return made


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON, or cut off"),
        (json.dumps(bench_document({"ngram": 1.2}))[:-200], "not JSON, or cut off"),
        ("[" * 100_000, "not JSON, or cut off"),
        ('{"format": 1, "summary": NaN}', "not JSON, or cut off"),
        ('{"format": 1, "summary": "\\ud800"}', "not JSON, or cut off"),
        (b"\xff\xfe", "not JSON, or cut off"),
        ("[]", "not a file of `specx bench --json`"),
        ("null", "not a file of `specx bench --json`"),
        ('{"format": "specx-costs/1", "requests": [1]}', "not a file of `specx bench --json`"),
        (changed(format=2), "has format 2, and only 1 is known"),
        (changed(format=True), "has format True"),
        (changed(format="1"), "has format '1'"),
        (changed(summary=[]), "no cell was measured"),
        (changed(summary={}), "summary cannot be {}"),
        (changed(settings=[]), "settings cannot be []"),
        (edited(lambda made: made.pop("provenance")), "provenance is missing"),
        (
            edited(lambda made: made["provenance"]["engine"].pop("dtype")),
            "provenance.engine.dtype is missing",
        ),
        (edited(lambda made: made["methods"].pop("ngram")), "methods: 'ngram' is missing"),
        (edited(lambda made: made["methods"].update(ngram=1)), "methods: 'ngram' is not an object"),
        (edited(lambda made: made["summary"].pop()), "every cell must hold the same methods"),
        (edited(lambda made: made["summary"].append(made["summary"][0])), "is there twice"),
        (edited(lambda made: made["summary"][1].pop("ratio")), "summary[1].ratio is missing"),
        (
            edited(lambda made: made["summary"][1].update(concurrency="1")),
            "summary[1].concurrency cannot be '1'",
        ),
        (edited(lambda made: made["summary"][1].update(faults=True)), "summary[1].faults cannot be True"),
        (edited(lambda made: made["summary"][1].update(acceptance=10**400)), "beyond 1e+15"),
        (edited(lambda made: made["summary"][1]["ratio"].update(values=[1, 0, 1])), "has a ratio beyond"),
        (edited(lambda made: made["summary"][1]["ratio"].update(values=[1])), "the same number of repeats"),
        (edited(lambda made: made["summary"][1]["ratio"].update(values=[])), "the same number of repeats"),
        (edited(lambda made: made["summary"][1].update(kept=[[1], [2]])), "not three rows of one length"),
        (edited(lambda made: made["summary"][1].update(lengths_over_time=["1"])), "cannot be '1'"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "document",
)
def test_files_that_are_none(tmp_path, content, said):
    path, out = tmp_path / "bench.json", tmp_path / "report.html"
    if isinstance(content, dict):
        save(content, path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = only_complaint(specx(path, "-o", out))
    assert said in line
    assert str(path) in line
    assert os.listdir(tmp_path) == ["bench.json"]


def test_files_that_cannot_be_read(tmp_path):
    assert "no.json: No such file" in only_complaint(
        specx(tmp_path / "no.json", "-o", tmp_path / "report.html")
    )
    assert "Is a directory" in only_complaint(specx(tmp_path, "-o", tmp_path / "report.html"))
    assert os.listdir(tmp_path) == []


def test_outputs_that_cannot_be_written(bench, tmp_path):
    before = bench.read_bytes()
    for out, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "report.html", "does not exist"),
        (bench / "report.html", "does not exist"),
        ("/proc/report.html", "cannot be written"),
        (tmp_path / ("x" * 300), "too long"),
        (bench, "is the file that is read"),
        (os.devnull, "is not a regular file"),
    ):
        assert said in only_complaint(specx(bench, "-o", out, "--force"))
    assert bench.read_bytes() == before
    assert os.listdir(tmp_path) == ["bench.json"]


def test_what_exists_is_replaced_with_force_only(bench, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("old")
    assert "exists: replace it with --force" in only_complaint(specx(bench, "-o", out))
    assert out.read_text() == "old"
    assert specx(bench, "-o", out, "--force").exit_code == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_full_disk_leaves_the_old_file(bench, tmp_path, monkeypatch):
    out = tmp_path / "report.html"
    out.write_text("old")

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert "cannot be written: No space left" in only_complaint(specx(bench, "-o", out, "--force"))
    assert out.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["bench.json", "report.html"]


def test_missing_arguments(bench):
    assert "--out" in only_complaint(specx(bench))
    assert "BENCH" in only_complaint(specx("-o", "report.html"))
