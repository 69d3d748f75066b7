"""The pages of this process's engines as metrics of prometheus_client, on the registry that vLLM serves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_specx.metrics.layout import FAMILIES, OFFSETS, Family
from vllm_specx.metrics.page import read_pages

_COMMON: Final = ("model_name", "engine")  # as vLLM's own
_MAX_INSTANCES: Final = 64
_KINDS: Final[dict[str, Any]] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class PageCollector(Collector):
    """Reads pages when it is scraped."""

    def __init__(self) -> None:
        """Know no engine."""
        self._models: OrderedDict[str, str] = OrderedDict()  # by instance

    def watch(self, instance: str, model: str) -> None:
        """Serve the pages of an instance, too, as far as there are any."""
        self._models[instance] = model
        while len(self._models) > _MAX_INSTANCES:
            self._models.popitem(last=False)

    def describe(self) -> list[Metric]:
        """Names are told when there is something to tell."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family after the other, a sample for each engine."""
        pages = [
            ((model, str(engine)), numbers)
            for instance, model in self._models.items()
            for engine, numbers in read_pages(instance).items()
        ]
        if pages:
            for family in FAMILIES:
                yield _metric(family, pages)


def _metric(family: Family, pages: list[tuple[tuple[str, str], NDArray[np.float64]]]) -> Metric:
    at = slice(OFFSETS[family.name], OFFSETS[family.name] + family.size)
    metric: Any
    if family.kind == "histogram":
        metric = HistogramMetricFamily(family.name, family.text, labels=_COMMON)
        for labels, numbers in pages:
            *counts, total = numbers[at].tolist()
            bounds = [*family.values, "+Inf"]
            metric.add_metric(labels, list(zip(bounds, np.cumsum(counts).tolist(), strict=True)), total)
        return metric
    names = (*_COMMON, family.label) if family.label else _COMMON
    metric = _KINDS[family.kind](family.name, family.text, labels=names)
    for labels, numbers in pages:
        for value, number in zip(family.values or (None,), numbers[at].tolist(), strict=True):
            metric.add_metric(labels if value is None else (*labels, value), number)
    return metric


_COLLECTOR: Final = PageCollector()


def watch(instance: str, model: str) -> None:
    """Serve the metrics of an engine from this process's registry; of every other registry see `add_to`."""
    _COLLECTOR.watch(instance, model)
    add_to(REGISTRY)


def add_to(registry: CollectorRegistry) -> None:
    """Serve them from this registry, once."""
    if _COLLECTOR not in registry._collector_to_names:
        registry.register(_COLLECTOR)
