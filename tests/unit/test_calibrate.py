"""Calibration without an engine: which steps count, what the drafts are, and what the file says."""

from types import SimpleNamespace

import numpy as np
import pytest

from vllm_specx.bench.errors import EngineFailed
from vllm_specx.calibrate import CalibrateSettings, run, run_calibrate
from vllm_specx.calibrate.measure import Measured, TooFewSteps, measure
from vllm_specx.calibrate.proposer import FixedLengthProposer
from vllm_specx.proposers._lengths import StepMeter
from vllm_specx.tuner import CostTable, Step


def settings(tmp_path, **more):
    return CalibrateSettings(model="m", out=tmp_path / "costs.json", **more)


def true_seconds(b, n):
    return 0.02 + 0.001 * b + 0.002 * b * n


class FakeEngine:
    """Verifies in each step what was offered in the step before; the first step of a length is slow."""

    def __init__(self, room=1000):
        self.room = room
        self.calls = []
        self.num_requests = self.offered = self.verified = 0

    def keep(self, num_requests):
        self.calls.append(("keep", num_requests))
        self.num_requests, self.offered, self.verified = num_requests, 0, 0

    def offer(self, num_drafts):
        self.calls.append(("offer", num_drafts))
        self.offered = num_drafts

    def measure_step(self):
        b, n, self.verified = self.num_requests, self.verified, self.offered
        slow = 10.0 if self.verified != n else 0.0
        verified = min(b * n, self.room - b)
        return [Step(b, verified, b, true_seconds(b, n) + slow)]

    def end_all(self):
        self.calls.append(("end_all",))


def test_every_cell_gets_its_own_time(tmp_path):
    wanted = settings(tmp_path, batch=(4, 1), drafts=(8, 0, 2), repeats=3, steps=4)
    told = []
    measured = measure(FakeEngine(), wanted, lambda *news: told.append(news))
    assert wanted.batch == (1, 4)
    assert wanted.drafts == (0, 2, 8)
    expected = [[true_seconds(b, n) for n in wanted.drafts] for b in wanted.batch]
    assert measured.seconds == pytest.approx(np.array(expected))
    assert measured.num_steps == 3 * 4
    assert np.all(measured.spread == 0)
    assert {total for _, _, total in told} == {2 * 3 * 3}
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_no_length_is_always_first(tmp_path):
    engine = FakeEngine()
    measure(engine, settings(tmp_path, batch=(2,), drafts=(0, 1, 2), repeats=3, steps=1), lambda *news: None)
    offers = [call[1] for call in engine.calls if call[0] == "offer"]
    assert offers == [0, 1, 2, 1, 2, 0, 2, 0, 1]
    assert engine.calls[-1] == ("end_all",)


@pytest.mark.parametrize(
    "odd",
    [
        Step(2, 4, 2, None),
        Step(2, 4, 2, float("nan")),
        Step(2, 4, 2, -1.0),
        Step(2, 4, 2, 7.0, num_prefill_tokens=5),
        Step(1, 4, 2, 7.0),
        Step(2, 3, 2, 7.0),
    ],
    ids=["not measured", "nan", "negative", "prefill", "fewer requests", "fewer drafts"],
)
def test_steps_of_another_kind_do_not_count(tmp_path, odd):
    class Engine(FakeEngine):
        def measure_step(self):
            return [odd, *super().measure_step()]

    wanted = settings(tmp_path, batch=(2,), drafts=(0, 2), repeats=1, steps=3)
    measured = measure(Engine(), wanted, lambda *news: None)
    assert measured.seconds == pytest.approx(np.array([[true_seconds(2, 0), true_seconds(2, 2)]]))


def test_drafts_that_the_engine_does_not_take(tmp_path):
    wanted = settings(tmp_path, batch=(4,), drafts=(0, 16), repeats=1, steps=2)
    with pytest.raises(
        TooFewSteps, match=r"only 0 decoded 4 requests with 16 draft tokens each; .*kv-cache-gib"
    ):
        measure(FakeEngine(room=60), wanted, lambda *news: None)


def context(num_draft_tokens=None, num_tokens=3, **more):
    output = SimpleNamespace(scheduled_new_reqs=[], total_num_scheduled_tokens=num_tokens)
    return SimpleNamespace(
        num_draft_tokens=num_draft_tokens,
        scheduler_output=output,
        **{"num_spec_tokens": 8, "max_model_len": 40} | more,
    )


def test_drafts_are_as_many_as_asked_for_and_valid():
    times = iter([1.0, 1.5, 1.75])
    proposer = FixedLengthProposer(50, StepMeter(lambda: next(times)))
    # The second row is a partial prefill.
    assert proposer.propose([[1], [], [2]], [10, 10, 10], None, context=context()) == [[], [], []]
    proposer.num_drafts = 5
    drafts = proposer.propose([[1], [], [2]], [10, 10, 10], None, context=context())
    assert [len(draft) for draft in drafts] == [5, 0, 5]
    assert drafts[0] != drafts[2]
    assert all(0 <= token < 50 for draft in drafts for token in draft)
    proposer.propose([[1, 2], [3], [2]], [10, 10, 10], None, context=context([5, 0, 5], 13))
    assert proposer.take_steps()[1:] == [Step(2, 0, 2, 0.5, num_prefill_tokens=1), Step(3, 10, 4, 0.25)]
    assert proposer.take_steps() == []


def test_drafts_leave_room_for_the_bonus_token():
    proposer = FixedLengthProposer(50)
    proposer.num_drafts = 16
    drafts = proposer.propose([[1]] * 4, [10, 36, 39, 40], None, context=context())
    assert [len(draft) for draft in drafts] == [8, 3, 0, 0]


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(run, "check_model", lambda model: None)


def test_the_file(tmp_path, monkeypatch, model):
    seconds = np.array([[0.02, 0.03], [0.04, 0.08]])
    monkeypatch.setattr(
        run, "_measure", lambda *arguments: (Measured(seconds, 0 * seconds, 24), {"dtype": "bfloat16"})
    )
    wanted = settings(tmp_path, batch=(1, 8), drafts=(0, 4))
    run_calibrate(wanted, {"command": ["specx", "calibrate"]}, lambda *news: None)
    table = CostTable.load(wanted.out)
    assert table.requests.tolist() == [1, 8]
    assert table.drafts.tolist() == [0, 4]
    assert table.seconds.tolist() == seconds.tolist()
    assert table.source["command"] == ["specx", "calibrate"]
    assert table.source["engine"] == {"dtype": "bfloat16"}
    assert table.source["settings"]["model"] == "m"
    assert table.source["num_steps"] == 24


def test_an_engine_that_dies_is_reported_with_its_log(tmp_path, monkeypatch, model):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run, "serve", divmod)  # takes no three arguments
    with pytest.raises(EngineFailed, match=r"the engine died \(exit code 1; log: .*engine\.log\)"):
        run_calibrate(settings(tmp_path), {}, lambda *news: None)
    assert not (tmp_path / "costs.json").exists()
