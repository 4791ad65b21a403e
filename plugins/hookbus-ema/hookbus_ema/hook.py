"""EMA hook: update the average after each optimizer step, and load it into the model for validation and test."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from hookbus import Needs, Run, Unit, every, hookimpl
from hookbus_ema.average import WeightAverage
from hookbus_ema.averaging import AveragingHook
from hookbus_ema.config import EMAConfig
from hookbus_ema.exponential import AsyncMovingAverage, ExponentialMovingAverage
from hookbus_ema.model_average import check_average_file, get_unwrapped_model, is_initialized, load_average


class EMAHook(AveragingHook):
    """Maintain an exponential moving average of the weights, which validations and tests evaluate.

    The average is updated once per executed optimizer step: not per micro-batch of an accumulation, and not for steps
    that a gradient scaler skipped. In a loop without an optimizer each iteration counts as a step. Checkpoints contain
    the raw weights as `state_dict` and the averaged weights as `ema_state_dict`, whichever of them is in the model at
    the time of the save.
    """

    Config = EMAConfig
    config: EMAConfig

    @property
    def needs(self) -> Needs:
        """The start of epochs for an average that starts with one."""
        return Needs(points=("before_train_epoch",) if self.config.start_epoch else ())

    def build_average(self, model: nn.Module) -> WeightAverage:
        """Create the average of a model."""
        average_class = AsyncMovingAverage if self.config.overlap else ExponentialMovingAverage
        return average_class(
            model, **self.config.model_dump(include={"momentum", "warm_up", "update_buffers", "device"})
        )

    def check(self, run: Run) -> None:
        """Check that the run has a model, and that a new run can start from `resume_from`.

        Raises:
            HookError: If the run has no model.
            ConfigError: If a loader has the name of the hook.
            CheckpointError: If the file cannot be read or contains no matching averages.
        """
        super().check(run)
        # A run that resumes restores its own average.
        is_new = run.mode == "train" and not run.may_resume and not run.iters_done
        if is_new and self.config.resume_from is not None and is_initialized(model := get_unwrapped_model(run)):
            check_average_file(model, Path(self.config.resume_from), self.name)

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the start of the average, and the length of the warm-up."""
        config = self.config
        milestones: dict[str, tuple[int, Unit]] = {"warm_up": (config.start_step + config.warm_up, "step")}
        if config.start_step:
            milestones["start_step"] = config.start_step + 1, "step"
        if config.start_epoch:
            milestones["start_epoch"] = config.start_epoch + 1, "epoch"
        return milestones

    def before_train(self, run: Run) -> None:
        """Start the average at the current weights or at the averages of `resume_from`."""
        # Lazy parameters have no values before the first forward; their average starts at the first optimizer step.
        if is_initialized(get_unwrapped_model(run)):
            self._start_if_due(run)

    @hookimpl(frequency=False)
    def before_train_epoch(self) -> None:
        """Start the average if it is due, and include tensors that were added to the model since the last epoch."""
        if is_initialized(get_unwrapped_model(self.run)):
            self._start_if_due(self.run)
        super().before_train_epoch()

    @hookimpl(frequency=False)
    def before_optimizer_step(self, run: Run) -> None:
        """Wait for an update on another thread, which reads the weights that are about to change."""
        # Starts the average here if a loop takes its first step before it emits any event.
        self._start_if_due(run)
        self.wait()

    @hookimpl(when=every("interval"))
    def after_optimizer_step(self, run: Run) -> None:
        """Update the average."""
        if len(run.optimizers) <= 1:
            self._update(run)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Update the average in a loop without an optimizer or with several, once per iteration."""
        # The step of one optimizer may be followed by that of another one, which belongs to the same update.
        if len(run.optimizers) > 1 and run.stepped:
            self._update(run)
        if run.counts_iterations:
            self._update(run)
            # Without an optimizer no event precedes the next change of the weights, so the update cannot overlap.
            self.wait()

    # -- helpers ---------------------------------------------------------------------------------

    def _start_if_due(self, run: Run) -> bool:
        """Start the average if it is due and has not started; return whether it starts now."""
        is_due = run.steps_done >= self.config.start_step and run.epochs_done >= self.config.start_epoch
        if self.average is not None or not is_due:
            return False
        average = self.build_average(model := get_unwrapped_model(run))
        if self.config.resume_from is not None:
            load_average(average, model, Path(self.config.resume_from), run.logger, self.name)
        # `resume_from` sets the steps of the average, so that the warm-up continues.
        self._start_step = run.steps_done - average.steps
        self._track(average)
        return True

    def _update(self, run: Run) -> None:
        """Update the average, or start it."""
        if not self._start_if_due(run) and self._average is not None:
            self._average.update(run.steps_done - self._start_step)
