"""Fixtures for all test modules."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _skip_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `fsync`: these tests do not depend on durability after a power loss."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
