"""Fixtures of the tests in a Trainer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fast_collection() -> Iterator[None]:
    """Exclude existing objects from the garbage collections at the start of each training, which take most of it."""
    gc.freeze()
    yield
    gc.unfreeze()
