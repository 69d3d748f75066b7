"""What a request may say about its own drafts: the keys of SamplingParams.extra_args that begin with "specx_".

Over HTTP they come in "vllm_xargs", which vLLM makes extra_args of. They are checked in the process where a request
enters, so that a wrong one is an error of that request and never reaches a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Self

from vllm_specx.config import MAX_SPECULATIVE_TOKENS, brief
from vllm_specx.heads import HYBRID, name_of

PREFIX = "specx_"
# By what speculative_config.model names.
DRAFTERS = {
    "suffix_tree": "vllm_specx.SuffixTreeProposer",
    "lookahead": "vllm_specx.LookaheadProposer",
    "medusa": "vllm_specx.MedusaProposer",
    "hybrid": HYBRID,
}
_CHECK = "request-check"


class RequestOptionError(ValueError):
    """An option of a request is unknown, wrong or out of place; the message says what is allowed."""

    def __init__(self, message: str, key: str) -> None:
        """Remember which key of extra_args it is about."""
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """All options of a request; the key of each is its name after "specx_".

    Raises:
        RequestOptionError: on construction, for a value of the wrong type or out of range.

    """

    max_n: int | None = field(
        default=None, metadata={"help": "most tokens of a draft of this request; 0: it never has one"}
    )
    drafter: str | None = field(default=None, metadata={"help": "the drafter that must be at work"})

    def __post_init__(self) -> None:
        """Check both values."""
        if self.max_n is not None and (
            type(self.max_n) is not int or not 0 <= self.max_n <= MAX_SPECULATIVE_TOKENS
        ):
            raise RequestOptionError(
                f"{PREFIX}max_n must be an integer within [0, {MAX_SPECULATIVE_TOKENS}], got {brief(self.max_n)}",
                f"{PREFIX}max_n",
            )
        if self.drafter is not None and (not isinstance(self.drafter, str) or self.drafter not in DRAFTERS):
            raise RequestOptionError(
                f"{PREFIX}drafter must be one of {', '.join(map(repr, DRAFTERS))}, got {brief(self.drafter)}",
                f"{PREFIX}drafter",
            )

    @classmethod
    def from_extra_args(cls, extra_args: Mapping[str, Any] | None) -> Self:
        """Read the keys that begin with "specx_"; the others are somebody else's.

        Raises:
            RequestOptionError: an unknown key (the closest known one is named), or a bad value.

        """
        known = {PREFIX + f.name: f.name for f in fields(cls)}
        given: dict[str, Any] = {}
        for key, value in (extra_args or {}).items():
            if not isinstance(key, str) or not key.startswith(PREFIX):
                continue
            if key not in known:
                close = get_close_matches(key[:64], known, n=1, cutoff=0.0)[0]
                raise RequestOptionError(
                    f"unknown request option {brief(key)}: did you mean {close!r}? Known are {', '.join(known)}",
                    key[:64],
                )
            if value is None:
                raise RequestOptionError(f"{key} has no value: leave it out or give one", key)
            given[known[key]] = value
        return cls(**given)

    def check_engine(self, speculative_config: Any) -> None:
        """Refuse what this engine would not do. Where nothing drafts, every max_n is kept.

        Raises:
            RequestOptionError: another drafter is asked for than the one at work, or vLLM's own method drafts.

        """
        model = str(name_of(speculative_config) or getattr(speculative_config, "model", None))
        if self.drafter is not None and model != DRAFTERS[self.drafter]:
            raise RequestOptionError(
                f"{PREFIX}drafter {self.drafter!r} is not at work here: this engine's speculative_config.model is "
                f"{model!r}, not {DRAFTERS[self.drafter]!r}",
                f"{PREFIX}drafter",
            )
        is_ours = name_of(speculative_config) is not None or model in DRAFTERS.values()
        if self.max_n is not None and speculative_config is not None and not is_ours:
            raise RequestOptionError(
                f"{PREFIX}max_n has no effect here: this engine drafts with vLLM's own method "
                f"{speculative_config.method!r}",
                f"{PREFIX}max_n",
            )


def max_n_of(params: Any) -> int | None:
    """The `max_n` of a request's SamplingParams, 0 where its options were not checked and are wrong; None: no limit."""
    try:
        return RequestOptions.from_extra_args(params.extra_args).max_n
    except RequestOptionError:  # vLLM does not check a ready-made EngineCoreRequest
        return 0


def install() -> None:
    """Check the options wherever a request enters. Idempotent.

    `verify` is called for each request by every way into an engine. `from_optional` is what the HTTP routes make
    their parameters with, before a streamed answer begins: after that it could not be a 400 any more.

    Raises:
        PatchConflict: another plug-in patched the same names.

    """
    from vllm.sampling_params import SamplingParams

    from vllm_specx._compat.apply import replace

    replace(SamplingParams, "verify", _verify, patch=_CHECK)
    replace(SamplingParams, "from_optional", _from_optional, patch=_CHECK)


def _verify(original: Callable[..., None]) -> Any:
    def verify(self: Any, model_config: Any, speculative_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, model_config, speculative_config, *args, **kwargs)
        if self.extra_args:
            with _as_vllm_reports_it():
                RequestOptions.from_extra_args(self.extra_args).check_engine(speculative_config)

    return verify


def _from_optional(original: Callable[..., Any]) -> Any:
    def from_optional(*args: Any, **kwargs: Any) -> Any:
        params = original(*args, **kwargs)
        if params.extra_args:
            with _as_vllm_reports_it():
                RequestOptions.from_extra_args(params.extra_args)
        return params

    return from_optional


@contextmanager
def _as_vllm_reports_it() -> Iterator[None]:
    try:
        yield
    except RequestOptionError as error:
        raise _vllm_error()(str(error), error.key) from None


@cache
def _vllm_error() -> type[RequestOptionError]:
    """A RequestOptionError that AsyncLLM takes for the client's fault too; a mere ValueError becomes a 500."""
    from vllm.exceptions import VLLMValidationError

    class BadRequestOption(RequestOptionError, VLLMValidationError):
        def __init__(self, message: str, key: str) -> None:
            super().__init__(message, key)
            self.parameter, self.value = key, None

    return BadRequestOption
