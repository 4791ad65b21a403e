"""Device synchronizations in hooks: operations that wait until a device has computed a value.

With CUDA, PyTorch itself reports them (`torch.cuda.set_sync_debug_mode`). On any other device the calls that read a
tensor on the host are counted, such as `item`, `tolist` and `bool(tensor)`: those that would synchronize with CUDA.
"""

from __future__ import annotations

import linecache
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hookbus._events.call_stack import GENERATED, PACKAGE
from hookbus.testing.spans import Place, Synchronization

CUDA_WARNING = "called a synchronizing CUDA operation"
"""Start of PyTorch's warning about a synchronization."""

READING_FUNCTIONS = frozenset(
    [
        *("item", "tolist", "numpy", "cpu", "nonzero", "equal", "allclose", "is_nonzero", "unique", "masked_select"),
        *("__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__", "__format__", "__contains__"),
    ]
)
"""Functions of tensors whose result on the host depends on values."""

FOREIGN = (str(Path(torch.__file__).parent), str(warnings.__file__), __file__)
"""Start of the files whose functions are not the code of a hook."""


class SynchronizationCounter:
    """Record the synchronizations of hooks.

    `enter` and `exit` enclose each call of a hook; nothing is counted outside of them.

    Args:
        boundary: Code of the function that calls a hook: frames outside of it are not those of the hook.

        events: List to which the synchronizations are appended.
    """

    def __init__(self, boundary: CodeType, events: list[Synchronization]) -> None:
        self._boundary, self._events = boundary, events
        self._calls, self._mode = threading.local(), _ReadingMode(self.count)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context manager in which the warnings of PyTorch are counted instead of shown."""
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message=CUDA_WARNING)
            show = warnings.showwarning

            def count_or_show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
                if not str(message).startswith(CUDA_WARNING):
                    show(message, *args, **kwargs)
                elif self._stack:
                    self.count()

            warnings.showwarning = count_or_show
            yield

    def enter(self, hook: str, point: str) -> None:
        """Begin a call of a hook, possibly within that of another one."""
        stack = self._stack
        stack.append((hook, point))
        if len(stack) == 1:
            self._calls.cuda = _set_cuda_mode("warn")
            if self._calls.cuda is None:
                self._mode.__enter__()  # type: ignore[no-untyped-call]

    def exit(self) -> None:
        """End the innermost call of a hook."""
        self._stack.pop()
        if not self._stack:
            if self._calls.cuda is None:
                self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            else:
                _set_cuda_mode(self._calls.cuda)

    def count(self) -> None:
        """Count a synchronization of the innermost call of a hook."""
        self._events.append(Synchronization(time.perf_counter_ns(), *self._stack[-1], self._find_place()))

    @property
    def _stack(self) -> list[tuple[str, str]]:
        """Calls of hooks on this thread, outermost first."""
        if not hasattr(self._calls, "stack"):
            self._calls.stack = []
        stack: list[tuple[str, str]] = self._calls.stack
        return stack

    def _find_place(self) -> Place:
        """Return the innermost line of the hook; that of hookbus if a function of hookbus itself was called."""
        frames = list(self._iter_frames())
        outside = (frame for frame in frames if not frame.f_code.co_filename.startswith((PACKAGE, GENERATED)))
        frame = next(outside, frames[0] if frames else sys._getframe())
        file, line = frame.f_code.co_filename, frame.f_lineno
        return Place(file, line, linecache.getline(file, line).strip())

    def _iter_frames(self) -> Iterator[FrameType]:
        """Yield the frames of the innermost call of a hook, without those of PyTorch and of this module."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._boundary:
            if not frame.f_code.co_filename.startswith(FOREIGN):
                yield frame
            frame = frame.f_back


class _ReadingMode(TorchFunctionMode):
    """Mode that reports the functions that read tensors on the host."""

    def __init__(self, report: Callable[[], None]) -> None:
        super().__init__()
        self._report = report

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if (
            name in READING_FUNCTIONS
            or (name == "to" and _copies_to_host(args[1:], kwargs))
            or (name == "__getitem__" and _contains_mask(args[1]))
        ):
            self._report()
        return func(*args, **kwargs)


def _copies_to_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether arguments of `Tensor.to` name the CPU and do not copy asynchronously."""
    targets = [*args[:1], kwargs.get("device")]
    to_host = any(isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu" for target in targets)
    return to_host and not kwargs.get("non_blocking", args[2] if len(args) > 2 else False)


def _contains_mask(index: Any) -> bool:
    """Return whether an index contains a boolean tensor, which selects a number of elements that depends on values."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts)


def _set_cuda_mode(mode: int | str) -> int | None:
    """Set the mode in which PyTorch reports synchronizations; return the previous one, None if CUDA is not used."""
    if not torch.cuda.is_initialized():
        return None
    previous = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    return previous
