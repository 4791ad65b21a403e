"""Random image sizes that are the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hookbus import Hook, Needs, Run, Unit, hookimpl
from hookbus.data import derive_seed, iter_datasets
from hookbus.errors import ConfigError
from hookbus_sync.config import SyncRandomSizeConfig

RESIZE_METHOD = "update_dynamic_scale"
SIZE_DIVISOR = 32
"""Divisor of all sizes, in pixels: the largest stride of common detectors."""


class SyncRandomSizeHook(Hook):
    """Change the image size of the training data every N iterations.

    The size is a function of seed and iteration, so it is the same on all ranks and after a resume.
    """

    Config = SyncRandomSizeConfig
    makes_requests = False
    needs = Needs(data=True)
    config: SyncRandomSizeConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._loader_checked = False

    @property
    def size(self) -> tuple[int, int]:
        """Image size (height, width) of the current iteration, in pixels."""
        return self._build_resize(self.run).size_for_iteration(self.run.iter)

    def check(self, run: Run) -> None:
        """Check that the training dataset supports a change of the size, and that no other hook changes it.

        Raises:
            ConfigError: If no dataset has a method `update_dynamic_scale`, or there is another hook.
        """
        self.check_unique(run, "changes the image size, and the result depends on their order")
        if run.train_loader is not None:
            find_resizable_datasets(run.train_loader)

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the iteration in which the size first changes."""
        return {"interval": (self.config.interval + 1, "iter")}

    def before_train(self, run: Run) -> None:
        """Register the change of the size in all processes that read the training data."""
        self._loader_checked = False
        run.register_dataset_hook(self._build_resize(run))

    @hookimpl(frequency=False)
    def before_train_iter(self, run: Run) -> None:
        """Check once per training that the loop reads the training data through the run.

        Raises:
            LoopError: If it does not.
        """
        # Not in before_train: a custom loop passes its loader to `run.batches` only when the epoch starts.
        if not self._loader_checked:
            run.require_managed_loader(self.name)
            self._loader_checked = True

    def _build_resize(self, run: Run) -> Resize:
        config = self.config
        return Resize(run.seed, config.ratio_range, config.img_scale, config.interval)


@dataclass(eq=False)
class Resize:
    """Set the image size of a dataset before the samples of an iteration are read, in each process that reads them.

    Attributes:
        seed: Seed of the random factors.
        ratio_range: Smallest and largest factor k, both included.
        img_scale: Height and width that define the aspect ratio.
        interval: Number of iterations per size.
    """

    seed: int
    ratio_range: tuple[int, int] = (14, 26)
    img_scale: tuple[int, int] = (640, 640)
    interval: int = 10
    _size: tuple[int, int] | None = field(default=None, init=False)
    _dataset: Any = field(default=None, init=False)

    def size_for_iteration(self, iteration: int) -> tuple[int, int]:
        """Return (height, width) in pixels for an iteration: (32 k, 32 floor(k * width / height)).

        Args:
            iteration: Index of the iteration, from 0.
        """
        least, greatest = self.ratio_range
        # Derived instead of drawn from an RNG: ranks and workers compute the same size without communication.
        k = least + derive_seed(self.seed, iteration // self.interval, SIZE_DIVISOR) % (greatest - least + 1)
        height, width = self.img_scale
        return SIZE_DIVISOR * k, SIZE_DIVISOR * max(k * width // height, 1)

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        """Set the size of the iteration, if the size or the dataset has changed."""
        size = self.size_for_iteration(iteration)
        # The search for datasets inside wrappers is repeated only after a change, because this runs for every batch.
        if size != self._size or dataset is not self._dataset:
            self._size, self._dataset = size, dataset
            for target in find_resizable_datasets(dataset):
                target.update_dynamic_scale(size)


def find_resizable_datasets(dataset: Any) -> list[Any]:
    """Return the datasets, including those inside wrappers, that have a method `update_dynamic_scale`.

    Args:
        dataset: A dataset, a wrapper of datasets, or a loader.

    Raises:
        ConfigError: If there is none.
    """
    candidates = iter_datasets(dataset)
    targets = [candidate for candidate in candidates if hasattr(candidate, RESIZE_METHOD)]
    if not targets:
        raise ConfigError(
            f"{type(candidates[-1]).__name__} does not support a change of the image size: neither the dataset nor a "
            f"wrapper has a method {RESIZE_METHOD}(size). Add the method; it receives (height, width) in pixels."
        )
    return targets
