"""Short runs of a Trainer: limited loaders, and the same few batches in every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookbus._utils.arguments import raise_config_error
from hookbus._utils.batch_limits import count_fraction, find_dev_run_problem, find_limit_problem
from hookbus.data.limited_loader import find_order_problem, fix_order, limit_loader
from hookbus.data.loaders import is_shardable, loader_length
from hookbus.trainer.dev_run import omit_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hookbus.bus import HookBus
    from hookbus.data.samplers import TrainShard

LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "overfit_batches")


def find_problems(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the error messages of the arguments of a Trainer that shorten its runs."""
    checks = {**dict.fromkeys(LIMITS, find_limit_problem), "fast_dev_run": find_dev_run_problem}
    problems = {name: problem for name, check in checks.items() if (problem := check(arguments[name]))}
    yield from (f"{name}: {problem}" for name, problem in problems.items())
    if not problems and arguments["overfit_batches"]:
        for name in ("limit_train_batches", "limit_val_batches"):
            if not _is_all(value := arguments[name]) and not (name == "limit_val_batches" and value == 0):
                yield f"{name}: has no effect with `overfit_batches`, got {value!r}. Remove one of the two settings."


def _is_all(limit: float) -> bool:
    """Return whether a limit is the fraction 1.0, as opposed to the number 1."""
    return isinstance(limit, float) and limit == 1


@dataclass(frozen=True)
class _Limit:
    """Limit of the loaders of one split.

    Attributes:
        kind: "train", "val", "test" or "predict".
        setting: Argument of the Trainer that limits the split.
        value: A number of batches as an int, or a fraction as a float.
        is_fixed: Whether all epochs have the same batches.
    """

    kind: str
    setting: str
    value: int | float
    is_fixed: bool = False


class ShortRun:
    """Limits of the loaders of a Trainer.

    Args:
        arguments: Arguments of the Trainer.
        shard: Shard of the training data; None if the loaders are not split across ranks.

    Attributes:
        dev_batches: Number of batches per loader of a `fast_dev_run`; 0 for any other run.
    """

    def __init__(self, arguments: Mapping[str, Any], shard: TrainShard | None) -> None:
        self._arguments, self._shard = arguments, shard
        self.dev_batches = int(arguments["fast_dev_run"])
        self._notes: list[str] = []
        self._omitted: list[str] = []
        self._problems: list[str] = []

    @property
    def train_limit(self) -> str:
        """Name of the setting that limits the batches of the training, "" if none does."""
        limit = self._get_limit("train")
        return limit.setting if limit.is_fixed or not _is_all(limit.value) else ""

    def limit_loaders(self, loaders: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the limited loaders, None for one that is disabled.

        Args:
            loaders: Loader, mapping of names to loaders, or None, by "train", "val", "test" and "predict".

        Raises:
            ConfigError: If a loader cannot be limited. The message lists all problems.
        """
        limited = tuple(self._limit_split(self._get_limit(kind), split) for kind, split in loaders.items())
        raise_config_error(self._problems)
        return limited

    def omit_hooks(self, bus: HookBus) -> None:
        """Unregister the hooks that a `fast_dev_run` omits; no effect in any other run."""
        if self.dev_batches:
            self._omitted += omit_hooks(bus)

    def describe(self) -> str:
        """Return the description of what is shorter than in a full run; "" if nothing is."""
        if not self.dev_batches:
            return f"short run: {'; '.join(self._notes)}" if self._notes else ""
        omitted = f" Omitted hooks: {', '.join(self._omitted)}." if self._omitted else ""
        return (
            f"fast_dev_run: one epoch, and no file is written or read in the work directory. "
            f"{'; '.join(self._notes)}.{omitted}"
        )

    def disables(self, kind: str) -> bool:
        """Return whether the loader of a split is disabled.

        Args:
            kind: "train", "val" or "test".
        """
        return not self._arguments[f"limit_{kind}_batches"]

    def _get_limit(self, kind: str) -> _Limit:
        setting, overfit = f"limit_{kind}_batches", self._arguments["overfit_batches"]
        value: int | float = self._arguments.get(setting, 1.0)  # predictions are limited by a `fast_dev_run` only
        is_fixed = bool(overfit) and kind in ("train", "val")
        if is_fixed and value:
            setting, value = "overfit_batches", overfit
        if self.dev_batches and value:
            setting, value = "fast_dev_run", self.dev_batches
        return _Limit(kind, setting, value, is_fixed)

    def _limit_split(self, limit: _Limit, split: Any) -> Any:
        if split is None or (_is_all(limit.value) and not limit.is_fixed):
            return split
        if not limit.value:
            self._notes.append(f"{limit.kind}: no batches ({limit.setting}={limit.value})")
            return None
        if isinstance(split, Mapping):
            return {name: self._limit_loader(limit, f"{limit.kind} {name!r}", part) for name, part in split.items()}
        return self._limit_loader(limit, limit.kind, split)

    def _limit_loader(self, limit: _Limit, label: str, loader: Any) -> Any:
        if limit.is_fixed and (reason := find_order_problem(loader)):
            self._problems.append(
                f"overfit_batches: the {label} loader cannot be rebuilt without shuffling: {reason}. Pass a DataLoader "
                f"of a map-style dataset, or set `limit_{limit.kind}_batches` instead of `overfit_batches`."
            )
            return loader
        world_size = self._shard.world_size if self._shard is not None and is_shardable(loader) else 1
        # Training batches are counted per rank, with the samples that the ranks drop; evaluation batches in total.
        per_rank = limit.kind == "train"
        total = loader_length(loader, self._shard if per_rank else None)
        count = self._count(limit, label, total)
        if not per_rank and isinstance(limit.value, int):
            count *= world_size
        shown = count if total is None else min(count, total)
        self._notes.append(f"{label}: {_describe(shown, total, limit)} ({limit.setting}={limit.value})")
        if not limit.is_fixed and shown == total:
            return loader
        steps = count * world_size if per_rank else count
        return fix_order(loader, steps) if limit.is_fixed else limit_loader(loader, steps)

    def _count(self, limit: _Limit, label: str, total: int | None) -> int:
        """Return the number of batches of a limit."""
        if isinstance(limit.value, int):
            return limit.value
        if total is None:
            self._problems.append(
                f"{limit.setting}: the {label} loader has no length, got the fraction {limit.value!r}. Set a number of "
                "batches as an int, or 1.0 for all of them."
            )
            return 0
        count = count_fraction(limit.value, total)
        if total and not count:
            self._problems.append(
                f"{limit.setting}: less than one of the {total} batches of the {label} loader, got {limit.value!r}. "
                "Set a larger fraction, or a number of batches as an int."
            )
        return count


def _describe(count: int, total: int | None, limit: _Limit) -> str:
    same = "the same " if limit.is_fixed else ""
    unit = "batch" if (count if total is None else total) == 1 else "batches"
    if count == total:
        return f"{same}{total} {unit}" if same else f"all {total} {unit}"
    return f"{same or 'at most '}{count} {unit}" if total is None else f"{same}{count} of {total} {unit}"
