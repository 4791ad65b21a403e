"""The base of hooks that feed a back end: TensorBoard, a tracker, a file of one's own.

A package for a back end is a `Writer`, a small subclass of `WriterHook` that makes it, and a config:

    class CsvHook(WriterHook):
        def writer_factory(self, run):
            path = self.directory(run, None) / "numbers.csv"
            return lambda: CsvWriter(path)

Everything else is done here: when a record is due, the thread, trouble, resuming, secrets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from hookbus._imports import see_library
from hookbus.distributed import is_main
from hookbus.errors import HookError, HookWarning
from hookbus.hook import HookConfig, Priority
from hookbus.markers import hookimpl
from hookbus.metrics import Metrics, Window
from hookbus.records.copies import kept
from hookbus.records.entries import Entries, Ledger, Recent
from hookbus.records.rates import named_rates, rates_of
from hookbus.records.reports import ReportedHook
from hookbus.records.writer_thread import Entry, WriterThread
from hookbus.when import every
from hookbus.writers import Writer

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["WriterConfig", "WriterHook"]


class WriterConfig(HookConfig):
    """When numbers of training are recorded."""

    interval: int = Field(
        default=50, gt=0, description="The means of training are recorded every this many iterations."
    )


class WriterHook(ReportedHook):
    """Records means of training, results of validations, and what other hooks report, through a `Writer`.

    A record of training is made every `interval` iterations, and of what is left at the end of training; it stands on
    the optimizer updates made. The writer is fed from a thread of its own: training never waits for it, and its
    troubles are told once and counted at the end. Each number, picture, distribution or text stands once under its name
    and step, after a resume as well; a step that is lower than one before under the same name is left out and counted.

    Attributes:
        library: the module that the back end needs; "" for none.
        install: what has to be installed for it.
        queue_bytes: so much may wait for the back end; then pictures are dropped before numbers.
        period: seconds between two rounds of the thread.
        pause: seconds until the first new try after trouble.
        patience: seconds that the end of a run waits for the back end.
    """

    Config = WriterConfig
    priority = Priority.NORMAL
    observer = True
    ranks = "main"
    needs_work_dir = True
    config: WriterConfig

    library: ClassVar[str] = ""
    install: ClassVar[str] = ""
    queue_bytes: ClassVar[int] = 64 << 20
    period: ClassVar[float] = 0.2
    pause: ClassVar[float] = 1.0
    patience: ClassVar[float] = 30.0

    _rates: list[Any]

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        if self.library and is_main():
            see_library(type(self).__name__, self.library, self.install)
        self._feed: WriterThread | None = None
        self._told = self._resumed = self._begun = False
        self._forget()

    # -- what a back end says of itself --------------------------------------------------------

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """See that a writer can be made for this run, and return what makes it.

        Called when a run begins. What is returned is called on the writer's thread, again after trouble.

        Raises:
            ConfigError: it cannot; say what to set.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how its writer is made")

    def stored_name(self, name: str) -> str:
        """The name under which the back end has a record; where it takes any, the name itself."""
        return name

    def owns_place(self) -> bool:
        """Whether later steps may be removed where this run writes, though it was not resumed from a checkpoint."""
        return True

    def rest(self) -> str:
        """What becomes of what a back end has been given but has not taken when a run ends; "" where nobody knows."""
        return ""

    def directory(self, run: Run, given: Path | None) -> Path:
        """Where files go: what was given, else a directory with the name of this hook among the logs of the run.

        Raises:
            HookError: nothing was given, and the run has no work directory.
        """
        logs = run.get("logs_dir")
        if given is not None:
            return given
        if logs is None:
            raise HookError(
                f"{self.name} writes into the work directory, and this run has none: give work_dir= to the run, or a "
                "directory to this hook. Nothing is written."
            )
        found = Path(logs) / self.name
        run.own(found)
        return found

    # -- the run -------------------------------------------------------------------------------

    def before_run(self, run: Run, mode: str) -> None:
        """Make ready; a training begins to write when it is known from which step it goes on."""
        if not run.iters_done:
            self._forget()
        self._told = self._resumed = self._begun = False
        self._make = self.writer_factory(run)
        self._feed = WriterThread(limit=self.queue_bytes, period=self.period, pause=self.pause)
        if mode == "train":
            self._window(run)
        else:
            self._start(run)

    def before_train(self, run: Run) -> None:
        """Begin to write, first what a process that was killed may have lost."""
        for step, values in self._recent:
            self._put(self._entries.numbers(values, step))
        self._start(run)
        if self._waiting:
            self._ask(run)

    def after_run(self, run: Run) -> None:
        """Write how it ended. Where nothing was trained, writing begins only now."""
        if run.exception is None:
            self._start(run)
        outcome = run.outcome
        self.put("outcomes", lambda writer: writer.write_outcome(outcome))

    def cleanup(self) -> None:
        """Write what waits, close the back end, and tell what was lost."""
        feed, self._feed = self._feed, None
        if feed is None:
            return
        feed.close(self.patience, self.rest())
        if feed.lost:
            self._tell(feed)
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(feed.lost.items()))
            _warn(f"hook {self.name!r}: {feed.lost.total()} records are missing: {counts}. First: {feed.trouble}.")
        elif feed.trouble and not self._told:
            _warn(f"hook {self.name!r}: {feed.trouble}.")

    # -- records of training -------------------------------------------------------------------

    def before_train_iter(self, run: Run) -> None:
        """Note the learning rates that this iteration uses."""
        # At every one: that an iteration was the last shows only afterwards, when the scheduler has moved on.
        self._rates = rates_of(run.optimizer)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """A record is due."""
        self._ask(run)

    def after_train(self, run: Run) -> None:
        """Record what is left, unless a checkpoint keeps it for the run that goes on."""
        if self._window(run) and not run.resumable:
            self._ask(run)

    def after_val_epoch(self, run: Run, metrics: Metrics) -> None:
        """Record the results of a validation loader."""
        self.log_scalars(run, metrics, run.steps_done)

    def after_test_epoch(self, run: Run, metrics: Metrics) -> None:
        """Record the results of a test loader."""
        self.log_scalars(run, metrics, run.steps_done)

    # -- for subclasses ------------------------------------------------------------------------

    def put(self, kind: str, write: Callable[[Any], None]) -> None:
        """Hand something else to the back end.

        Args:
            kind: what several of them are called, for the count of what is missing.
            write: given the writer, on its thread.
        """
        self._put(self._entries.simple(kind, write))

    def put_config(self, config: Mapping[str, Any]) -> None:
        """Hand the configuration to the back end; its secrets are hidden already."""
        self.put("configurations", lambda writer: writer.write_config(config))

    def note(self, trouble: str) -> None:
        """Something cannot be recorded: the user is warned, unless there was a warning before."""
        if self._feed is not None:
            self._feed.note(trouble)
            self._tell(self._feed)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The newest numbers, of which a kill may lose some, and whether a record waits for an update."""
        return {
            "recent": self._recent.plain(),
            "waiting": self._waiting,
            "rates": [float(rate) for rate in self._rates],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._recent = Recent()
        for step, values in state["recent"]:
            self._recent.add(step, {name: kept(value) for name, value in values.items()})
        self._waiting, self._rates, self._resumed = state["waiting"], list(state["rates"]), True

    # -- inside --------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._ledger = Ledger()
        self._entries = Entries(self.stored_name, self._ledger)
        self._recent = Recent()
        self._waiting = False
        self._rates = []

    def _window(self, run: Run) -> Window:
        return run.metrics.window(self.name)

    def _ask(self, run: Run) -> None:
        self._waiting = True
        run.request_record(self._window(run), self._deliver)

    def _deliver(self, metrics: Metrics, step: int) -> None:
        self._waiting = False
        self.log_scalars(self.run, {**metrics, **named_rates(self._rates)}, step)

    def _put(self, entry: Entry) -> None:
        if self._feed is not None:
            self._tell(self._feed)
            self._feed.put(entry)

    def _start(self, run: Run) -> None:
        """Let the thread begin, behind the step where this run goes on."""
        if self._feed is None:
            return
        step = run.steps_done
        since = min([step, *(at for at, _ in self._recent)])
        goes_on = run.mode == "train" and (self._resumed or self.owns_place())
        opening = partial(self._open, self._make, (since, step) if goes_on else None)
        self._feed.start(opening, f"hookbus {self.name}")

    def _open(self, make: Callable[[], Writer], place: tuple[int, int] | None) -> Writer:
        """A writer; the first of a run hears where the run goes on."""
        writer = make()
        if place is None or self._begun:
            return writer
        try:
            self._ledger.begin(writer.resume(*place), place[1])
        except BaseException:
            writer.abandon()
            raise
        self._begun = True
        return writer

    def _tell(self, feed: WriterThread) -> None:
        """Warn once, on the training thread, of the first thing that went wrong on the other."""
        if feed.trouble and not self._told:
            self._told = True
            _warn(f"hook {self.name!r}: {feed.trouble}; the run goes on, and what is missing is counted at the end.")


def _warn(message: str) -> None:
    warnings.warn(message, HookWarning, stacklevel=3)
