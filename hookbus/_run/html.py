"""HTML of a run and of its history, which notebooks display: outcome, best results, table and learning curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hookbus._run.history_curves import get_unit, group_curves
from hookbus._utils.curves import draw_curves
from hookbus._utils.html import build_html_table, wrap_html
from hookbus._utils.numbers import format_clock_time, format_elapsed_time, format_number
from hookbus.errors import format_error, format_path

if TYPE_CHECKING:
    from hookbus._run.results import BestResult

Row = Mapping[str, Any]

FIRST_ROWS, LAST_ROWS = 5, 15
"""Numbers of rows at the beginning and at the end of a history that its table contains."""
MAX_CHARTS = 6
POSITIONS = ("epoch", "iteration", "tokens")
_OMITTED = ("kind", "step", "seconds", *POSITIONS)
_OPTIMIZER_VALUES = ("lr", "momentum", "weight_decay")
_OUTCOME_COLORS = {"finished": "#1fa35c", "running": "#3b82f6", "failed": "#d9485f"}


def build_run_html(run: Any) -> str:
    """Build the outcome and the best results of a run, the table of its history and its curves."""
    color = _OUTCOME_COLORS.get(run.outcome, "#ea7317")
    outcome = f'<b style="color:{color}">{escape(run.outcome)}</b>'
    directory = [] if run.work_dir is None else [format_path(run.work_dir.path)]
    facts = [*([] if run.mode == "train" else [run.mode]), *iter_positions(run), format_clock_time(run.seconds)]
    heading = " · ".join([outcome, *map(escape, [*facts, *directory])])
    reasons = run.redact(run.stop_reasons if run.exception is None else [format_error(run.exception)])
    best = [f"best {name} {format_number(result.value)} (epoch {result.epoch})" for name, result in run.best.items()]
    lines = "".join(f"<div>{escape(line)}</div>" for line in [*reasons, *best])
    return wrap_html(f"<div>{heading}</div>{lines}{_build_history(run.history.rows, run.best)}")


def build_history_html(rows: Sequence[Row]) -> str:
    """Build the table of a history and its curves."""
    return wrap_html(
        _build_history(rows, {})
        or "<div>no rows yet: the first one is recorded at the end of an epoch or validation</div>"
    )


def iter_positions(run: Any) -> Iterator[str]:
    """Yield the completed epochs and iterations of a run, such as "epoch 2/6" and "iteration 80"."""
    if run.max_epochs is not None or run.epochs_done:
        limit = "" if run.max_epochs is None else f"/{run.max_epochs}"
        yield f"epoch {run.epochs_done}{limit}"
    yield f"iteration {run.iters_done}"


def _build_history(rows: Sequence[Row], best: Mapping[str, BestResult]) -> str:
    """Return the table and the curves; "" without rows."""
    if not rows:
        return ""
    charts = draw_history(rows)
    boxes = "".join(f'<div style="flex:0 1 auto">{chart}</div>' for chart in charts)
    return f'{_build_table(rows, best)}<div style="display:flex;flex-wrap:wrap;gap:0 1em">{boxes}</div>'


def _build_table(rows: Sequence[Row], best_results: Mapping[str, BestResult]) -> str:
    names = [name for name in POSITIONS if _is_shown(name, rows)]
    values = list(dict.fromkeys(name for row in rows for name in row if name not in _OMITTED))
    names += sorted(values, key=is_optimizer_value)  # a stable sort: metrics first, in their order
    cells = [[*(_format_cell(name, row.get(name)) for name in names), time] for row, time in _iter_times(rows)]
    best = {(y, x) for y, row in enumerate(rows) for x, name in enumerate(names) if _is_best(row, name, best_results)}
    omitted = len(rows) - FIRST_ROWS - LAST_ROWS
    if omitted > 1:
        cells[FIRST_ROWS:-LAST_ROWS] = [["⋯", *[""] * len(names)]]
        # The line of the omitted rows is one row.
        best = {
            (y if y < FIRST_ROWS else y - omitted + 1, x)
            for y, x in best
            if y < FIRST_ROWS or y >= len(rows) - LAST_ROWS
        }
    return build_html_table([*names, "time"], cells, best)


def _iter_times(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Yield each row and the time since the row before."""
    for previous, row in pairwise([{"seconds": 0.0}, *rows]):
        yield row, format_elapsed_time(row["seconds"] - previous["seconds"])


def _is_shown(position: str, rows: Sequence[Row]) -> bool:
    if position == "iteration":
        return get_unit({"": rows}) == "iteration"
    return any(row.get(position) for row in rows)


def _is_best(row: Row, name: str, best: Mapping[str, BestResult]) -> bool:
    result = best.get(name)
    return result is not None and (row.get("epoch"), row.get(name)) == (result.epoch, result.value)


def _format_cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in POSITIONS:
        return str(value)
    return f"{value:.3g}" if is_optimizer_value(name) else format_number(value)


def is_optimizer_value(name: str) -> bool:
    """Return whether a name denotes a value of the optimizers, such as `lr` or `lr/head`."""
    return name.partition("/")[0] in _OPTIMIZER_VALUES


def draw_history(rows: Sequence[Row]) -> list[str]:
    """Draw the learning curves of a history: one chart for all metrics of a name, such as `train/loss` and `val/loss`.

    Returns:
        At most six SVG elements, the losses first; none if no metric has two values.
    """
    histories = {"": rows}
    groups = group_curves(histories)
    drawn = {
        title: {name: points for name, points in curves.items() if len(points) > 1 and not is_optimizer_value(name)}
        for title, curves in groups.items()
    }
    charts = [(title, curves) for title, curves in drawn.items() if curves]
    return [draw_curves(curves, title=title, x_label=get_unit(histories)) for title, curves in charts[:MAX_CHARTS]]
