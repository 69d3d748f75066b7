"""What a member of a fleet says of itself on the metrics page, by its thread: no step is needed for it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fleet import DirectLine, Replica, Store, wait_for

from vllm_specx.fleet import member as member_module
from vllm_specx.fleet.options import FleetConfig
from vllm_specx.metrics.layout import NUM_VALUES, OFFSETS
from vllm_specx.metrics.meter import DraftMeter

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree
OPTIONS = FleetConfig(sync_interval_s=0.05)


class Page:
    """A replica with a metrics page."""

    def __init__(self, store: Store, **identity: str) -> None:
        self.replica = Replica(OPTIONS, DirectLine(store), **identity).start()
        self._numbers = np.zeros(NUM_VALUES)
        self.replica.member.report_to(DraftMeter(self._numbers).state)

    def __getitem__(self, name: str) -> float:
        return float(self._numbers[OFFSETS[f"specx_fleet_{name}"]])


def test_numbers_of_a_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "_FIRST_RETRY", 0.05)
    store = Store(OPTIONS)
    a, b = Page(store), Page(store)
    assert set(a.replica.member.numbers) == {name for name in OFFSETS if name.startswith("specx_fleet_")}
    a.replica.answer(np.arange(600))  # two pieces
    wait_for(lambda: b["absorbed_texts"] == 2, b.replica)
    assert (a["pushed_texts"], a["pulled_texts"], b["pushed_texts"], b["pulled_texts"]) == (2, 0, 0, 2)
    assert a["sent_bytes"] > 4 * 600 < b["received_bytes"]
    assert a["joined"] == b["joined"] == 1
    assert abs(time.time() - a["last_sync_timestamp_seconds"]) < 30
    assert a["failures"] == 0
    store.is_reachable = False
    wait_for(lambda: a["joined"] == 0 and a["failures"] > 1)  # without a step
    last = a["last_sync_timestamp_seconds"]
    store.is_reachable = True
    wait_for(lambda: a["joined"] == 1 and a["last_sync_timestamp_seconds"] > last)
    stranger = Page(store, model="another")
    assert (stranger["joined"], stranger["failures"]) == (0, 1)
    for page in (a, b):
        page.replica.member.close()
        assert page["joined"] == 0
