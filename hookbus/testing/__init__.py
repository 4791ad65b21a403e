"""Test utilities for hook authors: a bus that records events, a small training, and conformance checks.

pytest is not required. `check_hook(MyHook)` in a test of a plugin package checks the requirements that every hook
must meet; `check_writer(WriterTestCase(MyHook, read))` does the same for a hook that writes to an experiment tracker.
`pytest_plugins = ["hookbus.testing.plugin"]` in `conftest.py` adds the fixtures.
"""

from hookbus.testing.backends import WriterTestCase
from hookbus.testing.conformance import check_hook
from hookbus.testing.fingerprints import fingerprint
from hookbus.testing.instances import check_two_instances
from hookbus.testing.recording import Event, RecordingBus
from hookbus.testing.training import Training, fake_training
from hookbus.testing.writers import check_writer

__all__ = [
    "Event",
    "RecordingBus",
    "Training",
    "WriterTestCase",
    "check_hook",
    "check_two_instances",
    "check_writer",
    "fake_training",
    "fingerprint",
]
