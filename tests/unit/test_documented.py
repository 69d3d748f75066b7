"""Every option, metric, recipe and command is documented, and what is documented exists."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from vllm_specx.cli.main import app
from vllm_specx.config import SpecxConfig
from vllm_specx.metrics.layout import FAMILIES, OFFSETS

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
del PAGES["cli.md"]  # generated: it names every command, and explains none; see test_docs_cli.py
EVERYTHING = "\n".join(PAGES.values())
_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


def scraped_names() -> set[str]:
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("", "_sum", "_count", "_bucket")}
    return {family.name + suffix for family in FAMILIES for suffix in suffixes[family.kind]}


@pytest.mark.parametrize("option", [f.name for f in fields(SpecxConfig)])
def test_every_option(option: str) -> None:
    assert re.search(rf"`(specx\.)?{option}`|\"{option}\"", EVERYTHING), option


@pytest.mark.parametrize("recipe", sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml")))
def test_every_recipe(recipe: str) -> None:
    assert re.search(rf"\b{recipe}\b", EVERYTHING), recipe


@pytest.mark.parametrize("command", [c.name for c in app.registered_commands if c.name != "version"])
def test_every_command(command: str) -> None:
    assert f"specx {command}" in EVERYTHING, command


def test_every_metric_and_no_other() -> None:
    page = PAGES["metrics.md"]
    for family in FAMILIES:
        name = family.name + ("_total" if family.kind == "counter" else "")
        assert (
            f"| `{name}` | {family.kind} | {f'`{family.label}`' if family.values and family.label != 'le' else ''}"
            in page
        )
    assert set(re.findall(r"specx_\w+", page)) <= scraped_names() | {"specx_max_n"}


def test_rules_and_dashboard_know_the_metrics() -> None:
    rules = yaml.safe_load((ROOT / "docs" / "monitoring" / "rules.yaml").read_text())
    dashboard = json.loads((ROOT / "docs" / "monitoring" / "dashboard.json").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"\bspecx_\w+", text)}
    assert used <= scraped_names()
    shown = {re.sub(r"_(total|sum|count|bucket)$", "", name) for name in used}
    assert shown >= OFFSETS.keys() - {"specx_tokens", "specx_drafts", "specx_reach_tokens"}
    assert all(text.count("(") == text.count(")") for text in expressions)


def test_every_page_is_in_the_menu() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    sections = [entry for item in nav for entry in item.values()]
    pages = [page for entry in sections for page in ([entry] if isinstance(entry, str) else entry)]
    names = [page if isinstance(page, str) else next(iter(page.values())) for page in pages]
    assert sorted(names) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_first_commands_are_those_of_the_readme() -> None:
    commands = re.findall(r"^\$ (.+)$", PAGES["index.md"], re.MULTILINE)
    assert len(commands) == 3
    assert all(command in PAGES["README.md"] for command in commands)


@pytest.mark.parametrize("page", ["choosing.md", "how-it-works.md", "index.md", "limits.md"])
def test_figures_are_those_of_the_results(page: str) -> None:
    measured = {"README.md", "eagle3.md", "lookahead.md", "medusa.md", "suffix-tree.md", "tuner.md"}
    known = {figure for name in measured for figure in re.findall(r"\d+\.\d+x", PAGES[name])}
    assert set(re.findall(r"\d+\.\d+x", PAGES[page])) <= known
