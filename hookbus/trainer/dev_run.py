"""A `fast_dev_run`: the hooks that it omits, and the requests for checkpoints that it discards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.hook import Hook
from hookbus.writers.hook import WriterHook
from hookbus.writers.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from hookbus._run.requests import Request
    from hookbus._run.run import Run
    from hookbus.bus import HookBus

NAME = "fast_dev_run"
"""Name of the hook that replaces the hooks which save checkpoints."""


class DiscardSavesHook(Hook):
    """Discard requested checkpoints, in place of the hook that writes them."""

    observer = True

    def before_run(self, run: Run) -> None:
        """Become the hook that writes checkpoints, so that others can request them."""
        run.provide("checkpoint_saver", self)

    def plan(self, run: Run, requests: list[Request]) -> None:
        """Return None: no file is written."""

    def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
        """Write nothing."""


def is_omitted(hook: object) -> bool:
    """Return whether a hook writes files, records or checkpoints, or stops the training."""
    if isinstance(hook, DiscardSavesHook):
        return False
    if isinstance(hook, (WriterHook, Writer, CheckpointSaver)):
        return True
    if not isinstance(hook, Hook):
        return False
    has_paths = any(path is not None for path in hook.output_paths.values())
    return hook.requires_work_dir or hook.stops_training or has_paths


def omit_hooks(bus: HookBus, is_omitted: Callable[[object], object] = is_omitted) -> list[str]:
    """Unregister hooks; saves that others request are discarded if the hook that writes them is one of these.

    Args:
        bus: Bus without an active run.
        is_omitted: Whether to unregister a hook. Default: those that a `fast_dev_run` omits.

    Returns:
        Names of the hooks.
    """
    omitted = {name: hook for name, hook in bus.hooks.items() if is_omitted(hook)}
    for name in omitted:
        bus.unregister(name)
    if any(isinstance(hook, CheckpointSaver) for hook in omitted.values()) and NAME not in bus.hooks:
        bus.register(DiscardSavesHook(), NAME)
    return list(omitted)
