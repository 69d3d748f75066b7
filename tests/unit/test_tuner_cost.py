"""Step times: the table, and the model that learns in service."""

import json
from pathlib import Path

import numpy as np
import pytest
from tuner_world import TABLE

from vllm_specx.tuner import CostModel, CostTable, CostTableError, Step, Tuner
from vllm_specx.tuner import _kernels as kernels

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def learn(
    model: CostModel,
    batch: int,
    num_steps: int,
    rng: np.random.Generator,
    *,
    noise: float = 0.1,
    factor: float = 1.0,
    max_n: int = 8,
) -> None:
    """Steps of all lengths, every other without drafts."""
    for k in range(num_steps):
        m = int(rng.integers(0, batch * max_n + 1)) if k % 2 else 0
        seconds = factor * float(TABLE(batch, m)) * float(np.exp(noise * rng.normal()))
        model.update(Step(batch, m, batch, seconds))


def relative_errors(model: CostModel, batch: int, max_n: int = 8) -> np.ndarray:
    ms = np.arange(batch * max_n + 1)
    return np.asarray(model.seconds(batch, ms) / TABLE(batch, ms) - 1)


# The table


def test_a_table_is_kept_as_json(tmp_path: Path) -> None:
    table = CostTable([1, 4], [0, 2], [[1.0, 1.5], [2.0, 4.0]], {"model": "toy"})  # type: ignore[arg-type]
    table.save(tmp_path / "costs.json")
    loaded = CostTable.load(tmp_path / "costs.json")
    assert loaded.source == {"model": "toy"}
    assert np.array_equal(loaded.seconds, table.seconds)
    assert loaded.requests.tolist() == [1, 4]
    assert loaded.drafts.tolist() == [0, 2]


def test_a_table_interpolates_and_goes_on() -> None:
    table = CostTable([1, 4], [0, 2], [[1.0, 1.5], [2.0, 4.0]])  # type: ignore[arg-type]
    assert table(1, [0, 1, 2, 4]).tolist() == pytest.approx([1.0, 1.25, 1.5, 2.0])
    assert table(2, 0) == pytest.approx(4 / 3)
    assert table(4, [4, 16]).tolist() == pytest.approx([3.0, 6.0])
    assert table(7, 0) == pytest.approx(3.0)
    falling = CostTable([1], [0, 1, 2], [[1.0, 1.5, 1.4]])  # type: ignore[arg-type]
    assert falling(1, 10) == pytest.approx(1.4)  # beyond the table nothing falls


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a cost table"),
        ({"secnds": []}, "unknown field 'secnds'"),
        ({"seconds": [[1.0]]}, "shape"),
        ({"seconds": [[1.0, 0.0], [1.0, 1.0]]}, "positive"),
        ({"seconds": [[1.0, float("nan")], [1.0, 1.0]]}, "seconds"),
        ({"seconds": "abc"}, "seconds"),
        ({"requests": [4, 1]}, "requests: increasing"),
        ({"requests": [0, 1]}, "requests: increasing"),
        ({"requests": [1.5, 2]}, "requests: not an array of whole"),
        ({"draft_tokens_per_request": [1, 2]}, "first column must be 0"),
        ({"source": 3}, "source"),
    ],
)
def test_bad_tables_are_refused_by_field(tmp_path: Path, change: dict[str, object], message: str) -> None:
    content = {
        "format": "specx-costs/1",
        "requests": [1, 4],
        "draft_tokens_per_request": [0, 2],
        "seconds": [[1.0, 1.5], [2.0, 4.0]],
    }
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(content | change))
    with pytest.raises(CostTableError, match=message) as caught:
        CostTable.load(path)
    assert str(path) in str(caught.value)


def test_what_is_not_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("{")
    with pytest.raises(CostTableError, match="not JSON"):
        CostTable.load(path)


# The model


def test_a_table_seeds_the_model() -> None:
    model = CostModel(TABLE)
    errors = np.concatenate([relative_errors(model, batch, 16) for batch in BATCHES])
    assert np.sqrt(np.mean(errors**2)) < 0.035
    assert np.abs(errors).max() < 0.09  # the table itself is noisy: it falls where it should rise


