"""Requests of hooks, and the queue in which they are pending.

Listeners request operations, and the bus executes them after the outermost event, in a fixed order: records,
validations, saves, stops. The result therefore does not depend on the order of the hooks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hookbus._events.call_stack import in_nested_event
from hookbus.checkpoint.saver import StopSaver
from hookbus.metrics.windows import compute_means

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.checkpoint.saver import CheckpointSaver
    from hookbus.metrics.results import Metrics
    from hookbus.metrics.windows import Window


T = TypeVar("T")

Outcome = Literal["running", "finished", "stopped", "preempted", "interrupted", "aborted", "failed"]

SETTLE = "settle"
"""Name of the boundary of `run.settle()`, which is no point."""

AFTER_VAL = "after_val"
"""Point of a boundary if the loop performs the validation itself, between two iterations."""

BOUNDARIES = frozenset(
    {"after_train_iter", "after_epoch", "before_epoch", "before_train_epoch", "after_train", "after_run"}
)
"""Points after which all pending requests are processed: records, validations, saves and stops."""

LOOP_BOUNDARIES = BOUNDARIES | {AFTER_VAL, SETTLE}
"""All boundaries of a custom loop: also the end of a validation that the loop performs itself, and `run.settle()`."""

RECORDED_POINTS = (BOUNDARIES | {"before_train"}) - {"after_train", "after_run"}
"""Points at which the state is recorded for a save after a failure."""

VALIDATION_POINTS = BOUNDARIES | {"before_train", "after_train_epoch"}
"""Points after which validations are processed; saves and stops only at boundaries."""

ENDS_OF_EPOCH = ("after_train_epoch", "after_epoch")


class RequestKind(Enum):
    """Type of a request. The values are processed in the order of the definition."""

    VALIDATE = "validation"
    SAVE = "save"
    STOP = "stop"
    STOP_EPOCH = "stop_epoch"
    SKIP_ITER = "skip_iter"


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a hook.

    Attributes:
        kind: Type of the request.
        requested_by: Instance name of the hook; "loop" if no hook made the request.
        reason: Reason for the log.
        epoch, iteration, step: Counts of the clock at the time of the request.
        details: Further arguments of the request, such as the saver.
    """

    kind: RequestKind
    requested_by: str
    reason: str
    epoch: int
    iteration: int
    step: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.requested_by}: {self.reason}" if self.reason else self.requested_by


@dataclass(slots=True)
class Record:
    """Request of a writer for the means of a window, with which `deliver` is called at the end of the iteration."""

    window: Window
    deliver: Callable[[Metrics, int], None]


class RequestQueue:
    """Pending requests of a run, and the history of processed requests.

    Attributes:
        waiting: Pending requests.
        history: Last 1,000 processed requests.
    """

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.history: deque[Request] = deque(maxlen=1000)

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def take(self, kind: RequestKind) -> list[Request]:
        """Remove and return the pending requests of one type, sorted by the name of the hook."""
        if not self.waiting:
            return []
        taken = sorted((r for r in self.waiting if r.kind is kind), key=lambda r: r.requested_by)
        if taken:
            for request in taken:  # one by one: the handler of Ctrl-C may add a request at any time
                self.waiting.remove(request)
            self.history += taken
        return taken

    def drop(self) -> list[Request]:
        """Remove and return all pending requests, for a warning."""
        dropped, self.waiting = self.waiting, []
        return sorted(dropped, key=lambda r: (r.requested_by, r.kind.value))


def process_requests(run: Run, point: str) -> None:
    """Process the pending requests, unless the event is nested in another event.

    Called after events of `VALIDATION_POINTS`.
    """
    # Requests are left to a later boundary within another event, an iteration or a validation.
    if in_nested_event(run) or (point == AFTER_VAL and (run.validations.is_executing or run.clock.mid_iteration)):
        return
    # Reset first: a request that a signal handler adds from here on sets it again.
    queue, run.pending = run.queue, False
    run.bus.pm.run_pending_cleanups()
    if point == "after_train_iter":
        run.replacements.check_read()
        _check_iteration(run)
    deliver_records(run, everything=point in ("after_train", "after_run") and not run.resumable)
    if run.request_sync.sync_at_boundary(point):
        _drop_if_aborted(run)
        # The validation of an epoch that a stop request has truncated is left to the run that completes the epoch.
        is_truncated = point in ENDS_OF_EPOCH and bool(run.stops) and run.clock.epoch_truncated
        if queue.take(RequestKind.VALIDATE) and not is_truncated:
            _validate(run, sanity=point == "before_train")
            run.request_sync.sync_at_boundary(point)  # hooks of one rank may have made requests during the validation
        # In an epoch in which the run has ended, a best checkpoint is saved before the remaining code of its body.
        if point in LOOP_BOUNDARIES or run.is_captured:
            _save_and_stop(run, queue, point)
    if point == "after_train_iter":
        run.iteration_gap.record()
    is_watched = run.completeness.is_due or run.iteration_gap.is_watching
    run.pending = run.pending or bool(queue or run.records) or is_watched
    if point in RECORDED_POINTS or (point in (AFTER_VAL, SETTLE) and not _precedes_epoch_end(run, point)):
        run.boundary_state.record_again()


