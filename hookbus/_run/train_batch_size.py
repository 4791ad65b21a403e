"""Batch size of the training loader, if a hook or the loop has changed it."""

from __future__ import annotations

from typing import Any

from hookbus._utils.arguments import check_count
from hookbus.errors import ConfigError, LoopError


class TrainBatchSize:
    """Batch size with which a run reads its training loader.

    Args:
        run: The run.

    Attributes:
        size: Number of samples per batch; None for that of the loader.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.size: int | None = None
        self._original: Any = None

    @property
    def maximum(self) -> int | None:
        """Number of samples that this rank reads per epoch; None if it is unknown.

        Raises:
            ConfigError: If the batch size of the loader cannot be changed.
        """
        return self._count_batches(self.resize(1))

    def resize(self, size: int) -> Any:
        """Return the training loader with another batch size.

        Raises:
            ConfigError: If there is none, or its batch size cannot be changed.
        """
        # Imports torch, which a run without a loader does not need.
        from hookbus.data.resizing import resize_loader

        if self._run.train_loader is None:
            raise ConfigError(
                "train_loader: expected a DataLoader, whose batch size can be changed, got None. Pass `train_loader` "
                "to bus.run()."
            )
        return resize_loader(self._run.train_loader, size)

    def set(self, size: int) -> None:
        """Change the batch size.

        Raises:
            ConfigError: If the loader has fewer samples, or its batch size cannot be changed.
            LoopError: If the loader is being read.
        """
        check_count(size, "batch_size")
        self._check_not_reading()
        maximum = self.maximum
        if maximum is not None and size > maximum:
            raise ConfigError(
                f"batch_size: expected at most {maximum}, the number of samples that a rank reads per epoch, got "
                f"{size}."
            )
        self.size = size
        self.apply()
        # Lengths of earlier epochs, and iterations at which schedules are due.
        self._run.training_data.forget_lengths()
        self._run.bus.invalidate()

    def apply(self) -> None:
        """Replace the training loader, if its batch size is not the changed one."""
        run = self._run
        if self.size is None or run.train_loader is None:
            return
        resized = self.resize(self.size)
        if resized is not run.train_loader:
            self._original, run.train_loader = run.train_loader if self._original is None else self._original, resized
            if run.trainer is not None:
                run.trainer.train_loader = resized
            run.clock.epoch_length, run.clock.observed_epoch_length = self._count_batches(resized), None

    def resolve(self, loader: Any) -> Any:
        """Return the loader to read for one that the loop passes."""
        return self._run.train_loader if self._original is not None and loader is self._original else loader

    def _check_not_reading(self) -> None:
        """Raise if the loader is being read: the position in the data is counted in batches."""
        clock = self._run.clock
        if self._run.training_data.is_reading or (clock.epoch_open and clock.iters_done > clock.epoch_first_iter):
            raise LoopError(
                f"run.set_batch_size: called at iteration {clock.current('iter')}, epoch {clock.current('epoch')}, "
                "while the training loader is being read. Call it before or after an epoch; a custom loop emits "
                "before_train or before_train_epoch before it calls run.batches."
            )

    def _count_batches(self, loader: Any) -> int | None:
        from hookbus.data.loaders import loader_length

        length: int | None = loader_length(loader, self._run.training_data.loaders.shard)
        return length
