"""What the test modules share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a loss of power could tell the difference, and none comes in these tests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
