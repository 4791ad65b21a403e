"""Metrics of a run, accumulated without synchronizing with the device.

`run.log(loss=loss)` copies a value on its device. Values are summed on the device, in float64, and copied to the host
together when they are read: means of a window of iterations, means of an epoch, results of a validation.

Every metric has a full name, which is also its tag: `train/loss`, `val/accuracy`, `val/<loader>/accuracy`.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

from hookbus.errors import MetricError
from hookbus.metrics.logged import EvaluationMeans, LoggedResults, check_training_name
from hookbus.metrics.results import Metrics, resolve_metric_name
from hookbus.metrics.windows import (
    CHUNK_SIZE,
    MetricBuffer,
    Window,
    WindowPart,
    add_sums,
    compute_means,
    compute_sums,
    divide_sums,
    make_buffer,
    to_float,
    to_floats,
)

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives


class MetricStore(Mapping[str, float]):
    """All metrics of a run: one buffer per metric, windows over the buffers, and the latest validation results.

    As a mapping, it contains the latest value of each metric by full name: `run.metrics["train/loss"]`,
    `run.metrics.get("accuracy")`, `"val/loss" in run.metrics`. A lookup accepts the same names as `monitor`: the full
    name, or a shorter one if it is unambiguous. Reading a value synchronizes with its device; `items` and `values`
    synchronize once, and `len`, `in` and the iteration over the names not at all.

    Args:
        find_caller: Function that returns the name of the hook that is calling, "" if none is.

    Attributes:
        results: Latest results of validations and tests, by full name.
        epoch: Window over the current epoch.
        evaluation: Receiver of logged values during a validation or test; None for the buffers of training.
        has_reader: Whether a hook reads means; otherwise only the last loss is stored.
        row: Number of the iteration to which logged values belong; the bus increments it after each iteration.
    """

    def __init__(self, find_caller: Callable[[], str] = str) -> None:
        self.results = Metrics()
        self.has_reader = False
        self._pending_loss: Any = None
        self._warned_unreduced = False
        self.row = 0
        self._buffers: dict[str, MetricBuffer] = {}
        self._buffer_by_logged_name: dict[str, MetricBuffer] = {}
        self._windows: dict[str, Window] = {}
        self._find_caller = find_caller
        # Hooks that have requested a window, by its name; none for a window that a checkpoint contains. The windows of
        # the loop have no entry.
        self._window_owners: dict[str, set[str]] = {}
        self.evaluation: EvaluationMeans | LoggedResults | None = None
        self.epoch = self.window("epoch")

    def __getitem__(self, name: str) -> float:
        full = resolve_metric_name(name, self)
        return self.results[full] if full in self.results.keys() else to_float(self._buffers[full].last())  # noqa: SIM118

    def __contains__(self, name: object) -> bool:
        return name in self._as_names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_names())

    def __len__(self) -> int:
        return len(self._as_names())

    def items(self) -> ItemsView[str, float]:
        """Return the names and the latest values, with one device synchronization."""
        return self.latest().items()

    def values(self) -> ValuesView[float]:
        """Return the latest values, with one device synchronization."""
        return self.latest().values()

    def _as_names(self) -> Metrics:
        """Return the full names of all metrics, without their values."""
        self._log_pending_loss()
        return Metrics(dict.fromkeys([*self._buffers, *self.results], math.nan))

    def window(self, name: str) -> Window:
        """Return the window with this name, which is created on first use.

        The window computes means over the values logged since its last reset. A resumed run restores it from the
        checkpoint. A window that only hooks request is removed with the last of them.
        """
        # The store creates the window "epoch" itself; every other window has a reader.
        self.has_reader = self.has_reader or name != "epoch"
        self._add_window_owner(name)
        if name not in self._windows:
            self._windows[name] = Window(name, self._buffers)
        return self._windows[name]

    def release(self, hook: str) -> None:
        """Remove the windows that only this hook has requested."""
        for name, owners in list(self._window_owners.items()):
            if hook in owners:
                owners.remove(hook)
                if not owners:
                    del self._window_owners[name], self._windows[name]

    def means(self, window: Window) -> Metrics:
        """Return the mean of each metric of a window and the number of its nonfinite values. Syncs with the device."""
        return compute_means([window])[0]

    def rank_means(self, window: Window, ranks: Collectives) -> Metrics:
        """Return the means of a window over all ranks, equal on every rank. A collective call.

        Each iteration of each rank has the same weight. A metric need not be logged on every rank.
        """
        own = compute_sums([window])[0]
        # Sums and counts, not means: ranks may have logged a metric in different numbers of iterations.
        gathered = ranks.all_gather("training means", own)
        names = dict.fromkeys(name for sums in gathered for name in sums)
        totals = {name: functools.reduce(add_sums, [sums[name] for sums in gathered if name in sums]) for name in names}
        return divide_sums(totals)

    def log(self, values: Mapping[str, Any], *, is_running: bool = True) -> None:
        """Log values of the current iteration or validation batch. Does not synchronize with the device.

        Args:
            values: Numbers or tensors with one element, by name; a name without a slash gets the prefix `train/`, and
                in a validation or test every name that of its results.
            is_running: Whether the run is in progress; otherwise the prefixes of training are not checked.

        Raises:
            MetricError: If a value is not a single number, or its name has the prefix of something not in progress.
        """
        for name, value in values.items():
            if not is_scalar(value):
                raise MetricError(_not_a_number_message(name, value))
            if self.evaluation is not None:
                self.evaluation.add(self.evaluation.scope.shorten(name), value)
                continue
            if is_running and name not in self._buffer_by_logged_name:
                check_training_name(name)
            self._append(name, value)

    def log_outputs(self, outputs: Any, loss: Any) -> None:
        """Log the return value of a step: the loss and every number in the outputs.

        Args:
            outputs: Dict, of which the loss and the zero-dimensional values are logged; or the loss itself.
            loss: Loss, if it is passed separately.

        Raises:
            MetricError: If `loss` is not a single number.
        """
        is_dict = isinstance(outputs, dict)
        output_loss = outputs.get("loss") if is_dict else outputs
        # Without a reader, a reference to the loss is stored; copying it would launch a kernel in each iteration.
        if not self.has_reader and self.evaluation is None:
            output_loss = output_loss if loss is None else loss
            self._pending_loss = output_loss.detach() if getattr(output_loss, "requires_grad", False) else output_loss
            return
        append = self._append if self.evaluation is None else self.evaluation.add
        if loss is not None:
            self.log({"loss": loss})
        elif output_loss is not None and is_scalar(output_loss):
            append("loss", output_loss)
        elif is_dict and hasattr(output_loss, "shape"):
            self._warn_unreduced(output_loss)
        for name, value in outputs.items() if is_dict else ():
            if type(name) is str and name != "loss" and _is_number(value):
                append(name, value)

    def latest(self) -> Metrics:
        """Return the latest value of each metric, including validation results. Synchronizes with the device."""
        self._log_pending_loss()
        values = to_floats([buffer.last() for buffer in self._buffers.values()])
        return Metrics(dict(zip(self._buffers, values, strict=True))) | self.results

    def training_values(self) -> dict[str, Any]:
        """Return the latest training values without the prefix `train/`, as numbers or tensors, without a sync."""
        self._log_pending_loss()
        return {name.removeprefix("train/"): buffer.last() for name, buffer in self._buffers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return buffers, windows and results, as built-in Python types and tensors."""
        self._log_pending_loss()
        buffers = {
            name: {"values": buffer.values(), "count": buffer.count, "open": buffer.row == self.row}
            for name, buffer in self._buffers.items()
        }
        windows = {name: window.state_dict() for name, window in sorted(self._windows.items())}
        return {"columns": buffers, "windows": windows, "results": dict(self.results)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`, including windows that have not been requested yet."""
        self.results, self._pending_loss = Metrics(state["results"]), None
        self._buffers.clear()
        self._buffer_by_logged_name.clear()
        for name, buffer in state["columns"].items():
            row = self.row if buffer["open"] else -1
            self._buffers[name] = make_buffer(name, buffer["values"], buffer["count"], row)
        for window in self._windows.values():
            window.reset()
        for name, part in state["windows"].items():
            if name not in self._windows:
                self._window_owners[name], self._windows[name] = set(), Window(name, self._buffers)
            self._windows[name].load_state_dict(part)

    def _warn_unreduced(self, loss: Any) -> None:
        """Log a warning, once per run, for a loss that is not a single number and therefore not logged."""
        if not self._warned_unreduced:
            self._warned_unreduced = True
            logging.getLogger("hookbus").warning(
                "loss: expected a single number in the outputs, got shape %s, which is not logged. Pass its mean or "
                "sum.",
                tuple(loss.shape),
            )

    def _add_window_owner(self, name: str) -> None:
        """Record that a hook requests a window; the loop keeps the window from then on."""
        hook = self._find_caller()
        if not hook:
            self._window_owners.pop(name, None)
        elif name in self._window_owners or name not in self._windows:
            self._window_owners.setdefault(name, set()).add(hook)

    def _log_pending_loss(self) -> None:
        """Log the loss of which only a reference was stored."""
        loss, self._pending_loss = self._pending_loss, None
        if loss is not None and is_scalar(loss):
            self._append("loss", loss)

    def _append(self, name: str, value: Any) -> None:
        buffer = self._buffer_by_logged_name.get(name)
        if buffer is None or (buffer.device is None and hasattr(value, "detach")):
            buffer = self._get_buffer(name, value)
        # A second value in the same iteration replaces the first. A full buffer is summed before it is overwritten.
        if buffer.row == self.row:
            buffer.count -= 1
            for window in self._windows.values():
                window.replace_last(buffer)
        elif buffer.count % CHUNK_SIZE == 0 and buffer.count:
            # Windows that were reset together share a part, whose sum is computed once.
            summed = functools.cache(WindowPart.total)
            for window in self._windows.values():
                window.flush_chunk(buffer, summed)
        buffer.row = self.row
        buffer.append(value)

    def _get_buffer(self, name: str, value: Any) -> MetricBuffer:
        """Return the buffer of a metric; if values now arrive from another device, move it to that device."""
        full = name if "/" in name else f"train/{name}"
        old = self._buffers.get(full)
        if old is None:
            buffer = make_buffer(full, [], 0, -1, like=value)
        elif old.accepts(value):
            buffer = old
        else:
            buffer = make_buffer(full, old.values(), old.count, old.row, like=value)
            self._buffer_by_logged_name = {
                key: cached for key, cached in self._buffer_by_logged_name.items() if cached is not old
            }
        self._buffers[full] = self._buffer_by_logged_name[name] = buffer
        return buffer


def is_scalar(value: Any) -> bool:
    """Return whether a value is a single real number: int, float, bool, or a tensor or array with one element."""
    # First the most frequent value, a tensor without dimensions.
    return getattr(value, "ndim", None) == 0 or _is_number(value) or math.prod(getattr(value, "shape", (0,))) == 1


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or a tensor or array without dimensions."""
    dimensions = getattr(value, "ndim", None)
    return isinstance(value, (int, float)) if dimensions is None else dimensions == 0


def _not_a_number_message(name: str, value: Any) -> str:
    shape = getattr(value, "shape", None)
    description = f"a {type(value).__name__}" if shape is None else f"a value of shape {tuple(shape)}"
    return (
        f"Metric {name!r}: expected a single number, got {description}. Log other data with log_images, log_histograms "
        "or log_text."
    )
