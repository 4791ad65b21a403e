"""Detection of device reads and file writes while a hook runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from hookbus._events.listeners import applies_frequency
from hookbus._events.markers import hookimpl
from hookbus._events.ordering import Listener
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus.bus import HookBus

ITERATION_UNITS = ("iter", "batch", "step")
"""Units of the points that are emitted in every iteration."""

SYNCHRONIZING_FUNCTIONS = {
    *("item", "tolist", "numpy", "cpu", "equal", "allclose", "is_nonzero"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
    *("__array__", "__bool__", "__complex__", "__contains__", "__float__", "__format__", "__index__", "__int__"),
    "__repr__",
}
"""Tensor functions that return a value to the host and therefore synchronize with the device."""


@contextmanager
def record_device_reads(bus: HookBus) -> Iterator[list[str]]:
    """Context manager that records device reads of listeners that are called at every iteration.

    This includes `train_step`: hooks that wrap it, and PyTorch hooks that they register on the model. Listeners with a
    schedule, a `should_trigger`, or a `frequency` that applies to them are exempt. Reads are also detected on the CPU,
    where they do not block.

    Yields:
        List of reads, extended while the context is open: "after_train_iter: item".
    """
    reads: list[str] = []

    def wrap(listener: Listener) -> Callable[..., Any]:
        call, mode = listener.call, _ReadRecorder(listener.point, reads, recording=_is_recorded(bus, listener))

        def watch(*args: Any, **kwargs: Any) -> None:
            with mode.innermost():
                call(*args, **kwargs)

        return watch

    step = _StepRecorder(_ReadRecorder("train_step", reads))
    bus.register(step, "device_reads", priority=-(10**9))
    try:
        with bus.wrap_listeners(wrap):
            yield reads
    finally:
        bus.unregister(step)


def _is_recorded(bus: HookBus, listener: Listener) -> bool:
    scheduled = listener.schedule is not None or listener.predicate is not None or _has_frequency(bus, listener)
    return not scheduled and bus.points[listener.point].unit in ITERATION_UNITS


def _has_frequency(bus: HookBus, listener: Listener) -> bool:
    """Return whether a `frequency` determines when the listener is called; 1 adds no schedule, but is a choice."""
    plugin = listener.plugin
    if not isinstance(plugin, Hook) or plugin.config.frequency is None:
        return False
    options = bus.pm.members[listener.hook].implementations[listener.point].options
    return applies_frequency(plugin, options, bus.points[listener.point])


class _StepRecorder:
    """Outermost wrapper of the training step."""

    def __init__(self, mode: _ReadRecorder) -> None:
        self._mode = mode

    @hookimpl(wrapper=True, tryfirst=True)
    def train_step(self) -> Generator[None, Any, Any]:
        """Record the reads of the step."""
        with self._mode.innermost():
            return (yield)


class _ReadRecorder(TorchFunctionMode):
    """Record synchronizing functions. Only the innermost of nested modes records.

    Args:
        where: Location for the records.
        reads: List to append the records to.
        recording: False for code that may synchronize.
    """

    def __init__(self, where: str, reads: list[str], recording: bool = True) -> None:
        super().__init__()
        self._where, self._reads, self._recording = where, reads, recording

    @contextmanager
    def innermost(self) -> Iterator[None]:
        """Context manager in which only this mode records."""
        _active_modes.append(self)
        try:
            with self:
                yield
        finally:
            _active_modes.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if self._recording and self is _active_modes[-1] and _synchronizes(name, args, kwargs or {}):
            self._reads.append(f"{self._where}: {name}")
        return func(*args, **(kwargs or {}))


_active_modes: list[_ReadRecorder] = []


def _synchronizes(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a tensor function synchronizes with the device."""
    if name == "to":
        return _copies_to_host(args[1:], kwargs)
    if name == "where":
        return len(args) + len(kwargs) == 1  # `torch.where(condition)`: the shape of the result depends on the data
    if name == "__getitem__":
        # The shape of a result of boolean indexing depends on the data.
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(getattr(index, "dtype", None) == torch.bool for index in indices)
    return name in SYNCHRONIZING_FUNCTIONS


def _copies_to_host(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether `tensor.to(...)` blocks until a copy to the host has finished."""
    return any(str(value) == "cpu" for value in (*args, kwargs.get("device"))) and not kwargs.get("non_blocking")


_recorded_writes: list[set[Path]] = []
"""Sets of recorded paths, one per open context."""


@contextmanager
def record_file_writes() -> Iterator[set[Path]]:
    """Context manager that records the files that this process creates or opens for writing.

    Directories are ignored, because libraries create empty cache directories. Only writes through Python are detected,
    not those of native code such as `torch.save`.

    Yields:
        Set of absolute paths, extended while the context is open.
    """
    _install_audit_hook()
    paths: set[Path] = set()
    _recorded_writes.append(paths)
    try:
        yield paths
    finally:
        _recorded_writes.pop()


@cache
def _install_audit_hook() -> None:
    """Install the audit hook once: `sys.addaudithook` hooks cannot be removed."""
    sys.addaudithook(_record_write)


def _record_write(event: str, args: tuple[Any, ...]) -> None:
    path = _get_written_path(event, args) if _recorded_writes else None
    if isinstance(path, (str, bytes, os.PathLike)):
        for recorded in _recorded_writes:
            recorded.add(Path(os.path.abspath(os.fsdecode(path))))


def _get_written_path(event: str, args: tuple[Any, ...]) -> object:
    """Return the path of a file that an audit event creates or changes, None for other events."""
    if event == "open":
        path, _, flags = args
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return (
            path if writes and not os.path.isdir(path) else None
        )  # `tempfile` opens the directory first, then the file
    if event == "sqlite3.connect":
        return args[0]
    return args[1] if event in ("os.rename", "os.link", "os.symlink") else None
