"""What vllm-specx takes for granted of vLLM, beside the functions that have a fingerprint, and how it is looked up.

A name is looked up in a module's text, so that a release can be checked that is not installed. Imports, environment
variables and metrics are not listed here but found in our own sources (`imports`, `constants`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vllm_specx._compat.fingerprints import FINGERPRINTS

PACKAGE = Path(__file__).resolve().parent.parent / "vllm_specx"
VARIABLES, METRICS = r"VLLM_[A-Z0-9_]+", r"vllm:[a-z_]+"
TEXTS = ("vllm.envs", "vllm.v1.metrics.loggers")  # where those are


@dataclass(frozen=True)
class Name:
    """A class, function or constant of vLLM.

    Attributes:
        module, name: where it is defined.
        members: attributes and methods of a class, defined by itself.
        parameters: of a function, by the names and in the order that we rely on.
        is_whole: it has no other parameters.

    """

    module: str
    name: str
    members: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    is_whole: bool = False


def _class(where: str, members: str) -> Name:
    module, _, name = where.partition(":")
    return Name(module, name, tuple(members.split()))


def _call(where: str, parameters: str, *, is_whole: bool = False) -> Name:
    module, _, name = where.partition(":")
    return Name(module, name, parameters=tuple(parameters.split()), is_whole=is_whole)


CONTRACT = (
    # Configurations: plugin, config, heads, hybrid, medusa_heads, scheduling.methods, costs, fleet.identity
    _class(
        "vllm.config.vllm:VllmConfig",
        "__post_init__ additional_config compilation_config instance_id model_config parallel_config scheduler_config "
        "speculative_config use_v2_model_runner",
    ),
    Name("vllm.config.vllm", "EagleModelTypes"),
    _class(
        "vllm.config.speculative:SpeculativeConfig",
        "__post_init__ disable_padded_drafter_batch draft_sample_method enable_adaptive_verification method model "
        "num_speculative_tokens num_speculative_tokens_per_batch_size parallel_drafting rejection_sample_method "
        "target_model_config use_multi_module_mtp",
    ),
    _class(
        "vllm.config.parallel:ParallelConfig",
        "data_parallel_index data_parallel_size distributed_executor_backend nnodes pipeline_parallel_size "
        "prefill_context_parallel_size rank tensor_parallel_size worker_extension_cls world_size",
    ),
    _class(
        "vllm.config.scheduler:SchedulerConfig",
        "async_scheduling get_scheduler_cls max_num_batched_tokens max_num_seqs scheduler_cls",
    ),
    _class(
        "vllm.config.model:ModelConfig",
        "dtype get_hidden_size get_vocab_size hf_text_config is_hybrid max_model_len model quantization "
        "served_model_name",
    ),
    _class("vllm.config.compilation:CompilationConfig", "cudagraph_capture_sizes cudagraph_mode"),
    _class("vllm.config.compilation:CUDAGraphMode", "has_full_cudagraphs"),
    _class(
        "vllm.engine.arg_utils:EngineArgs",
        "additional_config create_engine_config dtype enable_prefix_caching enforce_eager gpu_memory_utilization "
        "max_model_len max_num_batched_tokens max_num_seqs model scheduler_cls seed speculative_config",
    ),
    _call("vllm.engine.arg_utils:EngineArgs.create_engine_config", "self usage_context"),
    _class("vllm.usage.usage_lib:UsageContext", "LLM_CLASS"),
    _call("vllm.tokenizers.registry:cached_tokenizer_from_config", "model_config"),
    _call("vllm.utils.import_utils:resolve_obj_by_qualname", "qualname"),
    Name("vllm.v1.sample.rejection_sampler", "MAX_SPEC_LEN"),
    # Requests: request_options, proposers._requests, memory.namespaces
    _class(
        "vllm.sampling_params:SamplingParams",
        "detokenize eos_token_id extra_args from_optional ignore_eos max_tokens output_kind stop_token_ids temperature "
        "verify",
    ),
    _call("vllm.sampling_params:SamplingParams.verify", "self model_config speculative_config"),
    _class("vllm.sampling_params:RequestOutputKind", "DELTA FINAL_ONLY"),
    _call("vllm.exceptions:VLLMValidationError.__init__", "self"),
    _class("vllm.lora.request:LoRARequest", "load_inplace lora_int_id lora_name lora_path"),
    _class(
        "vllm.v1.request:Request",
        "cache_salt max_tokens num_computed_tokens num_output_placeholders num_output_tokens num_tokens "
        "sampling_params spec_token_ids",
    ),
    _class(
        "vllm.v1.core.sched.output:NewRequestData",
        "from_request lora_request prefill_token_ids prompt_embeds prompt_token_ids req_id sampling_params",
    ),
    _class(
        "vllm.v1.worker.gpu_input_batch:CachedRequestState",
        "lora_request num_prompt_tokens prompt_embeds prompt_token_ids sampling_params",
    ),
    # Steps: scheduler, scheduling.observer, proposers, _compat.context
    _class(
        "vllm.v1.core.sched.output:SchedulerOutput",
        "finished_req_ids num_invalid_spec_tokens num_scheduled_tokens num_spec_tokens_to_schedule preempted_req_ids "
        "scheduled_new_reqs scheduled_spec_decode_tokens total_num_scheduled_tokens",
    ),
    _class("vllm.v1.outputs:ModelRunnerOutput", "req_id_to_index sampled_token_ids"),
    _class("vllm.v1.outputs:DraftTokenIds", "draft_token_ids req_ids"),
    _class(
        "vllm.v1.core.sched.scheduler:Scheduler",
        "dynamic_sd_lookup max_num_scheduled_tokens num_spec_tokens requests scheduler_config vllm_config",
    ),
    _call("vllm.v1.core.sched.scheduler:Scheduler.get_request_counts", "self", is_whole=True),
    _call(
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        "self scheduler_output model_runner_output",
        is_whole=True,
    ),
    _call(
        "vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule",
        "self scheduler_output",
        is_whole=True,
    ),
    _call(
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids", "self draft_token_ids", is_whole=True
    ),
    _call(
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        "self scheduler_output",
        is_whole=True,
    ),
    _class("vllm.v1.spec_decode.metadata:SpecDecodeMetadata", "num_draft_tokens"),
    # Model runner V1: _compat.context, _compat.hybrid_runner, train.engine
    _class("vllm.v1.worker.gpu_input_batch:InputBatch", "num_tokens_no_spec req_ids token_ids_cpu"),
    _class(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "_draft_prob_req_ids _draft_probs drafter get_model input_batch max_model_len query_start_loc requests "
        "speculative_config use_aux_hidden_state_outputs vllm_config",
    ),
    _call("vllm.v1.worker.gpu_model_runner:GPUModelRunner._model_forward", "self input_ids positions"),
    _class(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer",
        "dtype max_num_tokens model use_heterogeneous_vocab use_local_argmax_reduction",
    ),
    _call(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose",
        "self num_speculative_tokens target_token_ids target_positions target_hidden_states next_token_ids "
        "token_indices_to_sample common_attn_metadata",
    ),
    _class(
        "vllm.v1.attention.backend:CommonAttentionMetadata",
        "_num_computed_tokens_cache _token_to_req_indices_cache max_query_len num_actual_tokens query_start_loc "
        "query_start_loc_cpu replace slot_mapping",
    ),
    _class(
        "vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM",
        "draft_id_to_target_id lm_head logits_processor model",
    ),
    _class("vllm.model_executor.models.llama_eagle3:LlamaModel", "fc_input_size"),
    _class(
        "vllm.model_executor.models.interfaces:SupportsEagle3",
        "get_eagle3_default_aux_hidden_state_layers set_aux_hidden_state_layers",
    ),
    _class("vllm.model_executor.models.llama:LlamaForCausalLM", "embed_input_ids lm_head load_weights"),
    _class("vllm.v1.spec_decode.suffix_decoding:SuffixDecodingProposer", "suffix_cache"),
    # Model runner V2: speculators.custom_class, _compat.v2_speculators
    _call(
        "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.propose",
        "self input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected "
        "last_sampled next_prefill_tokens temperature seeds dp_sync_state dummy_run skip_attn_for_dummy_run mm_inputs "
        "is_profile num_speculative_tokens",
        is_whole=True,
    ),
    _call(
        "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.init_cudagraph_manager",
        "self cudagraph_mode",
        is_whole=True,
    ),
    _call("vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.capture", "self", is_whole=True),
    _class(
        "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator",
        "draft_tokens num_speculative_steps sample_draft",
    ),
    _class("vllm.v1.worker.gpu.states:RequestState", "all_token_ids total_len"),
    _class("vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor", "gpu"),
    _class(
        "vllm.v1.worker.gpu.input_batch:InputBatch", "idx_mapping num_draft_tokens_per_req num_reqs req_ids"
    ),
    _class("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "model speculative_config speculator"),
    _class("vllm.distributed.parallel_state:GroupCoordinator", "broadcast rank_in_group world_size"),
    # Workers: _compat.drafter_calls, worker_extension, proposers._memory
    _class("vllm.v1.worker.worker_base:WorkerWrapperBase", "worker"),
    _class(
        "vllm.v1.worker.gpu_worker:Worker",
        "add_lora finish_weight_update model_runner reload_weights reset_weights sleep update_weights",
    ),
    _class("vllm.v1.executor.uniproc_executor:UniProcExecutor", "driver_worker"),
    _class("vllm.v1.executor.multiproc_executor:MultiprocExecutor", "_get_output_rank"),
    _class("vllm.platforms.interface:Platform", "device_type get_device_name import_kernels is_cpu"),
    _class("vllm.platforms.cpu:CpuPlatform", "register_triton_kernel_overrides"),
    Name("vllm.triton_utils.dispatcher", "_registry"),
    Name("vllm.plugins", "DEFAULT_PLUGINS_GROUP"),
    # Engines from outside: bench, calibrate, train, workers
    _class(
        "vllm.v1.engine.llm_engine:LLMEngine",
        "abort_request add_request model_executor renderer reset_prefix_cache step vllm_config",
    ),
    _call("vllm.v1.engine.llm_engine:LLMEngine.from_vllm_config", "cls vllm_config stat_loggers"),
    _call("vllm.v1.engine.llm_engine:LLMEngine.add_request", "self request_id prompt params"),
    _call("vllm.renderers.base:BaseRenderer.render_cmpl", "self prompts"),
    _class("vllm.outputs:RequestOutput", "finished outputs request_id"),
    _class("vllm.outputs:CompletionOutput", "text token_ids"),
    _class(
        "vllm.v1.spec_decode.metrics:SpecDecodingStats", "num_accepted_tokens num_draft_tokens num_drafts"
    ),
    _class("vllm.v1.metrics.stats:SchedulerStats", "spec_decoding_stats"),
    _class("vllm.v1.metrics.stats:IterationStats", "num_preempted_reqs"),
    _class("vllm.v1.metrics.loggers:StatLoggerBase", "log log_engine_initialized record record_sleep_state"),
    _call("vllm.v1.metrics.loggers:StatLoggerBase.record", "self scheduler_stats iteration_stats"),
    _call("vllm.entrypoints.llm:LLM.collective_rpc", "self method timeout args"),
)


# Looking up


def candidates(module: str) -> tuple[str, str]:
    """The files that a module may be, relative to the folder that contains vllm/."""
    path = module.replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"


def source_of(folder: Path, module: str) -> str:
    """The text of a module. Raises FileNotFoundError where a release has none of that name."""
    for name in candidates(module):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise FileNotFoundError(f"{folder} has no module {module}")


@cache
def _tree(folder: Path, module: str) -> ast.Module:
    return ast.parse(source_of(folder, module))


def definition(folder: Path, module: str, name: str) -> ast.AST | None:
    """Where a qualified name is bound: a class, a function, an assignment or an import; None if nowhere."""
    scope: ast.AST = _tree(folder, module)
    for part in name.split("."):
        found = [node for node in _statements(scope) if part in _bound(node)]
        if not found:
            return _from_all_of(folder, module, name)
        scope = found[-1]
    return scope


def _from_all_of(folder: Path, module: str, name: str) -> ast.AST | None:
    """The same in the modules of which a package takes everything: `from .other import *`."""
    for node in _statements(_tree(folder, module)):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.names[0].name == "*":
            with suppress(FileNotFoundError):
                if (found := definition(folder, f"{module}.{node.module}", name)) is not None:
                    return found
    return None


def members(definition: ast.AST) -> set[str]:
    """What a class defines: names in its body, and attributes that its methods set on their first parameter."""
    found = {name for node in _statements(definition) for name in _bound(node)}
    for method in _statements(definition):
        if isinstance(method, ast.FunctionDef) and method.args.args:
            own = method.args.args[0].arg
            for node in ast.walk(method):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                flat = [t for target in targets for t in getattr(target, "elts", [target])]
                found |= {t.attr for t in flat if isinstance(t, ast.Attribute) and _is_name(t.value, own)}
    return found


def parameters(definition: ast.AST) -> list[str]:
    """Names of a function's parameters, in order, starred ones left out."""
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = definition.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Those of a body, of the branches in it too."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt):
            yield node
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _statements(node)
        elif isinstance(node, ast.ExceptHandler):
            yield from _statements(node)


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        names = {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
        if isinstance(node.value, ast.Dict):  # names that a package imports when they are asked for
            names |= {str(k.value) for k in node.value.keys if isinstance(k, ast.Constant)}
        return names
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return set()


# Our own sources


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE.parent).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports() -> frozenset[tuple[str, str, str]]:
    """(file, module, name) of all that our sources import of vLLM, wherever in them; no name for a whole module."""
    found = set()
    for file, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and _is_vllm(node.module):
                found |= {(file, str(node.module), alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {(file, alias.name, "") for alias in node.names if _is_vllm(alias.name)}
    return frozenset(found)


def _is_vllm(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "vllm"


@cache
def constants(pattern: str) -> frozenset[str]:
    """Texts in our sources that match a pattern as a whole."""
    return frozenset(
        node.value
        for _, tree in _sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(pattern, node.value)
    )


@cache
def files() -> tuple[str, ...]:
    """Every file of vLLM in which something may be looked up."""
    modules = {name.module for name in CONTRACT} | {target.partition(":")[0] for target in FINGERPRINTS}
    modules |= {part for _, module, name in imports() for part in (module, f"{module}.{name}") if part}
    return tuple(sorted(file for module in (*modules, *TEXTS) for file in candidates(module)))
