"""A new image size every so many iterations."""

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
    """Lets the training data have a new size every so many iterations, the same on every process and after a resume."""

    Config = SyncRandomSizeConfig
    makes_requests = False
    config: SyncRandomSizeConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._reads = False

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels of the iteration in progress."""
        return self._sizes(self.run).at(self.run.iter)

    def check(self, run: Run) -> None:
        """See that the data set has a method for this."""
        if run.train_loader is not None:
            targets_in(run.train_loader)

    def before_train(self, run: Run) -> None:
        """Have the size changed while the data is read."""
        self._reads = False
        run.training_data.before_reading(Resize(self._sizes(run)))

    def before_train_iter(self, run: Run) -> None:
        """See once that the data goes through the run."""
        if not self._reads:
            run.training_data.see_that_it_reads(self.name)
            self._reads = True

    def _sizes(self, run: Run) -> Sizes:
        config = self.config
        return Sizes(run.seed, config.ratio_range, config.img_scale, config.interval)


class Resize:
    """Tells a data set the size of each iteration. Called in each process that reads.

    Args:
        sizes: the sizes.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._size: tuple[int, int] | None = None
        self._told: Any = None

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        """Tell it, where the size or the data set is another one."""
        size = self._sizes.at(iteration)
        if size != self._size or dataset is not self._told:
            self._size, self._told = size, dataset
            for each in targets_in(dataset):
                each.update_dynamic_scale(size)


def targets_in(dataset: Any) -> list[Any]:
    """The data sets, through wrappers, that can be told a size.

    Raises:
        ConfigError: there is none.
    """
    inside = datasets_in(dataset)
    found = [each for each in inside if hasattr(each, METHOD)]
    if not found:
        raise ConfigError(
            [
                f"{type(inside[-1]).__name__} cannot have another size: neither it nor a wrapper around it has a "
                f"method {METHOD}(size). Give it one that takes (height, width)."
            ]
        )
    return found
