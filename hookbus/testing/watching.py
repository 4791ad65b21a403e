"""What does a hook do besides its work? Reads of the device and writes of files, seen while they happen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from hookbus.dispatch.compiling import Listener

if TYPE_CHECKING:
    from hookbus.bus import HookBus

__all__ = ["device_reads", "written_paths"]

OFTEN = ("iter", "batch", "step")
"""Units of the points that are on the path of an iteration."""

READS = {"item", "tolist", "numpy", "cpu", "nonzero", "equal", "allclose", "is_nonzero", "masked_select", "unique"}
READS |= {f"__{name}__" for name in ("array", "bool", "complex", "contains", "float", "format", "index", "int", "repr")}
"""Functions of tensors whose answer is in the memory of the host, so that they wait for everything before them."""


@contextmanager
def device_reads(bus: HookBus) -> Iterator[list[str]]:
    """Watch listeners that are called at every iteration read numbers off the device.

    A listener with a schedule, or whose hook has a `should_trigger`, has said how often it does so, and is left alone.
    What is read is seen on the CPU as well, where nothing waits.

    Yields:
        A sentence part per read, growing while the context is open: "after_train_iter: item".
    """
    reads: list[str] = []

    def wrap(listener: Listener) -> Callable[..., Any]:
        scheduled = listener.schedule is not None or listener.asks is not None
        if scheduled or bus.points[listener.point].unit not in OFTEN:
            return listener.call
        call, noting = listener.call, _Reads(listener.point, reads)

        def watch(*args: Any, **kwargs: Any) -> None:
            with noting:
                call(*args, **kwargs)

        return watch

    with bus.wrapped(wrap):
        yield reads


class _Reads(TorchFunctionMode):
    """Notes the functions that wait."""

    def __init__(self, point: str, reads: list[str]) -> None:
        super().__init__()
        self._point, self._reads = point, reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS or (name == "to" and _to_host(args[1:], kwargs or {})):
            self._reads.append(f"{self._point}: {name}")
        return func(*args, **(kwargs or {}))


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
