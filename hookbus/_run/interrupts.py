"""Signals that end a run: at an iteration boundary, with a last checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from hookbus._run.requests import RequestKind, process_requests

if TYPE_CHECKING:
    from hookbus._run.run import Run

SIGCHLD: int | None = getattr(signal, "SIGCHLD", None)


class SignalHandling:
    """Handling of the signals that end a run.

    A signal to the process group may end DataLoader workers that do not ignore it: of an iterator that existed before
    the run, or of a loader that is not a DataLoader. Their loss is a consequence of the signal and not a failure.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._requests: list[Callable[[], object]] = []
        self._previous: Any = None

    def receive(self, request: Callable[[], object]) -> None:
        """Record a signal; called by its handler.

        Args:
            request: Enqueues the requests of this signal, unless they were enqueued before.
        """
        self._requests.append(request)
        if SIGCHLD is not None and self._previous is None and callable(signal.getsignal(SIGCHLD)):
            # torch's handler raises for a lost worker at any line, such as in the middle of an optimizer step
            self._previous = signal.signal(SIGCHLD, self._handle_lost_worker)

    def explains(self, error: Exception, *, in_loader: bool = False) -> bool:
        """Return whether an error is the consequence of a received signal, and enqueue the requests of the signal.

        Always False with multiple ranks: the other ranks train on a batch that this rank cannot read.
        """
        run = self._run
        if not self._requests or run.ranks.world_size > 1 or run.clock.mid_iteration:
            return False
        if not (in_loader or _is_lost_worker(error)):
            return False
        run.logger.warning(
            "A signal ended the workers of a loader, so the run ends after the last iteration: %s", error
        )
        for request in self._requests:
            request()
        return True

    def close(self) -> None:
        """Restore the handler of SIGCHLD."""
        previous, self._previous = self._previous, None
        if SIGCHLD is not None and previous is not None:
            signal.signal(SIGCHLD, previous)

    def _handle_lost_worker(self, number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the next batch of this loader raises it again
            self._previous(number, frame)


def _is_lost_worker(error: Exception) -> bool:
    if isinstance(error, (ConnectionError, EOFError, BrokenExecutor)):
        return True
    return isinstance(error, RuntimeError) and ("DataLoader worker" in str(error) or "Pin memory" in str(error))


@contextmanager
def handle_lost_workers(run: Run, *, in_loader: bool = False) -> Iterator[None]:
    """Process the requests of a received signal if workers that it ended raise an error inside the context."""
    try:
        yield
    except Exception as error:
        if not run.signals.explains(error, in_loader=in_loader):
            raise
        process_requests(run, "after_train_iter")


@contextmanager
def handle_interrupts(run: Run) -> Iterator[None]:
    """End the run at the next iteration boundary on Ctrl-C, with a final checkpoint; a second Ctrl-C ends it at once.

    The signal handler is not replaced if the script has set one, or outside the main thread, where Python does not
    deliver signals.
    """
    # Without a boundary that all ranks reach, Ctrl-C ends this process at once, and thereby the run on all ranks.
    has_boundary = run.ranks.world_size == 1 or run.request_sync.active
    if not has_boundary or not _raises_keyboard_interrupt():
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        # Restored at once: a second Ctrl-C raises KeyboardInterrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run.interrupt()
        run.signals.receive(run.request_sync.admit_interrupt)
        with suppress(RuntimeError):  # reentrant call: the handler may interrupt a write to the same stream
            run.logger.warning("Interrupted: finishing this iteration. Press Ctrl-C again to stop at once.")

    with _handle_ctrl_c(handle):
        yield
    # A Ctrl-C that was received after the last boundary. Other late stop requests are dropped.
    run.request_sync.admit_interrupt()
    late = run.queue.take(RequestKind.STOP)
    run.confirm_stop([request for request in late if request.details["outcome"] == "interrupted"])


@contextmanager
def defer_interrupts() -> Iterator[list[BaseException]]:
    """Defer Ctrl-C inside a short context that must be completed.

    Yields:
        A list to which a KeyboardInterrupt is added for each Ctrl-C.
    """
    received: list[BaseException] = []
    if not _raises_keyboard_interrupt():
        yield received
        return
    with _handle_ctrl_c(lambda _number, _frame: received.append(KeyboardInterrupt())):
        yield received


def _raises_keyboard_interrupt() -> bool:
    """Return whether Ctrl-C raises KeyboardInterrupt here: not in other threads, or if the script has set a handler."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    return is_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def _handle_ctrl_c(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
