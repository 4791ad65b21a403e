"""Each row of the page for users of Ignite has a test of what it claims to be equivalent."""

from __future__ import annotations

import pytest

pytest.importorskip("ignite", reason="ignite is not installed: run `make bridges HOST=ignite`")

from . import test_migration_handlers, test_migration_loggers, test_migration_points  # noqa: F401  # they add rows
from .migration import covers


def test_each_row_has_a_test() -> None:
    covers.check("Ignite")
