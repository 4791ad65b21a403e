"""One cycle of the torch profiler. Only one profiler can be active per process.

Usable without hookbus.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile


def is_profiling() -> bool:
    """Return whether a torch profiler is active in this process, including one that waits or warms up.

    Takes about ten milliseconds.
    """
    # A second profiler would take over the data of the first one; one that records while another warms up causes a
    # segmentation fault (torch 2.13). torch reports only recording profilers, so all `profile` objects are inspected.
    return bool(torch._C._autograd._profiler_enabled()) or any(map(_is_active_profiler, gc.get_referrers(profile)))


def _is_active_profiler(referrer: object) -> bool:
    """Return whether an object is a started profiler with a schedule."""
    return type(referrer) is profile and referrer.step_rec_fn is not None


class Cycle:
    """Warm-up and recording of one profiler cycle, started on construction.

    Args:
        warmup: Number of warm-up iterations.
        active: Number of recorded iterations.
        options: Keyword arguments of `torch.profiler.profile`.

    Attributes:
        profile: The torch profiler.
    """

    def __init__(self, warmup: int, active: int, **options: Any) -> None:
        self._warmup, self._length, self._done = warmup, warmup + active, 0
        self._stopped = False
        self.profile = profile(schedule=self._action, **options)
        self.profile.start()

    @property
    def is_complete(self) -> bool:
        """Whether all iterations of the cycle are completed."""
        return self._done >= self._length

    @property
    def recorded_iterations(self) -> int:
        """Number of recorded iterations."""
        return max(self._done - self._warmup, 0)

    def step(self) -> None:
        """Advance the profiler after an iteration."""
        self._done += 1
        self.profile.step()

    def stop(self) -> None:
        """Stop the profiler; a no-op if it is stopped."""
        if not self._stopped:
            self._stopped = True
            self.profile.stop()

    def _action(self, step: int) -> ProfilerAction:
        if step < self._warmup:
            return ProfilerAction.WARMUP
        if step >= self._length:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < self._length - 1 else ProfilerAction.RECORD_AND_SAVE
