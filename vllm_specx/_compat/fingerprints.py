"""Fingerprints of the functions of vLLM that are replaced or wrapped.

A wrapper relies on what the function beneath does, not on its name only. So each is compared, before a
wrapper goes in, with the source that the wrapper was written against.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from typing import Any

from vllm_specx._compat.versions import SUPPORTED_RANGE, UnsupportedVLLM

_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
PROPOSE = _RUNNER + "propose_draft_token_ids"
SAMPLE = _RUNNER + "_sample"
FITS = _RUNNER + "_input_fits_in_drafter"
CREATE = "vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer"
FROM_REQUEST = "vllm.v1.core.sched.output:NewRequestData.from_request"
EXPAND = "vllm.utils.cpu_triton_utils:_expand_kernel_impl"
REBIND = "vllm.triton_utils.dispatcher:_rebind_kernels"
REJECT = "vllm.v1.sample.rejection_sampler:RejectionSampler.forward"
SHUTDOWN = "vllm.v1.engine.utils:get_engine_process_shutdown_timeout"
WRAPPER = "vllm.v1.worker.worker_base:WorkerWrapperBase.__getattr__"
UNSUPPORTED = "vllm.config.vllm:VllmConfig._get_v2_model_runner_unsupported_features"
INIT_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.__init__:init_speculator"
_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner:GPUModelRunner."
V2_LOAD = _RUNNER_V2 + "load_model"
V2_ADD = _RUNNER_V2 + "add_requests"
V2_TAKE = _RUNNER_V2 + "take_draft_token_ids"
HEAD_SETUP = _RUNNER + "_setup_eagle3_aux_hidden_state_outputs"
_DRAFTER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer."
HEAD_PROPOSE = _DRAFTER + "propose"
HEAD_CHOICE = _DRAFTER + "_greedy_sample"
V2_DRAFT_MODEL = (
    "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator:StandaloneARSpeculator._multi_step_decode"
)

# Taken over by instances of ours (see hybrid_runner), so that there is no diff.
WITHOUT_DIFF = (HEAD_SETUP, HEAD_PROPOSE, HEAD_CHOICE)

# target -> minor version -> fingerprint of the pristine source.
FINGERPRINTS = {
    PROPOSE: {"0.32": "023963a7816b535d", "0.33": "75d21dfa620c0bec"},
    SAMPLE: {"0.32": "0e5d07b1a03ebda7", "0.33": "0e5d07b1a03ebda7"},
    FITS: {"0.32": "6966c85dbdc85045", "0.33": "6966c85dbdc85045"},
    CREATE: {"0.32": "8cd790ffe8fdda2f", "0.33": "8cd790ffe8fdda2f"},
    FROM_REQUEST: {"0.32": "296f054ec84b20ed", "0.33": "296f054ec84b20ed"},
    REBIND: {"0.32": "69650cc6627a1bf3", "0.33": "69650cc6627a1bf3"},
    REJECT: {"0.32": "dc759367918d92c6", "0.33": "88dd10ed7842b06a"},
    WRAPPER: {"0.32": "4448f957f399b343", "0.33": "4448f957f399b343"},
    SHUTDOWN: {"0.32": "6c911ccf670700db", "0.33": "3bf402f6cf628617"},
    EXPAND: {"0.32": "cb72d4d389c5be6d", "0.33": "cb72d4d389c5be6d"},
    HEAD_SETUP: {"0.32": "e964525f1ea4ef53", "0.33": "e964525f1ea4ef53"},
    HEAD_PROPOSE: {"0.32": "acfdd5112200df72", "0.33": "acfdd5112200df72"},
    HEAD_CHOICE: {"0.32": "f54e7d6849c4f835", "0.33": "f54e7d6849c4f835"},
    UNSUPPORTED: {"0.32": "4744efd8231031b4", "0.33": "f64d0665eade0b37"},
    INIT_SPECULATOR: {"0.32": "0157d01f67a9521c", "0.33": "be5ae4530ae0d2d5"},
    V2_LOAD: {"0.32": "e86542552b9054dc", "0.33": "7129bbe627a93f61"},
    V2_ADD: {"0.32": "eca5a1d4a7ccb623", "0.33": "eca5a1d4a7ccb623"},
    V2_TAKE: {"0.32": "c3b43a4182d74b6c", "0.33": "c3b43a4182d74b6c"},
    V2_DRAFT_MODEL: {"0.32": "d0236900f2759acc", "0.33": "d0236900f2759acc"},
}


def fingerprint(source: str) -> str:
    """Hash of a function's source without indentation, blank lines, comment lines and trailing blanks."""
    lines = (line.rstrip() for line in textwrap.dedent(source).splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def fingerprint_in_text(module_source: str, target: str) -> str:
    """Fingerprint of `target` ("module:Class.function") in the text of its module, without importing it."""
    scope: ast.AST = ast.parse(module_source)
    for name in target.partition(":")[2].split("."):
        scope = next(node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == name)
    assert isinstance(scope, ast.FunctionDef)
    first = min([scope.lineno, *(d.lineno for d in scope.decorator_list)])
    return fingerprint("\n".join(module_source.splitlines()[first - 1 : scope.end_lineno]))


def fingerprint_of(function: Any) -> str | None:
    """Fingerprint of a live function, None where it has no source. Wrappers are not looked through."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    try:
        return None if code is None else fingerprint(inspect.getsource(code))
    except (OSError, TypeError):
        return None


def is_pristine(target: str, function: Any, minor: str) -> bool:
    """Whether `function` is the source of `target` that vLLM `minor` was released with."""
    return fingerprint_of(function) == FINGERPRINTS[target][minor]


def require_pristine(target: str, function: Any, minor: str) -> None:
    """Raise UnsupportedVLLM unless `function` is what the wrapper for `target` was written against."""
    if not is_pristine(target, function, minor):
        raise UnsupportedVLLM(
            f"{target.replace(':', '.')} is not the code of vLLM {minor} that vllm-specx was written "
            f"against: another release, a local change or another plug-in's patch. "
            f"Supported are the unmodified releases {SUPPORTED_RANGE}"
        )
