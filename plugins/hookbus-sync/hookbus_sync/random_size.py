"""Random image sizes that are the same on all ranks."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Run
from hookbus.errors import ConfigError
from hookbus.training.loaders import datasets_in
from hookbus_sync.config import SyncRandomSizeConfig
from hookbus_sync.sizes import Sizes

__all__ = ["Resize", "SyncRandomSizeHook"]

METHOD = "update_dynamic_scale"


class SyncRandomSizeHook(Hook):
    """Change the image size of the training data every N iterations.

    The size is a function of seed and iteration, so it is the same on all ranks and after a resume.
    """

    Config = SyncRandomSizeConfig
    makes_requests = False
    config: SyncRandomSizeConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._reads = False

    @property
    def size(self) -> tuple[int, int]:
        """Image size (height, width) of the current iteration, in pixels."""
        return self._sizes(self.run).at(self.run.iter)

    def check(self, run: Run) -> None:
        """Check that the training dataset supports a change of the size.

        Raises:
            ConfigError: If no dataset has a method `update_dynamic_scale`.
        """
        if run.train_loader is not None:
            targets_in(run.train_loader)

    def before_train(self, run: Run) -> None:
        """Register the change of the size in all processes that read the training data."""
        self._reads = False
        run.training_data.before_reading(Resize(self._sizes(run)))

    def before_train_iter(self, run: Run) -> None:
        """Check once per training that the loop reads the training data through the run.

        Raises:
            LoopError: If it does not.
        """
        # Not in before_train: a custom loop passes its loader to `run.batches` only when the epoch starts.
        if not self._reads:
            run.training_data.see_that_it_reads(self.name)
            self._reads = True

    def _sizes(self, run: Run) -> Sizes:
        config = self.config
        return Sizes(run.seed, config.ratio_range, config.img_scale, config.interval)


class Resize:
    """Set the image size of a dataset before the samples of an iteration are read, in each process that reads them.

    Args:
        sizes: Image sizes by iteration.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._size: tuple[int, int] | None = None
        self._told: Any = None

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        """Set the size of the iteration, if the size or the dataset has changed."""
        size = self._sizes.at(iteration)
        # The search for datasets inside wrappers is repeated only after a change, because this runs for every batch.
        if size != self._size or dataset is not self._told:
            self._size, self._told = size, dataset
            for target in targets_in(dataset):
                target.update_dynamic_scale(size)


def targets_in(dataset: Any) -> list[Any]:
    """Return the datasets, including those inside wrappers, that have a method `update_dynamic_scale`.

    Args:
        dataset: A dataset, a wrapper of datasets, or a loader.

    Raises:
        ConfigError: If there is none.
    """
    candidates = datasets_in(dataset)
    targets = [candidate for candidate in candidates if hasattr(candidate, METHOD)]
    if not targets:
        raise ConfigError(
            [
                f"{type(candidates[-1]).__name__} does not support a change of the image size: neither the dataset nor "
                f"a wrapper has a method {METHOD}(size). Add the method; it receives (height, width) in pixels."
            ]
        )
    return targets
