"""What does a hook do besides its work? Reads of the device and writes of files, seen while they happen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from hookbus.dispatch.compiling import Listener
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.bus import HookBus

__all__ = ["device_reads", "written_paths"]

OFTEN = ("iter", "batch", "step")
"""Units of the points that are on the path of an iteration."""

READS = {"item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "equal", "allclose", "is_nonzero", "masked_select"}
READS |= {"unique", "unique_consecutive", "bincount"}
READS |= {f"__{name}__" for name in ("array", "bool", "complex", "contains", "float", "format", "index", "int", "repr")}
"""Functions of tensors whose answer is in the memory of the host, so that they wait for everything before them."""


@contextmanager
def device_reads(bus: HookBus) -> Iterator[list[str]]:
    """Watch listeners that are called at every iteration read numbers off the device.

    So is all of `train_step` looked at: hooks that wrap it, and what they have registered on the model. A listener
    with a schedule, or whose hook has a `should_trigger`, has said how often it reads, and is left alone. What is read
    is seen on the CPU as well, where nothing waits.

    Yields:
        A sentence part per read, growing while the context is open: "after_train_iter: item".
    """
    reads: list[str] = []

    def wrap(listener: Listener) -> Callable[..., Any]:
        return _watched(listener.call, _Reads(listener.point, reads, noting=_is_watched(bus, listener)))

    step = _WatchedStep(_Reads("train_step", reads))
    bus.register(step, "device_reads", priority=-(10**9))
    try:
        with bus.wrapped(wrap):
            yield reads
    finally:
        bus.unregister(step)


def _is_watched(bus: HookBus, listener: Listener) -> bool:
    scheduled = listener.schedule is not None or listener.asks is not None
    return not scheduled and bus.points[listener.point].unit in OFTEN


def _watched(call: Callable[..., Any], mode: _Reads) -> Callable[..., Any]:
    def watch(*args: Any, **kwargs: Any) -> None:
        with mode.innermost():
            call(*args, **kwargs)

    return watch


class _WatchedStep:
    """The outermost wrapper of the step."""

    def __init__(self, mode: _Reads) -> None:
        self._mode = mode

    @hookimpl(wrapper=True, tryfirst=True)
    def train_step(self) -> Generator[None, Any, Any]:
        """Notes what is read inside."""
        with self._mode.innermost():
            return (yield)


class _Reads(TorchFunctionMode):
    """Notes the functions that wait; of modes inside each other, the innermost one alone.

    Args:
        where: it is noted.
        reads: the notes.
        noting: False for code that may wait.
    """

    def __init__(self, where: str, reads: list[str], noting: bool = True) -> None:
        super().__init__()
        self._where, self._reads, self._noting = where, reads, noting

    @contextmanager
    def innermost(self) -> Iterator[None]:
        """Only this one notes, of all that are open."""
        _open.append(self)
        try:
            with self:
                yield
        finally:
            _open.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if self._noting and self is _open[-1] and _waits(name, args, kwargs or {}):
            self._reads.append(f"{self._where}: {name}")
        return func(*args, **(kwargs or {}))


_open: list[_Reads] = []


def _waits(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function of tensors waits for the device."""
    if name == "to":
        return _to_host(args[1:], kwargs)
    if name == "where":
        return len(args) + len(kwargs) == 1  # the places, as many as there are
    if name == "__getitem__":
        return any(getattr(each, "dtype", None) == torch.bool for each in _indices(args[1]))
    return name in READS


def _indices(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _to_host(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether `tensor.to(...)` waits for a copy to the host."""
    return any(str(value) == "cpu" for value in (*args, kwargs.get("device"))) and not kwargs.get("non_blocking")


_noting: list[set[Path]] = []
"""What `written_paths` collects, one for each context that is open."""


@contextmanager
def written_paths() -> Iterator[set[Path]]:
    """Watch this process make files, and open files to write.

    Directories are left out: libraries make empty ones for their caches. Seen is what goes through Python; what a
    library writes by itself, as `torch.save` does, has to be looked for.

    Yields:
        Absolute paths, growing while the context is open.
    """
    _install()
    paths: set[Path] = set()
    _noting.append(paths)
    try:
        yield paths
    finally:
        _noting.pop()


def _install() -> None:
    """Ask Python to tell; it can be asked once, and never to stop."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_note)


_installed: list[bool] = []


def _note(event: str, args: tuple[Any, ...]) -> None:
    path = _path_written(event, args) if _noting else None
    if isinstance(path, (str, bytes, os.PathLike)):
        for paths in _noting:
            paths.add(Path(os.path.abspath(os.fsdecode(path))))


def _path_written(event: str, args: tuple[Any, ...]) -> object:
    """The path of a file that an audit event is going to make or change, None for any other event."""
    if event == "open":
        path, _, flags = args
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return path if writes and not os.path.isdir(path) else None  # tempfile tells of the directory, then of the file
    if event == "sqlite3.connect":
        return args[0]
    return args[1] if event in ("os.rename", "os.link", "os.symlink") else None