@pytest.mark.parametrize("batch", BATCHES)
def test_it_converges_with_10_percent_noise(batch: int) -> None:
    errors = []
    for seed in range(4):
        model = CostModel()
        learn(model, batch, 100, np.random.default_rng(seed))
        errors.append(relative_errors(model, batch))
    assert np.sqrt(np.mean(np.square(errors))) < 0.06
    assert 0.07 < model.noise < 0.15


def test_what_is_learned_at_one_batch_helps_at_others() -> None:
    rng = np.random.default_rng(0)
    model = CostModel()
    for batch in (4, 8):
        learn(model, batch, 60, rng)
    untaught = CostModel()
    untaught.update(Step(8, 0, 8, float(TABLE(8, 0))))
    for batch in (16, 32):
        assert np.abs(relative_errors(model, batch)).mean() < 0.25
        assert (
            np.abs(relative_errors(model, batch)).mean()
            < 0.5 * np.abs(relative_errors(untaught, batch)).mean()
        )


def test_predictions_are_positive_and_do_not_fall() -> None:
    rng = np.random.default_rng(3)
    model = CostModel()
    for _ in range(300):
        batch = int(rng.integers(1, 80))
        m = int(rng.integers(0, 16 * batch))
        model.update(Step(batch, m, batch, float(rng.lognormal(-4, 1.5))))
        curve = model.seconds(batch, np.arange(200))
        assert np.all(curve > 0)
        assert np.all(np.diff(curve[max(0, 9 - batch) :]) >= 0)  # few tokens have times of their own
        assert np.all(np.isfinite(model.mean))


@pytest.mark.parametrize("sizes", [None, [1, 2, 4, 8, 16, 24, 32, 40, 64, 96, 128]])
def test_the_fast_curve_is_the_slow_one(sizes: list[int] | None) -> None:
    rng = np.random.default_rng(4)
    model = CostModel(TABLE, sizes=sizes)
    for batch in (1, 3, 8, 13, 40, 200):
        out = np.empty(16 * batch + 1)
        model.mean[:] *= np.exp(0.1 * rng.normal(size=len(model.mean)))
        kernels._curve(model.mean, float(batch), 0.0, model.sizes, np.empty(kernels.NUM_FEATURES), out)
        assert model.seconds(batch, np.arange(len(out))) == pytest.approx(out * model.scale, rel=1e-9)


def test_order_and_shape_of_what_is_asked_do_not_matter() -> None:
    model = CostModel(TABLE)
    assert model.seconds(8, 16).shape == ()
    assert model.seconds(8, [[64, 0], [16, 1]]).ravel().tolist() == [
        float(model.seconds(8, m)) for m in (64, 0, 16, 1)
    ]


def test_one_stall_moves_nothing() -> None:
    rng = np.random.default_rng(5)
    model = CostModel()
    learn(model, 8, 200, rng, noise=0.05)
    before = model.seconds(8, np.arange(65))
    for _ in range(3):
        model.update(Step(8, 16, 8, 2.0))
    assert model.seconds(8, np.arange(65)) == pytest.approx(before, rel=0.01)
    model.update(Step(8, 16, 8, 0.25))  # a smaller one, four times the usual time
    assert model.seconds(8, np.arange(65)) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("at", range(6))
def test_a_stall_at_the_start_is_forgotten(at: int) -> None:
    rng = np.random.default_rng(6)
    model = CostModel()
    learn(model, 8, at, rng)
    model.update(Step(8, 16, 8, 2.0))
    learn(model, 8, 60, rng)
    assert np.abs(relative_errors(model, 8)).mean() < 0.12


@pytest.mark.parametrize("seconds", [None, float("nan"), float("inf"), 0.0, -1.0, 1e-300, 1e300])
def test_times_without_sense_are_counted_and_left_out(seconds: float | None) -> None:
    model = CostModel(TABLE)
    before = model.seconds(8, np.arange(65))
    model.update(Step(8, 16, 8, seconds))
    assert model.num_dropped == 1
    assert model.num_learned == 0
    assert np.array_equal(model.seconds(8, np.arange(65)), before)


