"""What hooks ask for, and the queue in which their requests wait.

Listeners ask, the bus acts: nothing is done where it was asked for. After the outermost event the queue is
settled, in one order, whatever the order of the hooks was: records, validations, saves, stops. That is why
results do not depend on the order in which hooks are listed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from hookbus._running import nested

if TYPE_CHECKING:
    from pathlib import Path

    from hookbus.metrics import Metrics, Window
    from hookbus.run import Run

__all__ = [
    "BOUNDARIES",
    "SETTLING",
    "Kind",
    "Outcome",
    "Queue",
    "Record",
    "Request",
    "Saver",
    "deliver_records",
    "settle",
]

T = TypeVar("T")
Outcome = Literal["running", "finished", "stopped", "preempted", "interrupted", "aborted", "failed"]

BOUNDARIES = frozenset(
    {"after_train_iter", "after_epoch", "before_epoch", "before_train_epoch", "after_train", "after_run"}
)
"""Points after which everything that waits is settled: records, validations, saves, stops."""

SETTLING = BOUNDARIES | {"before_train", "after_train_epoch"}
"""Points after which validations are settled; saves and stops only at boundaries."""

ENDS_OF_EPOCH = ("after_train_epoch", "after_epoch")


class Kind(Enum):
    """What can be asked for, in the order in which it is settled."""

    VALIDATE = "validation"
    SAVE = "save"
    STOP = "stop"
    STOP_EPOCH = "stop_epoch"
    SKIP_ITER = "skip_iter"


@dataclass(frozen=True, slots=True)
class Request:
    """One wish of one hook.

    Attributes:
        kind: what is asked for.
        by: the instance name of the hook, "loop" where no hook asked.
        reason: why, for people.
        epoch, iteration, step: when, by the clock at that moment.
        details: what the one who carries it out needs besides.
    """

    kind: Kind
    by: str
    reason: str
    epoch: int
    iteration: int
    step: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.by}: {self.reason}" if self.reason else self.by


class Saver(Protocol):
    """Something that writes checkpoints; the checkpoint hook is one."""

    def plan(self, run: Run, requests: list[Request]) -> Path | None:
        """Decide what one checkpoint for all these requests will be called, before it is collected.

        What the saver keeps in its own state (files, best scores) is what the checkpoint is to hold.
        Returns None if nothing has to be written.
        """

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool | None:
        """Write what was planned. Returns whether it is a best one; None if it could not be written."""


@dataclass(slots=True)
class Record:
    """A writer's wish to be given the means of a window once the iteration is complete."""

    window: Window
    deliver: Callable[[Metrics, int], None]


