"""Checks of the record of a trainer: it agrees with what was emitted, and its bridge can be found."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hookbus._utils.imports import resolve_import
from hookbus._utils.packages import BRIDGES_GROUP
from hookbus.bridge.bridge import Bridge
from hookbus.discovery import list_entries, load_entry
from hookbus.errors import PluginError
from hookbus.lifecycle import POINTS
from hookbus.testing.bridges.trainings import Kit, get_probe
from hookbus.testing.hosts import HostTask, TaskError
from hookbus.testing.states import ensure

TRAINING_POINTS = frozenset(point for point in POINTS if not {"log", "test", "predict"} & {*point.split("_")})
"""Points that a training emits which validates, saves, resumes and fails."""


def check_record(kit: Kit, directory: Path) -> None:
    """Check that the points which the record calls missing are not emitted, and that all others are.

    The points are those of a training, of its continuation from a checkpoint, and of one that fails.
    """
    emitted = {*kit.pair(directory)[0].probe.points, *_resume(kit, directory), *_fail(kit, directory)}
    missing = kit.capabilities.missing.keys() & TRAINING_POINTS
    wrong = sorted(missing & emitted)
    ensure(not wrong, f"record: called missing, but emitted: {', '.join(wrong)}. Remove them from `missing`.")
    lacking = sorted(TRAINING_POINTS - missing - emitted)
    ensure(
        not lacking,
        "record: not called missing, but not emitted in a training that validates, saves, resumes and fails: "
        f"{', '.join(lacking)}. Emit them, or add them to `missing` with the reason.",
    )


def _resume(kit: Kit, directory: Path) -> list[str]:
    """Return the points of a training of one epoch and of its continuation."""
    first = kit.train(HostTask(epochs=1), directory / "resumed")
    second = kit.train(HostTask(epochs=2), directory / "resumed", resume=True)
    return [*first.probe.points, *second.probe.points]


def _fail(kit: Kit, directory: Path) -> list[str]:
    bus = kit.make_bus()
    with suppress(TaskError):
        kit.train(HostTask(fail_at=0), directory / "failed", bus=bus)
    return get_probe(bus).points


def check_discovery(kit: Kit, _directory: Path) -> None:
    """Check that the record refers to the bridge, and that an installed package publishes the record."""
    capabilities = kit.capabilities
    bridge = resolve_import(capabilities.bridge)
    ensure(
        isinstance(bridge, type) and issubclass(bridge, Bridge),
        f"record: bridge should be the import string of a subclass of hookbus.bridge.Bridge, got {bridge!r}.",
    )
    ensure(
        bridge.capabilities is capabilities,
        f"record: {capabilities.bridge} should have this record as its `capabilities`, got {bridge.capabilities!r}.",
    )
    published = []
    for entry in list_entries(BRIDGES_GROUP):
        with suppress(PluginError):  # the package of another trainer
            published.append(load_entry(entry))
    ensure(
        any(record is capabilities for record in published),
        f"record: no installed package publishes it in the group {BRIDGES_GROUP}. Add an entry point whose name is "
        "`<top-level package>.<class>` of the trainer, and install the package.",
    )
