"""Which engines a verification starts: each method at each number of draft tokens, as far as its drafter goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from vllm_specx import medusa_heads
from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.methods import choose, engine_options
from vllm_specx.bench.settings import BenchSettings
from vllm_specx.config import KEY, ConfigError
from vllm_specx.heads import ADAPTIVE, HYBRID, find_head
from vllm_specx.recipes import recipe
from vllm_specx.verify.settings import VerifySettings

# Two, of which a random number is verified: tokens are accepted, recovered, and follow an accepted draft, and all of
# that within the three tokens whose law is tested.
SAMPLED_LENGTH: Final = 2
_SET_HERE: Final = (
    "model",
    "dtype",
    "max_model_len",
    "max_num_seqs",
    "enable_prefix_caching",
    "enforce_eager",
    "gpu_memory_utilization",
)
# What a test must not write to, or tell others.
NOT_OURS: Final = ("memory_path", "autosave_s", "fleet")


@dataclass(frozen=True)
class Candidate:
    """One engine: `options` are for vLLM's EngineArgs; `is_fixed` says that our proposers draft all they can."""

    method: str
    n: int
    options: Mapping[str, Any]
    is_fixed: bool = True

    @property
    def name(self) -> str:
        return f"{self.method}, N={self.n}"


@dataclass
class Plan:
    """The engines of both parts. `shared` are options of plain decoding too; `left_out` says what and why."""

    greedy: list[Candidate] = field(default_factory=list)
    sampled: list[Candidate] = field(default_factory=list)
    shared: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    max_model_len: int | None = None


def make_plan(settings: VerifySettings) -> Plan:
    """Raises BenchError for a recipe or a head that cannot be used, or if nothing is left to verify."""
    plan = Plan(max_model_len=settings.max_model_len)
    if settings.config is not None:
        _plan_recipe(settings, settings.config, plan)
    else:
        _plan_methods(settings, plan)
    if not plan.greedy and not plan.sampled:
        raise BenchError(
            "nothing can be verified: " + "; ".join(f"{name}: {why}" for name, why in plan.left_out.items())
        )
    return plan


def _plan_methods(settings: VerifySettings, plan: Plan) -> None:
    choice = choose(settings.methods)
    plan.left_out.update(choice.left_out)
    config = _target(settings.model)
    for method in choice.methods[1:]:  # the first is plain decoding
        for length in settings.lengths if settings.num_prompts else ():
            _add(settings, plan, plan.greedy, config, method, length)
        if settings.samples:
            _add(settings, plan, plan.sampled, config, method, SAMPLED_LENGTH)


def _add(
    settings: VerifySettings, plan: Plan, to: list[Candidate], target: Any, method: str, length: int
) -> None:
    sampled = to is plan.sampled
    options: dict[str, Any] = {}
    if method == "lookahead" and sampled:  # three tokens are no trajectory to draft from
        options = {"lookahead_prompt": True, "lookahead_shared": True}
    if method == "medusa" and settings.medusa_heads is not None:
        options = {"medusa_heads": settings.medusa_heads}
    try:
        made = engine_options(
            f"{method}:{length}",
            BenchSettings(model=settings.model, prompts=settings.prompts, head=settings.head),
        )
        if options:
            made["additional_config"] = {KEY: options}
        _check_head(made, target, length)
    except (ConfigError, BenchError) as error:
        plan.left_out[f"{method}, N={length}"] = str(error)
        return
    to.append(Candidate(method, length, made))


def _check_head(options: Mapping[str, Any], target: Any, length: int) -> None:
    """Refuse what an engine would refuse after a while. Raises ConfigError."""
    speculative = options["speculative_config"]
    name, _, head = str(speculative.get("model", "")).partition(":")
    checks: dict[str, Callable[[], Any]] = {
        **dict.fromkeys((ADAPTIVE, HYBRID), lambda: find_head(name, head, target, length)),
        medusa_heads.NAME: lambda: medusa_heads.load(
            SimpleNamespace(
                model_config=target,
                additional_config=options.get("additional_config"),
                speculative_config=SimpleNamespace(num_speculative_tokens=length),
            ),
            "meta",
        ),
    }
    if name in checks:
        checks[name]()


def _target(model: str) -> Any:
    """As much of vLLM's ModelConfig as the checks of heads read. Raises BenchError."""
    from vllm_specx.calibrate.settings import check_model

    check_model(model)
    from transformers import AutoConfig

    return SimpleNamespace(model=model, hf_text_config=AutoConfig.from_pretrained(model).get_text_config())


def _plan_recipe(settings: VerifySettings, name: str, plan: Plan) -> None:
    try:
        options = recipe(name)
    except ValueError as error:
        raise BenchError(f"--config: {error}") from error
    speculative = options.get("speculative_config")
    if not isinstance(speculative, Mapping) or "num_speculative_tokens" not in speculative:
        raise BenchError(
            f"--config {name}: has no speculative-config with num_speculative_tokens: there is nothing to verify"
        )
    if plan.max_model_len is None:
        plan.max_model_len = options.get("max_model_len")
    options = {key: value for key, value in options.items() if key not in _SET_HERE}
    additional = dict(options.pop("additional_config", None) or {})
    specx = additional.pop(KEY, None) or {}
    if isinstance(specx, Mapping):  # else vllm-specx says what is wrong with it
        specx = {key: value for key, value in specx.items() if key not in NOT_OURS}
    own = ("speculative_config", "scheduler_cls")
    plan.shared = {key: value for key, value in options.items() if key not in own}
    if additional:
        plan.shared["additional_config"] = additional
    options["additional_config"] = {**additional, KEY: specx}
    candidate = Candidate("recipe", int(speculative["num_speculative_tokens"]), options, is_fixed=False)
    plan.greedy = [candidate] if settings.num_prompts else []
    plan.sampled = [candidate] if settings.samples else []
