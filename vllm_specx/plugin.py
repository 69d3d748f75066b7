"""Entry point `specx` of the group vllm.general_plugins: vLLM calls `register` in each of its processes."""

from collections.abc import Callable
from typing import Any

from vllm_specx import _compat, config, heads, hybrid, medusa_heads, request_options
from vllm_specx.scheduling import methods

_PREFIX = "vllm_specx."
PROPOSERS = ("SuffixTreeProposer", "LookaheadProposer", "MedusaProposer")
SHUTDOWN_SECONDS = 15  # at most; vLLM allows as much on ROCm
_HYBRID_TARGET = (
    "specx: the target keeps recurrent states (Mamba, GDN) beside its KV cache. vllm-specx was not run with such a "
    "target; there are reports of wrong ends of reasoning and of tool calls with speculation on them: compare with "
    "plain decoding"
)


def register() -> None:
    """Install what the running vLLM lacks, and check specx options wherever a VllmConfig is built. Idempotent.

    Raises:
        UnsupportedVLLM: vLLM is outside the supported range.
        PatchConflict: another plug-in patched the same names.

    """
    _compat.install()
    from vllm.config import SpeculativeConfig, VllmConfig

    from vllm_specx._compat.apply import replace

    replace(SpeculativeConfig, "__post_init__", _named, patch="heads")
    replace(VllmConfig, "__post_init__", _checked, patch="config-check")
    request_options.install()


def check_config(vllm_config: Any) -> None:
    """Refuse, before any engine process starts, a configuration that vllm-specx could not honour.

    Raises:
        ConfigError: an unknown proposer, bad or unused options, a draft length that cannot be verified, or an
            acceptance method that changes what the target would have said.

    """
    if methods.is_wanted(vllm_config) or methods.is_rectangle(vllm_config):
        methods.check(vllm_config)
        if not methods.is_rectangle(vllm_config):
            _check_costs(config.SpecxConfig.from_vllm(vllm_config))
            return
    if hybrid.is_wanted(vllm_config):
        hybrid.check(vllm_config)
        config.SpecxConfig.from_vllm(vllm_config).check_proposer(heads.HYBRID)
        _check_ours(vllm_config)
        return
    speculative = vllm_config.speculative_config
    model = speculative.model if speculative is not None else None
    additional = vllm_config.additional_config
    if not isinstance(model, str) or not model.startswith(_PREFIX):
        if isinstance(additional, dict) and additional.get(config.KEY):
            raise config.ConfigError(
                f"additional_config has options for {config.KEY!r}, but no proposer of vllm_specx is configured: "
                f"name one in speculative_config.model ({_names()}), set {config.KEY}.adaptive to true for a drafter "
                "of vLLM's own, or remove the options"
            )
        return
    if model.removeprefix(_PREFIX) not in PROPOSERS:
        raise config.ConfigError(f"vllm-specx has no proposer {model!r}; known are {_names()}")
    config.SpecxConfig.from_vllm(vllm_config).check_proposer(model)
    if model == medusa_heads.NAME:
        medusa_heads.check(vllm_config)
    _check_ours(vllm_config)


def _check_ours(vllm_config: Any) -> None:
    """What holds for every proposer of ours."""
    speculative = vllm_config.speculative_config
    options = config.SpecxConfig.from_vllm(vllm_config)
    if _is_on_this_machine(vllm_config.parallel_config):
        _check_costs(options)
        if options.memory_path:
            config.check_memory_path(options.memory_path)
    table = speculative.num_speculative_tokens_per_batch_size
    if table is not None and not methods.is_our_table(table, vllm_config):
        raise config.ConfigError(
            "num_speculative_tokens_per_batch_size is not used by vllm-specx, which chooses each request's "
            "draft length itself: remove it"
        )
    if speculative.rejection_sample_method not in ("standard", "block"):
        raise config.ConfigError(
            f"rejection_sample_method {speculative.rejection_sample_method!r} changes the output distribution; "
            "vllm-specx allows 'standard' and 'block'"
        )
    if vllm_config.model_config is not None:
        config.check_num_speculative_tokens(
            speculative.num_speculative_tokens, vllm_config.model_config.max_model_len
        )
        _check_stages(vllm_config)


