"""The files of recipes/ as keyword arguments of `vllm.LLM`. Imports no vLLM."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml

from vllm_specx.config import brief

# A link to the checkout's recipes/; in a wheel, a folder with copies.
FOLDER: Final = Path(__file__).resolve().parent / "_recipes"
_SUFFIXES: Final = (".yaml", ".yml")

# What `vllm serve` takes and `vllm.LLM` does not: vLLM's FrontendArgs but for the chat template, and what its parser
# and AsyncEngineArgs add.
_SERVER_ONLY: Final = """
    allow_credentials allowed_headers allowed_methods allowed_origins anthropic_disabled_thinking_effort
    api_key api_server_count chat_template_content_format cohere_format cohere_is_reasoning_model config
    data_parallel_supervisor_port default_chat_template_kwargs disable_access_log_for_endpoints
    disable_fastapi_docs disable_uvicorn_access_log dp_supervisor_probe_failure_threshold
    dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s enable_auto_tool_choice
    enable_flash_late_interaction enable_force_include_usage enable_log_deltas enable_log_outputs
    enable_log_requests enable_offline_docs enable_per_request_metrics enable_prompt_tokens_details
    enable_request_id_headers enable_scale_out enable_server_load_tracking enable_ssl_refresh
    enable_tokenizer_info_endpoint exclude_tools_when_tool_choice_none fingerprint_mode fingerprint_value
    grpc grpc_port h11_max_header_count h11_max_incomplete_event_size headless host log_error_stack
    lora_modules max_log_len middleware port response_role return_tokens_as_token_ids root_path
    sse_keep_alive_interval ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers ssl_keyfile
    tool_call_parser tool_parser_plugin tool_server tool_strict_level trust_request_chat_template
    trust_request_mm_kwargs uds uvicorn_log_level
"""
SERVER_ONLY: Final = frozenset(_SERVER_ONLY.split())


def names() -> list[str]:
    """The recipes that come with vllm-specx."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def recipe(name: str | os.PathLike[str]) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM`, as in `LLM(**recipe("eagle3-chat"))`; what only a server has is left out.

    Args:
        name: of a recipe that comes with vllm-specx, or the path of a YAML file (it ends in .yaml or .yml).

    Raises:
        ValueError: no such recipe (the closest and all known ones are named), or a file that is no recipe.

    """
    options = _read(_find(name))
    arguments = {key.replace("-", "_"): value for key, value in options.items()}
    return {key: value for key, value in arguments.items() if key not in SERVER_ONLY}


def _find(name: str | os.PathLike[str]) -> Path:
    path = Path(name).expanduser()
    if path.suffix in _SUFFIXES:
        return path
    known = names()
    if str(name) in known:
        return FOLDER / f"{name}.yaml"
    close = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(
        f"unknown recipe {str(name)!r}: {hint}known are {', '.join(known)}, or the path of a file "
        f"({', '.join(_SUFFIXES)})"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        options = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"recipe {path}: {error.strerror}; known by name are {', '.join(names())}"
        ) from error
    except Exception as error:  # not only of its own: its constructors raise what they like
        raise ValueError(f"recipe {path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(options, dict):
        raise ValueError(f"recipe {path}: must be a mapping of vLLM's options, got {type(options).__name__}")
    if odd := [key for key in options if not isinstance(key, str)]:
        raise ValueError(f"recipe {path}: its keys must be names of vLLM's options, got {brief(odd[0])}")
    return options
