"""Metrics: what is counted, how it is laid out and read, and what killed writers leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from vllm_specx.metrics import collector, layout, page
from vllm_specx.metrics.meter import DraftMeter, meter_of
from vllm_specx.tuner import Decision, Step


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "folder", lambda: tmp_path / "pages")


def scraped(instance: str = "i") -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels, as Prometheus would read them."""
    pages = collector.PageCollector()
    pages.watch(instance, "model")
    registry = CollectorRegistry()
    registry.register(pages)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
            found.setdefault(sample.name, {})[tuple(sorted(labels.items()))] = sample.value
    return found


def labels(**more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"engine": "0", **more}.items()))


def test_names_are_standard_and_places_do_not_overlap() -> None:
    names = [family.name for family in layout.FAMILIES]
    assert len(set(names)) == len(names)
    assert all(name.startswith("specx_") and not name.endswith("_total") for name in names)
    assert sum(family.size for family in layout.FAMILIES) == layout.NUM_VALUES
    taken = np.zeros(layout.NUM_VALUES)
    for family in layout.FAMILIES:
        taken[layout.OFFSETS[family.name] :][: family.size] += 1
    assert (taken == 1).all()


def test_nothing_is_served_before_an_engine_counts() -> None:
    assert scraped() == {}


def test_choices() -> None:
    meter = DraftMeter(page.new_page("i", 0))
    decision = Decision(3, 9, 20, 5.0, 100.0, 1.5, 0.25, 0.03, "price")
    meter.chosen([0, 4, 5], decision, "price", 0.002)
    meter.chosen([0, 0], None, "off", 0.001)
    meter.chosen([], None, "empty", 0.0)
    found = scraped()
    assert found["specx_draft_length_count"][labels()] == 5
    assert found["specx_draft_length_sum"][labels()] == 9
    buckets = found["specx_draft_length_bucket"]
    assert [buckets[labels(le=le)] for le in ("0", "3", "4", "6", "+Inf")] == [3, 3, 4, 5, 5]
    assert found["specx_steps_total"][labels(reason="price")] == 1
    assert found["specx_steps_total"][labels(reason="off")] == 1
    assert found["specx_steps_without_draft_total"][labels()] == 1
    assert found["specx_draft_seconds_total"][labels()] == pytest.approx(0.003)
    assert found["specx_estimated_speedup"][labels()] == 1.5
    assert found["specx_alpha"][labels()] == 0.25


def test_outcomes_by_position_reach_and_drafter() -> None:
    meter = DraftMeter(page.new_page("i", 0))
    meter.verified([("lookahead", np.array([0.95, 0.5, 0.12]), 2), ("suffix_tree", np.array([0.99]), 0)])
    meter.verified([("medusa", np.full(20, 0.05), 20)])
    meter.verified([])
    found = scraped()
    tried, kept = found["specx_draft_tokens_total"], found["specx_accepted_tokens_total"]
    assert [tried[labels(position=p)] for p in ("1", "2", "3", "4", "16", "17+")] == [3, 2, 2, 1, 1, 4]
    assert [kept[labels(position=p)] for p in ("1", "2", "3", "4", "16", "17+")] == [2, 2, 1, 1, 1, 4]
    at = labels(reach="0.9")
    assert found["specx_reach_tokens_total"][at] == 2
    assert found["specx_reach_promised_tokens_total"][at] == pytest.approx(0.95 + 0.99)
    assert found["specx_reach_accepted_tokens_total"][at] == 1
    assert found["specx_reach_tokens_total"][labels(reach="0.1")] == 1
    assert found["specx_reach_accepted_tokens_total"][labels(reach="0.1")] == 0
    assert found["specx_drafts_total"][labels(drafter="lookahead")] == 1
    assert found["specx_drafter_accepted_tokens_total"][labels(drafter="medusa")] == 20
    assert sum(tried.values()) == sum(found["specx_reach_tokens_total"].values()) == 24


def test_a_promise_that_cannot_be_is_counted_at_the_edge() -> None:
    numbers = page.new_page("i", 0)
    DraftMeter(numbers).verified([("medusa", np.array([np.inf, 1e300, -1e300, -0.5, np.nan]), 1)])
    found = scraped()
    tried = found["specx_reach_tokens_total"]
    assert [tried[labels(reach=f"{tenth / 10:.1f}")] for tenth in range(10)] == [3, *[0] * 8, 2]
    assert sum(found["specx_reach_promised_tokens_total"].values()) == 2
    assert np.sum(numbers) == 5 + 1 + 5 + 2 + 1 + 1 + 1  # nothing else was written


def test_realised_speedup_is_of_timed_decode_steps() -> None:
    meter = DraftMeter(page.new_page("i", 0))
    meter.stepped(Step(2, 4, 6, 0.04), lambda _: 0.03)
    meter.stepped(Step(2, 4, 6, 0.04, num_prefill_tokens=9), lambda _: 0.03)
    meter.stepped(Step(2, 4, 6, None), lambda _: 0.03)
    meter.stepped(Step(0, 0, 0, 0.04), lambda _: 0.03)
    meter.stepped(Step(2, 4, 6, float("nan")), lambda _: 0.03)
    meter.stepped(Step(2, 4, 6, 0.04), lambda _: float("nan"))
    found = scraped()
    assert found["specx_tokens_total"][labels()] == 6
    assert found["specx_step_seconds_total"][labels()] == 0.04
    assert found["specx_plain_step_seconds_total"][labels()] == 0.03
    assert found["specx_plain_seconds_total"][labels()] == pytest.approx(0.09)


def test_engines_are_told_apart() -> None:
    meters = []
    for engine in (0, 1):
        parallel = SimpleNamespace(data_parallel_index=engine)
        meters.append(meter_of(SimpleNamespace(instance_id="i", parallel_config=parallel)))
        meters[-1].state({"specx_memory_bytes": 10.0 * (engine + 1)})
    found = scraped()["specx_memory_bytes"]
    assert found == {(("engine", "0"),): 10.0, (("engine", "1"),): 20.0}
    assert scraped("another") == {}
    meters.clear()  # a page goes with its writer
    assert scraped() == {}


def test_a_page_of_another_layout_is_not_read() -> None:
    numbers = page.new_page("i", 0)
    assert page.read_pages("i").keys() == {0}
    numbers.base[0] += 1
    assert page.read_pages("i") == {}
    (page.folder() / "i.0.page").write_bytes(b"short")
    assert page.read_pages("i") == {}


def test_what_a_killed_writer_left_goes() -> None:
    page.folder().mkdir(parents=True)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name, pid in (("gone.0.page", dead.pid), ("alive.0.page", os.getpid())):
        np.array([layout.FINGERPRINT, pid, *np.zeros(layout.NUM_VALUES)]).tofile(page.folder() / name)
    numbers = page.new_page("i", 0)
    assert {path.name for path in page.folder().iterdir()} == {"alive.0.page", "i.0.page"}
    assert not numbers.any()


def test_without_a_folder_counting_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(page, "folder", lambda: tmp_path / "file" / "pages")
    meter = DraftMeter(page.new_page("i", 0))
    meter.chosen([1], None, "price", 0.0)
    assert scraped() == {}
