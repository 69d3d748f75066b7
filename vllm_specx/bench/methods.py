"""The configurations that a bench compares: what vLLM is told, and what must be installed for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from vllm_specx.bench.errors import BenchError
from vllm_specx.bench.settings import BenchSettings, closest
from vllm_specx.config import MAX_SPECULATIVE_TOKENS

BASELINE = "none"


@dataclass(frozen=True)
class Method:
    """One configuration. `speculative_config` is vLLM's own; `needs` names modules that must import.

    `head` says where a head goes: "model" (its folder is the model), "name" (it follows the name of our class) or
    "option" (it has an option of its own; without one, heads that we bring are taken).
    """

    summary: str
    speculative_config: Mapping[str, Any] | None
    needs: tuple[str, ...] = ()
    hint: str = ""
    is_ours: bool = False  # it takes all of our options
    options: Mapping[str, Any] | None = None  # and these, which go before
    head: str = ""


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
    "lookahead": Method(
        "vllm-specx's Lookahead decoding",
        {"model": "vllm_specx.LookaheadProposer", "num_speculative_tokens": 16},
        options={},
    ),
    "suffix-tree+lookahead": Method(
        "the suffix tree with Lookahead behind it",
        {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 16},
        is_ours=True,
        options={"drafters": ["suffix_tree", "lookahead"]},
    ),
    "medusa": Method(
        "Medusa heads at a length chosen every step",
        {"model": "vllm_specx.MedusaProposer", "num_speculative_tokens": 4},
        options={},
        head="option",
    ),
    "eagle3": Method(
        "vLLM's EAGLE-3 at a fixed length", {"method": "eagle3", "num_speculative_tokens": 3}, head="model"
    ),
    "eagle3-adaptive": Method(
        "EAGLE-3 at a length chosen every step",
        {"model": "vllm_specx.AdaptiveEagle3Proposer", "num_speculative_tokens": 8},
        head="name",
    ),
    "hybrid": Method(
        "the suffix tree and EAGLE-3, by request",
        {"model": "vllm_specx.HybridProposer", "num_speculative_tokens": 16},
        is_ours=True,
        head="name",
    ),
}
# What a bench compares unless told otherwise.
DEFAULT = (BASELINE, "ngram", "suffix", "suffix-tree")


@dataclass(frozen=True)
class Choice:
    """The methods to run, the baseline first, and those left out with the reason."""

    methods: tuple[str, ...]
    left_out: Mapping[str, str]


def choose(names: Iterable[str]) -> Choice:
    """Check the names and what is installed. The baseline is always in: lengths and ratios come from it."""
    wanted = list(names)
    for name in wanted:
        method_of(name)
    left_out = {name: reason for name in wanted if (reason := _why_not(method_of(name)))}
    kept = [name for name in wanted if name not in left_out and name != BASELINE]
    return Choice((BASELINE, *kept), left_out)


def method_of(name: str) -> Method:
    """The method of a name, "NAME" or "NAME:N" with another number of draft tokens. Raises BenchError."""
    base, colon, number = name.partition(":")
    known = tuple(METHODS)
    if base not in METHODS:
        raise BenchError(
            f"--methods {name!r} is not known{closest(base, known)}; allowed: {', '.join(known)}, each but "
            f"{BASELINE!r} also as NAME:N with N draft tokens"
        )
    method = METHODS[base]
    if not colon:
        return method
    if (
        method.speculative_config is None
        or not number.isdecimal()
        or not 1 <= int(number) <= MAX_SPECULATIVE_TOKENS
    ):
        raise BenchError(
            f"--methods {name!r}: what follows the colon must be a number of draft tokens within "
            f"[1, {MAX_SPECULATIVE_TOKENS}], and {BASELINE!r} takes none"
        )
    return replace(
        method, speculative_config={**method.speculative_config, "num_speculative_tokens": int(number)}
    )


def engine_options(name: str, settings: BenchSettings) -> dict[str, Any]:
    """What `vllm.EngineArgs` is given for a method, beyond what all methods share."""
    method = method_of(name)
    if method.speculative_config is None:
        return {}
    speculative = dict(method.speculative_config)
    options: dict[str, Any] = {"speculative_config": speculative}
    if method.is_ours:
        if ":" not in name:
            speculative["num_speculative_tokens"] = settings.num_speculative_tokens
        ours = {**(settings.specx_options or {}), **(method.options or {})}
        options["additional_config"] = {"specx": ours}
    elif method.options is not None:
        options["additional_config"] = {"specx": dict(method.options)}
    if method.head == "model":
        speculative["model"] = str(settings.head) if settings.head else _bundled_head(settings.model)
    elif method.head == "name" and settings.head:
        speculative["model"] += f":{settings.head}"
    return options


def _bundled_head(model: str) -> str:
    from transformers import AutoConfig

    from vllm_specx.config import ConfigError
    from vllm_specx.heads import ADAPTIVE, find_head

    target = SimpleNamespace(model=model, hf_text_config=AutoConfig.from_pretrained(model).get_text_config())
    try:
        return find_head(ADAPTIVE, "", target)
    except ConfigError as error:
        raise BenchError(f"--head: {error}") from error


def _why_not(method: Method) -> str | None:
    for module in method.needs:
        try:
            import_module(module)
        except ImportError as error:
            return f"{module} cannot be imported ({error}); {method.hint}"
    return None
