"""One cycle of the torch profiler, of which there can be only one at a time in a process.

Usable without hookbus.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile

__all__ = ["Cycle", "is_profiling"]


def is_profiling() -> bool:
    """Whether a profiler is on in this process, also one whose schedule waits or warms up.

    A second one would take the first one's data away; one that records while another warms up ends the process with a
    segmentation fault (torch 2.13). Torch itself only knows of those that record, so this looks through all objects,
    which takes some ten milliseconds.
    """
    return bool(torch._C._autograd._profiler_enabled()) or any(map(_is_on, gc.get_referrers(profile)))


def _is_on(thing: object) -> bool:
    """Whether it is a profiler with a schedule, between its start and its stop."""
    return type(thing) is profile and thing.step_rec_fn is not None


class Cycle:
    """Some iterations to warm up, some that are recorded. It is on from the beginning; `stop` ends it at any time.

    Args:
        warmup, active: how many iterations.
        options: for `torch.profiler.profile`.

    Attributes:
        profile: the torch profiler.
    """

    def __init__(self, warmup: int, active: int, **options: Any) -> None:
        self._warmup, self._length, self._done = warmup, warmup + active, 0
        self._stopped = False
        self.profile = profile(schedule=self._action, **options)
        self.profile.start()

    @property
    def is_complete(self) -> bool:
        """Whether all of its iterations are done."""
        return self._done >= self._length

    @property
    def recorded(self) -> int:
        """How many iterations were recorded."""
        return max(self._done - self._warmup, 0)

    def step(self) -> None:
        """An iteration is done."""
        self._done += 1
        self.profile.step()

    def stop(self) -> None:
        """Switch the profiler off. May be called twice."""
        if not self._stopped:
            self._stopped = True
            self.profile.stop()

    def _action(self, step: int) -> ProfilerAction:
        if step < self._warmup:
            return ProfilerAction.WARMUP
        if step >= self._length:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < self._length - 1 else ProfilerAction.RECORD_AND_SAVE
