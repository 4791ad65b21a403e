"""Numbers of a run, kept without ever waiting for the device.

`run.log(loss=loss)` copies a number on its device, no more. Values are summed there, in float64, and copied to the host
together when somebody reads them: a window of the last iterations, the means of an epoch, the results of a validation.

On the board every metric has one full name: `train/loss`, `val/accuracy`, `val/<loader>/accuracy`.
"""

from __future__ import annotations

import functools
import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookbus._imports import nearest
from hookbus.errors import MetricError
from hookbus.windows import CHUNK, Column, Part, Window, column_of, exact_sum, means_of, to_float, to_host, wide

if TYPE_CHECKING:
    from hookbus.ranks import Ranks

__all__ = ["Evaluation", "MetricStore", "Metrics", "Window", "is_scalar", "resolve", "to_float"]


class Metrics(Mapping[str, float]):
    """Read-only results by full name. Looking up `accuracy` finds `val/accuracy` where that is one thing.

    Attributes:
        nonfinite: how many of the values behind a mean were NaN or infinite, by full name, zeros left out.
    """

    __slots__ = ("_values", "nonfinite")

    def __init__(self, values: Mapping[str, float] | None = None, nonfinite: Mapping[str, int] | None = None) -> None:
        self._values = dict(values or {})
        self.nonfinite = {name: count for name, count in (nonfinite or {}).items() if count}

    def __getitem__(self, name: str) -> float:
        return self._values[resolve(name, self._values)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and len(_matches(name, self._values)) == 1

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics({self._values!r})"

    def __or__(self, other: Mapping[str, float]) -> Metrics:
        nonfinite = {**self.nonfinite, **getattr(other, "nonfinite", {})}
        return Metrics({**self._values, **other}, nonfinite)


def resolve(name: str, names: Iterable[str]) -> str:
    """The full name that is meant: `val/accuracy` for `val/accuracy`, `val_accuracy` or `accuracy`.

    Args:
        name: what was written.
        names: the full names there are.

    Raises:
        MetricError: it means nothing, or more than one thing; the message lists what there is.
    """
    known = list(names)
    found = _matches(name, known)
    if len(found) == 1:
        return found[0]
    if found:
        raise MetricError(f"The metric {name!r} can mean {' or '.join(sorted(found))}: write the full name.")
    if not known:
        raise MetricError(f"There is no metric {name!r}. There are no metrics yet.")
    near = nearest(name, (full.rpartition("/")[2] for full in known)) or nearest(name, known)
    raise MetricError(f"There is no metric {name!r}.{near} Available: {', '.join(sorted(known))}.")


def _matches(name: str, names: Iterable[str]) -> list[str]:
    known = list(names)
    if name in known:
        return [name]
    flat = name.replace("/", "_")
    whole = [full for full in known if full.replace("/", "_") == flat]
    return whole or [full for full in known if full.partition("/")[2] == name or full.rpartition("/")[2] == name]


class Evaluation:
    """Means over a validation or test, weighted by the number of samples: sums are kept, never means.

    Attributes:
        weight: the number of samples of the batch in progress.
    """

    def __init__(self) -> None:
        self.weight = 1
        self._totals: dict[str, list[Any]] = {}

    def add(self, name: str, value: Any, weight: float | None = None) -> None:
        """Add a mean over `weight` samples.

        Args:
            name: the name without prefix.
            value: a number or a zero-dimensional tensor; its graph is not kept.
            weight: how many samples it is the mean of; default those of the batch in progress.
        """
        weight = self.weight if weight is None else weight
        value = wide(value.detach()).reshape(()) if hasattr(value, "detach") else to_float(value)
        total = self._totals.setdefault(name, [0.0, 0])
        total[0] = total[0] + value * weight
        total[1] += weight

    def results(self, ranks: Ranks) -> dict[str, float]:
        """The means by name, over the samples of all processes; one copy from the device for all."""
        sums = to_host([total for total, _ in self._totals.values()])
        weights = [weight for _, weight in self._totals.values()]
        own = dict(zip(self._totals, zip(sums, weights, strict=True), strict=True))
        parts = ranks.gather("means of the validation", own)
        return {name: _mean([part[name] for part in parts if name in part]) for name in ChainMap(*reversed(parts))}


class MetricStore:
    """All numbers of a run: a column per metric, windows over them, the latest results.

    Attributes:
        results: what validations and tests have found last, by full name.
        epoch: the window over the epoch in progress.
        watched: whether anybody reads means; otherwise only the last loss is kept.
        row: the number of the iteration to which values belong; the bus counts it up when an iteration is complete.
    """

    def __init__(self) -> None:
        self.results = Metrics()
        self.watched = False
        self._unread: Any = None
        self.row = 0
        self._columns: dict[str, Column] = {}
        self._by_given_name: dict[str, Column] = {}
        self._windows: dict[str, Window] = {}
        self._evaluation: Evaluation | None = None
        self.epoch = self.window("epoch")

    def window(self, name: str) -> Window:
        """The window of this name, made on first use: means over what was logged since its last reset.

        After a resume it goes on where the checkpoint left it.
        """
        self.watched = self.watched or name != "epoch"
        return self._open(name)

    def means(self, window: Window) -> Metrics:
        """The mean of each value of a window, with the count of those that were not finite. Reads the device."""
        return self.means_of([window])[0]

    def means_of(self, windows: Iterable[Window]) -> list[Metrics]:
        """The same for several windows, which are read together."""
        return [Metrics(*found) for found in means_of(windows)]

    def log(self, values: Mapping[str, Any]) -> None:
        """Note values of this iteration, or of this validation batch. Does not wait for the device.

        Args:
            values: numbers or zero-dimensional tensors by name; a name without slash gets the prefix `train/`.

        Raises:
            MetricError: a value is not a single number.
        """
        for name, value in values.items():
            if not is_scalar(value):
                raise MetricError(_not_single(name, value))
            if self._evaluation is None:
                self._put(name, value)
            else:
                self._evaluation.add(name, value)

    def note(self, outputs: Any, loss: Any) -> None:
        """Note what a step returned: the loss, and every number among the outputs.

        Args:
            outputs: a mapping, of which the loss and what has no dimension counts; or the loss itself.
            loss: the loss, where it is given apart.

        Raises:
            MetricError: the loss that is given apart is not a single number.
        """
        named = isinstance(outputs, dict)
        inner = outputs.get("loss") if named else outputs
        if not self.watched and self._evaluation is None:
            inner = inner if loss is None else loss
            self._unread = inner.detach() if getattr(inner, "requires_grad", False) else inner
            return
        put = self._put if self._evaluation is None else self._evaluation.add
        if loss is not None:
            self.log({"loss": loss})
        elif inner is not None and is_scalar(inner):
            put("loss", inner)
        for name, value in outputs.items() if named else ():
            if type(name) is str and name != "loss" and _is_number(value):
                put(name, value)

    def latest(self) -> Metrics:
        """The newest value of each metric, results of validations included. Reads the device."""
        self._read_last()
        values = to_host([column.last() for column in self._columns.values()])
        return Metrics(dict(zip(self._columns, values, strict=True))) | self.results

    def evaluate(self, evaluation: Evaluation | None) -> None:
        """Send what is logged into an evaluation (None: back into the columns of training)."""
        self._evaluation = evaluation

    def state_dict(self) -> dict[str, Any]:
        """Columns, windows and results, as plain values and tensors."""
        self._read_last()
        columns = {
            name: {"values": column.values(), "count": column.count, "open": column.row == self.row}
            for name, column in self._columns.items()
        }
        windows = {name: window.state_dict() for name, window in sorted(self._windows.items())}
        return {"columns": columns, "windows": windows, "results": dict(self.results)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Windows that nobody has asked for yet go on as well."""
        self.results, self._unread = Metrics(state["results"]), None
        self._columns.clear()
        self._by_given_name.clear()
        for name, column in state["columns"].items():
            row = self.row if column["open"] else -1
            self._columns[name] = column_of(name, column["values"], column["count"], row)
        for window in self._windows.values():
            window.reset()
        for name, part in state["windows"].items():
            self._open(name).load_state_dict(part)

    def _open(self, name: str) -> Window:
        if name not in self._windows:
            self._windows[name] = Window(name, self._columns)
        return self._windows[name]

    def _read_last(self) -> None:
        """Take in the loss that was only kept because nobody was watching."""
        loss, self._unread = self._unread, None
        if loss is not None and is_scalar(loss):
            self._put("loss", loss)

    def _put(self, name: str, value: Any) -> None:
        column = self._by_given_name.get(name)
        if column is None or (column.device is None and hasattr(value, "detach")):
            column = self._column(name, value)
        if column.row == self.row:
            column.count -= 1
            for window in self._windows.values():
                window.value_is_replaced(column)
        elif column.count % CHUNK == 0 and column.count:
            summed = functools.cache(Part.summed)
            for window in self._windows.values():
                window.chunk_is_full(column, summed)
        column.row = self.row
        column.put(value)

    def _column(self, name: str, value: Any) -> Column:
        """The column of a metric; values that come from a device from now on get one on that device."""
        full = name if "/" in name else f"train/{name}"
        old = self._columns.get(full)
        if old is None:
            column = column_of(full, [], 0, -1, like=value)
        elif old.suits(value):
            column = old
        else:
            column = column_of(full, old.values(), old.count, old.row, like=value)
            self._by_given_name = {given: each for given, each in self._by_given_name.items() if each is not old}
        self._columns[full] = self._by_given_name[name] = column
        return column


def _mean(parts: Sequence[tuple[float, float]]) -> float:
    """The mean of parts, each a sum and its weight; NaN where nothing weighs."""
    weight = sum(weight for _, weight in parts)
    return exact_sum([total for total, _ in parts]) / weight if weight else math.nan


def is_scalar(value: Any) -> bool:
    """Whether a value is a single real number: int, float, bool, or a tensor or array with one element."""
    return _is_number(value) or math.prod(getattr(value, "shape", (0,))) == 1


def _is_number(value: Any) -> bool:
    """The same, but for tensors and arrays that have dimensions."""
    dimensions = getattr(value, "ndim", None)
    return isinstance(value, (int, float)) if dimensions is None else dimensions == 0


def _not_single(name: str, value: Any) -> str:
    shape = getattr(value, "shape", None)
    what = f"is {type(value).__name__}" if shape is None else f"has shape {tuple(shape)}"
    return (
        f"The metric {name!r} {what}; run.log takes single numbers. Record other things with log_images, "
        "log_histograms or log_text."
    )
