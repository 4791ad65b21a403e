"""Access of hooks to the loop of a run: its data, the default steps of the Trainer, and its validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookbus.errors import LoopError

if TYPE_CHECKING:
    from hookbus.data.seeded_dataset import DatasetHook


class LoopMixin:
    """Operations on the training data, and on the default steps of the Trainer."""

    __slots__ = ()  # `Run` has slots, and a base class without them would add a `__dict__`
    trainer: Any
    # Without their types, which would make the modules of the run depend on each other.
    training_data: Any
    validations: Any

    # -- data --------------------------------------------------------------------------------

    def register_dataset_hook(self, hook: DatasetHook) -> None:
        """Register a function that modifies the dataset while `run.batches` reads it, in the process that reads it.

        If the data is already being read, the function is called from the next pass on, and a warning is logged.

        Args:
            hook: `hook(dataset, epoch, iteration)`, with indices from 0; called before the samples of each
                iteration are read. It must depend on these arguments only, since every worker process has its own copy
                of the dataset. It must be picklable if workers are spawned.
        """
        self.training_data.register_dataset_hook(hook)

    def require_managed_loader(self, hook: str) -> None:
        """Check, during an iteration, that the training data is read through `run.batches`.

        Hooks can modify the data only if it is.

        Args:
            hook: Name of the hook, for the message.

        Raises:
            LoopError: If the loop reads its data directly.
        """
        self.training_data.require_managed_loader(hook)

    # -- default steps -----------------------------------------------------------------------

    @property
    def accumulate(self) -> int | None:
        """Number of micro-batches per optimizer step of the Trainer; None in a custom loop, which accumulates itself.

        Set it between two optimizer steps only: the loss of every micro-batch of a group is divided by this number.

        Raises:
            LoopError: If it is set in a custom loop.
            ConfigError: If it is set to anything but a positive integer.
        """
        return None if self.trainer is None else self.trainer.steps.accumulate

    @accumulate.setter
    def accumulate(self, count: int) -> None:
        self._get_steps("run.accumulate").accumulate = count

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Execute the default training step of the Trainer, from inside a hook that replaces the action `train_step`.

        Args:
            batch: Batch on the device of the model.

        Returns:
            Outputs of the model with "loss", detached.

        Raises:
            LoopError: If the loop is not a Trainer, there is no loss, or it cannot be trained on.
        """
        outputs: dict[str, Any] = self._get_steps("run.train_step").train_step(self, batch)
        return outputs

    def train_micro_batches(self, parts: Sequence[Any], weights: Sequence[float]) -> list[dict[str, Any]]:
        """Execute the default training step of the Trainer on one micro-batch in parts, which reduces peak memory.

        If a hook skips the iteration, the remaining parts are not processed and the accumulation group is restarted.

        Args:
            parts: Parts of the batch, each in the form of a batch.
            weights: Factor of the loss of each part: its fraction of the samples if the loss is a mean over samples, 1
                if it is a sum. The accumulated gradients then equal the gradients of the full batch.

        Returns:
            Return values of `train_step` for the processed parts.

        Raises:
            LoopError: If the loop is not a Trainer, there is no loss, or it cannot be trained on.
        """
        steps = self._get_steps("run.train_micro_batches")
        outputs: list[dict[str, Any]] = steps.train_micro_batches(self, parts, weights)
        return outputs

    def _get_steps(self, operation: str) -> Any:
        """Return the default steps of the Trainer."""
        if self.trainer is None:
            raise LoopError(f"{operation}: the loop of this run is not a Trainer, and has no default training step.")
        return self.trainer.steps

    # -- validation --------------------------------------------------------------------------

    @property
    def can_validate(self) -> bool:
        """Whether `validate()` is possible: the run has validation data, or a function that validates."""
        return bool(self.validations.is_available("val"))

    @property
    def eval_metrics(self) -> Mapping[str, Any]:
        """Metrics of the Trainer by name, see `hookbus.evaluation.build_metrics`; {} in a custom loop."""
        metrics: Mapping[str, Any] = {} if self.trainer is None else self.trainer.eval_metrics
        return metrics
