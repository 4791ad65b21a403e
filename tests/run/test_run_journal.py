"""Notes of a run: warnings, and the time of its phases."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hookbus._run.run_journal import MAX_WARNINGS, RunJournal


def test_warnings_are_stored_once_between_start_and_stop() -> None:
    journal, logger = RunJournal(), logging.getLogger("hookbus")
    logger.warning("before")
    journal.start()
    for _ in range(2):
        logger.warning("value %s", 1)
    logger.info("info")
    logger.error("error")
    journal.stop()
    journal.stop()
    logger.warning("after")
    assert (journal.warnings, journal.omitted) == (["value 1", "error"], 0)


def test_warnings_are_printed_without_a_configuration_of_logging() -> None:
    code = """
import logging
from hookbus._run.run_journal import RunJournal
RunJournal().start()
logging.getLogger("hookbus").warning("printed")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "printed\n"


def test_messages_are_redacted_for_all_handlers_between_start_and_stop(caplog: pytest.LogCaptureFixture) -> None:
    journal, logger = RunJournal(lambda text: text.replace("keyvalue", "***")), logging.getLogger("hookbus")
    journal.start()
    logger.warning("login with %s", "keyvalue")
    logger.warning("login as %s", "me")
    journal.stop()
    logger.warning("login with %s", "keyvalue")
    assert caplog.messages == ["login with ***", "login as me", "login with keyvalue"]
    assert journal.warnings == ["login with ***", "login as me"]


def test_redaction_that_fails_hides_patterns_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> str:
        raise ValueError("a value without a text")

    journal = RunJournal(fail)
    journal.start()
    logging.getLogger("hookbus").warning("https://me:%s@host", "keyvalue")
    journal.stop()
    assert caplog.messages == journal.warnings == ["https://me:***@host"]


def test_number_of_stored_warnings_is_limited() -> None:
    journal = RunJournal()
    for number in range(MAX_WARNINGS + 3):
        journal.add(str(number))
    assert (len(journal.warnings), journal.omitted) == (MAX_WARNINGS, 3)


def test_failures_of_hooks_are_stored_with_their_number() -> None:
    journal = RunJournal()
    records = {
        "a": SimpleNamespace(count=1, package="p 1", first="x"),
        "b": SimpleNamespace(count=2, package="q", first="y"),
    }
    journal.add_failures(records)
    assert journal.warnings == [
        "hook 'a' (p 1) failed once. First failure: x",
        "hook 'b' (q) failed 2 times. First failure: y",
    ]


def test_phases_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, times = RunJournal(), iter([10.0, 11.0, 20.0, 24.0, 30.0, 31.0])
    monkeypatch.setattr("hookbus._run.run_journal.time", SimpleNamespace(perf_counter=lambda: next(times)))
    for _ in range(2):
        with journal.measure("saving"):
            pass
    journal.end("saving")
    journal.begin("run")
    journal.stop()
    assert journal.seconds == {"saving": 5.0, "run": 1.0}
