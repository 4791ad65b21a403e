"""A process that dies at a chosen file operation: what then lies on the disk is what a kill leaves there."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

OPERATIONS = ("fsync", "replace", "rename", "link", "unlink", "open")


def deaths(task: Callable[[], object], prepare: Callable[[], object], *, most: int = 200) -> int:
    """Let a process die before each file operation of a task and in the middle of each write, one after the other.

    Args:
        task: what the process does.
        prepare: called before each process is started; and once more in the end, when the last one has not died.
        most: a guard against a task that never gets to its end.

    Yields through `prepare`, so what a death has left is looked at there. Returns how many deaths there were.
    """
    for number in count():
        prepare()
        if not dies(task, number):
            prepare()
            return number
        assert number < most, "the task does not end"
    raise AssertionError


def dies(task: Callable[[], object], at: int) -> bool:
    """Whether a child that does the task is killed before its file operation number `at`, counted from 0."""
    status = in_child(lambda: _mortal(task, at))
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the task failed in the child"
    return False


def in_child(task: Callable[[], object]) -> int:
    """Do something in a forked process; the wait status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which the child does not use
        child = os.fork()
    if child == 0:
        try:
            task()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)  # even where nothing can be printed
    return os.waitpid(child, 0)[1]


def _mortal(task: Callable[[], object], at: int) -> None:
    done = iter(range(at))

    def live() -> None:
        if next(done, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in OPERATIONS:
        setattr(os, name, _after(live, getattr(os, name)))
    real_open = builtins.open

    def mortal_open(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" not in mode:
            return real_open(path, mode, *args, **kwargs)
        live()
        return _MortalFile(real_open(path, mode, *args, **kwargs), live)

    builtins.open = mortal_open  # type: ignore[assignment]
    task()


def _after(live: Callable[[], None], operation: Callable[..., Any]) -> Callable[..., Any]:
    def mortal(*args: Any, **kwargs: Any) -> Any:
        live()
        return operation(*args, **kwargs)

    return mortal


class _MortalFile:
    """A file of whose writes half is on the disk when the process dies."""

    def __init__(self, file: Any, live: Callable[[], None]) -> None:
        self._file, self._live = file, live

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        self._live()
        self._file.write(data[len(data) // 2 :])
        return len(data)

    def __enter__(self) -> _MortalFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._live()
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
