"""Two scrapes of a server's /metrics, and what happened between them. Reads over HTTP; imports no vLLM."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from vllm_specx.bench.errors import BenchError

_TIMEOUT: Final = 10.0
_OURS: Final = "specx_"
_VLLM: Final = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scrape:
    """Samples of one moment, by name and by the labels beside those of engine and model: one for each engine.

    `at` is in seconds of a clock that never goes back.
    """

    at: float
    samples: dict[tuple[str, Labels], list[float]]

    def sum(self, name: str) -> float:
        """Over all engines and labels."""
        return sum(sum(values) for (known, _), values in self.samples.items() if known == name)

    def mean(self, name: str) -> float:
        """Over engines, of a metric without further labels; 0 where there is none."""
        values = self.samples.get((name, ()), [])
        return sum(values) / max(1, len(values))

    def by(self, name: str) -> dict[str, float]:
        """By the value of its one label, in the order of the server."""
        return {
            labels[0][1]: sum(values)
            for (known, labels), values in self.samples.items()
            if known == name and labels
        }


def scrape(url: str) -> Scrape:
    """Read a server's metrics.

    Raises:
        BenchError: nobody answers there, or no metrics of vllm-specx are among what is answered.

    """
    address = f"{url.rstrip('/')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            text = answer.read().decode(errors="replace")
        samples = _samples(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise BenchError(f"{address}: {reason}") from error
    if not any(name.startswith(_OURS) for name, _ in samples):
        raise BenchError(
            f"{address} has no metrics of vllm-specx: no proposer of it is at work there, or none has drafted yet"
        )
    return Scrape(time.monotonic(), samples)


def _samples(text: str) -> dict[tuple[str, Labels], list[float]]:
    found: dict[tuple[str, Labels], list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith((_OURS, *_VLLM)):
                continue
            own = tuple(
                (name, value) for name, value in sample.labels.items() if name not in ("model_name", "engine")
            )
            found.setdefault((sample.name, own), []).append(sample.value)
    return found
