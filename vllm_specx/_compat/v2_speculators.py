"""Runtime form of the v2-speculators patch: see patches/README.md.

What decides on the model runner and makes the speculator is wrapped when the plug-in is registered; the runner's own
methods when it makes the speculator of a class that offers one. A draft model's speculator is wrapped by itself, when
it is made: importing its class would cost every process of vLLM a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Literal

from vllm_specx._compat import fingerprints
from vllm_specx._compat.apply import is_applied, replace
from vllm_specx._compat.versions import check_supported

PATCH = "v2-speculators"
_OFFER: Final = "make_v2_speculator"
_RUNNER_MODULE: Final = "vllm.v1.worker.gpu.model_runner"


def is_present() -> bool:
    """Whether the installed vLLM has the diff applied."""
    from vllm.v1.spec_decode import custom_class_proposer

    return hasattr(custom_class_proposer, "create_custom_speculator")


def install() -> None:
    """Wrap what decides on the runner and what makes its speculator."""
    minor = check_supported()
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu import spec_decode

    _wrap(
        VllmConfig, "_get_v2_model_runner_unsupported_features", _unsupported, fingerprints.UNSUPPORTED, minor
    )
    _wrap(spec_decode, "init_speculator", _init, fingerprints.INIT_SPECULATOR, minor)
    runner = sys.modules.get(_RUNNER_MODULE)
    if hasattr(runner, "init_speculator"):  # it holds the original under a name of its own
        runner.init_speculator = spec_decode.init_speculator  # type: ignore[union-attr]


@contextmanager
def async_allowed(vllm_config: Any) -> Iterator[None]:
    """While vLLM checks a configuration: a class that runs on V2 may be scheduled asynchronously, as EAGLE may.

    vLLM's check is in the middle of a long method; the set of methods that it asks for is a global of its module.
    """
    speculative = vllm_config.speculative_config
    if (
        is_present()
        or speculative is None
        or speculative.method != "custom_class"
        or not offers_v2(speculative.model)
        or not vllm_config.use_v2_model_runner
    ):
        yield
        return
    from vllm.config import vllm as module

    types = module.EagleModelTypes
    module.EagleModelTypes = Literal[types, "custom_class"]
    try:
        yield
    finally:
        module.EagleModelTypes = types


@lru_cache
def offers_v2(name: Any) -> bool:
    """Whether the class of that name makes speculators for V2; False where it cannot be imported."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    try:
        return hasattr(resolve_obj_by_qualname(name), _OFFER)
    except Exception:  # vLLM says why when it makes one
        return False


def _wrap(owner: Any, name: str, make: Callable[..., Any], target: str, minor: str) -> None:
    if not is_applied(owner, name, PATCH):
        fingerprints.require_pristine(target, vars(owner).get(name), minor)
        replace(owner, name, make, patch=PATCH)


def _unsupported(original: Callable[..., Any]) -> Any:
    def _get_v2_model_runner_unsupported_features(self: Any) -> list[str]:
        features: list[str] = original(self)
        speculative = self.speculative_config
        if speculative is not None and speculative.method == "custom_class" and offers_v2(speculative.model):
            features.remove("speculative method 'custom_class'")
        return features

    return _get_v2_model_runner_unsupported_features


def _init(original: Callable[..., Any]) -> Any:
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        speculative = vllm_config.speculative_config
        if speculative.method != "custom_class" or not offers_v2(speculative.model):
            speculator = original(vllm_config, device, req_states)
            if speculative.method == "draft_model":
                let_depth_vary(speculator)
            if hasattr(speculator, "sample_draft"):
                watch_depth(speculator)
            return speculator
        from vllm.utils.import_utils import resolve_obj_by_qualname

        _install_runner_side()
        return resolve_obj_by_qualname(speculative.model).make_v2_speculator(vllm_config, device, req_states)

    return init_speculator


def _install_runner_side() -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from vllm_specx._compat import drafter_calls

    minor = check_supported()
    _wrap(GPUModelRunner, "load_model", _load_model, fingerprints.V2_LOAD, minor)
    _wrap(GPUModelRunner, "add_requests", _add_requests, fingerprints.V2_ADD, minor)
    _wrap(GPUModelRunner, "take_draft_token_ids", _take, fingerprints.V2_TAKE, minor)
    drafter_calls.install_worker_side()


def _load_model(original: Callable[..., Any]) -> Any:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _is_custom(self):
            self.speculator.load_model(self.model)

    return load_model


def _add_requests(original: Callable[..., Any]) -> Any:
    def add_requests(self: Any, scheduler_output: Any) -> None:
        original(self, scheduler_output)
        if _is_custom(self):
            self.speculator.begin_step(scheduler_output)

    return add_requests


def _take(original: Callable[..., Any]) -> Any:
    def take_draft_token_ids(self: Any) -> Any:
        drafts = original(self)
        lengths = self.speculator.draft_lengths if drafts is not None and _is_custom(self) else None
        if lengths is not None:
            drafts.draft_token_ids = [
                row[: lengths.get(request_id, 0)]
                for request_id, row in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
            ]
        return drafts

    return take_draft_token_ids


def _is_custom(runner: Any) -> bool:
    return runner.speculator is not None and runner.speculative_config.method == "custom_class"


def let_depth_vary(speculator: Any) -> None:
    """Let vLLM's loop over the passes of a draft model end where the step's N ends."""
    fingerprints.require_pristine(
        fingerprints.V2_DRAFT_MODEL, vars(type(speculator)).get("_multi_step_decode"), check_supported()
    )
    original = speculator.propose

    def propose(
        input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any
    ) -> Any:
        most = speculator.num_speculative_steps
        # The first pass reads what was verified, and drafts a token; each further token is a pass more.
        speculator.num_speculative_steps = (
            most if num_speculative_tokens is None else max(1, num_speculative_tokens)
        )
        try:
            original(input_batch, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        finally:
            speculator.num_speculative_steps = most
        return speculator.draft_tokens[: input_batch.num_reqs]

    speculator.propose = propose


def watch_depth(speculator: Any) -> None:
    """Warn, once, where more is drafted than a step asked for: N saves verification only then.

    (Passes inside a CUDA graph are not seen.)
    """
    from vllm.logger import init_logger

    logger = init_logger("vllm.specx")
    original, draw = speculator.propose, speculator.sample_draft
    num_drawn = 0

    def sample_draft(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_drawn
        num_drawn += 1
        return draw(*args, **kwargs)

    def propose(*args: Any, num_speculative_tokens: int | None = None, **kwargs: Any) -> Any:
        nonlocal num_drawn
        num_drawn = 0
        drafts = original(*args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        if num_speculative_tokens is not None and num_drawn > max(1, num_speculative_tokens):
            logger.warning_once(
                "specx: %s drafts more tokens than a step asks for: a smaller N saves verification only",
                type(speculator).__name__,
            )
        return drafts

    speculator.sample_draft, speculator.propose = sample_draft, propose
