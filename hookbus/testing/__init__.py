"""For people who write hooks: a bus that records, a small training to try a hook in, and a conformance check.

Needs no pytest. `check_hook(MyHook)` in one test of your package tells whether the hook keeps the promises that users
rely on, and `check_writer(BackEnd(MyHook, read))` does it for a hook that records into a back end. With pytest,
`pytest_plugins = ["hookbus.testing.plugin"]` in your `conftest.py` gives its fixtures.
"""

from hookbus.testing.back_ends import BackEnd
from hookbus.testing.conformance import check_hook
from hookbus.testing.fingerprints import fingerprint
from hookbus.testing.recording import Event, RecordingBus
from hookbus.testing.training import Training, fake_training
from hookbus.testing.writers import check_writer

__all__ = [
    "BackEnd",
    "Event",
    "RecordingBus",
    "Training",
    "check_hook",
    "check_writer",
    "fake_training",
    "fingerprint",
]
