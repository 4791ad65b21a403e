"""The life of one run: work directory, before_run, resume, the loop, after_run, cleanup.

However the loop ends, `after_run` and `cleanup` follow, once each, and reach every hook. What ended the loop stays the
main error; what hooks add at the end is noted on it.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from hookbus import _packages
from hookbus.distributed import is_main
from hookbus.errors import CheckpointError, ConfigError, RequestError
from hookbus.hook import Hook
from hookbus.run import Run
from hookbus.validations import Evaluator
from hookbus.workdir import WorkDir, claim

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from hookbus.bus import HookBus

__all__ = ["EXIT_CODES", "claim_for", "custom_run", "graceful_interrupts", "living"]

EXIT_CODES: Mapping[str, int] = {
    "finished": 0,
    "stopped": 0,
    "failed": 1,
    "preempted": 75,
    "interrupted": 130,
}
"""What a process that makes one run returns, by outcome; 2 is a configuration that does not hold."""

RANKS_OF_OUTCOMES = ("interrupted", "preempted", "stopped")


@contextmanager
def custom_run(
    bus: HookBus,
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    scheduler: Any = None,
    scaler: Any = None,
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
    resume: Literal["auto", "never"] | str | Path = "never",
    overwrite: bool = False,
    fresh: bool = False,
) -> Iterator[Run]:
    """The run of a loop of one's own.

    Emits before_run on entry, after_run and cleanup on exit; opens and closes the brackets that the loop leaves out.

    Args:
        bus: the bus whose hooks take part.
        model, optimizer, scheduler, scaler: what is trained; checkpoints hold them.
        epochs, iterations: the limit, for `run.epochs()`, `run.batches()` and schedules.
        work_dir: where files go; None for a run that writes none.
        validate: makes a validation when one is asked for: `validate()` or `validate(run)`; returns the metrics.
        train_loader, val_loader: offered as services.
        config: recorded, and hashed into checkpoints.
        device: where the model is.
        seed: what the order of `run.batches()` follows from; default the one torch was seeded with.
        counts_steps: the loop emits the optimizer points itself, and updates are counted by them.
        resume: "never", "auto" (the newest checkpoint of the work directory, if any), or a file.
        overwrite: a run that is in the work directory is removed.
        fresh: begin at zero, where this bus has already made a run; otherwise that run goes on.

    Yields:
        The run.

    Raises:
        WorkDirError: the work directory is in use, or cannot be written.
        RequestError: a hook will ask for validations, and there is no `validate`.
        CheckpointError: what should be resumed cannot be.
    """
    directory = claim_for(work_dir, resume, overwrite)
    run = Run(
        bus,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        config=config,
        device=device,
        seed=seed,
        epochs=epochs,
        iterations=iterations,
        validate=_of_the_run(validate),
        work_dir=directory,
        counts_steps=counts_steps,
        keeps_brackets=True,
        continues=None if fresh or bus.current.outcome == "running" else bus.current,
    )
    run.train_loader, run.val_loader = train_loader, val_loader
    if train_loader is not None and hasattr(train_loader, "__len__"):
        run.clock.epoch_length = len(train_loader)
    with living(run, resume):
        yield run
        run.brackets.close_all()


@contextmanager
def living(run: Run, resume: Literal["auto", "never"] | str | Path = "never") -> Iterator[Run]:
    """Everything that happens around the loop of a run.

    Args:
        run: the run that begins.
        resume: as for `custom_run`.
    """
    bus = run.bus
    try:
        _check_hooks(run)
        bus.begin(run)
        run.optimizer_events.attach()
        _status(run)
        bus.fire("before_run", mode=run.mode)
        if resume != "never":
            _resume(run, resume)
        yield run
        run.outcome = _outcome_of(run)
    except BaseException as error:
        run.exception = error
        run.outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        _drop_requests(run)
        _noting(error, bus.fire, "on_exception", exception=error)
        raise
    finally:
        _end(run)


def claim_for(work_dir: str | Path | None, resume: object, overwrite: bool) -> WorkDir | None:
    """The work directory of a run; None where it writes nothing, or on other ranks than the main one.

    Raises:
        ConfigError: resume and overwrite were both asked for.
        WorkDirError: it is in use, or cannot be written.
    """
    if resume != "never" and overwrite:
        raise ConfigError(["resume and overwrite contradict each other: the run either goes on or is removed."])
    if work_dir is None or not is_main():
        return None
    return claim(Path(work_dir), resume=resume == "auto", overwrite=overwrite)


# -- inside ----------------------------------------------------------------------------------


def _of_the_run(validate: Callable[..., Mapping[str, Any] | None] | None) -> Evaluator | None:
    if validate is None:
        return None
    takes_run = bool(inspect.signature(validate).parameters)
    return validate if takes_run else lambda _: validate()


def _check_hooks(run: Run) -> None:
    """See at the start what could only go wrong."""
    if run.mode != "train":
        return
    for name, hook in run.bus.hooks.items():
        if isinstance(hook, Hook) and hook.schedules_validation and not run.validations.can_make("val"):
            raise RequestError(
                f"hook {name!r} ({_packages.package_of(hook)}) will ask for validations, and this run has no way to "
                "make one: give val_loader= to the Trainer, or validate= to bus.run."
            )


def _resume(run: Run, resume: str | Path) -> None:
    from hookbus import state

    if resume == "auto":
        directory = run.get("checkpoints_dir")
        if directory is None:
            raise CheckpointError("resume: auto looks for checkpoints in the work directory: give work_dir.")
        found = state.find_newest(directory)
        if found is None:
            return
        path, checkpoint, troubles = found
        for trouble in troubles:
            run.logger.warning("resume: %s", trouble)
    else:
        path = Path(resume)
        checkpoint = state.read_checkpoint(path)
    run.bus.fire("after_load_checkpoint", checkpoint=checkpoint, path=path)
    state.restore(run, checkpoint)
    run.logger.info(
        "Resumed from %s: epoch %s, iteration %s, step %s.", path, run.epochs_done, run.iters_done, run.steps_done
    )


def _outcome_of(run: Run) -> Any:
    asked = {request.details.get("outcome", "stopped") for request in run.stops}
    return next((outcome for outcome in RANKS_OF_OUTCOMES if outcome in asked), "finished")


def _drop_requests(run: Run) -> None:
    run.records = {}
    for request in run.queue.drop():
        run.logger.warning("The run ended before this was done: %s asked for by %s", request.kind.value, request)


def _end(run: Run) -> None:
    """after_run and cleanup, whatever happened; their failures are noted on what ended the run, else raised."""
    error = run.exception
    run.validations.leave()
    run.clock.stop()
    failures: list[BaseException] = []
    for point, arguments in (("after_run", {"mode": run.mode}), ("cleanup", {})):
        try:
            run.bus.fire(point, **arguments)
        except BaseException as raised:
            failures.append(raised)
    run.optimizer_events.detach()
    run.bus.table.failures.report()
    if failures and error is None:
        run.outcome, run.exception = "failed", failures[0]
    _status(run)
    if run.work_dir is not None:
        run.work_dir.release()
    if error is not None:
        for failure in failures:
            error.add_note(_describe(failure))
    elif len(failures) == 1:
        raise failures[0]
    elif failures:
        raise BaseExceptionGroup("hooks failed at the end of the run", failures)


def _noting(error: BaseException, fire: Callable[..., None], point: str, **arguments: Any) -> None:
    try:
        fire(point, **arguments)
    except Exception as failure:
        error.add_note(_describe(failure))


def _describe(failure: BaseException) -> str:
    notes = "; ".join(getattr(failure, "__notes__", []))
    return f"besides, {type(failure).__name__}: {failure}" + (f" ({notes})" if notes else "")


def _status(run: Run) -> None:
    """Keep `status.json` true."""
    if run.work_dir is None:
        return
    run.work_dir.write_status(
        outcome=run.outcome,
        exit_code=EXIT_CODES.get(run.outcome),
        mode=run.mode,
        reasons=run.stop_reasons,
        error=f"{type(run.exception).__name__}: {run.exception}" if run.exception is not None else None,
        epochs_done=run.epochs_done,
        iters_done=run.iters_done,
        steps_done=run.steps_done,
        best={name: {"value": b.value, "epoch": b.epoch, "step": b.step} for name, b in run.best.items()},
        metrics=dict(run.metrics.results),
    )


@contextmanager
def graceful_interrupts(run: Run) -> Iterator[None]:
    """Ctrl-C ends the run at the next iteration boundary, with a last checkpoint; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = signal.getsignal(signal.SIGINT)

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, earlier)
        run.logger.warning("Interrupted: finishing this iteration. Press Ctrl-C again to stop at once.")
        run.request_stop("Ctrl-C", outcome="interrupted")

    if earlier is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
