"""Thread that samples at an interval.

Usable without hookbus.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Sampler:
    """Daemon thread that calls a function at once and then at an interval until stopped.

    Args:
        sample: Function to call.
        interval: Seconds between the end of a call and the next one.
        name: Name of the thread.
        warn: Function that logs a warning: the first failed call, or a thread that does not end.
    """

    def __init__(self, sample: Callable[[], None], interval: float, *, name: str, warn: Callable[[str], None]) -> None:
        self._sample, self._interval, self._log_warning = sample, interval, warn
        self._stop_event = threading.Event()
        self._failed = False
        # A daemon, so that a call blocked in a driver does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop the thread; may be called more than once.

        Args:
            timeout: Maximum number of seconds to wait for a call in progress.

        Returns:
            True if the thread has ended; False if a call is still in progress. The thread then ends after the call.
        """
        self._stop_event.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._log_warning(
                f"a sample is still in progress after {timeout:g} s. Its thread ends when the sample returns."
            )
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop_event.is_set():
            self._sample_once()
            self._stop_event.wait(self._interval)

    def _sample_once(self) -> None:
        """Call the function; report only the first failure."""
        try:
            self._sample()
        except Exception as error:
            if not self._failed:
                self._failed = True
                self._log_warning(f"a sample failed: {type(error).__name__}: {error}. Sampling continues.")
