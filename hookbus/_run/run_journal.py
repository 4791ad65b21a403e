"""What a run notes for its report: the warnings that were logged, and the time of validations and saves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hookbus._utils.secrets import hide_secrets

MAX_WARNINGS = 100
"""Number of warnings that are stored; the others are counted."""


class RunJournal(logging.Filter):
    """Notes of a run, collected from its start to its end. While it is active, messages that are logged are redacted.

    A filter that lets every message pass, not a handler: with a handler of ours, Python would no longer print the
    warnings of a program that does not configure logging.

    Args:
        redact: Function that returns a text without secrets.

    Attributes:
        warnings: Messages of the first warnings and errors of the logger "hookbus", each once.
        omitted: Number of further ones.
        seconds: Time in seconds by phase: "run", and in it "training", "validation" and "saving".
        first_iteration: Number of iterations that were complete when the training of this process began.
    """

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        super().__init__()
        self._redact = redact
        self.warnings: list[str] = []
        self.omitted = 0
        self.seconds: dict[str, float] = {}
        self.first_iteration = 0
        self._began: dict[str, float] = {}

    def start(self) -> None:
        """Collect warnings and measure the time from now on."""
        logging.getLogger("hookbus").addFilter(self)
        self.begin("run")

    def stop(self) -> None:
        """Collect no further warnings, and end all phases. Idempotent."""
        logging.getLogger("hookbus").removeFilter(self)
        for phase in list(self._began):
            self.end(phase)

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message of a record, store that of a warning or an error, and let every record pass."""
        text = record.getMessage()
        try:
            shown = self._redact(text)
        except Exception:  # such as one in the text of a value of the configuration, which must not end the run
            shown = hide_secrets(text)
        if shown != text:
            # Here and not in a handler: consoles, log files and handlers of the user all get the redacted message.
            record.msg, record.args = shown, ()
        if record.levelno >= logging.WARNING:
            self.add(shown)
        return True

    def add(self, message: str) -> None:
        """Store a message, unless it is stored already or there are too many.

        Args:
            message: Text of the warning.
        """
        if message not in self.warnings:
            if len(self.warnings) < MAX_WARNINGS:
                self.warnings.append(message)
            else:
                self.omitted += 1

    def add_failures(self, failures: Mapping[str, Any]) -> None:
        """Store the failures of hooks that did not end the run.

        Args:
            failures: Record of each hook, with its first failure and their number.
        """
        for hook, record in failures.items():
            times = "once" if record.count == 1 else f"{record.count} times"
            self.add(f"hook {hook!r} ({record.package}) failed {times}. First failure: {record.first}")

    def begin(self, phase: str) -> None:
        """Begin to measure a phase, unless it is being measured.

        Args:
            phase: Name of the phase.
        """
        self._began.setdefault(phase, time.perf_counter())

    def end(self, phase: str) -> None:
        """Add the time since the begin of a phase; a no-op if it has not begun."""
        if (began := self._began.pop(phase, None)) is not None:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Context manager that measures a phase."""
        self.begin(phase)
        try:
            yield
        finally:
            self.end(phase)
