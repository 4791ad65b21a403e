"""How a run ends: after_run and cleanup reach every hook, `status.json` says what happened, the lock is given back.

Each of these is done whatever became of the others. What ended the loop stays the main error; what goes wrong at the
end is noted on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from hookbus.errors import in_one_line, note_besides
from hookbus.requests import Outcome

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["EXIT_CODES", "agreed_outcome", "end", "fail", "release_directories", "write_status"]

EXIT_CODES: Mapping[str, int] = {
    "finished": 0,
    "stopped": 0,
    "failed": 1,
    "aborted": 1,
    "preempted": 75,
    "interrupted": 130,
}
"""What a process that makes one run returns, by outcome; 2 is a configuration that does not hold."""

STRONGEST_FIRST: tuple[Outcome, ...] = ("aborted", "interrupted", "preempted", "stopped")


def agreed_outcome(run: Run) -> Outcome:
    """How a run ends whose loop was left in order: by the stops that were asked for, if any."""
    asked = {request.details.get("outcome", "stopped") for request in run.stops}
    return next((outcome for outcome in STRONGEST_FIRST if outcome in asked), "finished")


def fail(run: Run, error: BaseException) -> None:
    """An exception has ended the loop: requests that wait are dropped and reported, and hooks hear of it."""
    _blame(run, error)
    run.records = {}
    for request in run.queue.drop():
        run.report_dropped(request)
    _add(run, _failures_of(partial(run.bus.fire, "on_exception", exception=error)))


def end(run: Run) -> None:
    """after_run, cleanup, and what the run itself has to leave in order.

    Raises:
        KeyboardInterrupt: Ctrl-C came now, and the loop had not failed.
        BaseException: a hook failed, and the loop had not; several failures are one group.
    """
    failed_before, bus = run.exception is not None, run.bus
    run.clock.stop()
    after_run = partial(bus.fire, "after_run", mode=run.mode)
    cleanup = partial(bus.fire, "cleanup")
    report = bus.table.failures.report
    _add(run, _failures_of(run.validations.leave, after_run, cleanup, run.optimizer_events.detach, report))
    _add(run, _failures_of(bus.pm.release, run.training_data.close, run.validations.close, run.signals.close))
    _add(run, _failures_of(partial(write_status, run), partial(release_directories, run)))
    run.alive = False
    if run.exception is not None and not failed_before:
        raise run.exception


def write_status(run: Run) -> None:
    """Keep `status.json` true: it tells of the training, not of validations and tests of its own."""
    if run.work_dir is None or run.mode != "train" or not run.ranks.is_main:
        return
    run.work_dir.write_status(
        outcome=run.outcome,
        exit_code=EXIT_CODES.get(run.outcome),
        mode=run.mode,
        run=run.id,
        reasons=run.stop_reasons,
        error=in_one_line(run.exception) if run.exception is not None else None,
        epochs_done=run.epochs_done,
        iters_done=run.iters_done,
        steps_done=run.steps_done,
        best={name: {"value": b.value, "epoch": b.epoch, "step": b.step} for name, b in run.best.items()},
        metrics=run.metrics.results,
        about=run.about,
    )


def release_directories(run: Run) -> None:
    """Unlock the work directory and every other directory that the run has locked."""
    while run.held:
        run.held.popitem()[1]()
    if run.work_dir is not None:
        run.work_dir.release()


def _failures_of(*parts: Callable[[], object]) -> list[BaseException]:
    """Do one after the other, and collect what they raise."""
    failures: list[BaseException] = []
    for part in parts:
        try:
            part()
        except BaseException as failure:
            failures.append(failure)
    return failures


def _add(run: Run, failures: list[BaseException]) -> None:
    """Failures are noted on what has ended the run; without that, they have."""
    if failures and run.exception is None:
        _blame(run, _main_of(failures))
    elif run.exception is not None:
        note_besides(run.exception, failures)


def _blame(run: Run, error: BaseException) -> None:
    run.exception = error
    run.outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def _main_of(failures: list[BaseException]) -> BaseException:
    """Ctrl-C, with the others noted on it; else all of them as a group."""
    interrupt = next((each for each in failures if isinstance(each, KeyboardInterrupt)), None)
    if interrupt is not None:
        note_besides(interrupt, (each for each in failures if each is not interrupt))
        return interrupt
    return failures[0] if len(failures) == 1 else BaseExceptionGroup("hooks failed at the end of the run", failures)
