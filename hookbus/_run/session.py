"""Start and end of a run: work directory, setup, resume, error handling and teardown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus._run.acquisition import acquire
from hookbus._run.boundary_state import record_settings
from hookbus._run.config_record import check_config_file, record_config, update_config
from hookbus._run.directory_lock import explain_write_errors
from hookbus._run.finalize import finalize, record_failure, release_directories, resolve_outcome, write_status
from hookbus._run.history_start import start_history
from hookbus._run.host_needs import report_differences
from hookbus._run.never_due import report_unreachable, report_unreached
from hookbus._run.objects import (
    find_untrained,
)
from hookbus._run.recorded_run import contains_training_run
from hookbus._run.request_sync import sync_run_identity
from hookbus._run.resume import Resume, find_resumed_checkpoint, resume_run
from hookbus._run.run import Run
from hookbus._run.services import ACTIVE_RUNS
from hookbus._run.work_dir import WorkDir
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.distributed.collectives import Collectives
from hookbus.errors import ConfigError, RequestError, format_path

if TYPE_CHECKING:
    from hookbus._run.run_bus import RunBus

MAX_LISTED_FILES = 10


@contextmanager
def run_scope(run: Run, resume: Resume = "never") -> Iterator[Run]:
    """Context manager for a run: setup, resume, error handling and teardown.

    Args:
        run: Run to start.
        resume: As in `bus.run`; the path of a checkpoint that `verify_resume` has returned.

    Yields:
        The run.

    Raises:
        ConfigError: If the work directory records a run whose checkpoints cannot be used.
        HookbusError: If the checkpoint to resume from does not match the run.
        BaseException: If the loop raised it, or a hook at the end of the run.
    """
    try:
        # Before `before_run`: hooks that open files need the ID of the run that they continue.
        path = find_resumed_checkpoint(run) if resume == "auto" else resume
        run.ranks.call_on_main("the file of the configuration", partial(check_config_file, run))
    except BaseException:
        release_directories(run)
        raise
    try:
        with run.ranks.propagate_errors():
            # The owner of such a state has restored the optimizers, whose learning rate a hook that builds a scheduler
            # in `before_run` sets to that of the first step.
            resets = [*record_settings(run)] if isinstance(path, Mapping) else []
            _start(run, path)
            for reset in resets:
                reset()
            if resume != "never":
                resume_run(run, path)
            run.resumed = bool(run.resumed)
            if resume != "never":
                update_config(run)
            if run.mode == "train":
                start_history(run, path)
                run.journal.first_iteration = run.iters_done
                _begin_training(run)
            reported = report_unreachable(run)
            report_differences(run, run.bus.hooks)
            yield run
            run.outcome = resolve_outcome(run)
            report_unreached(run, reported)
    except BaseException as error:
        record_failure(run, error)
        raise
    finally:
        try:
            finalize(run)
        finally:
            ACTIVE_RUNS.discard(run)


def _start(run: Run, source: Resume | None) -> None:
    """Start a run: synchronize the ranks, attach the run to its bus and emit `before_run`."""
    run.is_running = True
    run.journal.start()
    ACTIVE_RUNS.add(run)
    sync_run_identity(run)
    run.bus.attach_run(run)
    run.optimizer_events.attach()
    if run.model is not None and run.initial_structure is None:
        from hookbus.checkpoint.weights import get_structure  # imports torch, as the model does

        run.initial_structure = get_structure(run.model)
    if run.work_dir is not None:
        with explain_write_errors(run.work_dir.path):
            run.work_dir.begin(run.id)
    write_status(run)
    run.metadata.write = partial(write_status, run)
    _log_work_dir(run)
    run.bus.fire("before_run", mode=run.mode)
    record_config(run, source)
    # After `before_run`, in which hooks may still register other hooks.
    run.request_sync.begin()


def _begin_training(run: Run) -> None:
    """Prepare the optimizers for training, and record those that checkpoints must contain."""
    run.weights.modes.begin_training()
    if untrained := find_untrained(run.loss, run.optimizers.values()):
        run.logger.warning(
            "loss: %s of its parameters are in no optimizer and are not trained: %s. Add loss.parameters() to an "
            "optimizer, or freeze them with requires_grad_(False).",
            len(untrained),
            ", ".join(untrained),
        )
    savers = [hook for hook in run.bus.hooks.values() if isinstance(hook, CheckpointSaver)]
    if savers or run.get("checkpoint_saver") is not None:
        run.watch_completeness()


@contextmanager
def preconditions_scope(run: Run) -> Iterator[None]:
    """Context manager for the checks before a run: no rank leaves it if one of them has failed."""
    with run.ranks.propagate_errors():
        yield
        run.ranks.barrier("the preconditions of the run")


def ensure_no_active_run(bus: RunBus) -> None:
    """Raise if a bus is in use by an active run, since its hooks keep the state of one run at a time.

    Raises:
        RequestError: If the bus has an active run.
    """
    if bus.current.is_running:
        raise RequestError(
            f"A run ({bus.current.mode}) is active on this bus, so a second run cannot start. To validate during the "
            "run, call run.request_validation() or run.validate()."
        )


def may_resume(resume: object, work_dir: str | Path | None) -> bool:
    """Return whether a run may continue from a checkpoint: from a given one, or one of a run in its work directory."""
    # Without a work directory, checkpoints may be in a directory of the checkpoint hook.
    return resume != "never" and (resume != "auto" or not work_dir or contains_training_run(Path(work_dir)))


def check_work_dir_options(work_dir: str | Path | None, resume: object, overwrite: bool) -> None:
    """Check the arguments of `acquire_work_dir`.

    Raises:
        ConfigError: If both `resume` and `overwrite` are set, or `work_dir` is empty.
    """
    if resume != "never" and overwrite:
        raise ConfigError(["`resume` and `overwrite` are mutually exclusive. Set only one of them."])
    if work_dir == "":
        raise ConfigError(["work_dir: the path is empty. Set a directory, or None for a run without files."])


def acquire_work_dir(
    work_dir: str | Path | None, resume: object, overwrite: bool, ranks: Collectives
) -> WorkDir | None:
    """Acquire the work directory of a run on rank 0, for all ranks.

    Raises:
        ConfigError: If both `resume` and `overwrite` are set, or `work_dir` is empty.
        WorkDirError: If the directory is in use or cannot be written.
    """
    check_work_dir_options(work_dir, resume, overwrite)
    if work_dir is None:
        return None
    take = partial(acquire, Path(work_dir), resume=resume == "auto", overwrite=overwrite)
    return ranks.call_on_main("the work directory", take)


# -- implementation --------------------------------------------------------------------------


def _log_work_dir(run: Run) -> None:
    """Warn if the run uses another directory than requested, or if `overwrite` did not remove all files."""
    if run.work_dir is not None and run.work_dir.kept_files:
        kept = run.work_dir.kept_files
        names = ", ".join(map(format_path, kept[:MAX_LISTED_FILES]))
        more = f" and {len(kept) - MAX_LISTED_FILES:,} more" if len(kept) > MAX_LISTED_FILES else ""
        run.logger.warning("overwrite: files that the removed run did not write are kept: %s%s.", names, more)
    if run.work_dir is not None and run.work_dir.requested_path is not None:
        run.logger.warning(
            "%s already contains a run, so this run uses %s. Set `resume` to continue that run, or `overwrite` to "
            "replace it.",
            format_path(run.work_dir.requested_path),
            format_path(run.work_dir.path),
        )
