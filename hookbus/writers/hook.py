"""Base class of hooks that write to a backend: TensorBoard, an experiment tracker, or a custom file.

To support a backend, implement a `Writer`, a subclass of `WriterHook` that creates it, and a configuration:

    class TsvHook(WriterHook):
        requires_work_dir = True

        def writer_factory(self, run):
            path = self.directory(run, None) / "numbers.tsv"
            return lambda: TsvWriter(path)

This module handles the schedule of records, the writer's thread, retries, resume and the redaction of secrets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hookbus._utils.imports import require_library
from hookbus._utils.schema import boolean, either, integer, list_of, mapping_of, number, record, string, tuple_of
from hookbus.checkpoint.atomic_files import remove_temporary_files
from hookbus.distributed.process_group import is_main
from hookbus.errors import HookError, HookWarning
from hookbus.metrics.results import Metrics
from hookbus.writers.entries import OUTCOMES, Entry, EntryFactory, RecentRecords, WrittenSteps
from hookbus.writers.host_copies import snapshot_value
from hookbus.writers.log_points import LogPointsMixin
from hookbus.writers.metric_recorder import MetricRecorder, WriterConfig
from hookbus.writers.output_files import register_directory, set_aside
from hookbus.writers.thread import WriterThread
from hookbus.writers.writer import Writer

if TYPE_CHECKING:
    from hookbus._run.run import Run


class WriterHook(MetricRecorder, LogPointsMixin):
    """Base class of hooks that write training means, validation results and `log_*` data through a `Writer`.

    The means of training are logged every `interval` iterations and at the end of training; their step is the number of
    optimizer steps. The writer runs on its own thread and never blocks training. Its first error is logged as a
    warning, and dropped records are counted and reported at the end of the run. Each number, image, histogram or text
    is written once per name and step, including after a resume. A record with a lower step than an earlier one of the
    same name is dropped and counted.

    Attributes:
        library: Module that the backend requires; "" for none.
        install: Package to install for `library`.
        queue_bytes: Maximum size of the queue in bytes; above it, other entries are dropped before numbers.
        period: Seconds between two rounds of writing.
        pause: Seconds before the first retry after an error.
        patience: Timeout in seconds for the last records and the outcome at the end of a run. Until then an unavailable
            backend is retried.
    """

    config: WriterConfig
    state_schema = record(
        {"recent": list_of(tuple_of(integer(), mapping_of(either(number(), string())))), "waiting": boolean},
        {"opening": list_of(string(maximum=1 << 20))},
    )

    library: ClassVar[str] = ""
    install: ClassVar[str] = ""
    queue_bytes: ClassVar[int] = 64 << 20
    period: ClassVar[float] = 0.2
    pause: ClassVar[float] = 1.0
    patience: ClassVar[float] = 30.0

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        # Only rank 0 writes, so the other ranks do not need the library.
        if self.library and is_main():
            require_library(type(self).__name__, self.library, self.install)
        self._writer_thread: WriterThread | None = None
        self._warned = self._opened = self._started = False
        self._directory: Path | None = None
        self._has_earlier_files = False
        self._recorded_run = ""  # ID of the run of which this process has written records
        self._reset()

    # -- defined by subclasses -----------------------------------------------------------------

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """Check that a writer can be created for a run, and return a function that creates it.

        Called at the start of a run. The returned function is called on the writer's thread, and again after an error.

        Args:
            run: The run.

        Raises:
            ConfigError: If no writer can be created; the message contains the setting to change.
        """
        raise NotImplementedError(f"{type(self).__name__}: `writer_factory` is not implemented.")

    def backend_name(self, name: str) -> str:
        """Return the name of a record in the backend. Default: `name`.

        Args:
            name: Full name of a record, such as "val/accuracy".
        """
        return name

    def prepare_directory(self, run: Run) -> None:
        """Prepare the directory of `directory()` when it is known whether the run resumes, before the first writer.

        Default: remove the temporary files of killed processes of the run. If a training starts at iteration 0, a
        directory with the records of an earlier process is renamed, so that they are kept.

        Args:
            run: The run.

        Raises:
            OSError: If the directory cannot be renamed.
        """
        if self._directory is None:
            return
        remove_temporary_files(self._directory, run.id)
        if self._has_earlier_files and self.restarts(run):
            set_aside(run, self._directory)

    def restarts(self, run: Run) -> bool:
        """Return whether a training starts at iteration 0 and has no records of this process.

        A backend whose records continue those of the stopped training returns False.

        Args:
            run: The run.
        """
        is_new = run.mode == "train" and not run.resumed and not run.iters_done
        return is_new and self._recorded_run != run.id

    def undelivered_note(self) -> str:
        """Return a note about records that the backend has buffered but not written when a run ends. Default: ""."""
        return ""

    def directory(self, run: Run, directory: Path | None, description: str = "") -> Path:
        """Return the directory for files: `directory`, or a directory named after this hook in the run's log directory.

        A directory of this name that no run has created is left unchanged, and a numbered name is used instead. A hook
        that calls it sets `requires_work_dir`, so that a training without one is refused before it starts.

        Args:
            run: The run.
            directory: Directory, None for the one in the log directory of the run.
            description: Content of the directory, as in `run.register_output`. Default: none.

        Raises:
            HookError: If `directory` is None and the run has no work directory.
        """
        logs = run.get("logs_dir")
        if directory is not None:
            return directory
        if logs is None:
            raise HookError(
                "No directory to write to: the run has no work directory. Set `work_dir`, or the directory of the hook."
            )
        self._directory = register_directory(run, Path(logs) / self.name, description)
        self._has_earlier_files = self._directory.is_dir() and any(self._directory.iterdir())
        return self._directory

    # -- events of the run ---------------------------------------------------------------------

    def before_run(self, run: Run, mode: str) -> None:
        """Create the queue; training starts the thread once the step to resume from is known."""
        # A second `train` of the same run continues its records.
        if not run.iters_done:
            self._reset()
        self._warned = self._opened = self._started = False
        self._make_writer = self.writer_factory(run)
        self._writer_thread = WriterThread(limit=self.queue_bytes, period=self.period, pause=self.pause)
        super().before_run(run, mode)

    def before_train(self, run: Run) -> None:
        """Start the thread; after a resume, first write the numbers that a kill may have lost."""
        for step, values in self._recent:
            self._enqueue_entry(self._entries.make_numbers(values, step))
        self._start_thread(run)
        super().before_train(run)

    def after_run(self, run: Run) -> None:
        """Write the outcome. A run that did not train starts the thread here."""
        # A run that failed before training must not modify the records of the run that it would have resumed.
        if run.exception is None:
            self._start_thread(run)
        outcome = run.outcome
        self.enqueue(OUTCOMES, lambda writer: writer.write_outcome(outcome))

    def cleanup(self) -> None:
        """Write the queued entries, close the backend, and report dropped records."""
        thread, self._writer_thread = self._writer_thread, None
        vars(self).pop("_make_writer", None)  # a closure, which could not be pickled
        if thread is None:
            return
        thread.close(self.patience, self.undelivered_note)
        if thread.dropped:
            self._warn_of_error(thread)
            _warn(f"hook {self.name!r}: {thread.describe_missing()}.")
        elif thread.first_error and not self._warned:
            _warn(f"hook {self.name!r}: {thread.first_error}.")

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        """Enqueue the means of training and the values of the optimizers."""
        self.log_scalars(run, {**metrics, **self.get_optimizer_values(run)}, step)

    # -- for subclasses ------------------------------------------------------------------------

    def enqueue(self, kind: str, write: Callable[[Any], None]) -> None:
        """Enqueue a record of another type.

        Args:
            kind: Type of the record in the plural, for the message about dropped records.
            write: Called with the writer, on its thread.
        """
        self._enqueue_entry(Entry(kind, lambda _: write))

    def enqueue_config(self, config: Mapping[str, Any]) -> None:
        """Enqueue the configuration, whose secrets are already redacted.

        Args:
            config: The configuration as built-in Python types.
        """
        self.enqueue("configurations", lambda writer: writer.write_config(config))

    def warn_once(self, message: str) -> None:
        """Log a warning about data that cannot be written, if it is the first warning of the run.

        Args:
            message: What cannot be written, and why.
        """
        if self._writer_thread is not None:
            self._writer_thread.record_error(message)
            self._warn_of_error(self._writer_thread)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the recent numbers, which a kill may lose, the pending request, and the records of the start."""
        recent, opening = self._recent.to_builtin(), sorted(self._opening_records)
        return {**super().state_dict(), "recent": recent, "opening": opening}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._recent = RecentRecords()
        for step, values in state["recent"]:
            self._recent.add(step, {name: snapshot_value(value) for name, value in values.items()})
        self._opening_records = set(state.get("opening", ()))  # absent in earlier checkpoints
        self._start_iteration = None

    # -- private -------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._written = WrittenSteps()
        self._entries = EntryFactory(self.backend_name, self._written)
        self._recent = RecentRecords()
        self._opening_records: set[str] = set()
        self._start_iteration: int | None = None

    def _enqueue_entry(self, entry: Entry) -> None:
        if self._writer_thread is None:
            return
        self._warn_of_error(self._writer_thread)
        self._writer_thread.enqueue(entry)
        # A separate validation or test starts with its first record, after its checkpoint was read.
        if self.run.mode != "train" and self.run.resumed is not None:
            self._start_thread(self.run)

    def _start_thread(self, run: Run) -> None:
        """Start the thread, with the step that the run resumes from."""
        if self._writer_thread is None or self._started:
            return
        self._started = True
        self.prepare_directory(run)
        self._recorded_run = run.id
        step = run.steps_done
        # The recent numbers are written again, so `_written` requires the existing records from the first of them on.
        since = min([step, *(at for at, _ in self._recent)])
        # Tests and validations write at the step of their checkpoint and must not remove later records.
        steps = (since, step) if run.mode == "train" else None
        open_writer = partial(self._open_writer, self._make_writer, steps)
        self._writer_thread.start(open_writer, f"hookbus {self.name}")

    def _open_writer(self, make: Callable[[], Writer], steps: tuple[int, int] | None) -> Writer:
        """Create a writer, and call `Writer.resume` on the first writer of a run."""
        writer = make()
        if steps is None or self._opened:
            return writer
        try:
            self._written.initialize(writer.resume(*steps), steps[1])
        except BaseException:
            # The caller does not receive the writer and could not release it.
            writer.abandon()
            raise
        self._opened = True
        return writer

    def _warn_of_error(self, thread: WriterThread) -> None:
        """Log a warning for the first error of the writer's thread."""
        # Called on the training thread: the warnings filters are not thread-safe.
        if thread.first_error and not self._warned:
            self._warned = True
            _warn(
                f"hook {self.name!r}: {thread.first_error}; training continues, and dropped records are counted and "
                "reported at the end."
            )


def _warn(message: str) -> None:
    warnings.warn(message, HookWarning, stacklevel=3)
