"""Means of what is logged at every iteration, without waiting for the device and without growing.

A column holds the last values of one metric, on the device they came from; a full column is summed into every window
that is still open. Sums are made over fixed pieces of `CHUNK` values, so a mean does not depend on when it was read
nor on whether the run was resumed in between.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CHUNK", "Column", "Part", "Window", "column_of", "exact_sum", "means_of", "to_float", "to_host", "wide"]

CHUNK = 64
"""So many values are kept before they are summed."""

Sums = tuple[Any, int, Any]
"""The sum, how many, how many of them NaN or infinite; the first and the last may be tensors on a device."""

NOTHING: Sums = (0.0, 0, 0)


class Column(ABC):
    """The last values of one metric.

    Attributes:
        name: its full name.
        count: how many values there were in all.
        row: the iteration of the last one; a second value in one iteration replaces the first.
        device: where the values are; None for Python floats.
    """

    device: Any = None

    def __init__(self, name: str, count: int, row: int) -> None:
        self.name, self.count, self.row = name, count, row

    def suits(self, value: Any) -> bool:
        """Whether a value can be put in without waiting for its device."""
        return not hasattr(value, "detach") or value.device == self.device

    @abstractmethod
    def put(self, value: Any) -> None:
        """Keep a value at place `count`, and count it."""

    @abstractmethod
    def sums(self, begin: int, end: int) -> Sums:
        """Sum up the values from `begin` to `end`, places within the chunk, without fetching any."""

    def read(self, begin: int, end: int) -> Sums:
        """The same where the result is fetched at once."""
        return self.sums(begin, end)

    @abstractmethod
    def last(self) -> Any:
        """The newest value."""

    @abstractmethod
    def values(self) -> Any:
        """The values of the chunk in progress, as a list or a tensor."""


class FloatColumn(Column):
    """Values that are on the host already."""

    def __init__(self, name: str, values: Sequence[float], count: int, row: int) -> None:
        super().__init__(name, count, row)
        self._values = [*values, *[0.0] * (CHUNK - len(values))]

    def put(self, value: Any) -> None:
        self._values[self.count % CHUNK] = to_float(value)
        self.count += 1

    def sums(self, begin: int, end: int) -> Sums:
        return _sums_of(self._values[begin:end])

    def last(self) -> float:
        return self._values[(self.count - 1) % CHUNK]

    def values(self) -> list[float]:
        return self._values[: _filled(self.count)]


class TensorColumn(Column):
    """Values that stay on their device: each is copied into a buffer there, since a loop may reuse its tensor."""

    def __init__(self, name: str, values: Any, count: int, row: int, device: Any) -> None:
        import torch

        super().__init__(name, count, row)
        self.device = device
        with torch.inference_mode(False), torch.no_grad():
            self._buffer = torch.zeros(CHUNK, dtype=_widest(device), device=device)
            if len(values):
                self._buffer[: len(values)] = torch.as_tensor(values).to(self._buffer)
            self._places = list(self._buffer.unbind())

    def put(self, value: Any) -> None:
        place = self._places[self.count % CHUNK]
        if hasattr(value, "detach"):
            value = value.detach() if value.requires_grad else value
            place.copy_(value if value.dim() == 0 else value.reshape(()))
        else:
            place.fill_(to_float(value))
        self.count += 1

    def sums(self, begin: int, end: int) -> Sums:
        part = self._buffer[begin:end]
        return part.sum(), end - begin, (~part.isfinite()).sum()

    def read(self, begin: int, end: int) -> Sums:
        if self.device.type != "cpu":
            return self.sums(begin, end)
        return _sums_of(self._buffer[begin:end].tolist())  # one operation of torch costs more than all of this

    def last(self) -> Tensor:
        return self._places[(self.count - 1) % CHUNK]

    def values(self) -> Tensor:
        return self._buffer[: _filled(self.count)].clone()


class Window:
    """The means of what was logged since the last reset. Made by `run.metrics.window(name)`.

    Attributes:
        name: its name.
        recorded_at: the step of its last record, -1 where there is none.
    """

    def __init__(self, name: str, columns: Mapping[str, Column]) -> None:
        self.name = name
        self.recorded_at = -1
        self._columns = columns
        self._begins: dict[str, int] = {}
        self._sums: dict[str, Sums] = {}
        self.reset()

    def __bool__(self) -> bool:
        """Whether anything was logged since the last reset."""
        return any(column.count > self._begins.get(name, 0) for name, column in self._columns.items())

    def parts(self) -> list[Part]:
        """What it holds of each column."""
        return [self._part(column) for column in self._columns.values()]

    def reset(self) -> None:
        """Begin again."""
        self._begins = {name: column.count for name, column in self._columns.items()}
        self._sums = {}

    def chunk_is_full(self, column: Column, summed: Callable[[Part], Sums]) -> None:
        """The values of a column are about to be overwritten: what is summed up of them is kept."""
        self._sums[column.name] = summed(self._part(column))

    def value_is_replaced(self, column: Column) -> None:
        """The last value of a column is about to be put anew: what this window began after is logged once more."""
        if self._begins.get(column.name, 0) > column.count:
            self._begins[column.name] = column.count

    def state_dict(self) -> dict[str, Any]:
        """Sums, beginnings and the last record, as plain values and tensors."""
        sums = {name: list(sums) for name, sums in self._sums.items()}
        return {"begins": dict(self._begins), "sums": sums, "recorded_at": self.recorded_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._begins = dict(state["begins"])
        self._sums = {name: tuple(sums) for name, sums in state["sums"].items()}
        self.recorded_at = state.get("recorded_at", -1)  # the first checkpoints did not tell

    def _part(self, column: Column) -> Part:
        filled = _filled(column.count)
        begin = max(self._begins.get(column.name, 0) - (column.count - filled), 0)
        return Part(column, min(begin, filled), filled, self._sums.get(column.name, NOTHING))


class Part(NamedTuple):
    """What a window holds of a column. Windows that were reset together hold the same.

    Attributes:
        column: the column.
        begin, end: the values within the chunk in progress that belong to it.
        before: the sums of what was logged before these.
    """

    column: Column
    begin: int
    end: int
    before: Sums

    def summed(self) -> Sums:
        """All of it summed up, without fetching any."""
        if self.begin == self.end:
            return self.before
        piece = self.column.sums(self.begin, self.end)
        return piece if self.before is NOTHING else _added(self.before, piece)

    def read(self) -> Sums:
        """The sums of the chunk in progress, as it is read."""
        return self.column.read(self.begin, self.end) if self.begin < self.end else NOTHING


def means_of(windows: Iterable[Window]) -> list[tuple[dict[str, float], dict[str, int]]]:
    """By window, the mean of each value over the iterations that logged it, and how many values were not finite.

    One copy from the device for all; what several windows hold is read once.
    """
    held = [window.parts() for window in windows]
    parts = list(dict.fromkeys(part for each in held for part in each))
    numbers = to_host([number for part in parts for number in (*part.before, *part.read())])
    sums = {part: _added(numbers[6 * i : 6 * i + 3], numbers[6 * i + 3 : 6 * i + 6]) for i, part in enumerate(parts)}
    return [_means({part.column.name: sums[part] for part in each if sums[part][1]}) for each in held]


def _means(sums: Mapping[str, Sums]) -> tuple[dict[str, float], dict[str, int]]:
    means = {name: total / count for name, (total, count, _) in sums.items()}
    return means, {name: int(nonfinite) for name, (_, _, nonfinite) in sums.items()}


def _added(first: Sequence[Any], second: Sequence[Any]) -> Sums:
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]


def column_of(name: str, values: Any, count: int, row: int, *, like: Any = None) -> Column:
    """A column that holds values already.

    Args:
        name: its full name.
        values: those of the chunk in progress, a list of floats or a tensor.
        count: how many there were in all.
        row: the iteration of the last one.
        like: a value of the kind that will be put in; default one of `values`.
    """
    like = values if like is None else like
    if hasattr(like, "detach"):
        return TensorColumn(name, values, count, row, like.device)
    return FloatColumn(name, values, count, row)


def to_float(value: Any) -> float:
    """One Python float from a number, tensor or array with one element; waits for the device."""
    return value if type(value) is float else float(value.item() if hasattr(value, "item") else value)


def to_host(values: Sequence[Any]) -> list[float]:
    """All values as Python floats, with one copy per device."""
    places: dict[Any, list[int]] = {}
    for i, value in enumerate(values):
        if hasattr(value, "detach"):
            places.setdefault(value.device, []).append(i)
    result = [math.nan if hasattr(value, "detach") else float(value) for value in values]
    for indices in places.values():
        import torch

        copied = torch.stack([wide(values[i].detach()) for i in indices]).tolist()
        for i, number in zip(indices, copied, strict=True):
            result[i] = number
    return result


def wide(tensor: Tensor) -> Tensor:
    """In float64, or in float32 on devices that have nothing wider."""
    return tensor.to(_widest(tensor.device))


def exact_sum(values: Sequence[float]) -> float:
    """The sum, rounded once; NaN or infinite where a value is, or where the sum is too large for a float."""
    try:
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    except OverflowError:
        return sum(values)


def _sums_of(values: Sequence[float]) -> Sums:
    return exact_sum(values), len(values), len(values) - sum(map(math.isfinite, values))


def _widest(device: Any) -> Any:
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def _filled(count: int) -> int:
    """How many values of the chunk in progress are there: from 1 to CHUNK, 0 where there was none at all."""
    return (count - 1) % CHUNK + 1 if count else 0
