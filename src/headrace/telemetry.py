"""Recorders that export what the services report (recorder.NAMES, SPEC 55). Needs the extra ``metrics``.

    app = App(recorder=PrometheusRecorder())      # prometheus_client's own registry, or one of yours
    app = App(recorder=OpenTelemetryRecorder())   # the meter provider that your program has set up

Names get ``headrace_`` in front. Under ``headrace run`` every child has its own: prometheus_client adds them up where
PROMETHEUS_MULTIPROC_DIR is set (docs/metrics.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.recorder import NAMES, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from prometheus_client import CollectorRegistry

PREFIX = "headrace_"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class PrometheusRecorder:
    """Counters, gauges and histograms of prometheus_client.

    A series is looked up once for each combination of labels and kept: counting is one addition then.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ConfigError("prometheus_client is not installed: pip install 'headrace[metrics]'") from error
        known = prometheus_client.REGISTRY if registry is None else registry
        self._metrics: dict[str, Any] = {name: _exported(metric, name, known) for name, metric in NAMES.items()}
        self._series: dict[tuple[Any, ...], Any] = {}

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Add n to a counter."""
        self._of(name, labels).inc(n)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one value into a histogram."""
        self._of(name, labels).observe(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a level."""
        self._of(name, labels).set(value)

    def _of(self, name: str, labels: dict[str, str]) -> Any:
        key = (name, *labels.items())
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._metrics[name].labels(**labels)
        return series


def _exported(metric: Metric, name: str, registry: CollectorRegistry) -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    about = (PREFIX + name, metric.help, metric.labels)
    if metric.kind == "counter":
        return Counter(*about, registry=registry)
    if metric.kind == "histogram":
        return Histogram(*about, registry=registry, buckets=BUCKETS_S)
    # What each process holds adds up; levels of a group are the same thing seen by each of them.
    mode = "livesum" if name == "in_flight" else "livemostrecent"
    return Gauge(*about, registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]


class OpenTelemetryRecorder:
    """Instruments of an OpenTelemetry meter; without one, of the meter provider that is set for the program."""

    def __init__(self, meter: Meter | None = None) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise ConfigError("opentelemetry is not installed: pip install 'headrace[metrics]'") from error
        self._meter = metrics.get_meter("headrace") if meter is None else meter
        self._record: dict[str, Callable[..., None]] = {
            name: _instrument(metric, name, self._meter) for name, metric in NAMES.items()
        }

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Add n to a counter."""
        self._record[name](n, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one value into a histogram."""
        self._record[name](value, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a level."""
        self._record[name](value, labels)


def _instrument(metric: Metric, name: str, meter: Meter) -> Callable[..., None]:
    unit = "s" if name.endswith("_seconds") else "1"
    if metric.kind == "counter":
        return meter.create_counter(PREFIX + name, unit, metric.help).add
    if metric.kind == "histogram":
        return meter.create_histogram(
            PREFIX + name, unit, metric.help, explicit_bucket_boundaries_advisory=BUCKETS_S
        ).record
    return meter.create_gauge(PREFIX + name, unit, metric.help).set
