"""Means of values logged in every iteration, without device synchronization and with constant memory.

A buffer contains the last values of one metric, on the device of the values. A full buffer is summed into every window.
Sums are computed over fixed chunks of `CHUNK_SIZE` values, so that a mean is bitwise identical regardless of when it is
read and of whether the run was resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hookbus.metrics.results import Metrics

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_SIZE = 64
"""Number of values that are stored before they are summed."""

Sums = tuple[Any, int, Any]
"""Sum, number of values, and number of NaN or infinite values; the first and the last may be tensors on a device."""

ZERO_SUMS: Sums = (0.0, 0, 0)


class MetricBuffer:
    """Buffer of the last values of one metric, on the host.

    Attributes:
        name: Full name of the metric.
        count: Total number of values.
        row: Iteration of the last value; a second value in the same iteration replaces the first.
        device: Device of the values; None for Python floats.
    """

    device: Any = None

    def __init__(self, name: str, values: Sequence[float], count: int, row: int) -> None:
        self.name, self.count, self.row = name, count, row
        self._elements: list[Any] = [*values, *[0.0] * (CHUNK_SIZE - len(values))]

    def accepts(self, value: Any) -> bool:
        """Return whether a value can be appended without synchronizing with its device."""
        return not hasattr(value, "detach") or value.device == self.device

    def append(self, value: Any) -> None:
        """Store a value at index `count` and increment `count`."""
        self._elements[self.count % CHUNK_SIZE] = to_float(value)
        self.count += 1

    def sums(self, begin: int, end: int) -> Sums:
        """Return the sums of the values from index `begin` to `end` of the chunk, without copying to the host."""
        return _get_sums(self._elements[begin:end])

    def read(self, begin: int, end: int) -> Sums:
        """Return the same sums for a caller that copies them to the host immediately."""
        return self.sums(begin, end)

    def last(self) -> Any:
        """Return the latest value."""
        return self._elements[(self.count - 1) % CHUNK_SIZE]

    def values(self) -> Any:
        """Return the values of the current chunk, as a list or a tensor."""
        return self._elements[: _count_in_chunk(self.count)]


class _TensorBuffer(MetricBuffer):
    """Buffer of values on a device. Values are copied, since a loop may modify its tensor in place."""

    def __init__(self, name: str, values: Any, count: int, row: int, device: Any) -> None:
        import torch

        super().__init__(name, (), count, row)
        self.device = device
        # A tensor created in inference mode could not be modified in place outside it.
        with torch.inference_mode(False), torch.no_grad():
            self._buffer = torch.zeros(CHUNK_SIZE, dtype=_get_widest_dtype(device), device=device)
            if len(values):
                self._buffer[: len(values)] = torch.as_tensor(values).to(self._buffer)
            # Views of the elements, created once: indexing would create a view in each iteration.
            self._elements = list(self._buffer.unbind())

    def append(self, value: Any) -> None:
        element = self._elements[self.count % CHUNK_SIZE]
        if hasattr(value, "detach"):
            value = value.detach() if value.requires_grad else value
            element.copy_(value if value.dim() == 0 else value.reshape(()))
        else:
            element.fill_(to_float(value))
        self.count += 1

    def sums(self, begin: int, end: int) -> Sums:
        values = self._buffer[begin:end]
        return values.sum(), end - begin, (~values.isfinite()).sum()

    def read(self, begin: int, end: int) -> Sums:
        if self.device.type != "cpu":
            return self.sums(begin, end)
        # On the CPU, summing up to 64 Python floats takes less time than one torch operation.
        return _get_sums(self._buffer[begin:end].tolist())

    def values(self) -> Tensor:
        return self._buffer[: _count_in_chunk(self.count)].clone()


class Window:
    """Means of the values logged since the last reset. Created by `run.metrics.window(name)`.

    Attributes:
        name: Name of the window.
        last_logged_step: Step at which its means were last logged; -1 if they were never logged.
    """

    def __init__(self, name: str, buffers: Mapping[str, MetricBuffer]) -> None:
        self.name = name
        self.last_logged_step = -1
        self._buffers = buffers
        self._start_counts: dict[str, int] = {}
        self._sums: dict[str, Sums] = {}
        self.reset()

    def __bool__(self) -> bool:
        """Return whether a value was logged since the last reset."""
        return any(buffer.count > self._start_counts.get(name, 0) for name, buffer in self._buffers.items())

    def __len__(self) -> int:
        """Return the maximum number of values of a metric that were logged since the last reset."""
        return max((buffer.count - self._start_counts.get(n, 0) for n, buffer in self._buffers.items()), default=0)

    def parts(self) -> list[WindowPart]:
        """Return the part of each buffer that belongs to this window."""
        return [self._get_part(buffer) for buffer in self._buffers.values()]

    def reset(self) -> None:
        """Discard all values; the next logged value is the first one of the window."""
        self._start_counts = {name: buffer.count for name, buffer in self._buffers.items()}
        self._sums = {}

    def flush_chunk(self, buffer: MetricBuffer, compute_sums: Callable[[WindowPart], Sums]) -> None:
        """Store the sums of a full buffer, whose values are overwritten next.

        Args:
            buffer: Full buffer.
            compute_sums: Computes the sums of a part, with a cache that the windows share.
        """
        self._sums[buffer.name] = compute_sums(self._get_part(buffer))

    def replace_last(self, buffer: MetricBuffer) -> None:
        """Prepare for a value that replaces the last one of a buffer, whose `count` was decremented."""
        # A window that was reset after the replaced value includes the new one.
        if self._start_counts.get(buffer.name, 0) > buffer.count:
            self._start_counts[buffer.name] = buffer.count

    def state_dict(self) -> dict[str, Any]:
        """Return sums, start indices and the step of the last record, as built-in Python types and tensors."""
        sums = {name: list(sums) for name, sums in self._sums.items()}
        return {"begins": dict(self._start_counts), "sums": sums, "recorded_at": self.last_logged_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._start_counts = dict(state["begins"])
        self._sums = {name: tuple(sums) for name, sums in state["sums"].items()}
        # Checkpoints of the first versions do not contain this key.
        self.last_logged_step = state.get("recorded_at", -1)

    def _get_part(self, buffer: MetricBuffer) -> WindowPart:
        filled = _count_in_chunk(buffer.count)
        # Converts a total count into an index of the chunk. A window that was reset in an earlier chunk starts at 0.
        begin = max(self._start_counts.get(buffer.name, 0) - (buffer.count - filled), 0)
        return WindowPart(buffer, min(begin, filled), filled, self._sums.get(buffer.name, ZERO_SUMS))


class WindowPart(NamedTuple):
    """Part of a buffer that belongs to a window. Parts of windows that were reset together are equal.

    Attributes:
        buffer: Buffer of the metric.
        begin, end: Range of indices within the current chunk.
        earlier: Sums of the values of earlier chunks.
    """

    buffer: MetricBuffer
    begin: int
    end: int
    earlier: Sums

    def total(self) -> Sums:
        """Return the sums over all chunks, without copying to the host."""
        if self.begin == self.end:
            return self.earlier
        sums = self.buffer.sums(self.begin, self.end)
        return sums if self.earlier is ZERO_SUMS else add_sums(self.earlier, sums)

    def read_chunk(self) -> Sums:
        """Return the sums of the current chunk, for a caller that copies them to the host immediately."""
        return self.buffer.read(self.begin, self.end) if self.begin < self.end else ZERO_SUMS


def compute_means(windows: Iterable[Window]) -> list[Metrics]:
    """Return the mean of each metric of each window, and the number of its nonfinite values.

    A mean is computed over the iterations that logged the metric. All windows are read with one copy from each device.
    """
    return [divide_sums(sums) for sums in compute_sums(windows)]


def compute_sums(windows: Iterable[Window]) -> list[dict[str, Sums]]:
    """Return the sums of each metric of each window as Python numbers, with one copy from each device."""
    parts_by_window = [window.parts() for window in windows]
    # Equal parts of different windows are read once.
    parts = list(dict.fromkeys(part for window_parts in parts_by_window for part in window_parts))
    # Six numbers per part. The sums of earlier chunks and of the current chunk are added on the host.
    numbers = to_floats([number for part in parts for number in (*part.earlier, *part.read_chunk())])
    sums = {part: add_sums(numbers[6 * i : 6 * i + 3], numbers[6 * i + 3 : 6 * i + 6]) for i, part in enumerate(parts)}
    return [
        {part.buffer.name: sums[part] for part in window_parts if sums[part][1]} for window_parts in parts_by_window
    ]


def divide_sums(sums: Mapping[str, Sums]) -> Metrics:
    """Return the means of sums, and the number of nonfinite values."""
    means = {name: total / count for name, (total, count, _) in sums.items()}
    return Metrics(means, {name: int(nonfinite) for name, (_, _, nonfinite) in sums.items()})


def add_sums(first: Sequence[Any], second: Sequence[Any]) -> Sums:
    """Return the sums of two parts."""
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]


def make_buffer(name: str, values: Any, count: int, row: int, *, like: Any = None) -> MetricBuffer:
    """Create a buffer with initial values.

    Args:
        name: Full name of the metric.
        values: Values of the current chunk, as a list of floats or a tensor.
        count: Total number of values.
        row: Iteration of the last value.
        like: Value that determines the type and device of the buffer. Default: `values`.
    """
    like = values if like is None else like
    if hasattr(like, "detach"):
        return _TensorBuffer(name, values, count, row, like.device)
    return MetricBuffer(name, values, count, row)


def to_float(value: Any) -> float:
    """Return a Python float from a number, tensor or array with one element. Synchronizes with the device."""
    return value if type(value) is float else float(value.item() if hasattr(value, "item") else value)


def to_floats(values: Sequence[Any]) -> list[float]:
    """Return all values as Python floats, with one copy from each device."""
    indices_by_device: dict[Any, list[int]] = {}
    for i, value in enumerate(values):
        if hasattr(value, "detach"):
            indices_by_device.setdefault(value.device, []).append(i)
    result = [math.nan if hasattr(value, "detach") else float(value) for value in values]
    for indices in indices_by_device.values():
        import torch

        numbers = torch.stack([to_widest_float(values[i].detach()) for i in indices]).tolist()
        for i, number in zip(indices, numbers, strict=True):
            result[i] = number
    return result


def to_widest_float(tensor: Tensor) -> Tensor:
    """Convert a tensor to float64, or to float32 on devices that do not support float64."""
    return tensor.to(_get_widest_dtype(tensor.device))


def exact_sum(values: Sequence[float]) -> float:
    """Return the sum with a single rounding; NaN or infinite if a value is, or if the sum overflows."""
    try:
        # `fsum` raises a ValueError for inf - inf and an OverflowError for a sum beyond the float range.
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    except OverflowError:
        return sum(values)


def _get_sums(values: Sequence[float]) -> Sums:
    return exact_sum(values), len(values), len(values) - sum(map(math.isfinite, values))


def _get_widest_dtype(device: Any) -> Any:
    import torch

    # MPS does not support float64.
    return torch.float32 if device.type == "mps" else torch.float64


def _count_in_chunk(count: int) -> int:
    """Return the number of values in the current chunk: 1 to CHUNK_SIZE, or 0 before the first value."""
    return (count - 1) % CHUNK_SIZE + 1 if count else 0