def _check_iteration(run: Run) -> None:
    """Check that a checkpoint would be complete, if an optimizer has stepped for the first time."""
    # A listener may add what is missing when the checkpoint is saved.
    if run.completeness.take_due() and not run.bus.table.listeners("before_save_checkpoint", run):
        from hookbus.checkpoint.hook_states import collect_hook_states, collect_loop_state

        run.completeness.check(lambda: [collect_hook_states(run), collect_loop_state(run.state)])


def _drop_if_aborted(run: Run) -> None:
    """Drop the pending validations and saves of an aborted run, whose weights are corrupted."""
    if run.aborted:
        for request in [*run.queue.take(RequestKind.VALIDATE), *run.queue.take(RequestKind.SAVE)]:
            run.warn_dropped(request)


def _save_and_stop(run: Run, queue: RequestQueue, point: str) -> None:
    """Process the pending saves and stops."""
    _drop_if_aborted(run)
    # A complete epoch is saved at its end, together with the code that the loop still executes in it.
    if not _precedes_epoch_end(run, point):
        _process_saves(run, queue)
    # After the saves: a checkpoint is taken before the run or the epoch stops.
    if queue.take(RequestKind.STOP_EPOCH):
        run.training_data.leaving_epoch = True
        if run.host is not None:
            run.host.stop_epoch()
    run.confirm_stop(queue.take(RequestKind.STOP))
    if run.mode == "train" and run.ended_at is None and run.should_stop and _may_end_within_epoch(run):
        _save_last(run, queue)
        run.ended_at = run.iters_done


def _precedes_epoch_end(run: Run, point: str) -> bool:
    """Return whether all iterations of the epoch are complete, and the loop still executes code in it."""
    return point in (AFTER_VAL, SETTLE) and run.nesting.is_ending_epoch


def _may_end_within_epoch(run: Run) -> bool:
    """Return whether a run that ends now leaves a part of its epoch to the run that resumes it."""
    clock = run.clock
    # Whether a custom loop reads another loader in this epoch is known after its first complete epoch.
    is_unknown = run.auto_nesting and clock.epoch_open and clock.observed_epoch_length is None
    return clock.ends_within_epoch or is_unknown


def _process_saves(run: Run, queue: RequestQueue) -> None:
    """Process the pending saves, except those for a state that a resumed run could not continue from."""
    saves = queue.take(RequestKind.SAVE)
    # The optimizer state belongs to the weights at the end of training, which the model no longer contains. A run that
    # was stopped within an epoch has saved the checkpoint of the stop: the resumed run executes the rest of the epoch.
    is_late = bool(run.stops) and run.is_captured
    dropped = [r for r in saves if run.weights.exchanged or (is_late and isinstance(r.details["saver"], StopSaver))]
    for request in dropped:
        run.warn_dropped(request)
    if len(dropped) < len(saves):
        with run.journal.measure("saving"):
            _save(run, [request for request in saves if request not in dropped])
    run.weights.evaluated.release()


def _save_last(run: Run, queue: RequestQueue) -> None:
    """Save the last checkpoint of a run that ends within an epoch, before the loop executes any further code."""
    if run.aborted:
        return
    for saver in _find_savers(run):
        saver.request_last(run)
    _process_saves(run, queue)
    # The loop may change the weights next: a copy on another thread has to be complete.
    _wait_for_savers(run)


