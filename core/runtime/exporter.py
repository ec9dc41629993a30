"""Makes Prometheus series of a node's numbers, and of a run's. Asked by ``endpoint`` at each scrape, never on the hot path.

Names, kinds and help texts are those of ``core.contracts.metric``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

import distrl
from distrl.core.contracts.metric import (
    BUCKETS_S,
    LAG,
    LEARNER,
    NODE_METRICS,
    RUN_METRICS,
    SIDES,
    WAITS,
    Metric,
)
from distrl.core.runtime.activity import Activity, Histogram, Snapshot
from distrl.core.runtime.endpoint import Answer, Route
from distrl.core.runtime.health import Health
from distrl.core.runtime.view import NodeView

Sample = tuple[str, float]
"""The value of a series' own label, empty without one, and the number."""


def scrape_route(collector: Collector) -> Route:
    """The route of ``/metrics``: what ``collector`` gives, with the numbers of this process."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(collector)

    def answer(accept: str) -> Answer:
        encode, media_type = choose_encoder(accept)
        return Answer(encode(registry), media_type)

    return answer


class NodeCollector(Collector):
    """All series of one node."""

    def __init__(self, activity: Activity, view: NodeView, health: Health, *, run: str, role: str, node: str) -> None:
        self._activity = activity
        self._view = view
        self._health = health
        self._labels = {"run": run, "role": role, "node": node}

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        snapshot = self._activity.snapshot()
        own = self._own(snapshot)
        for metric in NODE_METRICS:
            if metric.served.endswith("_"):
                yield from self._learner(metric, snapshot.gauges)
            elif metric.kind == "histogram":
                yield _histogram(metric, self._labels, snapshot.histograms)
            elif metric.served in own:
                yield _family(metric, self._labels, own[metric.served])
            elif metric.kind == "counter":
                yield _family(metric, self._labels, _counted(metric, snapshot))
            elif metric.name in snapshot.gauges:
                yield _family(metric, self._labels, [("", snapshot.gauges[metric.name] * metric.scale)])

    def _own(self, snapshot: Snapshot) -> Mapping[str, Sequence[Sample]]:
        """What is neither counted nor set under its name."""
        health, view = self._health, self._view
        cause, seconds = snapshot.waiting
        missing = {item.side for item in health.missing}
        ages = snapshot.queue_ages
        lags = {name.removeprefix(LAG): value for name, value in snapshot.gauges.items() if name.startswith(LAG)}
        own: dict[str, Sequence[Sample]] = {
            "distrl_busy_seconds_total": [("", snapshot.seconds.get("busy", 0.0))],
            "distrl_wait_seconds_total": [(name, snapshot.seconds.get(name, 0.0)) for name in WAITS],
            "distrl_waiting_seconds": [(name, seconds if name == cause else 0.0) for name in WAITS],
            "distrl_missing": [(side, float(side in missing)) for side in SIDES],
            "distrl_consumer_lag_records": sorted(lags.items()),
            "distrl_queue_age_seconds": sorted(ages.items()),
            "distrl_queue_too_old": [(topic, float(age > health.queue_age_s)) for topic, age in sorted(ages.items())],
            "distrl_log_age_seconds": [("", health.log_age_s)],
            "distrl_store_age_seconds": [("", health.store_age_s)],
            "distrl_loop_age_seconds": [("", self._activity.loop_age_s)],
            "distrl_ready": [("", float(health.ready))],
            "distrl_live": [("", float(health.live().ok))],
            "distrl_build_info": [(distrl.__version__, 1.0)],
            "distrl_weights_version": [],
            "distrl_weights_epoch": [],
        }
        if view.has_weights:
            own["distrl_weights_version"] = [("", view.version)]
            own["distrl_weights_epoch"] = [("", view.epoch)]
        return own

    def _learner(self, prefix: Metric, gauges: Mapping[str, float]) -> Iterator[Family]:
        """What the learner plugin reports under names of its own. Of two that become the same, the first is served."""
        known = {metric.name for metric in NODE_METRICS}
        served: set[str] = {metric.served for metric in NODE_METRICS}
        for name, value in sorted(gauges.items()):
            if name.startswith(LEARNER) and name not in known:
                full = prefix.served + re.sub(r"[^a-zA-Z0-9_]", "_", name.removeprefix(LEARNER))
                if full not in served:
                    served.add(full)
                    yield _gauge(full, f"Reported by the learner plugin as {name}", self._labels, [("", value)], "")


class RunCollector(Collector):
    """The series of a run as a whole. ``update`` replaces them, from the supervisor's thread."""

    def __init__(self, run: str) -> None:
        self._labels = {"run": run}
        self._samples: Mapping[str, Sequence[Sample]] = {}

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> None:
        """By served name; a name that ``RUN_METRICS`` does not have is a mistake: ``KeyError``."""
        if unknown := samples.keys() - {metric.served for metric in RUN_METRICS}:
            raise KeyError(f"no such metrics: {sorted(unknown)}")
        self._samples = samples

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        samples = self._samples
        for metric in RUN_METRICS:
            if metric.served in samples:
                yield _family(metric, self._labels, samples[metric.served])


def _counted(metric: Metric, snapshot: Snapshot) -> list[Sample]:
    """A counter's series; one without a label is there from the start, at 0."""
    samples = [(label, float(count)) for (name, label), count in sorted(snapshot.counts.items()) if name == metric.name]
    if metric.label:
        return samples
    return [("", sum(count for _, count in samples))]


def _family(metric: Metric, labels: Mapping[str, str], samples: Sequence[Sample]) -> Family:
    if metric.kind == "gauge":
        return _gauge(metric.served, metric.meaning, labels, samples, metric.label)
    family = CounterMetricFamily(metric.served, metric.meaning, labels=_names(labels, metric.label))
    for label, value in samples:
        family.add_metric(_values(labels, metric.label, label), value)
    return family


def _gauge(name: str, meaning: str, labels: Mapping[str, str], samples: Sequence[Sample], own: str) -> Family:
    family = GaugeMetricFamily(name, meaning, labels=_names(labels, own))
    for label, value in samples:
        family.add_metric(_values(labels, own, label), value)
    return family


def _histogram(
    metric: Metric, labels: Mapping[str, str], histograms: Mapping[tuple[str, str], Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.served, metric.meaning, labels=_names(labels, metric.label))
    for (name, label), histogram in sorted(histograms.items(), key=lambda item: item[0]):
        if name == metric.served:
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*BUCKETS_S, math.inf), histogram.counts, strict=True):
                total += count
                buckets.append(("+Inf" if math.isinf(bound) else str(bound), total))
            family.add_metric(_values(labels, metric.label, label), buckets, histogram.sum)
    return family


def _names(labels: Mapping[str, str], own: str) -> list[str]:
    return [*labels, own] if own else list(labels)


def _values(labels: Mapping[str, str], own: str, value: str) -> list[str]:
    return [*labels.values(), value] if own else list(labels.values())
