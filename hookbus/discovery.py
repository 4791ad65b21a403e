"""Plugin discovery through entry points, metadata first.

1. Read the metadata of the installed packages: names, packages, versions, requirements. Nothing is imported.
2. Filter: keep the requested names that `HOOKBUS_BLOCK=a,b` does not list.
3. Check the hookbus version that the package requires against the running version.
4. Import the plugins in the order of their names.

An installed plugin is never registered automatically.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import hookbus
from hookbus._imports import cause_of, nearest
from hookbus._packages import DATASETS_GROUP, HOOKS_GROUP, MODELS_GROUP, entry_points, normalized, parts_of, unreadable
from hookbus.errors import (
    HookWarning,
    PluginClash,
    PluginError,
    PluginImportError,
    PluginNotFound,
    PluginVersionError,
    did_you_mean,
)

__all__ = [
    "BLOCK_VARIABLE",
    "PUBLISHED",
    "Offer",
    "check_version",
    "find",
    "is_blocked",
    "listed_names",
    "load",
    "normalized",
    "offers",
    "package_publishing",
    "warn_of_unknown_blocks",
]

BLOCK_VARIABLE = "HOOKBUS_BLOCK"
BLOCKABLE = (HOOKS_GROUP, MODELS_GROUP, DATASETS_GROUP)
"""Entry-point groups that `HOOKBUS_BLOCK` applies to."""

PUBLISHED = {
    "hookbus-checkpoint": {"checkpoint": "CheckpointHook", "preemption": "PreemptionHook"},
    "hookbus-early-stopping": {"early_stopping": "EarlyStoppingHook"},
    "hookbus-ema": {"ema": "EMAHook"},
    "hookbus-eval": {"dist_eval": "DistEvalHook", "eval": "EvalHook"},
    "hookbus-gradient-flow": {"gradient_flow": "GradientFlowHook"},
    "hookbus-guards": {
        "check_invalid_loss": "CheckInvalidLossHook",
        "num_class_check": "NumClassCheckHook",
        "startup_check": "StartupCheckHook",
    },
    "hookbus-logger": {"jsonl": "JsonlHook", "logger": "LoggerHook", "progress": "ProgressHook"},
    "hookbus-mlflow": {"mlflow": "MLflowHook"},
    "hookbus-profiler": {"profiler": "ProfilerHook"},
    "hookbus-runtime": {
        "empty_cache": "EmptyCacheHook",
        "gc": "GarbageCollectionHook",
        "mean_teacher": "MeanTeacherHook",
        "out_of_memory": "OutOfMemoryHook",
        "runtime_info": "RuntimeInfoHook",
        "time_limit": "TimeLimitHook",
    },
    "hookbus-schedule": {
        "accumulation": "AccumulationHook",
        "freeze": "FreezeHook",
        "param_scheduler": "ParamSchedulerHook",
        "pipeline_switch": "PipelineSwitchHook",
        "set_epoch_info": "SetEpochInfoHook",
        "yolox_lr": "YOLOXLrUpdaterHook",
        "yolox_mode_switch": "YOLOXModeSwitchHook",
    },
    "hookbus-sync": {
        "dist_sampler_seed": "DistSamplerSeedHook",
        "sync_buffers": "SyncBuffersHook",
        "sync_metrics": "SyncMetricsHook",
        "sync_norm": "SyncNormHook",
        "sync_random_size": "SyncRandomSizeHook",
    },
    "hookbus-system-monitor": {"memory_profiler": "MemoryProfilerHook", "system_monitor": "SystemMonitorHook"},
    "hookbus-tensorboard": {"tensorboard": "TensorBoardHook"},
    "hookbus-timer": {"iter_timer": "IterTimerHook", "time_tracking": "TimeTrackingHook"},
    "hookbus-visualization": {
        "det_visualization": "DetVisualizationHook",
        "feature_map": "FeatureMapHook",
        "seg_visualization": "SegVisualizationHook",
        "visualization": "VisualizationHook",
    },
    "hookbus-wandb": {"wandb": "WandbHook"},
}
"""Packages of the hookbus project and their hooks, so that messages can name the package of a missing hook."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An entry point of an installed package.

    Attributes:
        name: Name of the entry point, the short type in run files.
        class_name: Name of the class that the entry point refers to.
        package: Normalized name of the distribution.
        version: Version of the distribution.
        entry: The entry point itself.
    """

    name: str
    class_name: str
    package: str
    version: str
    entry: importlib.metadata.EntryPoint

    @property
    def full_name(self) -> str:
        """Unambiguous name `package/name`."""
        return f"{self.package}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a run file or `HOOKBUS_BLOCK` may use."""
        return self.name, self.class_name, self.full_name, f"{self.package}/{self.class_name}"

    @property
    def blocked(self) -> bool:
        """Whether `HOOKBUS_BLOCK` contains one of the names."""
        return any(_canonical(name) in self.names for name in _blocks())


def offers(group: str = HOOKS_GROUP) -> list[Offer]:
    """Return the entry points of installed packages in a group, sorted by name. Nothing is imported.

    Args:
        group: Entry-point group. Default: hooks.

    Returns:
        One entry per entry point and package.
    """
    # A set, because the metadata of a package may be installed twice, for example as egg-info and dist-info.
    entries = set()
    for entry in entry_points(group):
        if entry.dist is not None:
            entries.add(Offer(entry.name, parts_of(entry)[1], normalized(entry.dist.name), entry.dist.version, entry))
    return sorted(entries, key=lambda offer: (offer.name, offer.package))


