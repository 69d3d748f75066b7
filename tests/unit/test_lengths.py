"""What a proposer tells its policy about a step, and which policy the options choose."""

from types import SimpleNamespace

import numpy as np
import pytest

from vllm_specx.config import ConfigError, SpecxConfig
from vllm_specx.proposers._lengths import FixedCosts, MeasuredCosts, StepMeter, make_policy, within
from vllm_specx.tuner import CostTable, Step


def context(scheduled, verified=None, new=()):
    output = SimpleNamespace(total_num_scheduled_tokens=scheduled, scheduled_new_reqs=list(new))
    return SimpleNamespace(scheduler_output=output, num_draft_tokens=verified)


def meter(*times):
    return StepMeter(clock=iter(times).__next__)


def test_the_first_step_has_no_time():
    step = meter(5.0).measure(context(2), [[1], [2]])
    assert (step.num_requests, step.num_draft_tokens, step.num_tokens) == (2, 0, 2)
    assert step.num_prefill_tokens == 0
    assert np.isnan(step.seconds)


def test_a_step_with_drafts():
    clock = meter(1.0, 1.25)
    clock.measure(context(2), [[1], [2]])
    step = clock.measure(context(2 + 3, verified=[3, 0]), [[1, 2, 3], [4]])
    assert step == Step(num_requests=2, num_draft_tokens=3, num_tokens=4, seconds=0.25)


def test_a_partial_prefill_is_told_apart():
    clock = meter(1.0, 2.0)
    clock.measure(context(1), [[1]])
    step = clock.measure(context(96 + 1 + 2, verified=[2, 0]), [[1], []])
    assert (step.num_requests, step.num_draft_tokens, step.num_prefill_tokens) == (1, 2, 96)


def test_the_step_of_a_new_request_has_no_time():
    clock = meter(1.0, 100.0, 100.5)
    clock.measure(context(1), [[1]])
    assert clock.measure(context(1, new=["request"]), [[1]]).seconds is None
    assert clock.measure(context(1), [[1]]).seconds == 0.5


def vllm_config(full_graphs):
    mode = SimpleNamespace(has_full_cudagraphs=lambda: full_graphs)
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        compilation_config=SimpleNamespace(cudagraph_mode=mode, cudagraph_capture_sizes=[8, 4, 2, 1]),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        use_v2_model_runner=False,
    )


def test_costs_are_measured_unless_stated():
    policy = make_policy(SpecxConfig(), vllm_config(full_graphs=False))
    assert isinstance(policy, MeasuredCosts)
    assert len(policy.costs.sizes) == 0
    assert make_policy(SpecxConfig(), vllm_config(full_graphs=True)).costs.sizes.tolist() == [1, 2, 4, 8]
    assert isinstance(make_policy(SpecxConfig(alpha=0.1), vllm_config(full_graphs=False)), FixedCosts)


def test_costs_start_from_a_table(tmp_path):
    path = tmp_path / "table.json"
    CostTable([1, 8], [0, 4], [[0.02, 0.03], [0.04, 0.1]]).save(path)
    policy = make_policy(SpecxConfig(costs=str(path)), vllm_config(full_graphs=False))
    assert float(policy.costs.seconds(1, 0)) == pytest.approx(0.02, rel=0.05)
    assert float(policy.costs.seconds(8, 32)) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), ("[]", "not a cost table"), ("{", "not JSON")]
)
def test_a_table_that_cannot_be_used(tmp_path, content, reason):
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"specx.costs: .*table.json: {reason}.*specx calibrate"):
        make_policy(SpecxConfig(costs=str(path)), vllm_config(full_graphs=False))


@pytest.mark.parametrize(("alpha", "words"), [(None, "candidates=3"), (0.1, "alpha=0.1")])
def test_a_choice_is_explained_in_one_line(alpha, words):
    policy = make_policy(SpecxConfig(alpha=alpha), vllm_config(full_graphs=False))
    draft = sum(policy.choose([np.array([0.99, 0.9, 0.9]), np.array([])]))
    line = policy.explain()
    assert line.startswith("decision reason=price requests=2 ")
    assert f"draft={draft} " in line
    assert words in line
    assert "\n" not in line


def test_lengths_are_cut_to_the_room_there_is():
    assert within([3, 0, 5], 8) == [3, 0, 5]
    assert within([3, 0, 5], 4) == [1, 0, 2]
    assert within([3, 5], 0) == [0, 0]
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths, room = rng.integers(17, size=rng.integers(40)).tolist(), int(rng.integers(300))
        cut = within(lengths, room)
        assert sum(cut) <= room or cut == lengths == [0] * len(lengths)
        assert all(0 <= a <= b for a, b in zip(cut, lengths, strict=True))
        assert sum(cut) > min(sum(lengths), room) - len(lengths) - 1


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_forget_keeps_the_costs(alpha):
    policy = make_policy(SpecxConfig(alpha=alpha), vllm_config(full_graphs=False))
    reach = [np.array([0.9, 0.5, 0.05]), np.array([])]
    fresh = policy.choose(reach)
    assert len(fresh) == 2
    for _ in range(50):
        policy.choose(reach)
        policy.update(Step(2, 0, 2, 0.02))
    learned = getattr(policy, "costs", None)
    policy.forget()
    assert getattr(policy, "costs", None) is learned
    assert len(policy.choose(reach)) == 2
