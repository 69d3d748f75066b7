"""Which of vLLM's own drafters heed a length chosen every step, and what a configuration needs for it.

What is said here of vLLM holds for its V1 and V2 model runner of 0.32 and 0.33; a VllmConfig is only read by attribute,
so nothing here imports vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from vllm_specx import config
from vllm_specx.config import ConfigError, SpecxConfig
from vllm_specx.heads import name_of, set_name

METHODS: Final = ("eagle", "eagle3", "mtp", "draft_model", "ngram")
SCHEDULER: Final = "vllm_specx.AdaptiveScheduler"
ASYNC_SCHEDULER: Final = "vllm_specx.AdaptiveAsyncScheduler"
_RUNGS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_TABLE: Final = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafting time depends on N.

    Attributes:
        is_autoregressive: each draft token is a forward pass of the drafter.
        idle_passes: passes at N = 0: a drafter with a KV cache keeps it in step with the target's.

    """

    is_autoregressive: bool
    idle_passes: int

    def num_passes(self, n: int) -> int:
        """Passes of the drafter for N."""
        return (n or self.idle_passes) if self.is_autoregressive else 0

    @classmethod
    def of(cls, vllm_config: Any) -> Drafting:
        """Of the configured method. On runner V2 MTP of several modules always drafts the maximum."""
        speculative = vllm_config.speculative_config
        if speculative.method in ("ngram", "custom_class") or (
            vllm_config.use_v2_model_runner and speculative.use_multi_module_mtp()
        ):
            return cls(is_autoregressive=False, idle_passes=0)
        return cls(is_autoregressive=True, idle_passes=1)


def is_wanted(vllm_config: Any) -> bool:
    """Whether N is to be chosen every step: by option or because our scheduler is named."""
    return SpecxConfig.from_vllm(vllm_config).adaptive or _is_ours(vllm_config.scheduler_config.scheduler_cls)


def is_rectangle(vllm_config: Any) -> bool:
    """Whether a proposer of ours drafts as many tokens for every request, so that one N is to be chosen every step.

    That is so on runner V2 under async scheduling, which has to know how many there will be before they are drafted.
    (Before vLLM has decided on it: unless it is turned off.)
    """
    speculative = vllm_config.speculative_config
    return bool(
        speculative is not None
        and speculative.method == "custom_class"
        and str(speculative.model).startswith("vllm_specx.")
        and vllm_config.scheduler_config.async_scheduling is not False
        and vllm_config.use_v2_model_runner
    )


