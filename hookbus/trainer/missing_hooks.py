"""A warning for trainings that log and save nothing because the packages of the default hooks are not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus import discovery
from hookbus._utils.plugin_entries import INSTALL_STANDARD, get_publishing_package
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.trainer.preconditions import get_implemented
from hookbus.writers.metric_recorder import MetricRecorder

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.trainer.setup import TrainerSetup


def warn_of_missing_hooks(trainer: TrainerSetup, run: Run) -> None:
    """Warn if a training has no hook that logs metrics or saves checkpoints and its package is not installed.

    Nothing is logged if the package is installed or `default_hooks` is False, because the user chose the hooks.
    """
    roles = _find_missing_roles(trainer, run) if trainer.default_hooks and run.ranks.is_main else {}
    # Reading the metadata of all packages takes milliseconds, so it is done only if a hook is missing.
    installed = {plugin.package for plugin in discovery.list_entries()} if roles else set()
    packages = {role: get_publishing_package(name) for name, role in roles.items()}
    if missing := {role: package for role, package in packages.items() if package not in installed}:
        run.logger.warning(
            "hooks: no hook %s, which requires %s. Run: %s, or set `default_hooks` to false to train without.",
            " or ".join(missing),
            " and ".join(map(str, missing.values())),
            INSTALL_STANDARD,
        )


def _find_missing_roles(trainer: TrainerSetup, run: Run) -> dict[str, str]:
    """Return what no hook of a training does, by the default hook that does it."""
    hooks = list(trainer.bus.hooks.values())
    missing = {}
    if "log_scalars" not in get_implemented(trainer) and not _contains(hooks, MetricRecorder):
        missing["logger"] = "logs metrics"
    # Without a work directory, the default hook would write no checkpoints either.
    if run.work_dir is not None and not _contains(hooks, CheckpointSaver) and run.get("checkpoint_saver") is None:
        missing["checkpoint"] = "saves checkpoints"
    return missing


def _contains(hooks: list[object], cls: type) -> bool:
    return any(isinstance(hook, cls) for hook in hooks)
