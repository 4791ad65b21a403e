"""Start DataLoader workers that ignore the signals which end a run.

A signal to the process group (Ctrl-C in a terminal, `scancel`, the time limit of a SLURM job) reaches the workers, too.
The main process finishes its iteration and saves, so the workers have to keep running until it closes them.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, connection, context, parent_process, resource_tracker
from types import FrameType
from typing import Any

import torch.multiprocessing  # registers the exit function of multiprocessing, which has to run after `_kill_workers`
from torch.utils.data import DataLoader

__all__ = ["SignalProofStart", "read"]


class SpawnWorker(context.SpawnProcess):
    """A spawned worker that `terminate()` kills, since it ignores SIGTERM."""

    terminate = context.SpawnProcess.kill


class SpawnWorkers(context.SpawnContext):
    """The context of spawned workers."""

    Process = SpawnWorker


CONTEXTS: dict[str, context.BaseContext] = {"spawn": SpawnWorkers()}
KINDS: tuple[type[Any], ...] = (SpawnWorker,)

if sys.platform != "win32":

    class ForkWorker(context.ForkProcess):
        """A forked worker that `terminate()` kills, since it ignores SIGTERM."""

        terminate = context.ForkProcess.kill

    class ForkWorkers(context.ForkContext):
        """The context of forked workers."""

        Process = ForkWorker

    class ForkServerWorker(context.ForkServerProcess):
        """A worker of the fork server that `terminate()` kills, since it ignores SIGTERM."""

        terminate = context.ForkServerProcess.kill

    class ForkServerWorkers(context.ForkServerContext):
        """The context of workers of the fork server."""

        Process = ForkServerWorker

    CONTEXTS |= {"fork": ForkWorkers(), "forkserver": ForkServerWorkers()}
    KINDS += (ForkWorker, ForkServerWorker)

STANDARD = tuple({context.DefaultContext, *(type(each).__mro__[1] for each in CONTEXTS.values())})
"""The context types of multiprocessing."""


class SignalProofStart:
    """A `worker_init_fn` that ignores signals before it calls the one of the user.

    Args:
        signals: The signals to ignore.
        user: The user's `worker_init_fn`, or None.
    """

    def __init__(self, signals: frozenset[int], user: Callable[[int], None] | None) -> None:
        self._signals, self._user = signals, user

    def __call__(self, worker: int) -> None:
        """Ignore the signals, then initialize the worker."""
        for number in self._signals:
            signal.signal(number, _ignore)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        parent = parent_process()
        if parent is not None and parent.pid != os.getppid():  # of the fork server, which torch watches instead
            threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()
        if self._user is not None:
            self._user(worker)


def read(loader: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over a loader.

    The workers of a DataLoader that are started here ignore each signal for which the main process has a handler. A
    signal without handler ends the main process, and has to end its workers.

    Args:
        loader: The loader. With a custom multiprocessing context, its workers ignore SIGINT alone: they have to end on
            `terminate()`. The workers of a loader that is no DataLoader are not changed.
    """
    if not isinstance(loader, DataLoader) or loader.num_workers == 0:
        return iter(loader)
    given, user = loader.multiprocessing_context, loader.worker_init_fn
    signals, method = _handled_signals(), (given or torch.multiprocessing.get_context()).get_start_method()
    if given is None or type(given) in STANDARD:
        loader.multiprocessing_context = CONTEXTS[method]
    else:
        signals &= {signal.SIGINT}
    loader.worker_init_fn = SignalProofStart(signals, user)
    try:
        with _blocked(signals, method):
            return iter(loader)
    finally:
        loader.multiprocessing_context, loader.worker_init_fn = given, user


def _handled_signals() -> frozenset[int]:
    # SIGCHLD is about the workers' own child processes
    return frozenset(
        number
        for number in signal.valid_signals()
        if number != getattr(signal, "SIGCHLD", None) and callable(signal.getsignal(number))
    )


@contextmanager
def _blocked(signals: frozenset[int], method: str) -> Iterator[None]:
    """Block signals, so that workers inherit the mask and survive a signal that arrives before their start is complete.

    Workers of the fork server inherit the mask of the server, which has to stay as it is for other processes.
    """
    if method == "forkserver" or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if method == "spawn":
        resource_tracker.ensure_running()  # starting it later would unblock SIGINT and SIGTERM
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Unlike SIG_IGN, a handler is not inherited by programs that the worker starts."""


def _exit_after(parent: int) -> None:
    connection.wait([parent])
    os._exit(1)


def _kill_workers(process: int) -> None:
    """Kill the workers that are still running at exit: multiprocessing would send SIGTERM and wait for them forever."""
    if os.getpid() != process:
        return
    workers = [each for each in active_children() if isinstance(each, KINDS)]
    if workers and hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for a killed worker
    for worker in workers:
        worker.kill()


atexit.register(_kill_workers, os.getpid())