def check(vllm_config: Any) -> None:
    """Refuse what would be ignored or could not work, by name.

    Raises:
        ConfigError: see there.

    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        raise ConfigError(
            f"{config.KEY}.adaptive (or {SCHEDULER}) chooses the draft length of vLLM's own drafters, but there is no "
            f"speculative_config: name a method ({', '.join(METHODS)}) there"
        )
    if speculative.enable_adaptive_verification:
        raise ConfigError(
            f"enable_adaptive_verification and {config.KEY}.adaptive both choose how much is verified: remove one"
        )
    # A proposer of ours can do without the scheduler, if vLLM decides against async scheduling.
    is_decided = bool(vllm_config.scheduler_config.async_scheduling) or not is_rectangle(vllm_config)
    if is_rectangle(vllm_config):
        if is_decided and SpecxConfig.from_vllm(vllm_config).alpha is not None:
            raise ConfigError(
                f"{config.KEY}.alpha has no effect on model runner V2 under async scheduling, where the scheduler "
                "measures costs: remove it, or turn async_scheduling off"
            )
    elif speculative.method not in METHODS:
        raise ConfigError(
            f"{config.KEY}.adaptive cannot drive the speculative method {speculative.method!r}, which does not heed a "
            f"length chosen every step or chooses by itself; it drives {', '.join(METHODS)}"
        )
    if speculative.parallel_drafting:
        raise ConfigError(
            f"parallel_drafting drafts num_speculative_tokens in one pass, always: {config.KEY}.adaptive cannot be used"
        )
    table = getattr(speculative, _TABLE)
    if table is not None and not is_our_table(table, vllm_config):
        raise ConfigError(
            f"{_TABLE} fixes what {config.KEY}.adaptive (or {SCHEDULER}) chooses every step: remove one of them"
        )
    if speculative.rejection_sample_method == "synthetic":
        raise ConfigError(
            "rejection_sample_method 'synthetic' accepts drafts at random: acceptance cannot be measured with "
            f"{config.KEY}.adaptive"
        )
    if vllm_config.parallel_config.pipeline_parallel_size > 1 and is_decided:
        raise ConfigError(
            "choosing the draft length in the scheduler does not work with pipeline parallelism: several steps are "
            "under way at once, and what one of them costs cannot be told"
        )
    scheduler = vllm_config.scheduler_config.scheduler_cls
    if scheduler is not None and not _is_ours(scheduler):
        raise ConfigError(
            f"{config.KEY}.adaptive brings its own scheduler, but scheduler_cls is {scheduler!r}: remove one"
        )


def prepare(vllm_config: Any, warn: Callable[[str], None]) -> None:
    """Complete a checked configuration before vLLM derives anything from it.

    On runner V2 CUDA graphs are captured for each length of the table, so it gets one. On V1 a table would only
    downgrade full graphs, so there is none: our scheduler needs none.
    """
    speculative = vllm_config.speculative_config
    if is_pinned(vllm_config):
        warn(pinned_reason(vllm_config))
        vllm_config.scheduler_config.scheduler_cls = None
        return
    if name_of(speculative) is None and speculative.method != "custom_class":
        set_name(speculative, SCHEDULER)  # requests may have a say then
    if vllm_config.use_v2_model_runner:
        setattr(speculative, _TABLE, _our_table(vllm_config))


def complete(vllm_config: Any) -> None:
    """Take the scheduler that fits, now that vLLM has decided on async scheduling."""
    scheduler = vllm_config.scheduler_config
    if vllm_config.speculative_config.method == "custom_class" and not is_rectangle(vllm_config):
        scheduler.scheduler_cls = None  # the proposer chooses, for each request
        setattr(vllm_config.speculative_config, _TABLE, None)
    elif not is_pinned(vllm_config):
        scheduler.scheduler_cls = ASYNC_SCHEDULER if scheduler.async_scheduling else SCHEDULER


def is_pinned(vllm_config: Any) -> bool:
    """Whether N has to stay what it is: vLLM deadlocks when engines of one data-parallel group draft differently."""
    return bool(vllm_config.parallel_config.data_parallel_size > 1)


def pinned_reason(vllm_config: Any) -> str:
    """What to tell the user then."""
    return (
        f"{config.KEY}.adaptive: engines of one data-parallel group must draft alike, so the length is fixed at "
        f"num_speculative_tokens={vllm_config.speculative_config.num_speculative_tokens}"
    )


def ladder(max_n: int) -> list[int]:
    """Lengths worth a set of CUDA graphs each: 0..max_n in growing steps."""
    return [rung for rung in _RUNGS if rung < max_n] + [max_n]


def ladder_table(max_n: int, max_num_seqs: int) -> list[tuple[int, int, int]]:
    """A table (first batch size, last, N) that makes vLLM capture graphs for each rung, at nearly all batch sizes.

    vLLM covers a length up to the largest batch that the table gives it, so all but the longest stand at its end. With
    fewer batch sizes than rungs the longest and the shortest are in it.
    """
    lower = ladder(max_n)[-2::-1]  # falling
    lower = lower[len(lower) - max_num_seqs + 1 :] if len(lower) >= max_num_seqs else lower
    first = max_num_seqs - len(lower)
    return [(1, first, max_n)] + [(first + 1 + i, first + 1 + i, n) for i, n in enumerate(lower)]


def _our_table(vllm_config: Any) -> list[tuple[int, int, int]]:
    return ladder_table(
        vllm_config.speculative_config.num_speculative_tokens, vllm_config.scheduler_config.max_num_seqs
    )


def is_our_table(table: Any, vllm_config: Any) -> bool:
    """A configuration is checked again whenever vLLM copies it."""
    return bool(vllm_config.use_v2_model_runner) and [tuple(row) for row in table] == _our_table(vllm_config)


def _is_ours(scheduler: Any) -> bool:
    name = scheduler if isinstance(scheduler, str) else getattr(scheduler, "__qualname__", "")
    module, _, name = name.rpartition(".")
    module = module or getattr(scheduler, "__module__", "")
    return module in ("vllm_specx", "vllm_specx.scheduler") and name in (
        SCHEDULER.rpartition(".")[2],
        ASYNC_SCHEDULER.rpartition(".")[2],
    )
