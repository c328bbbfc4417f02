"""What is found in the logs of a run: floods by the second, and errors that nobody asked for."""

from __future__ import annotations

from pathlib import Path

from chaos import worklogs

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in x\nRuntimeError: {}\n'


def line(what: str, at: str = "12:00:01", level: str = "INFO") -> str:
    return f"2026-01-02 {at},123 {level} 77 {what}\n"


def test_a_flood_is_what_one_process_says_in_one_second(tmp_path: Path) -> None:
    said = [line("reader.waits stream=x", at=f"12:00:{second:02}") for second in range(60)]
    (tmp_path / "worker-0.log").write_text("".join(said) + line("reader.waits stream=x") * 39)
    (tmp_path / "worker-1.log").write_text(line("handler.raised handler=h") * 500 + line("hello there") * 3)
    assert worklogs.rates(tmp_path) == {"reader.waits": 40, "(no event)": 3}


def test_as_many_lines_as_there_are_streams_are_no_flood(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").write_text(
        "".join(line(f"assignments.taken stream=s-{n}: 2, now 2") for n in range(50))
    )
    assert worklogs.rates(tmp_path) == {"assignments.taken": 1}


def test_what_a_handler_raised_is_expected_and_what_it_came_from_too(tmp_path: Path) -> None:
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    raised = (
        line("handler.raised handler=h id=1-0", level="WARNING") + TRACE.format("one") + chain + TRACE.format("two")
    )
    indented = "".join(f"  {each}\n" for each in TRACE.format("as the order says").splitlines())
    (tmp_path / "worker-0.log").write_text(raised + line("handler.raised handler=h") + indented + line("worker.ended"))
    assert worklogs.outcries(tmp_path) == []


def test_a_traceback_of_nobody_is_told_by_its_last_line(tmp_path: Path) -> None:
    expected = line("handler.raised handler=h id=1-0", level="WARNING") + TRACE.format("as the order says")
    (tmp_path / "worker-0.log").write_text(expected + TRACE.format("of the process"))
    (tmp_path / "worker-1.log").write_text(line("hints.failed owner=o", level="ERROR") + TRACE.format("of hints"))
    found = ["worker-0.log: RuntimeError: of the process", "worker-1.log: RuntimeError: of hints"]
    assert worklogs.outcries(tmp_path) == found


def test_what_asyncio_and_the_interpreter_complain_of_is_told(tmp_path: Path) -> None:
    complaints = [
        line("Task exception was never retrieved", level="ERROR"),
        line("worker.lost everything", level="CRITICAL"),
        "Exception ignored in: <function x>\n",
        "RuntimeWarning: coroutine 'x' was never awaited\n",
    ]
    (tmp_path / "worker-0.log").write_text("".join(complaints))
    assert worklogs.outcries(tmp_path) == [f"worker-0.log: {each.strip()}" for each in complaints]
