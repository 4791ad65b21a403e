"""Each row of the migration page for Lightning has a test, or a reason why it has none."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from . import (  # noqa: F401  # they add rows
    test_migration_checkpoints,
    test_migration_finders,
    test_migration_logs,
    test_migration_points,
    test_migration_predictions,
    test_migration_training,
)
from .migration import covers


def test_each_row_has_a_test() -> None:
    covers.check("Lightning")
