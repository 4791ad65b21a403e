"""`report.html`: a self-contained page about a training run, written into its work directory when it has ended.

The page contains no script and makes no request to the network. Secrets are redacted, and every text is escaped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from hookbus._run.environment import describe_environment, describe_memory
from hookbus._run.history_curves import get_unit, group_curves
from hookbus._run.recorded_settings import flatten_settings
from hookbus._utils.files import get_reason
from hookbus._utils.numbers import format_clock_time, format_number, format_quantity
from hookbus._utils.page import build_charts, build_list, build_page, build_section, build_table
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.errors import format_error, format_path
from hookbus.hook import Hook
from hookbus.metrics.direction import infer_direction

if TYPE_CHECKING:
    from hookbus._run.run import Run

REPORT = "report.html"
RESULTS = ("val/", "test/")


def write_report(run: Run) -> None:
    """Write the report of a training with a work directory. One that cannot be written does not fail the run."""
    assert run.work_dir is not None
    path = run.work_dir.path / REPORT
    try:
        if not run.register_output(path, "report of the run"):
            run.logger.warning(
                "%s was not written by a run and is not changed; no report is written.", format_path(path)
            )
            return
        content = build_report(run).encode("utf-8", "backslashreplace")
        atomic_write(path, lambda file: file.write(content), run=run.id)
    except OSError as error:
        run.logger.warning("%s cannot be written: %s.", format_path(path), get_reason(error))
    except Exception as error:  # such as one in the text of a value of the configuration
        run.logger.warning("%s cannot be written: %s.", format_path(path), format_error(error))


def build_report(run: Run) -> str:
    """Return the report of a run as HTML."""
    assert run.work_dir is not None
    name = run.work_dir.path.absolute().name
    histories = {name: run.history}
    environment = [(label, _redact(run, value)) for label, value in describe_environment(run)]
    hooks = build_table(["hook", "class", "settings"], list(_iter_hooks(run)))
    results = build_table(["metric", "best", "epoch", "step", "last"], _list_results(run), range(1, 5))
    parts = [
        _build_heading(run, name),
        build_section("Results", results),
        build_section("Curves", build_charts(group_curves(histories), get_unit(histories))),
        build_section("Time", build_table(["part", "time", "share"], list(_iter_times(run)), [1, 2])),
        build_section("Memory", build_table(["", "size"], describe_memory(run), [1])),
        build_section("Warnings", _build_warnings(run)),
        build_section("Settings", build_table(["setting", "value"], list(_iter_settings(run)))),
        build_section("Hooks", hooks),
        build_section("Environment", build_table(["", "value"], environment)),
        f'<footer class="quiet">Written {time.strftime("%Y-%m-%d %H:%M:%S %z")} by hookbus.</footer>',
    ]
    return build_page(f"{name}: {run.outcome}", parts)


def _build_heading(run: Run, name: str) -> str:
    counts = [
        format_quantity(run.epochs_done, "epoch"),
        format_quantity(run.iters_done, "iteration"),
        format_quantity(run.steps_done, "step"),
        *([format_quantity(run.tokens_done, "token")] if run.counts_tokens else []),
        f"{format_clock_time(run.seconds)} of training",
    ]
    reasons = "".join(f"<p>{escape(str(reason))}</p>" for reason in run.redact(run.stop_reasons))
    error = "" if run.exception is None else _redact(run, format_error(run.exception))
    message = f'<div class="error">{escape(error)}</div>' if error else ""
    return (
        f'<header><h1>{escape(name)}<span class="state {escape(run.outcome)}">{escape(run.outcome)}</span></h1>'
        f'<p class="quiet">{escape(" · ".join(counts))}</p>{reasons}'
        f"{message}</header>"
    )


def _list_results(run: Run) -> list[list[str]]:
    """Return the rows of the best results: those of hooks, else by the direction that the name implies."""
    names = [name for name in run.history.columns if name.startswith(RESULTS) or name in run.best]
    rows = {name: [row for row in run.history if _is_number(row.get(name))] for name in names}
    return [_describe_result(run, name, measured) for name, measured in rows.items() if measured]


def _describe_result(run: Run, metric: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    last, direction = format_number(rows[-1][metric]), infer_direction(metric)
    if metric in run.best:
        best = run.best[metric]
        return [metric, format_number(best.value), str(best.epoch), str(best.step), last]
    if direction is None:
        return [metric, "", "", "", last]
    row = (max if direction == "greater" else min)(rows, key=lambda row: row[metric])
    return [metric, format_number(row[metric]), str(row["epoch"]), str(row["step"]), last]


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _iter_times(run: Run) -> Iterator[list[str]]:
    """Yield the parts of the time of this process: training, validation and saving."""
    seconds = run.journal.seconds
    total = seconds.get("run", 0.0)
    parts = {
        "validation": seconds.get("validation", 0.0),
        "saving checkpoints": seconds.get("saving", 0.0),
    }
    rest = max(seconds.get("training", 0.0) - sum(parts.values()), 0.0)
    parts = {"training": rest, **parts}
    parts["start and end of the run"] = max(total - sum(parts.values()), 0.0)
    if total:
        for name, value in parts.items():
            yield [name, _format_seconds(value), f"{value / total:.0%}"]
        yield ["total", _format_seconds(total), ""]
    if run.iters_done and seconds.get("training"):
        done = run.iters_done - run.journal.first_iteration
        if done > 0:
            yield ["per iteration", f"{rest / done * 1000:,.2f} ms", ""]


def _iter_settings(run: Run) -> Iterator[list[str]]:
    """Yield the settings of the run by path, without those of the hooks, which have a table of their own."""
    config = {name: value for name, value in run.plain_config().items() if name != "hooks"}
    for path, value in flatten_settings(config).items():
        if value is not None:
            yield [path, _format(value)]
    for name, optimizer in run.optimizers.items():
        label = f"optimizer {name}".strip()
        defaults = {key: value for key, value in getattr(optimizer, "defaults", {}).items() if value is not None}
        yield [label, f"{type(optimizer).__name__}: {_format_settings(run.redact(defaults))}"]


def _iter_hooks(run: Run) -> Iterator[list[str]]:
    for name, hook in run.bus.hooks.items():
        settings: Mapping[str, Any] = json.loads(hook.config.set_fields_json) if isinstance(hook, Hook) else {}
        yield [name, type(hook).__name__, _format_settings(run.redact(settings))]


def _build_warnings(run: Run) -> str:
    messages = [_redact(run, message) for message in run.journal.warnings]
    more = [f"and {run.journal.omitted:,} more"] if run.journal.omitted else []
    return build_list([*messages, *more])


def _redact(run: Run, text: str) -> str:
    return str(run.redact(text))


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 60 else format_clock_time(seconds)


def _format_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {_format(value)}" for name, value in settings.items())


def _format(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
