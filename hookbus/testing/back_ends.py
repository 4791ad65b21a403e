"""A hook that records, how what it wrote is read back, and what a promise about it is made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookbus.errors import HookWarning
from hookbus.hook import Hook

__all__ = ["BackEnd", "no_warning", "same", "warnings_in"]

Number = tuple[str, int, float]


@dataclass(frozen=True)
class BackEnd:
    """A hook that records, and how what it wrote is read back.

    Attributes:
        cls: the hook class; it can be imported by its name, and has a setting `interval`.
        read: given the work directory, the numbers in the order in which the back end shows them: (name, step, value).
        settings: what the hook cannot do without, as JSON has it.
        stored_name: the name under which the back end has a number.
        own_files: whether the numbers are appended to files by this process, so that a full disk can be tried.
    """

    cls: type[Hook]
    read: Callable[[Path], list[Number]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    stored_name: Callable[[str], str] = str
    own_files: bool = True

    def hook(self, **settings: Any) -> Hook:
        """The hook, with a record at every iteration."""
        return self.cls({**self.settings, "interval": 1, **settings})

    def curves(self, work_dir: Path) -> dict[str, list[tuple[int, float]]]:
        """What is there, by name, in the order in which it is shown."""
        found: dict[str, list[tuple[int, float]]] = {}
        for name, step, value in self.read(work_dir):
            found.setdefault(name, []).append((step, float(value)))
        return found


def same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """See that the curves of a back end are the expected ones.

    Raises:
        AssertionError: they are not.
    """
    names = set(found) ^ set(expected)
    wrong = {name: found[name] for name in expected if name in found and repr(found[name]) != repr(expected[name])}
    assert not names, f"{len(names)} names are missing or too many: {sorted(names)[:5]}"
    assert not wrong, f"{len(wrong)} curves are wrong: {dict(list(wrong.items())[:3])}"


def warnings_in(call: Callable[[], object]) -> list[str]:
    """What the user was warned of meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        call()
    return [str(each.message) for each in caught if issubclass(each.category, HookWarning)]


@contextmanager
def no_warning() -> Iterator[None]:
    """Whoever is warned meanwhile has found a fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HookWarning)
        yield
