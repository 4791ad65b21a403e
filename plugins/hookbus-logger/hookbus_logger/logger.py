"""The console hook: a table of one row per epoch in a terminal or notebook, and lines otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hookbus import Priority, Run, hookimpl
from hookbus.errors import format_error
from hookbus.metrics import Metrics
from hookbus.writers import format_clock_time, format_number
from hookbus_logger.config import LoggerConfig
from hookbus_logger.console import get_console, get_line_width, is_ascii, print_line, redirect_messages
from hookbus_logger.epoch_recorder import EpochRecorder, get_epoch, has_epochs
from hookbus_logger.epoch_table import OPTIMIZER_VALUES, EpochTable, Row, build_titles
from hookbus_logger.format import Part, format_count, format_values, is_time, join_groups
from hookbus_logger.notebook import NotebookDisplay, get_notebook
from hookbus_logger.row_collector import (
    RowCollector,
    counts_epochs,
    get_iteration_limit,
    get_widest_position,
    merge_equal_values,
)
from hookbus_logger.run_header import format_run
from hookbus_logger.table_printer import LinePrinter, RowPrinter, TablePrinter

STYLES = {"train": "cyan", "val": "green", "test": "magenta"}
OUTCOME_STYLES = {"finished": "bold green", "failed": "bold red"}


class LoggerHook(EpochRecorder):
    """Print training metrics, results and log messages on the console.

    The row of an epoch is printed after all other hooks have processed the epoch, checkpoints included, so that it
    marks the final best values.
    """

    Config = LoggerConfig
    config: LoggerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._messages = ExitStack()
        self._timing: dict[str, float] = {}
        self._rows: RowCollector | None = None
        self._notebook: NotebookDisplay | None = None

    # First on entry and, as cleanup runs in reverse order, last on exit: messages of all other hooks are printed.
    @hookimpl(priority=Priority.HIGHEST)
    def before_run(self, run: Run, mode: str) -> None:
        """Print log messages on the console of the run."""
        super().before_run(run, mode)
        self.cleanup()
        self._messages.enter_context(redirect_messages(get_console(run)))
        self._timing = {}
        self._notebook = get_notebook(run)
        if self._notebook is not None:
            self._notebook.open()

    @hookimpl(priority=Priority.HIGHEST)
    def cleanup(self) -> None:
        """Restore the logger."""
        self._messages.close()
        self._rows = None

    # -- training ------------------------------------------------------------------------------

    @hookimpl(priority=Priority.HIGHEST)
    def before_train(self, run: Run) -> None:
        """Print the model, the device and the length of the run."""
        console = get_console(run)
        table = EpochTable(tracked=run.best.keys())
        table.reserve(get_widest_position(run))
        terminal_printer = TablePrinter if console.is_terminal else LinePrinter
        printer: RowPrinter = self._notebook or terminal_printer(console, table)
        self._rows = RowCollector(run, printer.print_row, by_epoch=self.config.log_metric_by_epoch)
        width = None if self._notebook is not None else get_line_width(console)
        header = format_run(run, " - " if is_ascii(console) else " · ", width)
        if self._notebook is not None:
            self._notebook.open(header)
        elif header:
            print_line(console, header)
        super().before_train(run)

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        """Print the means of an interval: on a line, or in a run without epochs as a row of the table."""
        optimizer_values = self.get_optimizer_values(run)
        # Times are printed once: those of an earlier interval would appear to belong to this one.
        timing, self._timing = self._timing, {}
        is_terminal = self._has_table(run)
        if is_terminal and self._rows is not None and not (counts_epochs(run) and self._rows.has_epoch_events):
            self._rows.add({**_select_means(metrics), **merge_equal_values(optimizer_values)})
        elif not is_terminal if self.config.interval_lines is None else self.config.interval_lines:
            values = format_values({**metrics, **timing}, prefix="train/", nonfinite=metrics.nonfinite)
            position: list[Part] = [(self._format_position(run), "")]
            self._print_groups(run, "train", position, *_format_optimizer_values(optimizer_values), *values)

    @hookimpl(frequency=False)
    def before_train_iter(self) -> None:
        """Print the row of the previous iteration, if there is one."""
        if self._rows is not None:
            self._rows.flush()

    @hookimpl(priority=Priority.LOWEST)
    def after_train(self, run: Run) -> None:
        """Print the row of the last epoch, before other hooks log messages about the training."""
        if self._rows is not None and counts_epochs(run):
            self._rows.flush()
        super().after_train(run)

    # -- results -------------------------------------------------------------------------------

    def log_scalars(self, run: Run, values: Mapping[str, Any]) -> None:
        """Collect the results of a validation or test, and store times for the next training line."""
        source = run.log_source(values)
        if source is not None and source.stage != "train":
            self._add_results(run, source.stage, values, source.dataloader_name)
        # The times of the last iterations are logged at the end of their epoch, as are those of the epoch.
        elif source is None and (run.epoch_open or "time/iter" in values) and not run.validating:
            self._timing.update({name: float(value) for name, value in values.items() if is_time(str(name))})

    @hookimpl(frequency=False)
    def after_val_epoch(self, run: Run, metrics: Metrics, dataloader_name: str | None) -> None:
        """Print the results of a sanity check, which are not logged."""
        if run.sanity_checking:
            self._print_results(run, "val", metrics, dataloader_name)

    @hookimpl(frequency=False)
    def after_epoch(self, run: Run, metrics: Metrics) -> None:
        """Collect the results of the epoch; an interrupted epoch is completed by the resumed run."""
        if self._rows is not None and counts_epochs(run) and (run.epoch_complete or not run.resumable):
            optimizer_values = merge_equal_values(self.get_optimizer_values(run))
            self._rows.end_epoch({**_select_means(metrics), **optimizer_values})

    @hookimpl(priority=Priority.HIGHEST, frequency=False)
    def before_epoch(self, run: Run) -> None:
        """Print the row of the previous epoch: a checkpoint hook updates `run.best` only after `after_epoch`."""
        if self._rows is not None:
            self._rows.flush()
            self._rows.begin_epoch()

    def after_run(self, run: Run, mode: str) -> None:
        """Print the row of the last epoch, the best results and the outcome of the run."""
        if mode != "train":
            if self._notebook is not None:
                self._notebook.close()
            return
        if self._rows is not None:  # a run that failed before training has no rows
            self._rows.flush()
        lines: list[list[Part]] = [[(text, "")] for text in _format_bests(run)]
        error = run.exception
        reason = run.redact(format_error(error) if error is not None else "; ".join(run.stop_reasons))
        outcome = (run.outcome, OUTCOME_STYLES.get(run.outcome, "yellow"))
        done = f"{_format_epoch(run)}iteration {run.iters_done}, {format_clock_time(run.seconds)}"
        lines.append(join_groups([outcome], [(done, "")], [(reason, "")]))
        if self._notebook is not None:
            self._notebook.close(*("".join(text for text, _ in line) for line in lines))
        else:
            for line in lines:
                print_line(get_console(run), *line)

    # -- internal ------------------------------------------------------------------------------

    def _has_table(self, run: Run) -> bool:
        """Return whether rows are displayed in a table, not on lines."""
        return self._notebook is not None or get_console(run).is_terminal

    def _print_groups(self, run: Run, kind: str, *groups: Sequence[Part]) -> None:
        console = get_console(run)
        print_line(console, *join_groups([(f"{kind:<5}", STYLES[kind])], *groups, width=get_line_width(console)))

    def _format_position(self, run: Run) -> str:
        if not (self.config.by_epoch and has_epochs(run)):
            return f"iteration {format_count(run.iters_done, get_iteration_limit(run))}"
        epoch = format_count(get_epoch(run), run.max_epochs)
        position = format_count(run.epoch_iter + 1, run.epoch_length)
        return f"epoch {epoch}  {'iteration ' * (run.epoch_length is None)}{position}"

    def _add_results(self, run: Run, kind: str, results: Mapping[str, float], loader: str | None) -> None:
        """Add the results of a validation to the row, or print those of a separate validation or test."""
        is_row = kind == "val" and run.mode == "train" and not run.sanity_checking
        if self._rows is not None and is_row and (self._has_table(run) or counts_epochs(run)):
            self._rows.add(results)
        elif self._notebook is not None and run.mode != "train":
            prefix = f"{kind}/{loader}/" if loader else f"{kind}/"
            values = {name.removeprefix(prefix): float(value) for name, value in results.items()}
            self._notebook.print_row(Row(loader or kind, values, unit="data"))
        else:
            self._print_results(run, kind, results, loader)

    def _print_results(self, run: Run, kind: str, metrics: Mapping[str, float], loader: str | None) -> None:
        label = f"iteration {run.iters_done}" if run.iters_done else ""
        label = "before training" if run.sanity_checking else label
        prefix = f"{kind}/{loader}/" if loader else f"{kind}/"
        values = format_values(metrics, prefix=prefix)
        self._print_groups(run, kind, [(label, "")], [(loader or "", "")], *values)


def _select_means(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("train/") and not is_time(name)}


def _format_bests(run: Run) -> list[str]:
    """Return the best value of each tracked metric."""
    titles = build_titles(run.best.keys())
    has_epoch_axis = counts_epochs(run)
    return [
        f"best {titles[name]} {format_number(best.value)} "
        f"({f'epoch {best.epoch}' if has_epoch_axis else f'step {best.step}'})"
        for name, best in run.best.items()
    ]


def _format_epoch(run: Run) -> str:
    """Return the epoch at the end of a run, followed by a comma; "" for a loop without epochs."""
    return f"epoch {format_count(get_epoch(run), run.max_epochs)}, " if has_epochs(run) or not run.iters_done else ""


def _format_optimizer_values(values: Mapping[str, float]) -> list[list[Part]]:
    """Return the distinct values of the parameter groups, with the names of optimizers and groups that have one."""
    texts: dict[str, dict[str, None]] = {name: {} for name in OPTIMIZER_VALUES}
    for name, number in values.items():
        # `lr`, `lr/0` for the first group of the only optimizer, `lr/G` or `lr/G/0` for a named optimizer.
        value, *labels = name.split("/")
        if value in texts:
            label = "/".join(part for part in labels if not part.isdecimal())
            texts[value][f"{label} {number:.3g}".strip()] = None
    return [[(f"{value} ", "dim"), (", ".join(distinct), "")] for value, distinct in texts.items() if distinct]
