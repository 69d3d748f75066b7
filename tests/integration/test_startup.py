"""Bad input is refused when the configuration is built, with the reason and what is allowed."""

from __future__ import annotations

import pytest
from vllm.engine.arg_utils import EngineArgs

NAME = "vllm_specx.SuffixTreeProposer"


def build(model_dir, speculative, options=None, **more):
    additional = {} if options is None else {"specx": options}
    return EngineArgs(
        model=str(model_dir),
        max_model_len=256,
        speculative_config=speculative,
        additional_config=additional,
        **more,
    ).create_engine_config()


def test_good_configuration(model_dir):
    config = build(
        model_dir, {"model": NAME, "num_speculative_tokens": 16}, {"memory_bytes": 1 << 20, "alpha": 0.1}
    )
    assert config.speculative_config.method == "custom_class"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_byts": 1}, ["memory_byts", "did you mean 'memory_bytes'", "alpha"]),
        ({"memory_bytes": -1}, ["memory_bytes", "within [1048576", "-1"]),
        ({"memory_bytes": 0}, ["memory_bytes", "within [1048576"]),
        ({"memory_bytes": "64MB"}, ["memory_bytes", "an integer", "64MB"]),
        ({"alpha": float("nan")}, ["alpha", "within"]),
        ({"alpha": True}, ["alpha", "a number"]),
        ({"shared": "off"}, ["shared", "true or false"]),
        (["shared"], ["mapping"]),
        (
            {"memory_path": "/no/such/folder/memory"},
            ["memory_path", "the folder /no/such/folder does not exist"],
        ),
        ({"autosave_s": 60}, ["autosave_s", "memory_path"]),
        ({"costs": "/no/such/table"}, ["costs", "/no/such/table: No such file", "specx calibrate"]),
        ({"memory_path": "memory", "shared": False}, ["memory_path", "no effect"]),
    ],
)
def test_bad_options(model_dir, options, words):
    with pytest.raises(ValueError) as error:
        build(model_dir, {"model": NAME, "num_speculative_tokens": 16}, options)
    for word in words:
        assert word in str(error.value)


GOOD = {"model": NAME, "num_speculative_tokens": 4}
SCHEDULE = "num_speculative_tokens_per_batch_size"
SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.4, 0.3, 0.2]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_speculative_tokens": 0}, ["num_speculative_tokens", "greater than 0"]),
        ({"num_speculative_tokens": 129}, ["[1, 128]", "129"]),
        ({"num_speculative_tokens": 255}, ["max_model_len is 256"]),
        ({"model": "vllm_specx.NoSuchProposer"}, ["NoSuchProposer", NAME]),
        (SYNTHETIC, ["synthetic", "'standard' and 'block'"]),
        ({SCHEDULE: [[1, 8, 4], [9, 256, 2]]}, [SCHEDULE, "remove it"]),
    ],
)
def test_bad_speculative_config(model_dir, changes, words):
    with pytest.raises(ValueError) as error:
        build(model_dir, GOOD | changes)
    for word in words:
        assert word in str(error.value)


def test_options_that_nobody_reads(model_dir):
    with pytest.raises(ValueError, match="no proposer of vllm_specx is configured"):
        build(model_dir, {"method": "ngram", "num_speculative_tokens": 4}, {"alpha": 0.1})
