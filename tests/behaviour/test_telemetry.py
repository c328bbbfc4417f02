"""What a worker reports comes out of the exporters (SPEC 55)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from headrace import App, Bury, Recorder
from headrace.errors import ConfigError
from headrace.recorder import NAMES
from headrace.telemetry import OpenTelemetryRecorder, PrometheusRecorder
from tests.support.looking import fill
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP

MakeApp = Callable[..., App]
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.servers("redis8")


async def _work(app: App, server: Server, stream: str) -> None:
    """Five messages: four acked, one buried."""
    done: list[int] = []

    @app.stream(stream).handler(group=GROUP, lease="400ms")
    async def bill(order: dict[str, int]) -> None:
        done.append(order["n"])
        if order["n"] == 4:
            raise Bury("never")

    fill(server, stream, 5)
    async with app.worker() as worker:
        await wait_until(lambda: len(done) == 5)
        await worker.drained()
        await worker.lanes[0].janitor.round()


async def test_prometheus_gets_what_a_worker_counts(server: Server, stream: str, make_app: MakeApp) -> None:
    registry = CollectorRegistry()
    app = make_app(server, recorder=PrometheusRecorder(registry))
    await _work(app, server, stream)
    await app.close()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"headrace_{name}", {"stream": stream, "group": GROUP, **labels})

    assert value("read_total") == 5
    assert value("handled_total", outcome="ack") == 4
    assert value("buried_total") == 1
    assert value("handle_seconds_count") == 5
    assert value("pel_depth") == 0
    page = generate_latest(registry).decode()
    assert {name for name in NAMES if f"# TYPE headrace_{name} {NAMES[name].kind}" not in page} == set()


async def test_opentelemetry_gets_the_same(server: Server, stream: str, make_app: MakeApp) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    app = make_app(server, recorder=OpenTelemetryRecorder(provider.get_meter("headrace")))
    await _work(app, server, stream)
    await app.close()
    told = reader.get_metrics_data()
    assert told is not None
    metrics = {each.name: each for each in told.resource_metrics[0].scope_metrics[0].metrics}

    def point(name: str, **labels: str) -> Any:
        wanted = {"stream": stream, "group": GROUP, **labels}
        (found,) = [each for each in metrics[f"headrace_{name}"].data.data_points if each.attributes == wanted]
        return found

    assert point("read_total").value == 5
    assert point("handled_total", outcome="ack").value == 4
    assert point("handle_seconds").count == 5
    assert point("pel_depth").value == 0
    provider.shutdown()


def test_processes_add_up_in_prometheus(tmp_path: Path) -> None:
    """Under ``headrace run`` each child counts for itself."""
    program = (
        "from headrace.telemetry import PrometheusRecorder as R; r = R(); about = {'stream': 's', 'group': 'g'};"
        "r.count('read_total', 3, **about); r.gauge('in_flight', 2, **about); r.gauge('lag', 7, **about)"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, cwd=ROOT)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    about = {"stream": "s", "group": "g"}
    values = {name: registry.get_sample_value(f"headrace_{name}", about) for name in ("read_total", "in_flight", "lag")}
    assert values == {"read_total": 6, "in_flight": 4, "lag": 7}


@pytest.mark.parametrize("make", [PrometheusRecorder, OpenTelemetryRecorder])
def test_without_the_extra_there_is_one_clear_error(
    make: Callable[[], Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("prometheus_client", "opentelemetry"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"headrace\[metrics\]"):
        make()


def test_the_page_names_every_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = [
        f"| `headrace_{name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |"
        for name, metric in NAMES.items()
    ]
    assert [row for row in rows if row not in page] == []
