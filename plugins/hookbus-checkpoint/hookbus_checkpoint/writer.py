"""Writes what was asked for: one file for all who asked, here or on another thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hookbus.errors import CheckpointError, ConfigError, HookWarning
from hookbus.model.layouts import has_spread
from hookbus.ranks import Ranks
from hookbus.requests import Request
from hookbus.run import Best, Run
from hookbus_checkpoint.background import Background, WeightsChanged
from hookbus_checkpoint.best import BestKeeper
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.plan import Folder, Plan
from hookbus_checkpoint.publish import NAME, publish
from hookbus_checkpoint.saving import Save

__all__ = ["Writer"]

LAST = "last.pth"
GENERATIONS = "checkpoint_generations"
"""The service with the newest generation of each directory: several hooks may write into one."""


class Writer:
    """Writes the checkpoints of a hook, one at a time, and knows which files there are.

    Args:
        config: the hook's settings.
        best: knows which results are the best.
    """

    def __init__(self, config: CheckpointConfig, best: BestKeeper) -> None:
        self._config, self._best = config, best
        self._folder = Folder(Path())
        self._save: Save | None = None
        self._background: Background | None = None
        self._unfinished: Save | None = None
        self._saved_at: tuple[int, int] | None = None
        self._told: set[str] = set()

    # -- the run -----------------------------------------------------------------------------

    def attach(self, run: Run, directory: Path, name: str) -> None:
        """A run begins, or goes on: in the same directory the files that are there stay its own.

        Args:
            run: the run.
            directory: where files go.
            name: of the hook.

        Raises:
            ConfigError: `async_save` is not for this run.
        """
        if run.iters_done == 0 or directory != self._folder.path:
            self._folder, self._saved_at = Folder(directory), None
        if run.get(GENERATIONS) is None:
            run.provide(GENERATIONS, {})
        _check_async(self._config, run)
        if self._config.async_save:
            self._background = Background(name, self.catch_up, overlap=self._config.async_save == "overlap")
            self._background.attach(run)

    def begin(self, run: Run) -> None:
        """Training begins: the directory is this run's alone.

        Raises:
            WorkDirError: a live run writes there.
            CheckpointError: there are checkpoints of another run.
        """
        run.hold(self._folder.path)
        self._folder.run = run.id
        if run.work_dir is not None:
            self._folder.record = run.work_dir.record_checkpoint
        others = run.ranks.by_main("checkpoints of others", self._folder.files_of_others)
        if others:
            raise CheckpointError(
                f"{self._folder.path} holds checkpoints of another run: {', '.join(path.name for path in others)}. "
                "Resume that run, move its files, or give another out_dir."
            )

    def detach(self, run: Run) -> None:
        """End the other thread."""
        background, self._background = self._background, None
        if background is not None:
            background.detach(run)

    def has_to_save(self, run: Run) -> bool:
        """Whether the state has moved on since the newest file, or a killed process has left that without its name."""
        if self._saved_at != (run.epochs_done, run.iters_done):
            return True
        return run.ranks.by_main(
            "whether the last is the newest", lambda: self._folder.is_behind(self._free(run, LAST))
        )

    # -- writing -----------------------------------------------------------------------------

    def plan(self, run: Run, requests: list[Request]) -> Path:
        """Decide on names, and take the new file into account before the checkpoint is collected."""
        self.catch_up(run)
        decided = run.ranks.by_main("the names of a checkpoint", partial(self._decided, run, requests))
        plan, bests, self._folder.generation = decided
        self._save = Save(self._folder, plan, bests, self._config.max_keep_ckpts, run.metrics.results)
        self._save.take_into_account(run)
        run.require(GENERATIONS)[self._folder.path] = self._folder.generation
        self._saved_at = (run.epochs_done, run.iters_done)
        return plan.path

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool | None:
        """Write what was planned, or begin to; if that fails, nothing of the plan is remembered."""
        save = self._save
        assert save is not None
        for key, wanted in (("optimizer", self._config.save_optimizer), ("scheduler", self._config.save_scheduler)):
            if not wanted:
                checkpoint.pop(key, None)
        if not self._config.async_save:
            work = partial(save.write_together, checkpoint, run.ranks)
            return save.plan.is_best if self._succeeds(run, save, work) else None
        self._unfinished = save
        if self._background is not None and (run.ranks.is_main or has_spread(checkpoint)):
            self._background.begin(save, checkpoint, run)
        return None

    def catch_up(self, run: Run) -> None:
        """Wait for the save on the other thread, if there is one, and tell of it. Called on every process, or on none.

        Raises:
            CheckpointError: it could not be written.
        """
        save, self._unfinished = self._unfinished, None
        if save is not None and self._succeeds(run, save, partial(self._wait, save, run.ranks)):
            run.bus.fire("after_save_checkpoint", path=save.plan.path, is_best=save.plan.is_best, metrics=save.metrics)

    def publish(self, run: Run) -> None:
        """Write the weights alone.

        Raises:
            CheckpointError: they could not be written.
        """
        path = run.ranks.by_main("the file to publish", lambda: self._folder.path / self._free(run, NAME))
        try:
            publish(run, path, self._best.deciding(run))
        except CheckpointError as error:
            self._report(error)

    # -- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The files of this run, the generation, and when the newest was saved."""
        saved_at = None if self._saved_at is None else list(self._saved_at)
        return {"periodic": list(self._folder.periodic), "generation": self._folder.generation, "saved_at": saved_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; files that are in another directory are not this run's."""
        self._folder.load(state["periodic"], state["generation"])
        self._saved_at = None if state["saved_at"] is None else (state["saved_at"][0], state["saved_at"][1])

    # -- inside ------------------------------------------------------------------------------

    def _decided(self, run: Run, requests: list[Request]) -> tuple[Plan, dict[str, Best], int]:
        """What one file for all these requests will be called, which bests it holds, and the generation before it."""
        details = [request.details for request in requests]
        bests = dict(each["best"] for each in details if "best" in each)
        names = {metric: self._free(run, self._best.file_name(metric)) for metric in bests}
        last = self._free(run, LAST) if self._config.save_last else None
        due = [each["periodic"] for each in details if "periodic" in each]
        if not (due or bests or last):
            due = [self._now(run)]
        plan = self._named(run, due, list(names.values()), last)
        placed = {m: self._best.with_path(best, self._folder.path / names[m]) for m, best in bests.items()}
        generations: dict[Path, int] = run.require(GENERATIONS)
        return plan, placed, max(self._folder.look(), generations.get(self._folder.path, 0))

    def _named(self, run: Run, due: list[tuple[str, int]], best: list[str], last: str | None) -> Plan:
        periodic = [self._free(run, self._config.file_name(*each)) for each in due]
        pinned = [name for name, each in zip(periodic, due, strict=True) if self._config.pins(*each)]
        return self._folder.plan(periodic, best, last, pinned)

    def _wait(self, save: Save, ranks: Ranks) -> None:
        background = self._background
        assert background is not None
        ranks.everywhere(f"the checkpoint {save.plan.path}", background.wait)
        save.agree_on_files(ranks)

    def _free(self, run: Run, name: str) -> str:
        """The name, or another one where a file that this run did not write has it; then that is said, once."""
        free = self._folder.free(name)
        if free != name and name not in self._told:
            self._told.add(name)
            run.logger.warning(
                "%s was not written by this run, so it is left alone: this run writes %s. Move the other one for the "
                "usual name.",
                self._folder.path / name,
                free,
            )
        return free

    def _now(self, run: Run) -> tuple[str, int]:
        """What a file that somebody asked for is called by: the epoch where one is complete, else the iteration."""
        at_an_epoch = self._config.by_epoch and not run.clock.epoch_open
        return ("epoch", run.epochs_done) if at_an_epoch else ("iteration", run.iters_done)

    def _succeeds(self, run: Run, save: Save, work: Callable[[], object]) -> bool:
        try:
            work()
        except CheckpointError as error:
            save.undo(run)
            self._saved_at = None
            self._report(error)
            return False
        return True

    def _report(self, error: CheckpointError) -> None:
        if self._config.on_save_error == "raise" and not isinstance(error, WeightsChanged):
            raise error
        warnings.warn(f"{error} The run goes on.", HookWarning, stacklevel=2)


def _check_async(config: CheckpointConfig, run: Run) -> None:
    if config.async_save == "overlap" and run.ranks.world_size > 1:
        raise ConfigError(["async_save: overlap is for one process: with several, say true."])
