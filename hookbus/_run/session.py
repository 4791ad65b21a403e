"""Context managers of a run: work directory, setup, resume, error handling and teardown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hookbus._run.acquisition import acquire, preview
from hookbus._run.directory_lock import explain_write_errors
from hookbus._run.finalize import finalize, record_failure, release_directories, resolve_outcome, write_status
from hookbus._run.interrupts import handle_interrupts, handle_lost_workers
from hookbus._run.nesting import StopLoop
from hookbus._run.never_due import report_unreachable, report_unreached
from hookbus._run.objects import (
    check_loss,
    find_mode_problems,
    find_object_problems,
    find_state_problems,
    find_untrained,
)
from hookbus._run.preconditions import check_preconditions
from hookbus._run.recorded_run import contains_training_run
from hookbus._run.request_sync import sync_run_identity
from hookbus._run.requests import SETTLE, process_requests
from hookbus._run.resume import find_resumed_checkpoint, resume_run, verify_resume
from hookbus._run.run import Run
from hookbus._run.services import ACTIVE_RUNS
from hookbus._run.validation import Evaluator
from hookbus._run.work_dir import WorkDir, check_resume
from hookbus._utils.arguments import (
    check_bool,
    check_callable,
    check_count,
    check_keywords,
    check_path,
    check_seed,
    raise_config_error,
)
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.process_collectives import get_collectives
from hookbus.errors import ConfigError, RequestError, WorkDirError, format_path

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from hookbus.bus import HookBus
    from hookbus.lifecycle import Mode

MAX_LISTED_FILES = 10


@check_keywords("bus.run")
@contextmanager
def run_context(
    bus: HookBus,
    *,
    mode: Mode = "train",
    model: nn.Module | Mapping[str, nn.Module] | None = None,
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    loss: nn.Module | None = None,
    state: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    iterations: int | None = None,
    work_dir: str | Path | None = None,
    validate: Callable[..., Mapping[str, Any] | None] | None = None,
    train_loader: Any = None,
    val_loader: Any = None,
    config: Any = None,
    device: Any = None,
    seed: int | None = None,
    counts_steps: bool = False,
    batch_size: Callable[[Any], int] | None = None,
    resume: Literal["auto", "never"] | str | Path = "never",
    overwrite: bool = False,
    fresh: bool = False,
) -> Iterator[Run]:
    """Execute a custom loop as a run.

    Emits `before_run` on entry, `after_run` and `cleanup` on exit, and the nested points that the loop omits.

    Args:
        bus: Bus with the hooks of the run.
        mode: "train", or "val" or "test" for a loop that only evaluates: it writes no checkpoint and advances no count.
        model, optimizer, scheduler: Objects of the training, or mappings of names to objects; saved in checkpoints.
        scaler: Gradient scaler; saved in checkpoints.
        loss: Loss function that is a module. Its parameters and buffers are saved in checkpoints, and validations
            switch it to evaluation mode.
        state: Further state of the loop by name, saved in checkpoints: a pair (get, set) of a function that returns the
            value and a function that receives it on resume, or an object with `state_dict` and `load_state_dict`.
        epochs, iterations: Limit for `run.epochs()`, `run.batches()` and schedules; None for no limit.
        work_dir: Directory for the files of the run; None for a run without files.
        validate: Validation function for requested validations, called as `validate()` or `validate(run)`; returns the
            metrics by name. In the mode "test", the test function.
        train_loader, val_loader: Loaders to register as services.
        config: Configuration to log; its hash is saved in checkpoints.
        device: Device of the model.
        seed: Seed of the data order of `run.batches()`; default: the initial seed of torch.
        counts_steps: Whether the loop emits the optimizer points itself, which then count the steps.
        batch_size: Function of a batch that returns its number of samples. Default: the attribute `batch_size` of the
            batch, else the number of indices of the batch sampler, else inferred from the tensors and lists.
        resume: "never", "auto" (the newest checkpoint in the work directory, if any), or the path of a checkpoint.
        overwrite: Whether to remove a run that exists in the work directory.
        fresh: Whether to start from scratch after a previous run of this bus; default: continue that run.

    Yields:
        The run.

    Raises:
        ConfigError: If an argument is invalid.
        HookbusError: If a precondition of a hook is not met; nothing is written and no event is emitted.
        WorkDirError: If the work directory is in use or cannot be written.
        CheckpointError: If the checkpoint cannot be resumed from.
        KeyboardInterrupt: If the run was interrupted by Ctrl-C. A final checkpoint is saved if a hook saves
            checkpoints. A loop that does not stop at the end of its iteration is left in the next one.
    """
    ensure_no_active_run(bus)
    flags = {"counts_steps": counts_steps, "overwrite": overwrite, "fresh": fresh}
    raise_config_error(
        [
            *(check_bool(*flag) for flag in flags.items()),
            check_callable("validate", validate, "a function without arguments, or of the run"),
            check_callable("batch_size", batch_size, "a function of the batch that returns its number of samples"),
            check_path("work_dir", work_dir),
            check_seed("seed", seed),
            check_resume("resume", resume),
            *find_object_problems(model, optimizer, scheduler),
            check_loss(loss),
            *find_state_problems(state),
            *find_mode_problems(
                mode, epochs=epochs, iterations=iterations, train_loader=train_loader, **{**flags, "fresh": False}
            ),
        ]
    )
    for name, limit in (("epochs", epochs), ("iterations", iterations)):
        if limit is not None:
            check_count(limit, name, minimum=0)
    evaluator = _as_evaluator(validate)
    ranks = get_collectives(device)
    resume = verify_resume(resume, ranks)
    run = Run(
        bus,
        mode=mode,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        loss=loss,
        state=state,
        config=config,
        device=device,
        seed=seed,
        epochs=epochs,
        iterations=iterations,
        validate=evaluator if mode != "test" else None,
        test=evaluator if mode == "test" else None,
        counts_steps=counts_steps,
        auto_nesting=True,
        batch_size=batch_size,
        ranks=ranks,
        previous=None if fresh or bus.current.outcome == "running" else bus.current,
    )
    run.train_loader, run.val_loader = train_loader, val_loader
    run.test_loader = val_loader if mode == "test" else None
    run.clock.epoch_length = None
    if train_loader is not None:
        from hookbus.data.loaders import loader_length  # imports torch, which a run without a loader does not need

        run.clock.epoch_length = loader_length(train_loader)
    used = resume if mode == "train" else "auto"  # a validation or test uses the directory of the training
    run.may_resume = may_resume(used, work_dir)
    if work_dir:
        run.planned_directory, _ = preview(Path(work_dir), resume=used == "auto", overwrite=overwrite)
    with preconditions_scope(run):
        check_preconditions(run)
    # A validation or test writes into the directory of the training.
    run.work_dir = acquire_work_dir(work_dir, used, overwrite, ranks)
    # Ctrl-C ends a validation or test at once: there is no iteration to complete and no checkpoint to save.
    with run_scope(run, resume), handle_interrupts(run) if mode == "train" else nullcontext():
        # `StopLoop` exits a loop that does not check `run.should_stop` after Ctrl-C: this is not a failure of the run.
        with suppress(StopLoop), handle_lost_workers(run):
            yield run
        # Requests that the loop made after its last boundary, before its open epoch is closed as complete. With
        # multiple ranks they are left to the next boundary, at which all of them compare their requests.
        if run.queue and run.clock.epoch_open and not run.clock.mid_iteration and not run.request_sync.active:
            process_requests(run, SETTLE)
        run.nesting.close_all()
    # Raised after the teardown, so that a script ends with the exit code of Ctrl-C.
    if run.outcome == "interrupted":
        raise KeyboardInterrupt


@contextmanager
def run_scope(run: Run, resume: Literal["auto", "never"] | str | Path = "never") -> Iterator[Run]:
    """Context manager for a run: setup, resume, error handling and teardown.

    Args:
        run: Run to start.
        resume: As in `run_context`; the path of a checkpoint that `verify_resume` has returned.

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
        run.ranks.call_on_main("the file of the configuration", partial(_check_config_file, run))
    except BaseException:
        release_directories(run)
        raise
    try:
        with run.ranks.propagate_errors():
            _start(run)
            if resume != "never":
                resume_run(run, None if path is None else Path(path))
            run.resumed = bool(run.resumed)
            if run.mode == "train":
                _begin_training(run)
            reported = report_unreachable(run)
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