def deliver_records(run: Run, *, everything: bool) -> None:
    """Deliver the requested means to writers; without an optimizer step, the records remain pending."""
    if not run.records or not (everything or run.clock.stepped):
        return
    records, run.records = run.records, {}
    step = run.clock.steps_done
    due = []
    for (requester, _), record in sorted(records.items()):
        # The last record at the end of the run would otherwise repeat the step of the previous record.
        if record.window.last_logged_step != step:
            record.window.last_logged_step = step
            due.append((requester, record))
    # One transfer from the device for all windows.
    means = compute_means(record.window for _, record in due)
    lengths = [len(record.window) for _, record in due]
    for _, record in due:
        record.window.reset()
    for (requester, record), values in zip(due, means, strict=True):
        _call_for_hook(run, requester, "the requested record", partial(record.deliver, values, step))
    own = zip((requester for requester, _ in due), lengths, means, strict=True)
    logged = dict.fromkeys(("lr", *run.optimizer_events.tracked))
    run.recording.publish_means(own, step, lambda: {**run.optimizer_values(*logged), **run.optimizer_steps()})


def deliver_results(run: Run, requests: Iterable[tuple[str, Callable[[Metrics], object]]], results: Metrics) -> None:
    """Deliver the results of a validation or test, sorted by the name of the hook that requested them."""
    for requester, deliver in sorted(requests, key=lambda request: request[0]):
        _call_for_hook(run, requester, "the requested results", partial(deliver, results))


def _validate(run: Run, *, sanity: bool) -> None:
    """Validate once for all requests, unless the weights are unchanged since the last validation."""
    if sanity or run.validations.validated_at != run.clock.steps_done:
        try:
            if run.host is not None and not run.validations.has_evaluator("val"):
                run.validations.execute_by_host(run.host)
            else:
                run.validate(sanity=sanity)
        except Exception as error:
            # Data workers that a signal ended fail the validation: the run ends by the signal, not by this error.
            if not run.signals.explains(error):
                raise


def save_after_failure(run: Run) -> None:
    """Save the state of the last iteration boundary if a hook requested it in `on_exception`.

    Raises:
        CheckpointError: If the state of the boundary no longer exists, or the file could not be written.
    """
    saves = run.queue.take(RequestKind.SAVE)
    if saves:
        run.boundary_state.rewind()
        _save(run, saves)
        _wait_for_savers(run)


def _wait_for_savers(run: Run) -> None:
    for saver in _find_savers(run):
        saver.wait_for_pending(run)


def _find_savers(run: Run) -> list[StopSaver]:
    return [hook for hook in run.bus.hooks.values() if isinstance(hook, StopSaver)]


def _save(run: Run, saves: list[Request]) -> None:
    """Save one checkpoint per saver for all of its requests. The host saves those without a saver."""
    for saver in {id(request.details["saver"]): request.details["saver"] for request in saves}.values():
        requests = [request for request in saves if request.details["saver"] is saver]
        if saver is None and run.host is not None:
            run.host.save([str(request) for request in requests])
        else:
            _save_once(run, saver, requests)


def _save_once(run: Run, saver: CheckpointSaver, requests: list[Request]) -> None:
    """Save one checkpoint: plan the file, collect the state, emit the checkpoint events and write."""
    from hookbus.checkpoint.plain_data import validate_plain_data
    from hookbus.checkpoint.state import build_checkpoint

    name = run.bus.pm.get_name(saver) or ""
    best = dict(run.best)  # `plan` updates the best results
    # Planned before the state is collected, which contains the updated state of the saver.
    path = _call_for_hook(run, name, "a save", lambda: saver.plan(run, requests))
    if path is None:
        return
    # Not around `plan`, which may emit `after_save_checkpoint` for a previous save.
    with run.weights.eval_mode():
        checkpoint = build_checkpoint(run)
        run.boundary_state.apply(checkpoint, name)
        # Validated only if there is a listener, which may have modified the checkpoint.
        if run.bus.fire("before_save_checkpoint", checkpoint=checkpoint):
            validate_plain_data(checkpoint, "checkpoint")
        if run.aborted:  # by a hook that has inspected the checkpoint
            run.best.clear()
            run.best.update(best)
            return
        run.completeness.check_checkpoint(checkpoint)
        is_best = _call_for_hook(run, name, "a save", lambda: saver.write(run, checkpoint))
        if is_best is not None:
            if run.work_dir is not None and run.ranks.is_main:
                run.work_dir.record_checkpoint(path)
            run.bus.fire("after_save_checkpoint", path=path, is_best=is_best, metrics=run.metrics.results)


def _call_for_hook(run: Run, name: str, description: str, work: Callable[[], T]) -> T | None:
    """Execute requested work under the error policy of the hook, or directly if no hook made the request."""
    plugin, table = run.bus.pm.get_plugin(name), run.bus.table
    if plugin is None:
        return work()
    # Wrapped first: instrumentation also measures work that fails.
    work = table.wrap_work(name, description, work)
    return table.failures.call_guarded(work, name, plugin, description, run.clock)
