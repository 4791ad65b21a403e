"""One thread that samples at an interval.

Usable without hookbus.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Sampler"]


class Sampler:
    """Calls a function at once and then at an interval, in a daemon thread, until it is stopped.

    Args:
        sample: what is called.
        interval: seconds from the end of one call to the next.
        name: of the thread.
        say: takes a sentence for people: the first failure, and that the thread did not end.
    """

    def __init__(self, sample: Callable[[], None], interval: float, *, name: str, say: Callable[[str], None]) -> None:
        self._sample, self._interval, self._say = sample, interval, say
        self._is_over = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """End the thread. May be called twice.

        Args:
            timeout: how many seconds to wait for a sample that is being taken.

        Returns:
            Whether the thread is gone. If not, a sample hangs; the thread ends with it, and keeps no process alive.
        """
        self._is_over.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._say(f"a sample has taken longer than {timeout:g} s; its thread ends when it comes back.")
        return not self._thread.is_alive()

    def _work(self) -> None:
        while not self._is_over.is_set():
            self._sample_once()
            self._is_over.wait(self._interval)

    def _sample_once(self) -> None:
        """A failure costs this sample only, and is told once."""
        try:
            self._sample()
        except Exception as error:
            if not self._failed:
                self._failed = True
                self._say(f"a sample failed ({type(error).__name__}: {error}); others are still taken.")
