"""The console hook: one line per training record and validation, and a table per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hookbus import BestResult, Priority, Run, hookimpl
from hookbus.checkpoint import schema
from hookbus.errors import format_error
from hookbus.metrics import Metrics
from hookbus_logger.config import LoggerConfig
from hookbus_logger.console import get_console, print_block, print_line, redirect_messages
from hookbus_logger.epoch_recorder import STATE, EpochRecorder, get_epoch, has_epochs
from hookbus_logger.format import (
    Cell,
    Part,
    build_epoch_table,
    format_clock_time,
    format_count,
    format_values,
    is_time,
    join_groups,
)

STYLES = {"train": "cyan", "val": "green", "test": "magenta"}
OPTIMIZER_VALUES = ("lr", "momentum", "weight_decay")
OUTCOME_STYLES = {"finished": "bold green", "failed": "bold red"}


class LoggerHook(EpochRecorder):
    """Print training metrics, results and log messages on the console.

    The table of an epoch is printed after all other hooks have processed the epoch, checkpoints included, so that it
    contains the final best values.
    """

    Config = LoggerConfig
    config: LoggerConfig
    state_schema = schema.record(
        {**STATE, "cells": schema.mapping_of(schema.tuple_of(schema.string(), schema.string(), schema.number()))}
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._messages = ExitStack()
        self._timing: dict[str, float] = {}
        self._cells: dict[str, Cell] = {}
        self._table: tuple[int, str, dict[str, Cell]] | None = None

    # First on entry and, as cleanup runs in reverse order, last on exit: messages of all other hooks are printed.
    @hookimpl(priority=Priority.HIGHEST)
    def before_run(self, run: Run, mode: str) -> None:
        """Print log messages on the console of the run."""
        super().before_run(run, mode)
        self.cleanup()
        self._messages.enter_context(redirect_messages(get_console(run)))
        self._timing, self._cells, self._table = {}, {}, None

    @hookimpl(priority=Priority.HIGHEST)
    def cleanup(self) -> None:
        """Restore the logger."""
        self._messages.close()

    # -- training ------------------------------------------------------------------------------

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        """Print the position in the run, values of the optimizers, mean metrics and times on one line."""
        optimizer_values = _format_optimizer_values(self.get_optimizer_values(run))
        # Times are printed once: those of an earlier interval would appear to belong to this one.
        timing, self._timing = self._timing, {}
        values = format_values({**metrics, **timing}, prefix="train/", nonfinite=metrics.nonfinite)
        self._print_groups(run, "train", [(self._format_position(run), "")], *optimizer_values, values)

    # -- results -------------------------------------------------------------------------------

    def log_scalars(self, run: Run, values: Mapping[str, Any]) -> None:
        """Print the results of a validation or test on one line, and store times for the next training line."""
        source = run.log_source(values)
        if source is not None and source.stage != "train":
            self._print_results(run, source.stage, values, source.dataloader_name)
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
        if run.resumable and not run.epoch_complete:
            return
        own = {name: value for name, value in metrics.items() if name.startswith("train/")}
        cells = {name: Cell(name.removeprefix("train/"), "train", value) for name, value in own.items()}
        title = f"epoch {format_count(get_epoch(run), run.max_epochs)}{'' if run.epoch_complete else ', truncated'}"
        # Printed in `before_epoch` or `after_run`: a checkpoint hook updates `run.best` only after this event.
        self._table, self._cells = (get_epoch(run), title, {**cells, **self._cells}), {}

    @hookimpl(priority=Priority.HIGHEST, frequency=False)
    def before_epoch(self, run: Run) -> None:
        """Print the table of the previous epoch."""
        self._print_table(run)

    def after_run(self, run: Run, mode: str) -> None:
        """Print the table of the last epoch and the outcome of the run."""
        self._print_table(run)
        if mode == "train":
            error = run.exception
            reason = format_error(error) if error is not None else "; ".join(run.stop_reasons)
            outcome = (run.outcome, OUTCOME_STYLES.get(run.outcome, "yellow"))
            done = f"{_format_epoch(run)}iteration {run.iters_done}, {format_clock_time(run.seconds)}"
            print_line(get_console(run), *join_groups([outcome], [(done, "")], [(reason, "")]))

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the results of the current epoch and the state of the recorder."""
        cells = {name: [cell.metric, cell.column, cell.value] for name, cell in self._cells.items()}
        return {**super().state_dict(), "cells": cells}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._cells = {name: Cell(*cell) for name, cell in state["cells"].items()}

    # -- internal ------------------------------------------------------------------------------

    def _print_groups(self, run: Run, kind: str, *groups: Sequence[Part]) -> None:
        print_line(get_console(run), *join_groups([(f"{kind:<5}", STYLES[kind])], *groups))

    def _format_position(self, run: Run) -> str:
        if not (self.config.by_epoch and has_epochs(run)):
            return f"iteration {format_count(run.iters_done, run.limit('iter'))}"
        epoch = format_count(get_epoch(run), run.max_epochs)
        position = format_count(run.epoch_iter + 1, run.epoch_length)
        return f"epoch {epoch}  {'iteration ' * (run.epoch_length is None)}{position}"

    def _print_results(self, run: Run, kind: str, metrics: Mapping[str, float], loader: str | None) -> None:
        epoch = f"epoch {format_count(get_epoch(run), run.max_epochs)}"
        label = epoch if self.config.log_metric_by_epoch and has_epochs(run) else f"iteration {run.iters_done}"
        label = "before training" if run.sanity_checking else label if run.iters_done else ""
        prefix = f"{kind}/{loader}/" if loader else f"{kind}/"
        self._print_groups(run, kind, [(label, "")], [(loader or "", "")], format_values(metrics, prefix=prefix))
        # The model is untrained during a sanity check; its metrics do not belong to any epoch.
        if not run.sanity_checking:
            column = f"{kind} {loader}" if loader else kind
            self._cells |= {name: Cell(name.removeprefix(prefix), column, value) for name, value in metrics.items()}

    def _print_table(self, run: Run) -> None:
        if self._table is None:
            return
        (epoch, title, cells), self._table = self._table, None
        with_best = [_add_best(cell, run.best.get(name), epoch) for name, cell in cells.items()]
        print_block(get_console(run), build_epoch_table(title, with_best))


def _add_best(cell: Cell, best: BestResult | None, epoch: int) -> Cell:
    """Return the cell with the best value of its metric so far."""
    if best is None:
        return cell
    return replace(cell, best=(best.value, best.epoch), is_best=(best.value, best.epoch) == (cell.value, epoch))


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