def test_steps_with_prefill_are_left_out() -> None:
    model = CostModel(TABLE)
    before = model.seconds(8, np.arange(65))
    model.update(Step(8, 16, 8, 0.5, num_prefill_tokens=300))
    assert (model.num_learned, model.num_dropped) == (0, 0)
    assert np.array_equal(model.seconds(8, np.arange(65)), before)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_real_change_is_followed(factor: float) -> None:
    rng = np.random.default_rng(7)
    model = CostModel()
    learn(model, 8, 200, rng, noise=0.05)
    elsewhere = model.seconds(32, [0, 128])
    learn(model, 8, 60, rng, noise=0.05, factor=factor)
    assert np.abs((1 + relative_errors(model, 8)) / factor - 1).mean() < 0.08
    # A machine that got slower is slower at every batch.
    assert model.seconds(32, [0, 128]) == pytest.approx(factor * elsewhere, rel=0.25)
    assert model.num_changes > 0


def test_slow_drift_is_followed() -> None:
    rng = np.random.default_rng(8)
    model = CostModel()
    learn(model, 8, 100, rng, noise=0.05)
    for k in range(200):
        learn(model, 8, 2, rng, noise=0.05, factor=1 + 0.002 * k)
    assert np.abs((1 + relative_errors(model, 8)) / 1.4 - 1).mean() < 0.08


def test_stairs_of_padded_sizes() -> None:
    sizes = [1, 2, 4, 8, 16, 32, 64, 128]
    rng = np.random.default_rng(9)

    def true(batch: int, m: int) -> float:
        size = min(s for s in sizes if s >= batch + m)
        return 5e-3 + 2e-5 * size

    model = CostModel(sizes=sizes)
    for _ in range(300):
        m = int(rng.integers(0, 120))
        model.update(Step(8, m, 8, true(8, m) * float(np.exp(0.03 * rng.normal()))))
    predicted = model.seconds(8, np.arange(120))
    assert predicted == pytest.approx([true(8, m) for m in range(120)], rel=0.03)
    assert len(np.unique(predicted)) == 5  # 8, 16, 32, 64, 128


def test_passes_of_the_drafter_are_part_of_the_time() -> None:
    rng = np.random.default_rng(10)
    model = CostModel()
    for _ in range(400):
        passes = int(rng.integers(0, 5))
        m = int(rng.integers(0, 33))
        seconds = 0.02 + 5e-4 * m + 3e-3 * passes
        model.update(Step(8, m, 8, seconds * float(np.exp(0.05 * rng.normal())), num_passes=passes))
    assert float(model.seconds(8, 16, 4) - model.seconds(8, 16, 0)) == pytest.approx(0.012, rel=0.15)
    assert model.seconds(8, [0, 8], [1, 4]).tolist() == pytest.approx([0.023, 0.036], rel=0.05)


def test_it_stays_sound_for_long() -> None:
    rng = np.random.default_rng(11)
    model = CostModel()
    for _ in range(30_000):
        batch = int(rng.choice([1, 2, 8, 300, 3000]))
        m = int(rng.choice([0, 1, batch, 16 * batch]))
        seconds = (
            (0.02 + 5e-4 * (batch + m))
            * float(np.exp(0.05 * rng.normal()))
            * float(rng.choice([1.0, 50.0], p=[0.99, 0.01]))
        )
        model.update(Step(batch, m, batch, seconds))
    assert np.all(np.linalg.eigvalsh(model._cov) > -1e-9)
    for batch in (1, 8, 3000):
        assert model.seconds(batch, [0, batch]) == pytest.approx(
            0.02 + 5e-4 * np.array([batch, 2 * batch]), rel=0.06
        )


def test_sizes_have_to_increase() -> None:
    with pytest.raises(ValueError, match="sizes"):
        CostModel(sizes=[4, 2])


def test_few_tokens_have_times_of_their_own() -> None:
    """As measured on a CPU in float32: two rows are slower than three or four, and five slower again."""
    seconds = {1: 0.0377, 2: 0.0466, 3: 0.0416, 4: 0.0420, 5: 0.0480, 6: 0.0485, 9: 0.0520}
    rng = np.random.default_rng(0)
    model = CostModel()
    for _ in range(300):
        total = int(rng.choice(list(seconds)))
        model.update(Step(1, total - 1, 1, seconds[total] * float(rng.lognormal(0, 0.03))))
    found = model.seconds(1, np.array(list(seconds)) - 1)
    assert found == pytest.approx(list(seconds.values()), rel=0.03)
    tuner = Tuner(model, max_n=4)
    assert tuner.choose([np.array([0.5, 0.2])]) == [2]  # one draft token would cost more than two
