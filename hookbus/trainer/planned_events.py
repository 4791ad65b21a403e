"""What fires when in a training: the events of its points, and when each listener is due, without training.

The clock of a run advances as in the loop of the Trainer, and the compiled functions of the points evaluate the
schedules; they call counters instead of the listeners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hookbus._events.codegen import compile_point
from hookbus._events.explain import format_schedule
from hookbus._events.points import Unit
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus._training.evaluation import named_loaders
from hookbus.data.loaders import loader_length
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._events.ordering import Listener
    from hookbus._events.schedules import Schedule
    from hookbus._run.run import Run
    from hookbus.trainer.setup import TrainerSetup

SHOWN = 3
"""Number of the first due numbers that are listed."""

UNKNOWN_UNITS: frozenset[Unit] = frozenset({"seconds", "token", "sample"})
"""Units whose numbers depend on the time or on the data."""

WITHIN_STEP = ("after_forward", "after_backward")


@dataclass(slots=True)
class PlannedListener:
    """When one listener is due.

    Attributes:
        hook: Instance name.
        point: Point.
        schedule: Schedule, "" for every event.
        unit: Unit of the numbers; None if the point has none.
        count: Number of calls, None if it depends on the run.
        first: First numbers in the unit of the point.
    """

    hook: str
    point: str
    schedule: str
    unit: Unit | None
    count: int | None = 0
    first: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PlannedEvents:
    """Events of a training.

    Attributes:
        epochs, iterations, steps: Numbers of epochs, iterations and optimizer steps, None if they depend on the run.
        validations: Numbers of the iterations after which a validation runs, 0 for one before training; None if they
            depend on the run.
        listeners: When each listener is due, in the order of the points and of the calls.
    """

    epochs: int | None
    iterations: int | None
    steps: int | None
    validations: list[int] | None
    listeners: list[PlannedListener]

    def get_count(self, hook: str, point: str) -> int | None:
        """Return the number of calls of a listener, None if it is unknown."""
        return next((row.count for row in self.listeners if (row.hook, row.point) == (hook, point)), None)


def plan_events(trainer: TrainerSetup, run: Run) -> PlannedEvents:
    """Return the events of a training that starts from scratch.

    Args:
        trainer: The trainer.
        run: A run that was created and not started.
    """
    return _Simulation(trainer, run).execute()


class _Simulation:
    """The loop of a Trainer with a clock, and with counters in place of the listeners."""

    def __init__(self, trainer: TrainerSetup, run: Run) -> None:
        self._run, self._steps_after = run, trainer.steps.accumulate
        source = run.clock
        self._clock = Clock(
            max_epochs=source.max_epochs,
            max_iters=source.max_iters,
            epoch_length=source.epoch_length,
            counts_iterations=trainer.optimizer is None,
        )
        self._clock.measure_batch = lambda batch: None  # without a batch, no sample is counted
        self._events: dict[str, int] = dict.fromkeys(run.bus.points, 0)
        self._first: dict[str, list[int]] = {name: [] for name in run.bus.points}
        self._views = {name: PointCounters(self._clock, point, run) for name, point in run.bus.points.items()}
        self._rows: list[tuple[PlannedListener, Schedule | None]] = []
        self._due: dict[str, Callable[..., None]] = {}
        self._validations: set[int] = set()
        hooks = [hook for hook in run.bus.hooks.values() if isinstance(hook, Hook)]
        self._validates_by_default = trainer.val_loader is not None and not any(h.schedules_validation for h in hooks)
        self._validates_first = trainer.validate_first or any(hook.validates_before_train for hook in hooks)
        self._is_accumulation_fixed = not any(hook.schedules_accumulation for hook in hooks)
        self._loaders = [loader_length(loader) for _, loader in named_loaders(trainer.val_loader or {})]
        for name in run.bus.points:
            self._prepare(name)

    def execute(self) -> PlannedEvents:
        """Run the loop, and return the events."""
        clock = self._clock
        is_known = clock.limit("iter") is not None
        if is_known:
            self._train()
        has_epochs = clock.epoch_length is not None
        knows_steps = is_known and self._is_accumulation_fixed
        knows_validations = is_known and has_epochs and None not in self._loaders
        known: set[Unit | None] = {None, "batch"}
        known |= {"iter"} if is_known else set()
        known |= {"epoch"} if is_known and has_epochs else set()
        known |= {"step"} if knows_steps else set()
        for row, schedule in self._rows:
            units = {row.unit} if schedule is None else {row.unit, *schedule.units()}
            is_counted = is_known and row.point in COUNTED_POINTS and units <= known
            if not is_counted or (row.point in _VALIDATION_POINTS and not knows_validations):
                row.count, row.first = None, []
            elif schedule is None and row.count is not None:
                row.count, row.first = self._events[row.point], list(self._first[row.point])
        return PlannedEvents(
            clock.epochs_done if is_known and has_epochs else clock.max_epochs,
            clock.iters_done if is_known else None,
            clock.steps_done if knows_steps else None,
            sorted(self._validations) if knows_validations else None,
            [row for row, _ in self._rows],
        )

    def _prepare(self, name: str) -> None:
        """Compile the function of a point that counts the due listeners."""
        point, run, counters = self._run.bus.points[name], self._run, list[Any]()
        for listener in run.bus.table.listeners(name, run):
            row = PlannedListener(listener.hook, name, format_schedule(listener), point.unit)
            self._rows.append((row, listener.schedule))
            if not _is_predictable(listener):
                row.count = None
            elif listener.schedule is not None:
                count = partial(self._count_due, row, _schedules_validation(listener))
                counters.append(replace(listener, call=count, argument_names=(), accepts_kwargs=False))
        if counters:
            self._due[name] = compile_point(point, counters, self._clock, PointCounters, run, {}, {}, lambda *_: True)

    def _count_due(self, row: PlannedListener, validates: bool) -> None:
        assert row.count is not None
        row.count += 1
        if len(row.first) < SHOWN and row.unit is not None:
            row.first.append(self._views[row.point].current(None))
        if validates:
            self._validations.add(self._clock.iters_done)

    def _emit(self, name: str, times: int = 1) -> None:
        """Count an event, and evaluate the schedules of its point."""
        self._events[name] += times
        first = self._first[name]
        if len(first) < SHOWN and self._run.bus.points[name].unit is not None:
            # An epoch that the limit truncates has no number.
            first += [number] if (number := self._views[name].current(None)) else []
        if name in self._due:
            self._due[name]()

    def _train(self) -> None:
        clock = self._clock
        for name in ("before_run", "before_train"):
            self._emit(name)
        if self._validates_first:
            self._validations.add(clock.iters_done)
            self._validate()
        while not clock.is_at_limit:
            clock.begin_epoch()
            self._emit("before_epoch")
            self._emit("before_train_epoch")
            self._train_epoch()
            clock.end_epoch()
            self._emit("after_train_epoch")
            if self._validates_by_default:
                self._validations.add(clock.iters_done)
            self._validate()
            self._emit("after_epoch")
        for name in ("after_train", "after_run", "cleanup"):
            self._emit(name)

    def _train_epoch(self) -> None:
        clock, length = self._clock, self._clock.epoch_length
        while not clock.limit_reached and (length is None or clock.iters_done - clock.epoch_first_iter < length):
            clock.begin_iter(None)
            self._emit("before_train_iter")
            for name in WITHIN_STEP:
                self._emit(name)
            if (clock.iter + 1) % self._steps_after == 0:
                self._emit("before_optimizer_step")
                clock.count_step()
                self._emit("after_optimizer_step")
            clock.end_iter(None)
            self._emit("after_train_iter")
            self._validate()

    def _validate(self) -> None:
        """Count the events of a validation if one is due that was not counted yet."""
        if self._clock.iters_done not in self._validations or self._events["before_val"] == len(self._validations):
            return
        batch = self._clock.batch
        self._emit("before_val")
        for length in self._loaders:
            self._emit("before_val_epoch")
            for index in range(length or 0):
                self._clock.batch = index
                self._emit("before_val_iter")
                self._emit("after_val_iter")
            self._emit("after_val_epoch")
        self._emit("after_val")
        self._clock.batch = batch


_VALIDATION_POINTS = frozenset(f"{when}_val{part}" for when in ("before", "after") for part in ("", "_epoch", "_iter"))
COUNTED_POINTS = _VALIDATION_POINTS | frozenset(
    [
        *(f"{when}_{part}" for when in ("before", "after") for part in ("run", "train", "epoch", "train_epoch")),
        *(f"{when}_{part}" for when in ("before", "after") for part in ("train_iter", "optimizer_step")),
        *("cleanup", *WITHIN_STEP),
    ]
)
"""Points whose events the plan counts."""


def _schedules_validation(listener: Listener) -> bool:
    """Return whether a listener requests a validation whenever its schedule is due."""
    return isinstance(listener.plugin, Hook) and listener.plugin.schedules_validation


def _is_predictable(listener: Listener) -> bool:
    """Return whether the due events of a listener follow from the numbers of epochs, iterations and steps."""
    schedule = listener.schedule
    if listener.predicate is not None:
        return False
    return schedule is None or not (schedule.reads_run() or schedule.units() & UNKNOWN_UNITS)
