"""Reading numbers that may not be there: each stands alone, and one that cannot be had is None.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["GB", "MB", "Probe", "Rate", "Reader", "Total", "Values"]

MB = 2**20
GB = 2**30

Values = dict[str, float | None]
"""Numbers by name; None where there is none at the moment, which is not the same as 0."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that can be read.

    Attributes:
        what: what it is, for people.
        names: the names of its numbers.
        read: returns the numbers; raises where they cannot be had.
    """

    what: str
    names: tuple[str, ...]
    read: Callable[[], Sequence[float | None]]


class Reader:
    """Reads probes, and says once of each that it cannot be read.

    Args:
        say: takes a sentence for people.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()

    def read(self, probe: Probe, *, passes_on: tuple[type[Exception], ...] = ()) -> Values:
        """The numbers of a probe; all None where it fails.

        Args:
            probe: what to read.
            passes_on: exceptions that mean more than this one probe; they are raised.
        """
        return self.attempt(
            probe.what,
            lambda: dict(zip(probe.names, probe.read(), strict=True)),
            dict.fromkeys(probe.names),
            passes_on=passes_on,
        )

    def attempt(
        self,
        what: str,
        read: Callable[[], Values],
        otherwise: Values,
        *,
        passes_on: tuple[type[Exception], ...] = (),
    ) -> Values:
        """The numbers that a function returns; others where it fails.

        Args:
            what: what it reads, for people.
            read: the function.
            otherwise: the numbers where it fails.
            passes_on: exceptions that mean more than these numbers; they are raised.
        """
        try:
            return read()
        except passes_on:
            raise
        except Exception as error:
            self._complain(what, error)
            return otherwise

    def _complain(self, what: str, error: Exception) -> None:
        if what not in self._said:
            self._said.add(what)
            why = str(error) or type(error).__name__
            self._say(f"{what} cannot be read ({why}): there is no value for it as long as that lasts.")


class Rate:
    """How fast a counter grows between one look and the next."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def per_second(self, count: float, now: float) -> float | None:
        """The growth per second since the last look; None at the first look, and where the counter began again.

        Args:
            count: what the counter says.
            now: seconds of a clock that never goes back.
        """
        last, self._last = self._last, (count, now)
        if last is None or count < last[0] or now <= last[1]:
            return None
        return (count - last[0]) / (now - last[1])


class Total:
    """How much a counter has grown since the first look, also where it began again in between."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._sum = 0.0

    def since_start(self, count: float) -> float:
        """The growth since the first look, which gives 0.

        Args:
            count: what the counter says.
        """
        if self._last is not None:
            self._sum += count - self._last if count >= self._last else count
        self._last = count
        return self._sum
