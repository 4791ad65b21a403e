"""Fixtures of the tests of bridges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.foreign_trainer import publish


@pytest.fixture
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Publish the bridge of the foreign trainer."""
    directory = tmp_path_factory.mktemp("site-packages")
    with publish(directory):
        yield directory
