"""Start DataLoader workers that ignore the signals which end a run.

A signal to the process group (Ctrl-C in a terminal, `scancel`, the time limit of a SLURM job) reaches the workers, too.
The main process finishes its iteration and saves, so the workers have to keep running until it closes them.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, connection, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader

from hookbus.data.sized_batches import iter_sized

_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""Workers of this process that ignore signals."""


class SignalIgnoringInit:
    """A `worker_init_fn` that ignores signals and then calls the user's.

    Args:
        signals: The signals to ignore.
        user: The user's `worker_init_fn`, or None.
    """

    def __init__(self, signals: frozenset[int], user: Callable[[int], None] | None) -> None:
        self._signals, self._user = signals, user

    def __call__(self, worker: int) -> None:
        """Ignore the signals, then initialize the worker. DataLoader calls it in the worker process."""
        for number in self._signals:
            signal.signal(number, _ignore_signal)
        # `iter_loader` has blocked the signals for the start of the worker; from here on they are ignored.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        parent = parent_process()
        # A worker of the fork server: torch 2.x watches the parent process, which is the server, and the server
        # survives the main process.
        if parent is not None and parent.pid != os.getppid():
            threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()
        if self._user is not None:
            self._user(worker)


def iter_loader(loader: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over a loader, whose workers ignore the signals that the main process handles.

    A signal without a handler ends the main process, so it has to end the workers as well.

    Args:
        loader: The loader. Loaders other than DataLoader are iterated unchanged.
    """
    if not isinstance(loader, DataLoader):
        return iter(loader)
    if loader.num_workers == 0:
        return iter_sized(loader)
    user, earlier = loader.worker_init_fn, set(active_children())
    signals = _handled_signals()
    loader.worker_init_fn = SignalIgnoringInit(signals, user)
    try:
        with _block_signals(signals, _get_start_method(loader)):
            return iter_sized(loader)
    finally:
        # The workers are started by now; the user's loader must not keep the change.
        loader.worker_init_fn = user
        for worker in set(active_children()) - earlier:
            _register_worker(worker)


def _get_start_method(loader: DataLoader[Any]) -> str:
    context = loader.multiprocessing_context or torch.multiprocessing.get_context()
    return str(context.get_start_method())


def _register_worker(worker: BaseProcess) -> None:
    """Let `terminate()` kill a worker, since it ignores SIGTERM, and kill it at exit."""
    reference = weakref.ref(worker)  # a worker that referred to itself would not be freed by reference counting

    def kill() -> None:
        if (process := reference()) is not None:
            process.kill()

    worker.terminate = kill  # type: ignore[method-assign]
    _workers.add(worker)
    _kill_workers_at_exit(os.getpid())


def _handled_signals() -> frozenset[int]:
    # Not SIGCHLD: torch handles it in the main process, and in a worker it concerns the worker's own child processes.
    return frozenset(
        number
        for number in signal.valid_signals()
        if number != getattr(signal, "SIGCHLD", None) and callable(signal.getsignal(number))
    )


@contextmanager
def _block_signals(signals: frozenset[int], method: str) -> Iterator[None]:
    """Block signals, so that workers inherit the mask and survive a signal that arrives before their start is complete.

    Workers of the fork server inherit the mask of the server, which has to stay as it is for other processes.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    if method != "fork":
        # The resource tracker of multiprocessing handles SIGINT and SIGTERM only, so it has to inherit the mask. Its
        # start unblocks these two (CPython).
        resource_tracker.ensure_running()
    blocked = signals if method != "forkserver" else frozenset[int]()
    signal.pthread_sigmask(signal.SIG_SETMASK, earlier | blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Unlike SIG_IGN, a handler is not inherited by programs that the worker starts."""


def _exit_with_parent(parent: int) -> None:
    connection.wait([parent])
    os._exit(1)


@functools.cache
def _kill_workers_at_exit(_pid: int) -> None:
    """Kill the workers of a process that are running when it exits.

    The exit function of multiprocessing would send SIGTERM, which they ignore, and join them forever. It calls
    finalizers first, unlike `atexit` also in processes that multiprocessing has started.
    """
    Finalize(None, _kill_workers, exitpriority=0)


def _kill_workers() -> None:
    workers = _workers.intersection(active_children())
    # torch's handler of SIGCHLD raises RuntimeError for a killed worker.
    if workers and hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in workers:
        worker.kill()
