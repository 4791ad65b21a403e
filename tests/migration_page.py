"""Rows of the tables of docs/coming-from.md, for the tests of the packages that run them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])
PAGE = Path(__file__).parents[1] / "docs/coming-from.md"


def read_rows(section: str) -> list[tuple[str, str]]:
    """Return the rows of the tables of a section, as pairs of what a framework has and what replaces it.

    Args:
        section: Heading of the section, such as "Keras".

    Raises:
        ValueError: If there is no such section, or if it has no table.
    """
    text = PAGE.read_text()
    match = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"{PAGE.name}: no section, got {section!r}. Pass the heading of a framework.")
    tables: list[str] = re.findall(r"^\|[^\n]*\|\n\|---\|---\|\n((?:\|.*\n)+)", match[1], re.MULTILINE)
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for table in tables for line in table.splitlines()]
    if not rows:
        raise ValueError(f"{PAGE.name}: section {section!r} has no table.")
    return [(left, right) for left, right in rows]


class RowTests:
    """Tests of the rows of a section. Decorate each test with an instance, called with both cells of its row."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str]] = []

    def __call__(self, left: str, right: str) -> Callable[[Test], Test]:
        """Return a decorator that adds a test as that of a row.

        Args:
            left: What the framework has, as on the page.
            right: What replaces it, as on the page.
        """

        return self.for_rows([(left, right)])

    def for_rows(self, rows: Iterable[tuple[str, str]]) -> Callable[[Test], Test]:
        """Return a decorator that adds a test as that of several rows.

        Args:
            rows: Both cells of each row, as on the page.
        """

        def add(test: Test) -> Test:
            self._rows += rows
            return test

        return add

    def omit(self, left: str, right: str, reason: str) -> None:
        """Add a row that no test runs.

        Args:
            left: What the framework has, as on the page.
            right: What replaces it, as on the page.
            reason: Reason why it is not run.
        """
        assert reason
        self._rows.append((left, right))

    def check(self, section: str) -> None:
        """Check that each row of a section has one test, or one reason, and that no other row has.

        Args:
            section: Heading of the section, such as "Keras".
        """
        assert sorted(self._rows) == sorted(read_rows(section))
