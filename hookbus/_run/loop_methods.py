"""Access of hooks to the loop of a run: its data, the batches and losses that they replace, steps, and validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hookbus._events.call_stack import current_point, in_event
from hookbus._run.objects import describe_mode
from hookbus._run.request_methods import RequestMixin
from hookbus.errors import HookError, LoopError, RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from hookbus.data.seeded_dataset import DatasetHook

Kind = Literal["batch", "loss"]
POINTS: dict[Kind, str] = {"batch": "before_train_iter", "loss": "after_forward"}
"""Point at which each of them is replaced."""


@dataclass(slots=True)
class Replacement:
    """Value that a hook has put in place of that of the loop.

    Attributes:
        value: New batch or loss.
        hook: Instance name of the hook.
        iteration: Index of the iteration.
        is_read: Whether a listener has read it, to compute a further replacement.
    """

    value: Any
    hook: str
    iteration: int
    is_read: bool = False


class Replacements:
    """Replacements of the current iteration.

    Attributes:
        entries: Replacements that the loop has not read; an attribute and no property, since it is read twice in each
            iteration.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.entries: dict[Kind, Replacement] = {}

    def replace(self, kind: Kind, value: Any, hook: str) -> None:
        """Replace the batch or the loss; no effect in an iteration that is skipped.

        Raises:
            RequestError: If this is not the point at which it is replaced.
            HookError: If another hook has replaced it, and its value was not read.
        """
        run, point = self._run, current_point(self._run)
        if point != POINTS[kind]:
            place = f"at {point}" if point else "outside of an event"
            raise RequestError(f"run.replace_{kind}: called {place}. Call it at {POINTS[kind]}.")
        if run.should_skip_iter:
            return
        earlier = self._find(kind)
        if earlier is not None and earlier.hook != hook and not earlier.is_read:
            raise HookError(
                f"run.replace_{kind}: {earlier.hook!r} has replaced the {kind} of this iteration, got a second one of "
                f"{hook!r}. Compute it from run.resolve_{kind}({kind})."
            )
        self.entries[kind] = Replacement(value, hook, run.clock.iter)
        run.pending = True  # the end of the iteration checks that the loop has read it

    def resolve(self, kind: Kind, value: Any) -> Any:
        """Return the replacement, or `value` if there is none. The loop reads it once, listeners any number of times.

        Args:
            kind: "batch" or "loss".
            value: Batch or loss of the loop.
        """
        entry = self._find(kind)
        if entry is None:
            return value
        if in_event(self._run):
            entry.is_read = True
        else:
            del self.entries[kind]
        return entry.value

    def discard(self) -> None:
        """Discard the replacements of an iteration that is skipped."""
        self.entries.clear()

    def check_read(self) -> None:
        """Check, at the end of an iteration, that the loop has read all replacements.

        Raises:
            LoopError: If it has not, so that they had no effect.
        """
        entries = {kind: entry for kind in self.entries if (entry := self._find(kind)) is not None}
        self.discard()
        for kind, entry in entries.items():
            clock = self._run.clock
            raise LoopError(
                f"run.replace_{kind}: {entry.hook!r} has replaced the {kind} of iteration {clock.current('iter')}, "
                f"epoch {clock.current('epoch')}, but the loop has used its own. Add `{kind} = "
                f"run.resolve_{kind}({kind})` to the loop, after {POINTS[kind]}."
            )

    def _find(self, kind: Kind) -> Replacement | None:
        """Return a replacement of the current iteration; one of an iteration that has failed is ignored."""
        entry = self.entries.get(kind)
        return entry if entry is not None and entry.iteration == self._run.clock.iter else None


