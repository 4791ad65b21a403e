"""Iterators over DataLoaders: workers that ignore signals which end a run, and sizes and indices of the batches.

A signal to the process group (Ctrl-C in a terminal, `scancel`, the time limit of a SLURM job) reaches the workers, too.
The main process finishes its iteration and saves, so the workers have to keep running until it closes them.

DataLoader requests batches ahead of time, so their indices, or the numbers of them, are queued until a batch arrives.
"""

from __future__ import annotations

import functools
import operator
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, connection, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader, IterableDataset

_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""Workers of this process that ignore signals."""


def init_worker(signals: frozenset[int], user: Callable[[int], None] | None, worker: int) -> None:
    """Ignore signals, then call the user's `worker_init_fn`. DataLoader calls it in the worker process."""
    for number in signals:
        signal.signal(number, _ignore_signal)
    # `iter_loader` has blocked the signals for the start of the worker; from here on they are ignored.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    parent = parent_process()
    # A worker of the fork server: torch 2.x watches the parent process, which is the server, and the server survives
    # the main process.
    if parent is not None and parent.pid != os.getppid():
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()
    if user is not None:
        user(worker)


def iter_loader(loader: Iterable[Any], *, indices: bool = False) -> Iterator[Any]:
    """Return an iterator over a loader, whose workers ignore the signals that the main process handles.

    A signal without a handler ends the main process, so it has to end the workers as well.

    Args:
        loader: The loader. Loaders other than DataLoader are iterated unchanged.
        indices: Whether a `SizedBatches` provides the indices of each batch.
    """
    if not isinstance(loader, DataLoader):
        return iter(loader)
    if loader.num_workers == 0:
        return iter_sized(loader, indices=indices)
    user, earlier = loader.worker_init_fn, set(active_children())
    signals = _handled_signals()
    loader.worker_init_fn = functools.partial(init_worker, signals, user)
    try:
        context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        with _block_signals(signals, context.get_start_method()):
            return iter_sized(loader, indices=indices)
    finally:
        # The workers are started by now; the user's loader must not keep the change.
        loader.worker_init_fn = user
        for worker in set(active_children()) - earlier:
            _register_worker(worker)


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


class SizedBatches:
    """Iterator over the batches of a DataLoader.

    Args:
        batches: Iterator of the loader.
        steps: Queue of the sizes, or of the indices, of the batches that were requested.

    Attributes:
        size: Number of indices that the batch sampler yielded for the last batch; None if it is unknown.
        indices: These indices, if they are integers and were requested.
    """

    def __init__(self, batches: Iterator[Any], steps: deque[int | list[Any] | None]) -> None:
        self._batches, self._steps = batches, steps
        self.size: int | None = None
        self.indices: list[int] | None = None

    def __iter__(self) -> SizedBatches:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        finally:
            # Also after an error: the loader continues with the next batch.
            step = self._steps.popleft() if self._steps else None
            self.size = len(step) if isinstance(step, list) else step
            self.indices = _as_integers(step) if isinstance(step, list) else None


class SizeRecorder:
    """Sampler or batch sampler that records the number of indices of each step, or the indices.

    Args:
        source: The sampler or batch sampler.
        batched: Whether `source` yields batches of indices.
        limit: Maximum number of batches that are requested ahead of time.

    Attributes:
        indices: Whether the next iterator records indices.
        steps: Queue of the last iterator.
    """

    def __init__(self, source: Any, *, batched: bool, limit: int) -> None:
        self._source, self._batched, self._limit = source, batched, limit
        self.indices = False
        self.steps: deque[int | list[Any] | None] | None = None

    def __iter__(self) -> Iterator[Any]:
        # One queue for each iterator: a loader may be read twice at the same time.
        steps: deque[int | list[Any] | None] = deque(maxlen=self._limit)
        self.steps = steps
        return self._record(steps, self.indices)

    def __len__(self) -> int:
        return len(self._source)

    def _record(self, steps: deque[int | list[Any] | None], indices: bool) -> Iterator[Any]:
        for step in self._source:
            if indices and (self._batched or isinstance(step, list)):
                steps.append(list(step))  # a copy: a batch sampler may reuse one list for all batches
            else:
                steps.append(len(step) if self._batched else _count_indices(step))
            yield step


def iter_sized(loader: DataLoader[Any], *, indices: bool = False) -> Iterator[Any]:
    """Return an iterator over a DataLoader, a `SizedBatches` if the order of the batches is that of the batch sampler.

    Args:
        loader: The loader, which is unchanged afterwards.
        indices: Whether the `SizedBatches` provides the indices of each batch.
    """
    if not _is_ordered(loader):
        return iter(loader)
    # DataLoader rejects another sampler after its construction.
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    source = getattr(loader, name)
    recorder = _recorders.setdefault(
        loader,
        SizeRecorder(
            source, batched=name == "batch_sampler", limit=loader.num_workers * (loader.prefetch_factor or 0) + 2
        ),
    )
    recorder.steps, recorder.indices, vars(loader)[name] = None, indices, recorder
    try:
        batches = iter(loader)
    finally:
        vars(loader)[name] = source
    return batches if recorder.steps is None else SizedBatches(batches, recorder.steps)


def _is_ordered(loader: DataLoader[Any]) -> bool:
    """Whether each batch contains the samples of the next step of the sampler."""
    # The last batch of an iterable dataset may be smaller, and a subclass may change batches in its `__iter__`.
    if isinstance(loader.dataset, IterableDataset) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return loader.num_workers == 0 or loader.in_order


def _count_indices(step: Any) -> int | None:
    """Return the number of indices of a step of a sampler without batches: a list, also in the key of a dataset."""
    while isinstance(step, tuple) and step:
        step = step[-1]
    return len(step) if isinstance(step, list) else None


def _as_integers(step: list[Any]) -> list[int] | None:
    """Return the indices of a batch as integers, None if they are keys of another type."""
    try:
        return [operator.index(index) for index in step]
    except TypeError:
        return None


_recorders: weakref.WeakKeyDictionary[Any, SizeRecorder] = weakref.WeakKeyDictionary()
"""Recorder of each loader: the iterator of persistent workers keeps the sampler with which it was created."""
