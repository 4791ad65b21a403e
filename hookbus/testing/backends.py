"""Test case of a hook that writes to an experiment tracker, and helpers for its requirements."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookbus.errors import HookWarning
from hookbus.hook import Hook

Record = tuple[str, int, float]


@dataclass(frozen=True)
class WriterTestCase:
    """A hook that writes to a backend, and a function that reads back the records.

    Attributes:
        cls: Hook class, importable by its name, with a setting `interval`.
        read: Function of the work directory that returns the records in the order of the backend: (name, step, value).
        settings: Required settings of the hook, JSON-compatible.
        backend_name: Function that returns the name that the backend stores for a name.
        writes_own_files: Whether this process appends the records to files, so that a full disk can be simulated.
    """

    cls: type[Hook]
    read: Callable[[Path], list[Record]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    backend_name: Callable[[str], str] = str
    writes_own_files: bool = True

    def create_hook(self, **settings: Any) -> Hook:
        """Create the hook with `interval=1`.

        Args:
            settings: Additional settings.
        """
        return self.cls({**self.settings, "interval": 1, **settings})

    def read_curves(self, work_dir: Path) -> dict[str, list[tuple[int, float]]]:
        """Return (step, value) pairs by name in the order of the backend.

        Args:
            work_dir: Work directory of the run.
        """
        curves: dict[str, list[tuple[int, float]]] = {}
        for name, step, value in self.read(work_dir):
            curves.setdefault(name, []).append((step, float(value)))
        return curves


def check_curves(curves: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that the curves of a backend equal the expected curves.

    Raises:
        AssertionError: If they differ.
    """
    names = set(curves) ^ set(expected)
    wrong = {name: curves[name] for name in expected if name in curves and repr(curves[name]) != repr(expected[name])}
    assert not names, f"{len(names)} names are missing or unexpected: {sorted(names)[:5]}"
    assert not wrong, f"{len(wrong)} curves differ: {dict(list(wrong.items())[:3])}"


def collect_warnings(call: Callable[[], object]) -> list[str]:
    """Call a function and return the messages of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        call()
    return [str(warning.message) for warning in caught if issubclass(warning.category, HookWarning)]


@contextmanager
def forbid_warnings() -> Iterator[None]:
    """Context manager that converts warnings of hookbus to errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HookWarning)
        yield