class Queue:
    """The requests of a run: those that wait, and the history of all."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.history: deque[Request] = deque(maxlen=1000)

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(self, request: Request) -> None:
        """Let a request wait for the next settlement."""
        self.waiting.append(request)

    def take(self, kind: Kind) -> list[Request]:
        """Take the waiting requests of one kind out, sorted by who asked."""
        if not self.waiting:
            return []
        taken = sorted((r for r in self.waiting if r.kind is kind), key=lambda r: r.by)
        if taken:
            for request in taken:  # one by one: Ctrl-C may add a request at any moment
                self.waiting.remove(request)
            self.history += taken
        return taken

    def drop(self) -> list[Request]:
        """Forget what waits, and return it so that it can be reported."""
        dropped, self.waiting = self.waiting, []
        return sorted(dropped, key=lambda r: (r.by, r.kind.value))


def settle(run: Run, point: str) -> None:
    """Carry out what waits, if this is the moment: called after every event that may be one.

    Args:
        run: the run whose queue is settled.
        point: the event that has just ended. Inside another event nothing is done: its end will come.
    """
    if nested(run):
        return
    queue, run.pending = run.queue, False
    run.bus.pm.release()
    deliver_records(run, everything=point in ("after_train", "after_run") and not run.resumable)
    if run.decisions.reach(point):
        _drop_if_aborted(run)
        if queue.take(Kind.VALIDATE) and not _is_cut_off(run, point):
            _validate(run, sanity=point == "before_train")
            run.decisions.reach(point)  # hooks may have asked in it
        if point in BOUNDARIES:
            _save_and_stop(run, queue)
    run.pending = run.pending or bool(queue or run.records)


def _is_cut_off(run: Run, point: str) -> bool:
    """Whether this is the end of an epoch that a stop has cut: what goes on from there validates it when it is whole.

    A stop that came with the last batch leaves a whole epoch, its validation included.
    """
    return point in ENDS_OF_EPOCH and bool(run.stops) and run.clock.epoch_cut


def _drop_if_aborted(run: Run) -> None:
    """Drop the pending validations and saves of an aborted run, whose weights are broken."""
    if run.aborted:
        for request in [*run.queue.take(Kind.VALIDATE), *run.queue.take(Kind.SAVE)]:
            run.report_dropped(request)


def _save_and_stop(run: Run, queue: Queue) -> None:
    _drop_if_aborted(run)
    saves = queue.take(Kind.SAVE)
    if run.weights.exchanged:  # a file would hold other weights than the state beside them belongs to
        for request in saves:
            run.report_dropped(request)
    elif saves:
        _save(run, saves)
    if queue.take(Kind.STOP_EPOCH):
        run.leave_epoch()
    run.agree_to_stop(queue.take(Kind.STOP))


def deliver_records(run: Run, *, everything: bool) -> None:
    """Give writers the means they asked for; without an update they wait for the next one, or for the end.

    What is left at the end without an update makes no second record on the step of the one before.
    """
    if not run.records or not (everything or run.clock.stepped):
        return
    records, run.records = run.records, {}
    step = run.clock.steps_done
    due = []
    for (asker, _), record in sorted(records.items()):
        if record.window.recorded_at != step:
            record.window.recorded_at = step
            due.append((asker, record))
    means = run.metrics.means_of([record.window for _, record in due])
    for _, record in due:
        record.window.reset()
    for (asker, record), values in zip(due, means, strict=True):
        _for(run, asker, "the record it asked for", partial(record.deliver, values, step))


def _validate(run: Run, *, sanity: bool) -> None:
    """One validation for all who asked, unless nothing has changed since the last one."""
    if sanity or run.validations.validated_at != run.clock.steps_done:
        try:
            run.validate(sanity=sanity)
        except Exception as error:
            if not run.signals.explains(error):
                raise


def _save(run: Run, saves: list[Request]) -> None:
    """One checkpoint per saver, for all who asked it."""
    groups: dict[int, tuple[Saver, list[Request]]] = {}
    for request in saves:
        saver = request.details["saver"]
        groups.setdefault(id(saver), (saver, []))[1].append(request)
    for saver, requests in groups.values():
        _save_once(run, saver, requests)


def _save_once(run: Run, saver: Saver, requests: list[Request]) -> None:
    from hookbus.checkpoints.plain import check_plain
    from hookbus.state import collect

    name = run.bus.pm.get_name(saver) or ""
    best = dict(run.best)
    path = _for(run, name, "a save", lambda: saver.plan(run, requests))
    if path is None:
        return
    checkpoint = collect(run)
    if run.bus.fire("before_save_checkpoint", checkpoint=checkpoint):
        check_plain(checkpoint, "checkpoint")
    if run.aborted:  # by a hook that has inspected the checkpoint
        run.best.clear()
        run.best.update(best)
        return
    is_best = _for(run, name, "a save", lambda: saver.write(run, checkpoint))
    if is_best is not None:
        if run.work_dir is not None and run.ranks.is_main:
            run.work_dir.record_checkpoint(path)
        run.bus.fire("after_save_checkpoint", path=path, is_best=is_best, metrics=run.metrics.results)


def _for(run: Run, name: str, what: str, work: Callable[[], T]) -> T | None:
    """Do what a hook has asked for, under its policy; for someone who is no hook, just do it."""
    plugin, table = run.bus.pm.get_plugin(name), run.bus.table
    if plugin is None:
        return work()
    if table.around_work is not None:
        work = partial(table.around_work, name, what, work)
    return table.failures.guarded(work, name, plugin, what, run.clock)
