"""How is my plugin found? Entry points, metadata first.

1. Read the metadata of what is installed: names, packages, versions, requirements. Nothing is imported.
2. Filter: only what was asked for by name, minus what `HOOKBUS_BLOCK=a,b` names.
3. Check what the package itself requires of hookbus against the version that is running.
4. Import, in the order of names.

Being installed registers nothing.
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
"""The groups whose offers it can name."""

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
"""The packages of the hookbus project and the hooks in them, so that a missing one can be named."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry point of one installed package.

    Attributes:
        name: the entry point's name, the short type.
        class_name: the class it stands for.
        package: the distribution that offers it.
        version: that distribution's version.
        entry: the entry point itself.
    """

    name: str
    class_name: str
    package: str
    version: str
    entry: importlib.metadata.EntryPoint

    @property
    def full_name(self) -> str:
        """`package/name`, which tells equal names apart."""
        return f"{self.package}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that names it in a run file or in HOOKBUS_BLOCK."""
        return self.name, self.class_name, self.full_name, f"{self.package}/{self.class_name}"

    @property
    def blocked(self) -> bool:
        """Whether HOOKBUS_BLOCK names it."""
        return any(_canonical(name) in self.names for name in _blocks())


def offers(group: str = HOOKS_GROUP) -> list[Offer]:
    """What installed packages offer in a group, sorted by name. Nothing is imported."""
    found = set()
    for entry in entry_points(group):
        if entry.dist is not None:
            found.add(Offer(entry.name, parts_of(entry)[1], normalized(entry.dist.name), entry.dist.version, entry))
    return sorted(found, key=lambda offer: (offer.name, offer.package))


def listed_names(there: Iterable[Offer]) -> dict[Offer, str]:
    """The name that each offer goes by: its short one, or the full one where two packages offer the short one."""
    known = list(there)
    times = Counter(offer.name for offer in known)
    return {offer: offer.name if times[offer.name] == 1 else offer.full_name for offer in known}


def is_blocked(name: str) -> bool:
    """Whether HOOKBUS_BLOCK leaves nobody who offers a hook of this name."""
    matching = _matching(name, offers()) if os.environ.get(BLOCK_VARIABLE) else []
    return bool(matching) and all(offer.blocked for offer in matching)


def warn_of_unknown_blocks() -> None:
    """Warn of each name in HOOKBUS_BLOCK that is neither installed nor a hook of this project: it blocks nothing."""
    given = _blocks()
    known = [name for group in BLOCKABLE if given for offer in offers(group) for name in offer.names]
    unknown = [name for name in given if _canonical(name) not in known and package_publishing(name) is None]
    for name in unknown:
        note = f"{BLOCK_VARIABLE}: {name!r} is no installed hook, so it blocks nothing.{nearest(name, known)}"
        warnings.warn(note, HookWarning, stacklevel=2)


def find(name: str, group: str = HOOKS_GROUP, kind: str = "hook") -> Offer:
    """The one offer of this name.

    Args:
        name: an entry-point name, a class name, or `package/name`.
        group: the entry-point group.
        kind: what it is, for messages.

    Raises:
        PluginNotFound: nobody offers it; the message tells what would have to be installed.
        PluginClash: two packages offer it.
        PluginError: HOOKBUS_BLOCK names it.
    """
    there = offers(group)
    matching = _matching(name, there)
    free = [offer for offer in matching if not offer.blocked]
    if not matching:
        raise PluginNotFound(_not_found(name, kind, there))
    if not free:
        raise PluginError(f"The {kind} {name!r} is blocked by {BLOCK_VARIABLE}={os.environ.get(BLOCK_VARIABLE)}.")
    if len({(offer.package, offer.entry.value) for offer in free}) > 1:
        who = " and ".join(f"{offer.package} {offer.version}" for offer in free)
        choices = " or ".join(repr(offer.full_name) for offer in free)
        raise PluginClash(f"The {kind} {name!r} is offered by {who}. Say which one you mean: {choices}.")
    return free[0]


def load(offer: Offer) -> Any:
    """Import what an offer stands for, after checking what its package requires of hookbus.

    Raises:
        PluginVersionError: it requires another version.
        PluginImportError: it cannot be imported; the cause is in the message.
    """
    check_version(offer)
    try:
        return offer.entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may leave by sys.exit, or by an exception of its own such as pytest's
        raise PluginImportError(
            f"{offer.package} {offer.version} offers {offer.name!r}, but {offer.entry.value} cannot be imported: "
            f"{cause_of(error)}. Repair or remove that package (hookbus doctor shows every broken one)."
        ) from error


def check_version(offer: Offer) -> None:
    """See that the package of an offer accepts the running hookbus.

    Raises:
        PluginVersionError: it does not.
    """
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
                f"{offer.package} {offer.version} requires hookbus{requirement.specifier}, and this is hookbus "
                f"{hookbus.__version__}. Run: pip install --upgrade hookbus {offer.package}"
            )


def package_publishing(name: str) -> str | None:
    """The package of the hookbus project that has a hook of this name, installed or not; None where none has."""
    return next((each for each, hooks in PUBLISHED.items() if name in hooks or name in hooks.values()), None)


def _matching(name: str, there: Iterable[Offer]) -> list[Offer]:
    return [offer for offer in there if _canonical(name) in offer.names]


def _unread() -> str:
    return "".join(f" What {package} offers cannot be read: {flaw}." for package, flaw in unreadable().items())


def _blocks() -> list[str]:
    return [name.strip() for name in os.environ.get(BLOCK_VARIABLE, "").split(",") if name.strip()]


def _canonical(name: str) -> str:
    """`Package_Name/name` as offers spell it."""
    package, slash, rest = name.strip().rpartition("/")
    return f"{normalized(package)}/{rest}" if slash else rest


def _not_found(name: str, kind: str, there: Iterable[Offer]) -> str:
    package = package_publishing(name) if kind == "hook" else None
    if package is not None:
        return f"The hook {name!r} is not installed. Run: pip install {package}"
    installed = [each for offer in there for each in (offer.name, offer.class_name)]
    published = [each for hooks in PUBLISHED.values() for pair in hooks.items() for each in pair]
    hint = nearest(name, installed) or (nearest(name, published) if kind == "hook" else "")
    return (
        f"No installed package offers the {kind} {name!r}.{hint or did_you_mean(name, installed)}{_unread()} A package "
        "that offers it is installed by pip install <package>; one of your own is named by its path, "
        f"my_module:{name}."
    )
