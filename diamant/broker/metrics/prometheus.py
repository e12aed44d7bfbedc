"""The metrics of a broker in Prometheus' format, collected for each scrape.

The loop thread collects a `Scrape` of plain values (`take`); any thread can render it as text (`render`). Nothing is kept between
scrapes. Nothing is registered in prometheus_client's global registry, since a process may run several brokers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, UntypedMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from diamant.broker.metrics.figures import Figures, take_figures
from diamant.broker.metrics.metric_table import COUNTER, GAUGE, METRICS, UNTYPED, Metric, Sample
from diamant.broker.network.request_metrics import LATENCY_BOUNDS_MS

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = [*map(str, map(float, LATENCY_BOUNDS_MS)), "+Inf"]
_KINDS: dict[str, type[CounterMetricFamily | GaugeMetricFamily | UntypedMetricFamily]] = {
    COUNTER: CounterMetricFamily,
    GAUGE: GaugeMetricFamily,
    UNTYPED: UntypedMetricFamily,
}


class Scrape(NamedTuple):
    """The figures for all metrics of a broker, collected for one scrape."""

    figures: Figures
    now: dict[str, list[Sample]]
    """The samples of the metrics with `now`, by name."""


async def take(services: Services) -> Scrape:
    """Collect the figures on the loop thread. Yields to other tasks."""
    figures = await take_figures(services)
    return Scrape(figures, {row.name: [*row.now(services)] for row in METRICS.values() if row.now is not None})


def render(scrape: Scrape) -> bytes:
    """Render a scrape as text in the format of `CONTENT_TYPE`. Callable from any thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ScrapeCollector(scrape))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class ScrapeCollector(Collector):
    """Presents a scrape to prometheus_client: the metric families that have samples, in the order of the table."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Family]:
        for row in METRICS.values():
            family = _family(row, self._scrape)
            if family.samples:
                yield family


def _family(row: Metric, scrape: Scrape) -> Family:
    if row.latencies is not None:
        histogram = HistogramMetricFamily(row.name, row.meaning, labels=row.labels)
        for labels, counts, total in row.latencies(scrape.figures):
            cumulated = [*itertools.accumulate(counts)]
            histogram.add_metric(labels, [*zip(_BOUNDS, cumulated, strict=True)], total)
        return histogram
    family = _KINDS[row.kind](row.name, row.meaning, labels=row.labels)
    for labels, value in scrape.now[row.name] if row.samples is None else row.samples(scrape.figures):
        family.add_metric(labels, value)
    return family
