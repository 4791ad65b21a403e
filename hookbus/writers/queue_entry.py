"""Entries of the queue of a writer's thread, and their types."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hookbus.writers.writer import Writer

NUMBERS = "numbers"
"""Type of the entries that are dropped last if the queue is full."""

OUTCOMES = "outcomes"
"""Type of the entry that is written last, again by each writer that is created at the end."""

Write = Callable[[Writer], None]
Report = Callable[[Exception], None]


@dataclass(slots=True)
class Entry:
    """Queued data.

    Attributes:
        kind: Type in the plural, for messages: numbers, images, ...
        prepare: Called once on the writer's thread, with a function that reports values that cannot be written.
            Returns a function that writes the entry and may be called again after an error.
        size: Approximate size in bytes.
        time: Creation time in seconds since the epoch.
        write: Return value of `prepare`; None before it was called.
    """

    kind: str
    prepare: Callable[[Report], Write]
    size: int = 100
    time: float = field(default_factory=time.time)
    write: Write | None = None
