"""Checkpoint hook: request saves on a schedule, and write the collected checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hookbus import Hook, Needs, Priority, Request, Run, Schedule, Unit, every, hookimpl
from hookbus.checkpoint import schema
from hookbus.errors import CheckpointError, ConfigError
from hookbus.metrics import Metrics, is_training_metric
from hookbus.writers import PlannedFile, resolve_output_path
from hookbus_checkpoint.best import BestTracker
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.planning import iter_planned_files
from hookbus_checkpoint.writer import CheckpointWriter

_metrics = schema.record(
    {"names": schema.mapping_of(schema.string()), "warned": schema.boolean},
    {"rules": schema.mapping_of(schema.string("greater|less"))},
)
_ranked_file = {"name": schema.file_name, "value": schema.number(), "step": schema.integer()}
_ranked = schema.mapping_of(schema.list_of(schema.record(_ranked_file)))


def _build_iteration_schedule(config: CheckpointConfig) -> Schedule:
    # The duration is checked at iterations even if the interval counts epochs: an epoch may take hours.
    by_count = every(None if config.by_epoch else config.interval, unit="iter")
    return by_count if config.seconds is None else by_count | every(config.seconds, unit="seconds")


class CheckpointHook(Hook):
    """Save checkpoints: every N epochs or iterations, the best, and the last.

    Checkpoints are written to `<work_dir>/checkpoints`. `best_<metric>.pth` and `last.pth` are hard links, which
    `max_keep_ckpts` does not count. With `save_top_k: 3`, the files of the best 3 results of each metric are kept as
    well: `best_<metric>_epoch_2.pth`. Only files of this run are removed, and only after a newer file was committed.

    Attributes:
        best: Tracker of the best results.
    """

    Config = CheckpointConfig
    priority = Priority.BELOW_NORMAL
    requires_work_dir = True
    config: CheckpointConfig
    state_schema = schema.record(
        {
            "periodic": schema.list_of(schema.file_name),
            "generation": schema.integer(),
            "saved_at": schema.nullable(schema.list_of(schema.integer(), 2, 2)),
            "metrics": _metrics,
        },
        {"ranked": _ranked, "superseded": schema.mapping_of(schema.list_of(schema.integer(), 2, 2))},
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        # The common key `frequency` counts in the same unit as `interval`.
        self.unit = "epoch" if self.config.by_epoch else "iter"
        self.best = BestTracker(self.config, self)
        self._writer = CheckpointWriter(self.config, self.best)
        self._listeners: list[str] = []

    @property
    def needs(self) -> Needs:
        """The end of epochs, if the interval counts them or a best checkpoint depends on their means."""
        training = [metric for metric in self.config.metrics if is_training_metric(metric)]
        is_loss = any(metric in ("train/loss", "train_loss") for metric in training)
        return Needs(points=("after_train_epoch",) if self.config.saves_epochs_only or training else (), loss=is_loss)

    @property
    def required_metrics(self) -> list[str]:
        """Metrics that every validation has to provide: of best checkpoints and names, but not the default one."""
        return self.config.validation_metrics

    @property
    def requires_validation(self) -> bool:
        """Whether a best checkpoint is kept by `auto`, or a metric is used that validations have to provide."""
        return self.config.save_best == "auto" or bool(self.required_metrics)

    @property
    def output_paths(self) -> dict[str, str | None]:
        """Directory of the checkpoints."""
        return {"out_dir": self.config.out_dir}

    def planned_files(self, run: Run) -> Iterator[PlannedFile]:
        """Return the patterns of the checkpoints."""
        return iter_planned_files(self.config, run)

    def check(self, run: Run) -> None:
        """Check that the run supports `async_save`, and that all hooks agree on the direction of a metric.

        Raises:
            ConfigError: If one of these conditions is not met.
        """
        if run.mode != "train":
            return
        if self.config.async_save == "overlap" and run.ranks.world_size > 1:
            message = "async_save: overlap is not supported with multiple processes. Set `async_save: true`."
            raise ConfigError([message])
        BestTracker(self.config, self).collect_requested_metrics(run.bus.hooks.values())

    @property
    def keeps_best(self) -> bool:
        """Whether best checkpoints are written: by the metrics of this hook, and by those that other hooks request."""
        return self.config.keeps_best

    def improves(self, run: Run, metrics: Mapping[str, float]) -> bool:
        """Return whether the results of a validation would be the best ones of a metric, or belong to its ranking."""
        return self.best.improves(run, metrics)

    @property
    def handles_incomplete_intervals(self) -> bool:
        """Whether the hook itself reports that its interval has no effect: in a loop without epochs."""
        run = self.run
        return run.auto_nesting and self.config.saves_epochs_only and run.iters_done > 0 and run.epochs_done == 0

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the number of the first checkpoint that `keep_every` keeps."""
        unit: Unit = "epoch" if self.config.by_epoch else "iter"
        return {} if self.config.keep_every is None else {"keep_every": (self.config.keep_every, unit)}

    # -- requesting ----------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Register as the saver of a training run."""
        if run.mode != "train":
            return
        if run.iters_done == 0:
            self.best.reset()
        # Evaluated on rank 0 only, so that all ranks use the same directory.
        directory = run.ranks.call_on_main("the checkpoint directory", lambda: self.directory(run))
        self._writer.attach(run, directory, self.name)
        self._register_listeners(run)
        run.provide("checkpoint_saver", self)

    def before_train(self, run: Run) -> None:
        """Claim the checkpoint directory, repair best files, and collect metrics that other hooks track."""
        # Not in `before_run`: the run id, which identifies the files of this run, is restored by the resume after it.
        missing_ranked = self._writer.begin(run)
        self.best.collect_requested_metrics(run.bus.hooks.values())
        self.best.reset_flipped(run)
        for missing in (*self.best.missing_best_files(run), *self.best.missing_ranked_files(run, missing_ranked)):
            run.request_save(f"{missing}, repaired", saver=self, improvement=missing)
        if self.best.uses_training_metrics:
            self._add_listener(run, "after_train_epoch", "training", self._request_best_of_training)

    @hookimpl(when=lambda config: every(config.interval if config.by_epoch else None, unit="epoch"))
    def after_train_epoch(self, run: Run) -> None:
        """Request the periodic checkpoint of this epoch."""
        run.request_save(f"epoch {run.epochs_done}", saver=self, periodic=("epoch", run.epochs_done))

    @hookimpl(when=_build_iteration_schedule)
    def after_train_iter(self, run: Run) -> None:
        """Request the periodic checkpoint of this iteration."""
        run.request_save(f"iteration {run.iters_done}", saver=self, periodic=("iteration", run.iters_done))

    def after_val(self, run: Run) -> None:
        """Request the results of a validation, also of values that other hooks log at the same point."""
        if run.mode == "train" and not run.sanity_checking:
            run.request_results(self._request_best)

    def after_train(self, run: Run) -> None:
        """Request a last checkpoint, unless the run ended within an epoch, where it was saved."""
        if not run.is_captured:
            self.request_last(run)
        elif run.ended_at is not None and run.iters_done > run.ended_at:
            message = (
                "%s: the loop continued after the run ended at iteration %s, and the last checkpoint does not contain "
                "its %s further iterations. Check run.should_stop after each iteration."
            )
            run.logger.warning(message, self.name, run.ended_at, run.iters_done - run.ended_at)

    def after_run(self, run: Run) -> None:
        """Wait for a save in progress, and publish the weights if the training is complete."""
        self.wait_for_pending(run)
        if run.mode == "train" and run.outcome == "finished" and run.iters_done:
            self.best.warn_if_unused(run)
        # Not after a preemption or an interruption: the resumed run publishes its final weights.
        if self.config.publish and run.mode == "train" and run.outcome in ("finished", "stopped"):
            self._writer.publish(run)

    def _request_best(self, metrics: Metrics) -> None:
        """Request a checkpoint for each metric whose result is the best one, or belongs to the best `save_top_k`."""
        for improvement in self.best.iter_improvements(self.run, metrics):
            self.run.request_save(str(improvement), saver=self, improvement=improvement)

    def _request_best_of_training(self, run: Run) -> None:
        """Request the same for the means of a training epoch, unless it was left early."""
        if run.is_epoch_full:
            for improvement in self.best.iter_improvements(run, run.epoch_means(), training=True):
                run.request_save(str(improvement), saver=self, improvement=improvement)

    def cleanup(self, run: Run) -> None:
        """Shut down the writer thread, and unregister the listeners of this run."""
        for name in [name for name in self._listeners if name in run.bus.hooks]:
            run.bus.unregister(name)
        self._listeners = []
        self._writer.detach(run)

    def request_last(self, run: Run) -> None:
        """Request a last checkpoint unless the latest one is up to date."""
        self.wait_for_pending(run)
        if self.config.save_last and self._writer.needs_save(run):
            run.request_save("end of training", saver=self)

    # -- listeners for a failure of the run, and for a loop without epochs -----------------------

    def _register_listeners(self, run: Run) -> None:
        """Register the listeners that the settings require."""
        # The run records its state after each iteration for a listener that saves after a failure.
        if self.config.save_on_exception:
            self._add_listener(run, "on_exception", "failure", self._request_after_failure)
        # Only a custom loop may omit the events of epochs. A hook that is registered within an epoch has missed them.
        if run.auto_nesting and self.config.saves_epochs_only and not run.epoch_open:
            self._add_listener(run, "before_train_epoch", "epochs", self._remove_epoch_check)
            self._add_listener(run, "after_train_iter", "iterations", self._warn_without_epochs)

    def _add_listener(self, run: Run, point: str, suffix: str, listener: Callable[[Run], None]) -> None:
        name = f"{self.name}.{suffix}"
        run.bus.on(point, name=name)(listener)
        self._listeners.append(name)

    def _request_after_failure(self, run: Run) -> None:
        self.wait_for_pending(run)
        if self._writer.needs_save(run):
            run.request_save("failure", saver=self)

    def _warn_without_epochs(self, run: Run) -> None:
        message = (
            "%s: checkpoints are saved only %s, because `by_epoch` is true and the loop has emitted no "
            "before_train_epoch before its first iteration. Set `by_epoch: false` to count iterations, or emit "
            "before_train_epoch."
        )
        run.logger.warning(message, self.name, "at the end of the training" if self.config.save_last else "on request")
        self._remove_epoch_check(run)

    def _remove_epoch_check(self, run: Run) -> None:
        for suffix in ("epochs", "iterations"):
            run.bus.unregister(f"{self.name}.{suffix}")

    # -- writing -------------------------------------------------------------------------------

    def directory(self, run: Run) -> Path:
        """Return the directory of the checkpoints of a run.

        Args:
            run: The run.

        Raises:
            CheckpointError: If neither the run has a work directory nor `out_dir` is set.
            ConfigError: If `out_dir` is a relative path and the run has no work directory.
        """
        if self.config.out_dir is not None:
            return resolve_output_path(run, self.name, "out_dir", self.config.out_dir)
        directory = run.checkpoint_directory
        if directory is None:
            raise CheckpointError(
                "out_dir: must be set if the run has no work directory, got None. Set `out_dir`, or pass `work_dir` to "
                "the run."
            )
        return directory

    def plan(self, run: Run, requests: list[Request]) -> Path:
        """Decide the names of a checkpoint for all requests, and register it before its content is collected."""
        return self._writer.plan(run, requests)

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool | None:
        """Write the planned checkpoint, or start to write it with `async_save`; a failed save is undone.

        Returns:
            Whether the checkpoint is the best of a metric; None if it failed or is in progress.
        """
        return self._writer.write(run, checkpoint)

    def wait_for_pending(self, run: Run) -> None:
        """Wait for a save in progress on the writer thread, and emit `after_save_checkpoint` for it.

        Raises:
            CheckpointError: If the checkpoint could not be written.
        """
        self._writer.wait_for_pending(run)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the files of this run that may be removed, the generation, and the tracked metrics."""
        return {**self._writer.state_dict(), "metrics": self.best.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`, without files that are not in this directory."""
        self._writer.load_state_dict(state)
        self.best.load_state_dict(state["metrics"])
