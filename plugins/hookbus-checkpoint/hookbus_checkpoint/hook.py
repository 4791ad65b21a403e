"""The checkpoint hook: asks for saves when they are due, and writes what the bus has collected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookbus import Hook, Priority, hookimpl
from hookbus.errors import CheckpointError
from hookbus.metrics import Metrics
from hookbus.requests import Request
from hookbus.run import Run
from hookbus.when import Schedule, every
from hookbus_checkpoint.best import BestKeeper
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.writer import Writer

__all__ = ["CheckpointHook"]


def _iterations(config: CheckpointConfig) -> Schedule:
    by_count = every(None if config.by_epoch else config.interval, unit="iter")
    return by_count if config.seconds is None else by_count | every(config.seconds, unit="seconds")


class CheckpointHook(Hook):
    """Saves checkpoints: every so many epochs or iterations, the best, and the last.

    Files go into `<work_dir>/checkpoints`. `best_<metric>.pth` and `last.pth` are further names of a file, outside the
    count of `max_keep_ckpts`. Only files that this run wrote are removed, and only after a newer one is safely there.
    """

    Config = CheckpointConfig
    priority = Priority.BELOW_NORMAL
    needs_work_dir = True
    config: CheckpointConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.unit = "epoch" if self.config.by_epoch else "iter"
        self.best = BestKeeper(self.config)
        self._writer = Writer(self.config, self.best)

    @property
    def needs_metrics(self) -> list[str]:
        """The metrics that the settings name. The default one may be missing."""
        return self.config.metrics if self.config.names_metrics else []

    @property
    def keeps_best(self) -> bool:
        """Whether it writes files of the best: its own, and those that other hooks want."""
        return self.config.save_best is not False

    # -- asking --------------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Offer to write the checkpoints of a training."""
        if run.mode != "train":
            return
        if run.iters_done == 0:
            self.best.forget()
        directory = run.ranks.by_main("where checkpoints go", lambda: self.directory(run))
        self._writer.attach(run, directory, self.name)
        run.provide("saver", self)

    def before_train(self, run: Run) -> None:
        """See that the directory is this run's and best files hold the best, and hear what others want the best of."""
        self._writer.begin(run)
        self.best.ask(run.bus.hooks.values())
        self.best.forget_turned(run)
        for metric, best in self.best.to_write_again(run):
            run.request_save(f"best {metric}, once more", saver=self, best=(metric, best))

    @hookimpl(when=lambda config: every(config.interval if config.by_epoch else None, unit="epoch"))
    def after_train_epoch(self, run: Run) -> None:
        """Ask for the periodic file of this epoch."""
        run.request_save(f"epoch {run.epochs_done}", saver=self, periodic=("epoch", run.epochs_done))

    @hookimpl(when=_iterations)
    def after_train_iter(self, run: Run) -> None:
        """Ask for the periodic file of this iteration."""
        run.request_save(f"iteration {run.iters_done}", saver=self, periodic=("iteration", run.iters_done))

    def after_val(self, run: Run, metrics: Metrics) -> None:
        """Ask for a best file where a score is the best so far."""
        if run.mode != "train" or run.sanity_checking:
            return
        for metric, best in self.best.improvements(run, metrics):
            run.request_save(f"best {metric}: {best.value:.6g}", saver=self, best=(metric, best))

    def after_train(self, run: Run) -> None:
        """Ask for a last file where the state has moved on since the newest one that is there."""
        self.catch_up(run)
        if self.config.save_last and self._writer.has_to_save(run):
            run.request_save("end of training", saver=self)

    def after_run(self, run: Run) -> None:
        """Wait for the save that is being written; then publish, if training came to its end."""
        self.catch_up(run)
        if self.config.publish and run.mode == "train" and run.outcome in ("finished", "stopped"):
            self._writer.publish(run)

    def cleanup(self, run: Run) -> None:
        """End the other thread."""
        self._writer.detach(run)

    # -- writing -------------------------------------------------------------------------------

    def directory(self, run: Run) -> Path:
        """Where the files of a run are.

        Raises:
            CheckpointError: neither the run nor the hook has a place for them.
        """
        if self.config.out_dir is not None:
            return Path(self.config.out_dir)
        found = run.get("checkpoints_dir")
        if found is None:
            raise CheckpointError("Checkpoints need a place: give work_dir to the run, or out_dir to this hook.")
        return Path(found)

    def plan(self, run: Run, requests: list[Request]) -> Path:
        """Decide on names, and take the new file into account before the checkpoint is collected."""
        return self._writer.plan(run, requests)

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool | None:
        """Write what was planned, or begin to; if that fails, nothing of the plan is remembered."""
        return self._writer.write(run, checkpoint)

    def catch_up(self, run: Run) -> None:
        """Wait for the save on the other thread, if there is one, and tell of it.

        Raises:
            CheckpointError: it could not be written.
        """
        self._writer.catch_up(run)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The files of this run, the generation, and which metrics have been seen."""
        return {**self._writer.state_dict(), "metrics": self.best.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; files that are in another directory are not this run's."""
        self._writer.load_state_dict(state)
        self.best.load_state_dict(state["metrics"])