def _check_stages(vllm_config: Any) -> None:
    num_stages = vllm_config.parallel_config.pipeline_parallel_size
    if num_stages > 1 and not vllm_config.use_v2_model_runner:
        raise config.ConfigError(
            "vLLM's model runner V1 does not start with speculation and pipeline parallelism (its first stages look "
            f"for a drafter that only the last one has): pipeline_parallel_size must be 1, got {num_stages}"
        )


def prepare_config(vllm_config: Any) -> None:
    """Complete a configuration before vLLM derives anything from it.

    Raises:
        ConfigError: adaptive lengths are wanted where they would be ignored or could not work.

    """
    _take_names(vllm_config)
    if methods.is_wanted(vllm_config) or methods.is_rectangle(vllm_config):
        from vllm.logger import init_logger

        methods.check(vllm_config)
        methods.prepare(vllm_config, init_logger("vllm.specx").warning_once)
    elif hybrid.is_wanted(vllm_config):
        hybrid.check(vllm_config)
        hybrid.prepare(vllm_config)


def complete_config(vllm_config: Any) -> None:
    """Choose the adaptive scheduler that fits, and leave an engine with a memory file the time to save it.

    (`vllm serve` kills its engine right after SIGTERM.)
    """
    if methods.is_wanted(vllm_config) or _has_own_table(vllm_config):
        methods.complete(vllm_config)
    if config.SpecxConfig.from_vllm(vllm_config).memory_path:
        _compat.open_window(SHUTDOWN_SECONDS)
    is_counted = _has_proposer(vllm_config) or methods.is_wanted(vllm_config)
    if vllm_config.model_config is not None and is_counted:
        from vllm_specx.metrics.collector import watch

        watch(str(vllm_config.instance_id), str(vllm_config.model_config.served_model_name))
        if getattr(vllm_config.model_config, "is_hybrid", False):
            from vllm.logger import init_logger

            init_logger("vllm.specx").warning_once(_HYBRID_TARGET)


def _has_proposer(vllm_config: Any) -> bool:
    """Whether a proposer of ours is at work in a worker, and counts what it does."""
    model = getattr(vllm_config.speculative_config, "model", None)
    return hybrid.is_wanted(vllm_config) or (isinstance(model, str) and model.startswith(_PREFIX))


def _has_own_table(vllm_config: Any) -> bool:
    """Whether `prepare` took the configuration for one in which the scheduler chooses."""
    speculative = vllm_config.speculative_config
    return (
        speculative is not None
        and speculative.method == "custom_class"
        and speculative.num_speculative_tokens_per_batch_size is not None
    )


def _is_on_this_machine(parallel_config: Any) -> bool:
    """Whether the worker that drafts sees this machine's files; otherwise only itself can check its path."""
    return parallel_config.nnodes == 1 and parallel_config.distributed_executor_backend != "ray"


def _check_costs(options: config.SpecxConfig) -> None:
    if options.costs:  # what reads a table brings numba along
        from vllm_specx.costs import load_cost_table

        load_cost_table(options)


def _names() -> str:
    return ", ".join([*(_PREFIX + name for name in PROPOSERS), heads.ADAPTIVE, heads.HYBRID])


def _named(original: Callable[..., None]) -> Any:
    def __post_init__(self: Any) -> None:
        named = heads.split_name(self.model)
        if named is not None:
            if self.method not in (None, "eagle3"):
                raise config.ConfigError(
                    f"{self.model} is method 'eagle3', not {self.method!r}: leave the method out"
                )
            self.model = heads.find_head(*named, self.target_model_config, self.num_speculative_tokens)
            self.method = "eagle3"
        original(self)
        if named is not None:
            heads.set_name(self, named[0])

    return __post_init__


def _take_names(vllm_config: Any) -> None:
    """Turn the name of a class, which stood for vLLM's method eagle3, into the option that it means."""
    name = heads.name_of(vllm_config.speculative_config)
    if name == heads.ADAPTIVE and hybrid.is_head_alone(vllm_config):
        config.SpecxConfig.for_head_alone(vllm_config)
    elif name is not None:
        options = vllm_config.additional_config.setdefault(config.KEY, {})
        if isinstance(options, dict):
            options["hybrid" if name == heads.HYBRID else "adaptive"] = True


def _checked(original: Callable[..., None]) -> Any:
    def __post_init__(self: Any) -> None:
        prepare_config(self)
        with _compat.async_allowed(self):
            original(self)
        check_config(self)
        complete_config(self)

    return __post_init__
