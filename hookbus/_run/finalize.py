"""Teardown of a run: `after_run` and `cleanup` on every hook, `status.json`, release of the locks.

Each part is executed even if another one fails. The exception of the loop remains the main error; errors of the
teardown are added to it as notes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hookbus._run.directory_lock import explain_write_errors
from hookbus._run.interrupts import defer_interrupts
from hookbus._run.requests import Outcome, save_after_failure
from hookbus.errors import add_failure_notes, format_error

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus._run.work_dir import WorkDir

EXIT_CODES: Mapping[str, int] = {
    "finished": 0,
    "stopped": 0,
    "failed": 1,
    "aborted": 1,
    "preempted": 75,  # EX_TEMPFAIL of sysexits.h: the scheduler may start the job again
    "interrupted": 130,  # 128 + SIGINT, as in a shell
}
"""Exit code of a process that executes one run, by outcome. Exit code 2 denotes an invalid configuration."""

STRONGEST_FIRST: tuple[Outcome, ...] = ("aborted", "interrupted", "preempted", "stopped")


def resolve_outcome(run: Run) -> Outcome:
    """Return the outcome of a run whose loop ended without an error: that of its stop requests, if any."""
    outcomes = {request.details.get("outcome", "stopped") for request in run.stops}
    return next((outcome for outcome in STRONGEST_FIRST if outcome in outcomes), "finished")


def record_failure(run: Run, error: BaseException) -> None:
    """Record the exception of a run: drop pending requests with a warning, emit `on_exception`, and save on request."""
    # Before the requests are dropped: the weights of an aborted run are corrupted.
    run.boundary_state.accepts_saves = not run.aborted
    _record_exception(run, error)  # first: requests that hooks make from here on are dropped, except for saves
    run.records = {}
    for request in run.queue.drop():
        run.warn_dropped(request)
    failures = _collect_exceptions(partial(run.bus.fire, "on_exception", exception=error))
    run.boundary_state.accepts_saves = False
    refused = _collect_exceptions(partial(save_after_failure, run))
    for failure in refused:
        run.logger.warning("%s", format_error(failure))
    _add_exceptions(run, [*failures, *refused])


def finalize(run: Run) -> None:
    """Emit `after_run` and `cleanup`, and release the resources of the run.

    Raises:
        KeyboardInterrupt: If Ctrl-C was received during the teardown and the loop did not fail.
        BaseException: If a hook failed and the loop did not. Multiple errors are raised as one group.
    """
    if run.outcome == "running":  # an interrupt arrived before the exception was recorded
        _record_exception(run, sys.exception() or RuntimeError("the run ended without an outcome"))
    failed_before = run.exception is not None
    try:
        _end_hooks(run)
    except BaseException as interrupt:  # Ctrl-C between two parts
        _add_exceptions(run, [interrupt])
    with defer_interrupts() as interrupts:
        # After the hooks, whose errors are part of the status; the locks last, when no file is written any longer.
        files = partial(_write_report, run), partial(_write_final_status, run)
        failures = _collect_exceptions(*files) + interrupts
        _add_exceptions(run, failures)
        if failures:
            _call_each(run, *files)  # with the changed outcome
        # The ranks last: a loop may destroy its process groups next, see `hookbus.distributed.process_group`.
        _call_each(run, partial(release_directories, run), run.ranks.drain)
        run.bus.torch_hooks.stop()
        run.is_running = False
    _add_exceptions(run, [interrupt for interrupt in interrupts if interrupt not in failures])
    if run.exception is not None and not failed_before:
        raise run.exception


def _end_hooks(run: Run) -> None:
    """Emit `after_run` and `cleanup`, and close the parts of the run, each also if another one fails."""
    bus = run.bus
    run.clock.stop()
    # Hooks first: they may still use data and loaders of the run.
    _call_each(
        run,
        *([] if run.hook_budget is None else [run.hook_budget.close]),
        run.validations.leave,
        partial(bus.fire, "after_run", mode=run.mode),
        partial(bus.fire, "cleanup"),
        run.optimizer_events.detach,
        run.completeness.stop,
        partial(run.journal.add_failures, bus.table.failures.counts),
        bus.table.failures.counts.report,
    )
    # The handler of SIGCHLD last: closing the loaders ends their workers.
    _call_each(run, bus.pm.run_pending_cleanups, run.training_data.close, run.validations.close, run.signals.close)


def write_status(run: Run) -> None:
    """Write `status.json` for a training run; validation and test runs leave the status of the training unchanged.

    Raises:
        WorkDirError: If the file cannot be written.
    """
    if work_dir := _get_status_directory(run):
        with explain_write_errors(work_dir.path):
            work_dir.write_status(**_collect_status(run))


def _write_final_status(run: Run) -> None:
    """Write the status of a run that has ended. A file that cannot be written does not fail the run."""
    if (work_dir := _get_status_directory(run)) and (message := work_dir.write_final_status(**_collect_status(run))):
        run.logger.warning("%s", message)


def _write_report(run: Run) -> None:
    """Write the report of a training, after everything that it describes."""
    run.journal.stop()
    if run.work_dir is not None and run.writes_report and run.mode == "train" and run.ranks.is_main:
        from hookbus._run.report import write_report  # needed at the end of a training only

        write_report(run)


def _get_status_directory(run: Run) -> WorkDir | None:
    return run.work_dir if run.mode == "train" and run.ranks.is_main else None


def _collect_status(run: Run) -> dict[str, Any]:
    return {
        "outcome": run.outcome,
        "exit_code": EXIT_CODES.get(run.outcome),
        "mode": run.mode,
        "run": run.id,
        "reasons": run.redact(run.stop_reasons),
        "error": run.redact(format_error(run.exception)) if run.exception is not None else None,
        "epochs_done": run.epochs_done,
        "iters_done": run.iters_done,
        "steps_done": run.steps_done,
        "best": {name: {"value": b.value, "epoch": b.epoch, "step": b.step} for name, b in run.best.items()},
        "metrics": run.metrics.results,
        "about": run.redact(run.metadata),
    }


def release_directories(run: Run) -> None:
    """Unlock the work directory and every other directory that the run has locked."""
    while run.locks:
        run.locks.popitem()[1]()
    if run.work_dir is not None:
        run.work_dir.release()


def _collect_exceptions(*parts: Callable[[], object]) -> list[BaseException]:
    """Call functions in sequence, and return the exceptions that they raised."""
    failures: list[BaseException] = []
    for part in parts:
        try:
            part()
        except BaseException as failure:
            failures.append(failure)
    return failures


def _call_each(run: Run, *parts: Callable[[], object]) -> None:
    """Call functions in sequence, and add their exceptions to that of the run."""
    _add_exceptions(run, _collect_exceptions(*parts))


def _add_exceptions(run: Run, failures: list[BaseException]) -> None:
    """Add exceptions as notes to the exception of the run, or record them as the exception of the run."""
    if failures and run.exception is None:
        _record_exception(run, _merge_exceptions(failures))
    elif run.exception is not None:
        add_failure_notes(run.exception, failures)


def _record_exception(run: Run, error: BaseException) -> None:
    """Record the exception that ended the run, and the outcome."""
    run.exception = error
    run.outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def _merge_exceptions(failures: list[BaseException]) -> BaseException:
    """Return KeyboardInterrupt with the other exceptions as notes, or a group of all exceptions."""
    interrupt = next((failure for failure in failures if isinstance(failure, KeyboardInterrupt)), None)
    if interrupt is not None:
        add_failure_notes(interrupt, (failure for failure in failures if failure is not interrupt))
        return interrupt
    return failures[0] if len(failures) == 1 else BaseExceptionGroup("hooks failed at the end of the run", failures)