def _start(run: Run) -> None:
    """Start a run: synchronize the ranks, attach the run to its bus and emit `before_run`."""
    run.is_running = True
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
    _log_config(run)
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


def ensure_no_active_run(bus: HookBus) -> None:
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


def _as_evaluator(validate: Callable[..., Mapping[str, Any] | None] | None) -> Evaluator | None:
    """Return a validation function that takes the run, also if `validate` takes no argument."""
    if validate is None:
        return None
    with suppress(ValueError):  # a built-in function without a signature
        parameters = inspect.signature(validate).parameters.values()
        if any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters):
            return validate
    return lambda _: validate()


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


def _check_config_file(run: Run) -> None:
    """Raise if the run would write its configuration to a file that no run has written."""
    if run.mode != "train" or run.work_dir is None or not hasattr(run.config, "to_yaml"):
        return
    if problem := run.work_dir.find_config_problem(run.id):
        raise WorkDirError(problem)


def _log_config(run: Run) -> None:
    """Write the configuration of a training run to its work directory and emit `log_config`."""
    if run.mode != "train" or not run.config:
        return
    to_yaml = getattr(run.config, "to_yaml", None)
    if run.work_dir is not None and run.ranks.is_main and to_yaml is not None:
        text = to_yaml()
        with explain_write_errors(run.work_dir.path):
            run.work_dir.write_config(text, run.id)
    run.bus.fire("log_config")
