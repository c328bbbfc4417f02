"""Recorder: names known beforehand, nothing kept by default (SPEC 55)."""

from __future__ import annotations

import re
import threading

import pytest

from headrace.recorder import NAMES, CountingRecorder, NoRecorder, Recorder

FOUNDING = [
    "recovery_keyspace_requeued_total",
    "recovery_scan_requeued_total",
    "recovery_scan_skipped_alive_total",
    "recovery_duplicate_ack_total",
    "recovery_dlq_total",
    "recovery_scan_duration_seconds",
    "pel_depth",
]


def test_the_names_of_the_founding_documents_are_there() -> None:
    """SPEC 55."""
    assert set(FOUNDING) <= NAMES.keys()


def test_every_name_has_the_form_its_kind_asks_for() -> None:
    """SPEC 55: no ids in labels."""
    for name, metric in NAMES.items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert name.endswith("_seconds") or metric.kind != "histogram", name
        assert metric.help
        assert set(metric.labels) <= {"stream", "group", "outcome", "role", "error"}


def test_counts_are_summed_over_the_labels_that_are_not_asked_for() -> None:
    recorder = CountingRecorder()
    recorder.count("handled_total", stream="a", group="g", outcome="ack")
    recorder.count("handled_total", 3, stream="b", group="g", outcome="ack")
    recorder.count("handled_total", 5, stream="b", group="g", outcome="bury")
    assert recorder.total("handled_total") == 9
    assert recorder.total("handled_total", outcome="ack") == 4
    assert recorder.total("handled_total", stream="b", outcome="bury") == 5
    assert recorder.total("handled_total", stream="c") == 0
    assert recorder.total("read_total") == 0


def test_values_are_kept_in_order() -> None:
    recorder = CountingRecorder()
    recorder.observe("handle_seconds", 0.5, stream="a", group="g")
    recorder.observe("handle_seconds", 0.1, stream="a", group="h")
    recorder.gauge("lag", 7, stream="a", group="g")
    recorder.gauge("lag", 3, stream="a", group="g")
    assert recorder.values("handle_seconds") == [0.5, 0.1]
    assert recorder.values("handle_seconds", group="h") == [0.1]
    assert recorder.values("lag", stream="a") == [7, 3]


def test_a_name_nobody_declared_is_refused() -> None:
    recorder = CountingRecorder()
    with pytest.raises(LookupError, match="no metric is called 'red_total'"):
        recorder.count("red_total")
    with pytest.raises(LookupError, match="no metric"):
        recorder.total("red_total")
    with pytest.raises(LookupError, match="no metric"):
        recorder.values("nothing")


def test_a_wrong_kind_or_label_is_refused() -> None:
    """SPEC 55: an id in a label would make a time series a message."""
    recorder = CountingRecorder()
    with pytest.raises(LookupError, match="is a counter, not a gauge"):
        recorder.gauge("read_total", 1)
    with pytest.raises(LookupError, match="no label"):
        recorder.count("read_total", id="1-1")


def test_counting_from_threads_loses_nothing() -> None:
    recorder = CountingRecorder()

    def work() -> None:
        for _ in range(500):
            recorder.count("renewed_total", stream="a", group="g")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.total("renewed_total") == 2_000


def test_the_default_recorder_takes_anything_and_keeps_nothing() -> None:
    """SPEC 55: without extras it costs nothing."""
    recorder: Recorder = NoRecorder()
    recorder.count("anything", 1, label="x")
    recorder.observe("anything", 1.0)
    recorder.gauge("anything", 1.0)
    assert not hasattr(recorder, "__dict__")
