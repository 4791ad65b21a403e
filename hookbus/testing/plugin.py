"""pytest fixtures: `pytest_plugins = ["hookbus.testing.plugin"]` in `conftest.py`."""

from __future__ import annotations

import pytest

from hookbus.testing.recording import RecordingBus


@pytest.fixture
def recording_bus() -> RecordingBus:
    """Return a bus without hooks that records events and listener calls."""
    return RecordingBus()
