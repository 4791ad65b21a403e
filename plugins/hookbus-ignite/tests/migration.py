"""Table of the tests that run the rows of docs/coming-from.md."""

from __future__ import annotations

from tests.migration_page import RowTests

covers = RowTests()