def listed_names(entries: Iterable[Offer]) -> dict[Offer, str]:
    """Return the name of each entry: its short name, or the full name if multiple packages publish the short name.

    Args:
        entries: The entries.

    Returns:
        Names by entry, in the given order.
    """
    all_offers = list(entries)
    counts = Counter(offer.name for offer in all_offers)
    return {offer: offer.name if counts[offer.name] == 1 else offer.full_name for offer in all_offers}


def is_blocked(name: str) -> bool:
    """Return whether `HOOKBUS_BLOCK` blocks every installed hook of a name."""
    matching = _matching(name, offers()) if os.environ.get(BLOCK_VARIABLE) else []
    return bool(matching) and all(offer.blocked for offer in matching)


def warn_of_unknown_blocks() -> None:
    """Warn about each name in `HOOKBUS_BLOCK` that is neither an installed hook nor a hook of the hookbus project."""
    blocked = _blocks()
    known = [name for group in BLOCKABLE if blocked for offer in offers(group) for name in offer.names]
    unknown = [name for name in blocked if _canonical(name) not in known and package_publishing(name) is None]
    for name in unknown:
        message = f"{BLOCK_VARIABLE}: {name!r} is not an installed hook and blocks nothing.{nearest(name, known)}"
        warnings.warn(message, HookWarning, stacklevel=2)


def find(name: str, group: str = HOOKS_GROUP, kind: str = "hook") -> Offer:
    """Return the entry of a name.

    Args:
        name: Name of an entry point, class name, or `package/name`.
        group: Entry-point group. Default: hooks.
        kind: Noun for messages. Default: "hook".

    Returns:
        The only entry that matches and is not blocked.

    Raises:
        PluginNotFound: If no installed package publishes the name. The message names the package to install.
        PluginClash: If multiple packages publish the name.
        PluginError: If `HOOKBUS_BLOCK` blocks the name.
    """
    installed = offers(group)
    matching = _matching(name, installed)
    free = [offer for offer in matching if not offer.blocked]
    if not matching:
        raise PluginNotFound(_not_found(name, kind, installed))
    if not free:
        raise PluginError(f"The {kind} {name!r} is blocked by {BLOCK_VARIABLE}={os.environ.get(BLOCK_VARIABLE)}.")
    # Two entry points of one package may be aliases of the same class.
    if len({(offer.package, offer.entry.value) for offer in free}) > 1:
        packages = " and ".join(f"{offer.package} {offer.version}" for offer in free)
        choices = " or ".join(repr(offer.full_name) for offer in free)
        raise PluginClash(f"The {kind} {name!r} is published by {packages}. Use one of the full names: {choices}.")
    return free[0]


def load(offer: Offer) -> Any:
    """Import the object that an entry refers to, after checking the required hookbus version.

    Args:
        offer: The entry.

    Returns:
        The imported object.

    Raises:
        PluginVersionError: If the package requires another version of hookbus.
        PluginImportError: If the import fails. The message contains the cause.
    """
    check_version(offer)
    try:
        return offer.entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise SystemExit, or a BaseException such as pytest's Skipped
        raise PluginImportError(
            f"{offer.package} {offer.version} publishes {offer.name!r}, but {offer.entry.value} cannot be imported: "
            f"{cause_of(error)}. Repair or remove the package (`hookbus doctor` lists all broken packages)."
        ) from error


def check_version(offer: Offer) -> None:
    """Raise if the package of an entry does not accept the running version of hookbus.

    Args:
        offer: The entry.

    Raises:
        PluginVersionError: If the package requires another version.
    """
    # Imported here to keep `import hookbus` and `hookbus hooks` fast.
    from packaging.requirements import InvalidRequirement, Requirement

    assert offer.entry.dist is not None
    for text in offer.entry.dist.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if normalized(requirement.name) != "hookbus" or (requirement.marker and not requirement.marker.evaluate()):
            continue
        if not requirement.specifier.contains(hookbus.__version__, prereleases=True):
            raise PluginVersionError(
                f"{offer.package} {offer.version} requires hookbus{requirement.specifier}, but hookbus "
                f"{hookbus.__version__} is installed. Run: pip install --upgrade hookbus {offer.package}"
            )


def package_publishing(name: str) -> str | None:
    """Return the package of the hookbus project that publishes a hook, installed or not, or None.

    Args:
        name: Name of the entry point or of the hook class.
    """
    return next((package for package, hooks in PUBLISHED.items() if name in hooks or name in hooks.values()), None)


def _matching(name: str, entries: Iterable[Offer]) -> list[Offer]:
    return [offer for offer in entries if _canonical(name) in offer.names]


def _unread() -> str:
    return "".join(f" The entry points of {package} cannot be read: {flaw}." for package, flaw in unreadable().items())


def _blocks() -> list[str]:
    return [name.strip() for name in os.environ.get(BLOCK_VARIABLE, "").split(",") if name.strip()]


def _canonical(name: str) -> str:
    """Return a name with its package part normalized: `Package_Name/name` becomes `package-name/name`."""
    package, slash, rest = name.strip().rpartition("/")
    return f"{normalized(package)}/{rest}" if slash else rest


def _not_found(name: str, kind: str, entries: Iterable[Offer]) -> str:
    package = package_publishing(name) if kind == "hook" else None
    if package is not None:
        return f"The hook {name!r} is not installed. Run: pip install {package}"
    installed = [alias for offer in entries for alias in (offer.name, offer.class_name)]
    published = [alias for hooks in PUBLISHED.values() for pair in hooks.items() for alias in pair]
    hint = nearest(name, installed) or (nearest(name, published) if kind == "hook" else "")
    return (
        f"No installed package publishes the {kind} {name!r}.{hint or did_you_mean(name, installed)}{_unread()} "
        f"Run pip install for the package that publishes it, or refer to your own class as my_module:{name}."
    )
