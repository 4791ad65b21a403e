"""Reading of values that may be unavailable: each is read separately and None on failure.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

MB = 2**20
GB = 2**30

Values = dict[str, float | None]
"""Values by name; None for an unavailable value, which is distinct from 0."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Source of one or more values.

    Attributes:
        label: Label for messages.
        names: Names of the values.
        read: Function that returns one value per name; raises if they are unavailable.
    """

    label: str
    names: tuple[str, ...]
    read: Callable[[], Sequence[float | None]]


class Reader:
    """Read probes, and report each unavailable probe once."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._log_warning = warn
        self._reported: set[str] = set()

    def read(self, probe: Probe, *, reraise: tuple[type[Exception], ...] = ()) -> Values:
        """Return the values of a probe; None for all of them if it fails.

        Args:
            reraise: Exceptions to propagate, because they concern more than this probe.
        """
        unavailable: Values = dict.fromkeys(probe.names)
        return self.call(
            probe.label, lambda: dict(zip(probe.names, probe.read(), strict=True)), unavailable, reraise=reraise
        )

    def call(self, label: str, read: Callable[[], T], default: T, *, reraise: tuple[type[Exception], ...] = ()) -> T:
        """Return the result of a function, or a default if it fails.

        Args:
            default: Result on failure.
            reraise: Exceptions to propagate, because they concern more than these values.
        """
        try:
            return read()
        except reraise:
            raise
        except Exception as error:  # monitoring must not affect the training
            if label not in self._reported:
                self._reported.add(label)
                reason = format_reason(error)
                self._log_warning(f"{label} is unavailable: {reason}. Its values are omitted until it is available.")
            return default


def format_reason(error: Exception) -> str:
    """Return the message of an error, or its type if there is none."""
    return str(error) or type(error).__name__


class Rate:
    """Rate of a counter between two readings. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def per_second(self, count: float, now: float) -> float | None:
        """Return the increase per second since the last reading; None in the first one and after a counter reset."""
        last, self._last = self._last, (count, now)
        if last is None or count < last[0] or now <= last[1]:
            return None
        return (count - last[0]) / (now - last[1])


class Total:
    """Increase of a counter since the first reading, across counter resets."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._sum = 0.0

    def update(self, count: float) -> float:
        """Return the increase since the first reading, in which it is 0."""
        if self._last is not None:
            # After a reset, by a reloaded driver for example, the counter restarts at 0.
            self._sum += count - self._last if count >= self._last else count
        self._last = count
        return self._sum
