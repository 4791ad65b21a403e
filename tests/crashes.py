"""A process that is killed at a specified file operation, as a test of the files that a kill leaves."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

import torch

# The first backward pass of a process fixes whether its forks can compute gradients, and a test may be run before that
# leaves a device behind which they cannot use.
torch.ones(1, requires_grad=True).sum().backward()

OPERATIONS = ("fsync", "replace", "rename", "link", "unlink", "open")


def kill_at_each_operation(task: Callable[[], object], prepare: Callable[[], object], *, limit: int = 200) -> int:
    """Kill a process before each file operation of a task, and during each write, one after the other.

    Args:
        task: Function that the process executes.
        prepare: Function that is called before each process starts, and once after the last one, which completes the
            task. It can check the files that the previous process left.
        limit: Maximum number of operations, as a guard against a task that does not end.

    Returns:
        Number of killed processes.
    """
    for number in count():
        prepare()
        if not is_killed_at(task, number):
            prepare()
            return number
        assert number < limit, "the task does not end"
    raise AssertionError


def is_killed_at(task: Callable[[], object], at: int) -> bool:
    """Return whether a child that executes a task is killed before its file operation number `at`, from 0."""
    status = run_in_fork(lambda: _run_and_kill(task, at))
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the task failed in the child"
    return False


def run_in_fork(task: Callable[[], object]) -> int:
    """Execute a function in a forked process, and return its wait status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads, which the child does not use
        child = os.fork()
    if child == 0:
        # Otherwise the garbage collector may destroy a process group of the parent, whose threads a fork does not copy.
        gc.freeze()
        try:
            task()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)  # also if printing fails
    return os.waitpid(child, 0)[1]


def _run_and_kill(task: Callable[[], object], at: int) -> None:
    """Execute a task whose process is killed before a file operation."""
    done = iter(range(at))

    def count_operation() -> None:
        if next(done, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in OPERATIONS:
        setattr(os, name, _count_before(count_operation, getattr(os, name)))
    real_open = builtins.open

    def counting_open(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" not in mode:
            return real_open(path, mode, *args, **kwargs)
        count_operation()
        return _HalfWrittenFile(real_open(path, mode, *args, **kwargs), count_operation)

    builtins.open = counting_open  # type: ignore[assignment]
    task()


def _count_before(count_operation: Callable[[], None], operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that calls a function first."""

    def counting_operation(*args: Any, **kwargs: Any) -> Any:
        # Side files are read with `O_RDONLY | O_NONBLOCK`: a kill before a read leaves the files of the write before.
        reads = operation.__name__ == "open" and args[1] & (os.O_NONBLOCK | os.O_ACCMODE) == os.O_NONBLOCK
        if not reads:
            count_operation()
        return operation(*args, **kwargs)

    return counting_operation


class _HalfWrittenFile:
    """File of which half of a write is on the disk when the process is killed."""

    def __init__(self, file: Any, count_operation: Callable[[], None]) -> None:
        self._file, self._count_operation = file, count_operation

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        self._count_operation()
        self._file.write(data[len(data) // 2 :])
        return len(data)

    def __enter__(self) -> _HalfWrittenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._count_operation()
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
