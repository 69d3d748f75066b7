"""The configurations that a bench compares: what vLLM is told, and what must be installed for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.settings import BenchSettings, closest

BASELINE = "none"


@dataclass(frozen=True)
class Method:
    """One configuration. `speculative_config` is vLLM's own; `needs` names modules that must import."""

    summary: str
    speculative_config: Mapping[str, Any] | None
    needs: tuple[str, ...] = ()
    hint: str = ""
    is_ours: bool = False


METHODS: dict[str, Method] = {
    BASELINE: Method("plain decoding", None),
    "ngram": Method(
        "vLLM's n-gram lookup",
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    ),
    "suffix": Method(
        "vLLM's suffix decoding with Arctic Inference's cache",
        {"method": "suffix", "num_speculative_tokens": 16},
        needs=("arctic_inference.suffix_decoding",),
        hint="install arctic-inference to measure it",
    ),
    "suffix-tree": Method(
        "vllm-specx's suffix tree",
        {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 16},
        is_ours=True,
    ),
}


@dataclass(frozen=True)
class Choice:
    """The methods to run, the baseline first, and those left out with the reason."""

    methods: tuple[str, ...]
    left_out: Mapping[str, str]


def choose(names: Iterable[str]) -> Choice:
    """Check the names and what is installed. The baseline is always in: lengths and ratios come from it."""
    wanted = list(names)
    for name in wanted:
        if name not in METHODS:
            known = tuple(METHODS)
            raise BenchError(
                f"--methods {name!r} is not known{closest(name, known)}; allowed: {', '.join(known)}"
            )
    left_out = {name: reason for name in wanted if (reason := _why_not(METHODS[name]))}
    kept = [name for name in wanted if name not in left_out and name != BASELINE]
    return Choice((BASELINE, *kept), left_out)


def engine_options(name: str, settings: BenchSettings) -> dict[str, Any]:
    """What `vllm.EngineArgs` is given for a method, beyond what all methods share."""
    method = METHODS[name]
    if method.speculative_config is None:
        return {}
    speculative = dict(method.speculative_config)
    options: dict[str, Any] = {"speculative_config": speculative}
    if method.is_ours:
        speculative["num_speculative_tokens"] = settings.num_speculative_tokens
        options["additional_config"] = {"specx": dict(settings.specx_options or {})}
    return options


def _why_not(method: Method) -> str | None:
    for module in method.needs:
        try:
            import_module(module)
        except ImportError as error:
            return f"{module} cannot be imported ({error}); {method.hint}"
    return None
