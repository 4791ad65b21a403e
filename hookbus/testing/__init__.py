"""Test utilities for hook authors: a bus that records events, a small training, and conformance checks.

pytest is not required. `check_hook(MyHook)` in a test of a plugin package checks the requirements that every hook
must meet; `check_writer(WriterTestCase(MyHook, read))` does the same for a hook that writes to an experiment tracker,
and `check_imports("my_package")` checks that a package uses the public names of hookbus only.
`pytest_plugins = ["hookbus.testing.plugin"]` in `conftest.py` adds the fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._events.instrumentation import time_hooks as time_hooks
    from hookbus.testing.backends import WriterTestCase as WriterTestCase
    from hookbus.testing.bridges.conformance import bridge_conformance as bridge_conformance
    from hookbus.testing.conformance import check_hook as check_hook
    from hookbus.testing.hosts import HostAdapter as HostAdapter
    from hookbus.testing.hosts import HostResult as HostResult
    from hookbus.testing.hosts import HostTask as HostTask
    from hookbus.testing.hosts import TaskError as TaskError
    from hookbus.testing.imports import check_imports as check_imports
    from hookbus.testing.instances import check_two_instances as check_two_instances
    from hookbus.testing.recording import Event as Event
    from hookbus.testing.recording import RecordingBus as RecordingBus
    from hookbus.testing.spans import HookTrace as HookTrace
    from hookbus.testing.states import fingerprint as fingerprint
    from hookbus.testing.tracing import record_trace as record_trace
    from hookbus.testing.training import Training as Training
    from hookbus.testing.training import fake_training as fake_training
    from hookbus.testing.writers import check_writer as check_writer

_MODULES = map_names(
    {
        "hookbus._events.instrumentation": "time_hooks",
        "hookbus.testing.backends": "WriterTestCase",
        "hookbus.testing.bridges.conformance": "bridge_conformance",
        "hookbus.testing.conformance": "check_hook",
        "hookbus.testing.hosts": "HostAdapter HostResult HostTask TaskError",
        "hookbus.testing.imports": "check_imports",
        "hookbus.testing.instances": "check_two_instances",
        "hookbus.testing.recording": "Event RecordingBus",
        "hookbus.testing.spans": "HookTrace",
        "hookbus.testing.states": "fingerprint",
        "hookbus.testing.tracing": "record_trace",
        "hookbus.testing.training": "Training fake_training",
        "hookbus.testing.writers": "check_writer",
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
