"""Restriction of a process to what Windows has: missing functions and signals, and refused operations.

Modules of other packages that test `sys.platform` are imported before, because they would use what is missing.
"""

from __future__ import annotations

import enum
import errno
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "curses")
OS_NAMES = [
    "O_CLOEXEC",
    "O_DIRECTORY",
    "O_NOFOLLOW",
    "O_NONBLOCK",
    "fchmod",
    "fchown",
    "fork",
    "forkpty",
    "getegid",
    "geteuid",
    "getgid",
    "getloadavg",
    "getpgid",
    "getpgrp",
    "getuid",
    "killpg",
    "mkfifo",
    "nice",
    "openpty",
    "posix_fallocate",
    "pread",
    "pwrite",
    "register_at_fork",
    "sched_getaffinity",
    "sched_setaffinity",
    "setpgid",
    "setsid",
    "statvfs",
    "sysconf",
    "uname",
    "wait4",
]
SIGNALS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")
SIGNAL_NAMES = [
    "SIG_BLOCK",
    "SIG_SETMASK",
    "SIG_UNBLOCK",
    "alarm",
    "pause",
    "pthread_kill",
    "pthread_sigmask",
    "setitimer",
    "siginterrupt",
    "sigpending",
    "sigtimedwait",
    "sigwait",
    "sigwaitinfo",
]
IMPORTED_BEFORE = ("torch.distributed.checkpoint", "torch.utils.tensorboard", "psutil", "wandb", "mlflow", "matplotlib")


def restrict() -> None:
    """Remove the functions, modules and signals of this process, and refuse the operations."""
    for name in IMPORTED_BEFORE:
        with suppress(ModuleNotFoundError):
            import_module(name)
    sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    kept = {name: int(getattr(signal, name)) for name in SIGNALS}
    delete(signal, *(set(signal.Signals.__members__) - set(SIGNALS)), *SIGNAL_NAMES)
    signal.Signals = enum.IntEnum("Signals", kept)  # type: ignore[misc]
    delete(os, *OS_NAMES)
    delete(socket, "AF_UNIX")
    os.open = refuse_if(os.path.isdir, os.open, count=1)
    for name in ("replace", "rename"):
        setattr(os, name, refuse_if(is_open, getattr(os, name), count=2))
    for name in ("unlink", "remove", "rmdir"):
        setattr(os, name, refuse_if(is_open, getattr(os, name), count=1))


def delete(module: Any, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def refuse_if(condition: Callable[[Any], bool], function: Any, count: int) -> Any:
    """Return a function that refuses paths, the first `count` arguments, for which a condition is true."""

    def call(*args: Any, **options: Any) -> Any:
        for path in args[:count]:
            if condition(path):
                raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return function(*args, **options)

    return call


def is_open(path: Any) -> bool:
    """Return whether this process has opened a file, or a file in a directory."""
    own = os.path.realpath(path)
    with open("/proc/self/maps", encoding="utf-8") as file:
        names = {line.split(maxsplit=5)[-1].rstrip() for line in file}
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            names.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return any(name == own or name.startswith(f"{own}/") for name in names)
