"""Writing of requested checkpoints: one file for all requests of a boundary, synchronous or on another thread."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hookbus import BestResult, Direction, Request, Run
from hookbus.checkpoint import CheckpointStore
from hookbus.distributed import Collectives, has_sharded_tensors
from hookbus.errors import CheckpointError, HookWarning, format_path
from hookbus.metrics import Metrics, is_training_metric
from hookbus_checkpoint.async_writer import AsyncWriter, WeightsChangedError
from hookbus_checkpoint.best import BestTracker, Improvement, select_best
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.directory import CheckpointDirectory, Plan
from hookbus_checkpoint.file_names import get_field
from hookbus_checkpoint.publishing import publish
from hookbus_checkpoint.ranking import RankedFile
from hookbus_checkpoint.saving import Save

LAST = "last.pth"
PUBLISHED = "model.safetensors"
MAX_LISTED = 10
"""Maximum number of files that an error message lists."""

LATEST_SAVES = "latest_checkpoint_saves"
"""Service with the writer of the latest save in each directory, since multiple hooks may write to one directory."""


class CheckpointWriter:
    """Write the checkpoints of a hook, one at a time, and track the existing files.

    Args:
        config: Configuration of the hook.
        best: Tracker of the best results.
    """

    def __init__(self, config: CheckpointConfig, best: BestTracker) -> None:
        self._config, self._best = config, best
        self._directory = CheckpointDirectory(CheckpointStore(Path()), config.max_keep_ckpts, best.ranking)
        self._save: Save | None = None
        self._async_writer: AsyncWriter | None = None
        self._unfinished: Save | None = None
        self._saved_at: tuple[int, int] | None = None
        # Names for which a conflict with a foreign file was logged.
        self._logged_conflicts: set[str] = set()

    # -- the run -----------------------------------------------------------------------------

    def attach(self, run: Run, directory: Path, name: str) -> None:
        """Prepare for a run. A run that continues in the same directory keeps its list of files."""
        if run.iters_done == 0 or directory != self._directory.path:
            store, self._best.ranking.files = CheckpointStore(directory), {}
            self._directory = CheckpointDirectory(store, self._config.max_keep_ckpts, self._best.ranking)
            self._saved_at = None
        if run.get(LATEST_SAVES) is None:
            run.provide(LATEST_SAVES, {})
        if self._config.async_save:
            overlap = self._config.async_save == "overlap"
            self._async_writer = AsyncWriter(run, name, self.wait_for_pending, overlap=overlap)
            self._async_writer.attach(run)

    def begin(self, run: Run) -> list[tuple[str, RankedFile]]:
        """Claim the directory at the start of the training.

        Returns:
            Files of rankings that do not exist, with their metrics.

        Raises:
            WorkDirError: If the directory is in use by an active run.
            CheckpointError: If the directory contains checkpoints of another run, or excess ones cannot be removed.
        """
        run.lock_directory(self._directory.path)
        self._directory.store.run = run.id
        if run.work_dir is not None:
            self._directory.record = run.work_dir.record_checkpoint
        self._check_owner(run)
        # A killed process may have committed its last checkpoint without removing older ones.
        self._directory.superseded.iterations = run.iters_done
        missing, files = run.ranks.call_on_main("the excess checkpoints", partial(self._remove_excess, run))
        self._directory.set_files(files)
        return missing

    def detach(self, run: Run) -> None:
        """Shut down the writer thread."""
        async_writer, self._async_writer = self._async_writer, None
        if async_writer is not None:
            async_writer.close(run)

    def needs_save(self, run: Run) -> bool:
        """Whether the run advanced since the latest checkpoint, or the last link of that checkpoint is missing."""
        if self._saved_at != (run.epochs_done, run.iters_done):
            return True
        # A killed process may have committed the checkpoint without its link.
        return run.ranks.call_on_main(
            "whether the last checkpoint is up to date",
            lambda: self._directory.is_stale(self._get_available_name(run, LAST)),
        )

    # -- writing -----------------------------------------------------------------------------

    def plan(self, run: Run, requests: list[Request]) -> Path:
        """Decide the names of a checkpoint for all requests, and register it before its content is collected.

        Returns:
            The path of the checkpoint.
        """
        # One save at a time: the memory of the previous copy is reused.
        self.wait_for_pending(run)
        # A save of another hook in progress may have the same names, and the newer one has to be written last.
        if (latest := self._get_latest_writer(run)) is not None:
            latest.wait_for_pending(run)
        # Rank 0 decides, because names depend on the existing files.
        means = run.epoch_means() if any(map(is_training_metric, self._config.name_metrics)) else Metrics()
        decided = run.ranks.call_on_main("the names of a checkpoint", partial(self._build_plan, run, requests, means))
        plan, bests, self._directory.generation = decided
        self._save = Save(run, self._directory, plan, bests)
        run.require(LATEST_SAVES)[os.path.realpath(self._directory.path)] = self
        self._saved_at = (run.epochs_done, run.iters_done)
        return plan.path

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool | None:
        """Write the planned checkpoint, or start to write it with `async_save`; a failed save is undone.

        Returns:
            Whether the checkpoint is the best of a metric; None if it failed or is in progress.

        Raises:
            CheckpointError: If the checkpoint could not be written and `on_save_error` is "raise".
        """
        save = self._save
        assert save is not None
        for key, is_saved in (("optimizer", self._config.save_optimizer), ("scheduler", self._config.save_scheduler)):
            if not is_saved:
                checkpoint.pop(key, None)
        if not self._config.async_save:
            work = partial(save.write_collective, checkpoint, run.ranks)
            return save.plan.is_best if self._succeeds(run, save, work) else None
        self._unfinished = save
        # Other ranks write sharded weights only.
        if self._async_writer is not None and (run.ranks.is_main or has_sharded_tensors(checkpoint)):
            self._async_writer.begin(save, checkpoint, run)
        return None

    def wait_for_pending(self, run: Run) -> None:
        """Wait for a save in progress, and emit `after_save_checkpoint` for it. Must be called on all ranks.

        Raises:
            CheckpointError: If the checkpoint could not be written and `on_save_error` is "raise".
        """
        save, self._unfinished = self._unfinished, None
        if save is not None and self._succeeds(run, save, partial(self._wait, save, run.ranks)):
            run.bus.emit("after_save_checkpoint", path=save.plan.path, is_best=save.plan.is_best, metrics=save.metrics)

    def publish(self, run: Run) -> None:
        """Write the weights as safetensors.

        Raises:
            CheckpointError: If the file could not be written and `on_save_error` is "raise".
        """
        name = run.ranks.call_on_main("the file to publish", partial(self._get_available_name, run, PUBLISHED))
        path = self._directory.path / name
        # Not registered: `overwrite` would remove a file with which somebody has replaced it.
        run.describe_output(path, "weights for inference")
        try:
            publish(run, path, self._best.primary_best(run))
        except CheckpointError as error:
            self._report(error)

    # -- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the files of this run that may be removed, the generation, and the position of the latest save."""
        saved_at = None if self._saved_at is None else list(self._saved_at)
        return {**self._directory.get_files(), "generation": self._directory.generation, "saved_at": saved_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`, without files that are not in this directory."""
        # Checkpoints of early versions contain neither rankings nor superseded files.
        self._directory.load({"ranked": {}, "superseded": {}, **state}, state["generation"])
        self._saved_at = None if state["saved_at"] is None else (state["saved_at"][0], state["saved_at"][1])

    # -- helpers -----------------------------------------------------------------------------

    def _check_owner(self, run: Run) -> None:
        """Raise if the directory contains checkpoints of another run."""
        # Automatic resume selects the latest checkpoint of a directory, so its checkpoints must belong to one run.
        foreign = run.ranks.call_on_main("checkpoints of other runs", self._directory.foreign_checkpoints)
        if foreign:
            names = ", ".join(format_path(path.name) for path in foreign[:MAX_LISTED])
            more = f" and {len(foreign) - MAX_LISTED} more" if len(foreign) > MAX_LISTED else ""
            raise CheckpointError(
                f"{format_path(self._directory.path)} contains checkpoints of another run: {names}{more}. "
                "Resume that run, move its files, or set another `out_dir`."
            )

    def _remove_excess(self, run: Run) -> tuple[list[tuple[str, RankedFile]], dict[str, Any]]:
        """Remove checkpoints that exceed the retention, and return missing files of rankings and the other files."""
        directory = self._directory
        missing = directory.remove_missing_ranked()
        if run.resumed:
            fixed = {LAST, PUBLISHED, *map(self._best.file_name, run.best)}
            directory.superseded.find(directory.store, directory.generation, fixed)
        try:
            self._directory.remove_excess()
        except OSError as error:
            raise CheckpointError(
                f"{format_path(self._directory.path)}: older checkpoints cannot be removed: {error}. Check the "
                "permissions of the directory, or set another `out_dir`."
            ) from error
        return missing, self._directory.get_files()

    def _build_plan(self, run: Run, requests: list[Request], means: Metrics) -> tuple[Plan, dict[str, BestResult], int]:
        """Return the plan of a checkpoint for all requests, its best results, and the previous generation."""
        details = [request.details for request in requests]
        improvements = select_best(detail["improvement"] for detail in details if "improvement" in detail)
        bests = {i.metric: i.result for i in improvements if i.is_best}
        names = {metric: self._get_available_name(run, self._best.file_name(metric)) for metric in bests}
        last = self._get_available_name(run, LAST) if self._config.save_last else None
        due: list[tuple[str, int]] = [detail["periodic"] for detail in details if "periodic" in detail]
        # A request of another hook without details needs a separate name unless it becomes the last checkpoint.
        if not (due or improvements or last):
            due = [self._get_position(run)]
        get_value = partial(get_field, run, means)
        periodic = [self._get_available_name(run, self._config.file_name(*position, get_value)) for position in due]
        pinned = [name for name, position in zip(periodic, due, strict=True) if self._config.is_pinned(*position)]
        ranked = self._build_ranked(run, [i for i in improvements if i.is_ranked], get_value)
        plan = self._directory.plan(periodic, list(names.values()), last, pinned=pinned, ranked=ranked)
        placed = {m: replace(best, path=self._directory.path / names[m]) for m, best in bests.items()}
        # Another hook of this run may have written to the directory since it was scanned.
        latest = self._get_latest_writer(run) or self
        return plan, placed, max(self._directory.scan(), latest._directory.generation)

    def _get_position(self, run: Run) -> tuple[str, int]:
        """Return the unit and the number of a checkpoint at this time: those of an epoch only at its end."""
        is_epoch_complete = self._config.by_epoch and not run.epoch_open
        return ("epoch", run.epochs_done) if is_epoch_complete else ("iteration", run.iters_done)

    def _build_ranked(
        self, run: Run, improvements: list[Improvement], get_value: Callable[[str], float]
    ) -> dict[str, tuple[RankedFile, Direction]]:
        """Return the file that enters the ranking of each metric, with the rule of the metric."""
        files = {}
        for improvement in improvements:
            metric, result = improvement.metric, improvement.result
            name = improvement.file_name or self._best.ranked_file_name(
                metric, self._config.file_name(*self._get_position(run), get_value)
            )
            file = RankedFile(self._get_available_name(run, name), result.value, result.step)
            files[metric] = file, improvement.rule
        return files

    def _get_latest_writer(self, run: Run) -> CheckpointWriter | None:
        """Return the writer of the latest save in the directory, of which two hooks may use different paths."""
        writers: dict[str, CheckpointWriter] = run.require(LATEST_SAVES)
        return writers.get(os.path.realpath(self._directory.path))

    def _wait(self, save: Save, ranks: Collectives) -> None:
        async_writer = self._async_writer
        assert async_writer is not None
        # Collective: a failed shard of any rank has to fail the save on all ranks.
        ranks.call_on_all(f"the checkpoint {save.plan.path}", async_writer.wait)
        save.sync_file_list(ranks)

    def _get_available_name(self, run: Run, name: str) -> str:
        """Return the name, or another one if a foreign file has the name, which is logged once."""
        self._directory.store.run = run.id  # `begin` is not called in a resumed run that ends without an iteration
        available = self._directory.available_name(name)
        if available != name and name not in self._logged_conflicts:
            self._logged_conflicts.add(name)
            path = self._directory.path / name
            run.logger.warning(
                "%s was not written by this run and is not overwritten; this run writes %s. Move the existing file to "
                "use the usual name.",
                format_path(path if os.path.lexists(path) else self._directory.store.sidecar_path(path)),
                available,
            )
        return available

    def _succeeds(self, run: Run, save: Save, work: Callable[[], object]) -> bool:
        try:
            work()
        except CheckpointError as error:
            save.undo(run)
            # So that the end of the training requests the save again.
            self._saved_at = None
            self._report(error)
            return False
        return True

    def _report(self, error: CheckpointError) -> None:
        # Weights that changed during a copy are a property of the model, not a failure of the storage.
        if self._config.on_save_error == "raise" and not isinstance(error, WeightsChangedError):
            raise error
        warnings.warn(f"{error} Training continues.", HookWarning, stacklevel=2)