class LoopMixin(RequestMixin):
    """Operations on the training data, and on the default steps of the Trainer."""

    __slots__ = ()  # `Run` has slots, and a base class without them would add a `__dict__`
    trainer: Any

    # -- data --------------------------------------------------------------------------------

    def epochs(self) -> Iterator[int]:
        """Yield the remaining epochs, as indices from 0, until the run stops.

        An epoch ends when the loop requests the next one, also if the loop does not emit `after_epoch`.

        Raises:
            LoopError: If the run only evaluates, or has no limit, since the iteration would never end.
        """
        self._check_trains("run.epochs")
        epochs: Iterator[int] = self.training_data.epochs()
        return epochs

    def batches(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the remaining batches of the epoch with their indices, until the epoch or the run stops.

        A resumed run continues at its position. The order is determined by the seed and the epoch.

        Args:
            loader: Training data.

        Raises:
            LoopError: If the run only evaluates, or the loader is empty.
        """
        self._check_trains("run.batches")
        batches: Iterator[tuple[int, Any]] = self.training_data.batches(loader)
        return batches

    def _check_trains(self, operation: str) -> None:
        """Raise a `LoopError` if the run only evaluates."""
        if self.mode != "train":
            raise LoopError(f"{operation}: {describe_mode(self.mode)}")
        self._check_no_trial(operation)

    def _check_no_trial(self, operation: str) -> None:
        """Raise a `LoopError` inside of `sandbox()`."""
        if self.trial is not None:
            raise LoopError(
                f"{operation}: called inside of run.sandbox(). Call it after the `with` block; trial.batches() reads "
                "batches for trial steps."
            )

    @property
    def max_batch_size(self) -> int | None:
        """Number of samples that a rank reads of the training loader per epoch, the limit of `set_batch_size`.

        None if the dataset has no length.

        Raises:
            ConfigError: If the batch size of the training loader cannot be changed.
        """
        maximum: int | None = self.training_data.batch_size.maximum
        return maximum

    def set_batch_size(self, size: int) -> None:
        """Read the training loader with another batch size from the next epoch on.

        `run.train_loader` is then a copy of the loader with this batch size, which `run.batches` reads instead of the
        loader of the loop. Length of the epoch, schedules and estimates follow. A checkpoint contains the batch size.

        Args:
            size: Number of samples per batch of each rank; the same on every rank.

        Raises:
            ConfigError: If the loader has fewer samples, or its batch size cannot be changed: it is not a DataLoader,
                has no `batch_size`, or has a batch sampler of its own.
            LoopError: If the loader is being read.
        """
        self._check_trains("run.set_batch_size")
        self.training_data.batch_size.set(size)

    def register_dataset_hook(self, hook: DatasetHook) -> None:
        """Register a function that modifies the dataset while `run.batches` reads it, in the process that reads it.

        If the data is already being read, the function is called from the next pass on, and a warning is logged. The
        function of a hook leaves with the hook, from the next pass on.

        Args:
            hook: `hook(dataset, epoch, iteration)`, with indices from 0; called before the samples of each
                iteration are read. It must depend on these arguments only, since every worker process has its own copy
                of the dataset. It must be picklable if workers are spawned.
        """
        loaders = self.training_data.loaders
        if loaders.used:
            self.logger.warning(
                "run.register_dataset_hook: the training data is already being read, so the function is called from "
                "the next pass on. Register it at before_run or before_train to modify the whole training."
            )
        loaders.set_dataset_hooks([*loaders.dataset_hooks, (hook, self.bus.pm.members.find_caller())])

    def require_managed_loader(self, hook: str) -> None:
        """Check, during an iteration, that the training data is read through `run.batches`.

        Hooks can modify the data only if it is.

        Args:
            hook: Name of the hook, for the message.

        Raises:
            LoopError: If the loop reads its data directly.
        """
        if not self.training_data.loaders.used:
            raise LoopError(
                f"hook {hook!r} modifies the training data while it is read, but the loop reads its loader directly. "
                "Iterate over run.batches(loader)."
            )

    def replace_batch(self, batch: Any) -> None:
        """Replace the batch of this iteration, at `before_train_iter`.

        The step, and the points after it, receive the new batch. The other listeners of the event receive the batch of
        the loader; one that replaces it as well computes its batch from `resolve_batch(batch)`. The number of samples
        that is counted is that of the batch of the loader.

        Args:
            batch: New batch, on the device of the model.

        Raises:
            RequestError: If it is called at another point.
            HookError: If another hook has replaced the batch, and this one discards it.
        """
        self.replacements.replace("batch", batch, self._requester())

    def replace_loss(self, loss: Tensor) -> None:
        """Replace the loss of this iteration, at `after_forward`. It is also the loss that is logged.

        Args:
            loss: Tensor with one element, attached to the autograd graph.

        Raises:
            RequestError: If it is called at another point.
            HookError: If the loss cannot be trained on, or if another hook has replaced it, and this one discards it.
        """
        if not getattr(loss, "requires_grad", False) or loss.numel() != 1:
            shape = getattr(loss, "shape", None)
            got = type(loss).__name__ if shape is None else f"shape {tuple(shape)}, requires_grad={loss.requires_grad}"
            raise HookError(
                f"run.replace_loss: expected a tensor with one element that requires a gradient, got {got}. Compute it "
                "from the argument `loss` or `outputs`."
            )
        self.replacements.replace("loss", loss, self._requester())

    def resolve_batch(self, batch: Any) -> Any:
        """Return the batch that a hook has put in place of a batch; the batch itself if none has.

        A custom loop calls it after `before_train_iter`, for the hooks that replace batches.

        Args:
            batch: Batch of the loader.
        """
        return self.replacements.resolve("batch", batch)

    def resolve_loss(self, loss: Any) -> Any:
        """Return the loss that a hook has put in place of a loss; the loss itself if none has.

        A custom loop calls it after `after_forward`, for the hooks that replace losses.

        Args:
            loss: Loss of the loop.
        """
        return self.replacements.resolve("loss", loss)

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

    def eval_step(self, batch: Any) -> dict[str, Any]:
        """Execute the default evaluation step of the Trainer: the forward pass and the loss of a batch, without events.

        The caller sets the modes, see `hookbus.evaluation.isolated_forward`.

        Args:
            batch: Batch on the device of the model.

        Returns:
            Outputs of the model by name, with "loss" if there is one.

        Raises:
            LoopError: If the loop is not a Trainer, or the model cannot be called with the batch.
        """
        outputs: dict[str, Any] = self._get_steps("run.eval_step").eval_step(self, batch)
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
        """Whether a validation is possible: the run has validation data, or a function that validates."""
        host = self.host
        return self.validations.has_evaluator("val") or (host is not None and bool(host.can_validate))

    @property
    def trial_obstacle(self) -> str:
        """Type of the training loader if `trial.batches()` cannot read it, because its position would change, else "".

        Such loaders are iterators, loaders that save their own position, and persistent workers of an iterable dataset.
        """
        obstacle: str = self.training_data.trial_obstacle
        return obstacle

    @property
    def can_save(self) -> bool:
        """Whether `request_save()` is possible: a hook writes checkpoints, or the trainer that executes the run."""
        host = self.host
        return self.get("checkpoint_saver") is not None or (host is not None and host.capabilities.honors("save"))

    @property
    def external_lr_schedule(self) -> str:
        """What schedules the learning rate in another trainer, with the remedy for a message; "" if nothing does."""
        return "" if self.host is None else str(self.host.describe_lr_schedule())

    @property
    def eval_metrics(self) -> Mapping[str, Any]:
        """Metrics of the Trainer by name, see `hookbus.evaluation.build_metrics`; {} in a custom loop."""
        metrics: Mapping[str, Any] = {} if self.trainer is None else self.trainer.eval_metrics
        return metrics
