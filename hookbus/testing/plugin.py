"""Fixtures for pytest: `pytest_plugins = ["hookbus.testing.plugin"]` in a `conftest.py`."""

from __future__ import annotations

import pytest

from hookbus.testing.recording import RecordingBus

__all__ = ["recording_bus"]


@pytest.fixture
def recording_bus() -> RecordingBus:
    """A bus without hooks that writes down its events and the calls of listeners."""
    return RecordingBus()
