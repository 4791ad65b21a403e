"""The checkpoint hook: asks for saves when they are due, and writes what the bus has collected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookbus import Hook, Priority, hookimpl
from hookbus.errors import CheckpointError
from hookbus.lifecycle import Unit
from hookbus.metrics import Metrics
from hookbus.requests import Request
from hookbus.run import Best, Run
from hookbus.state import write_checkpoint
from hookbus.when import every
from hookbus_checkpoint.best import BestKeeper
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.plan import Folder, Plan

__all__ = ["CheckpointHook"]

LAST = "last.pth"


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
        self.best = BestKeeper(self.config)
        self._folder: Folder | None = None
        self._plan: Plan | None = None
        self._undo: tuple[list[str], dict[str, Best]] = ([], {})
        self._saved_at: tuple[int, int] | None = None

    # -- asking --------------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Offer to write the checkpoints of a training."""
        if run.mode == "train":
            self._folder = Folder(self.directory(run))
            run.provide("saver", self)

    @hookimpl(when=lambda config: _schedule(config, "epoch"))
    def after_train_epoch(self, run: Run) -> None:
        """Ask for the periodic file of this epoch."""
        run.request_save(f"epoch {run.epochs_done}", saver=self, periodic=run.epochs_done)

    @hookimpl(when=lambda config: _schedule(config, "iter"))
    def after_train_iter(self, run: Run) -> None:
        """Ask for the periodic file of this iteration."""
        run.request_save(f"iteration {run.iters_done}", saver=self, periodic=run.iters_done)

    def after_val(self, run: Run, metrics: Metrics) -> None:
        """Ask for a best file where a score is the best so far."""
        if run.mode != "train" or run.sanity_checking:
            return
        for metric, best in self.best.improvements(run, metrics):
            run.request_save(f"best {metric}: {best.value:.6g}", saver=self, best=(metric, best))

    def after_train(self, run: Run) -> None:
        """Ask for a last file where the state has moved on since the newest one."""
        if self.config.save_last and self._saved_at != (run.epochs_done, run.iters_done):
            run.request_save("end of training", saver=self)

    # -- writing -------------------------------------------------------------------------------

    def directory(self, run: Run) -> Path:
        """Where the files of a run are."""
        if self.config.out_dir is not None:
            return Path(self.config.out_dir)
        found = run.get("checkpoints_dir")
        if found is None:
            raise CheckpointError("Checkpoints need a place: give work_dir to the run, or out_dir to this hook.")
        return Path(found)

    def plan(self, run: Run, requests: list[Request]) -> Path:
        """Decide on names, and take the new file into account before the checkpoint is collected."""
        folder = self._files()
        self._undo = (list(folder.periodic), dict(run.best))
        details = [request.details for request in requests]
        number = next((each["periodic"] for each in details if "periodic" in each), None)
        bests = dict(each["best"] for each in details if "best" in each)
        periodic = None if number is None else self.config.template.format(number)
        if periodic is None and not bests and not self.config.save_last:
            periodic = self.config.template.format(run.epochs_done if self.config.by_epoch else run.iters_done)
        names = [self.best.file_name(metric) for metric in bests]
        plan = folder.plan(periodic, names, LAST if self.config.save_last else None)
        folder.begin(plan)
        for metric, best in bests.items():
            run.best[metric] = self.best.with_path(best, folder.path / self.best.file_name(metric))
        self._plan, self._saved_at = plan, (run.epochs_done, run.iters_done)
        return plan.path

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        """Write what was planned; if that fails, nothing of the plan is remembered."""
        folder, plan = self._files(), self._plan
        assert plan is not None
        for key, wanted in (("optimizer", self.config.save_optimizer), ("scheduler", self.config.save_scheduler)):
            if not wanted:
                checkpoint.pop(key, None)
        try:
            write_checkpoint(plan.path, checkpoint, folder.generation)
        except OSError as error:
            folder.periodic, best = self._undo
            run.best.clear()
            run.best.update(best)
            self._saved_at = None
            raise CheckpointError(f"{plan.path} could not be written: {error}. Older files are untouched.") from error
        folder.finish(plan, self.config.max_keep_ckpts)
        return plan.is_best

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The files of this run, the generation, and which metrics have been seen."""
        folder = self._folder or Folder(Path())
        saved_at = None if self._saved_at is None else list(self._saved_at)
        return {
            "periodic": list(folder.periodic),
            "generation": folder.generation,
            "saved_at": saved_at,
            "metrics": self.best.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; files that are in another directory are not this run's."""
        folder = self._folder = self._folder or Folder(Path())
        folder.periodic, folder.generation = list(state["periodic"]), state["generation"]
        if folder.path != Path():
            folder.forget_missing()
        self._saved_at = None if state["saved_at"] is None else (state["saved_at"][0], state["saved_at"][1])
        self.best.load_state_dict(state["metrics"])

    def _files(self) -> Folder:
        if self._folder is None:
            self._folder = Folder(self.directory(self.run))
        return self._folder


def _schedule(config: CheckpointConfig, unit: Unit) -> Any:
    wanted = config.by_epoch == (unit == "epoch")
    return every(config.interval if wanted else None, unit=unit)
