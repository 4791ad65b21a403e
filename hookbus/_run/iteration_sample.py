"""Sample of consecutive iterations: their time, and that of the hooks in them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from typing import Any

from hookbus._events.instrumentation import time_hooks

TOOLS = "hookbus.testing."
"""Start of the instance names of hooks that measure the run, which are not measured themselves."""

OUTSIDE_POINTS = frozenset(
    {"cleanup"}
    | {f"{side}_{part}" for side in ("before", "after") for part in ("run", "train", "epoch", "train_epoch")}
)
"""Points of which a hook is called within an iteration only if it is registered or unregistered there."""


class IterationSample:
    """Measure the iterations from now on, until `close`, and the hooks in them.

    An iteration lasts from the end of the previous one to its own end. If an epoch has ended or begun in between, or a
    validation or a checkpoint was executed, it lasts from its beginning; it is not measured if the loop does not emit
    `before_train_iter`. The first iteration is not measured either, because the functions of the points are compiled in
    it, and neither is one in which a hook is registered or unregistered.

    Args:
        run: The run.

    Attributes:
        position: Number of iterations that have ended since the first one.
        count: Number of measured iterations.
        total_ns: Time of the measured iterations in nanoseconds.
        hook_ns, longest_ns: Time of each hook in these iterations, and in the one in which it took longest.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._context = ExitStack()
        tools = [name for name in run.bus.hooks if name.startswith(TOOLS)]
        self._timings = self._context.enter_context(time_hooks(run.bus, without=tools))
        self.position, self.count, self.total_ns = -1, 0, 0
        self.hook_ns: Counter[str] = Counter()
        self.longest_ns: dict[str, int] = {}
        self._start: int | None = None
        self._phase = self._get_phase()

    def begin_iter(self) -> None:
        """Begin an iteration; called before the listeners of `before_train_iter`."""
        if (phase := self._get_phase()) != self._phase:
            self._restart(phase, time.perf_counter_ns())

    def end_iter(self) -> None:
        """End an iteration; called after the listeners of `after_train_iter`."""
        now, phase = time.perf_counter_ns(), self._get_phase()
        if self._start is not None and phase == self._phase and not self._has_changed_hooks():
            self._add(now - self._start)
        self.position += 1
        self._restart(phase, now)

    def close(self) -> None:
        """Stop to measure the hooks. Idempotent."""
        self._context.close()

    def _add(self, elapsed: int) -> None:
        self.count += 1
        self.total_ns += elapsed
        times: Counter[str] = Counter()
        for (hook, _), hook_ns in self._timings.items():
            times[hook] += hook_ns
        self.hook_ns.update(times)
        self.longest_ns |= {hook: max(hook_ns, self.longest_ns.get(hook, 0)) for hook, hook_ns in times.items()}

    def _restart(self, phase: Hashable, now: int) -> None:
        self._phase = phase
        self._start = now if self.position >= 0 else None
        self._timings.clear()

    def _get_phase(self) -> Hashable:
        """Return a value that changes when an epoch begins, and when a validation or a checkpoint ends."""
        return self._run.epoch, *(self._run.journal.seconds.get(name) for name in ("validation", "saving"))

    def _has_changed_hooks(self) -> bool:
        return any(point in OUTSIDE_POINTS for _, point in self._timings)


def estimate_times(samples: Sequence[IterationSample]) -> dict[str, float]:
    """Return the time in nanoseconds that each hook takes in all iterations of some samples.

    The iteration in which a hook takes longest is replaced by the mean of the others: a single call of a hook does not
    show how often it is called.
    """
    count = sum(sample.count for sample in samples)
    totals: Counter[str] = Counter()
    longest: defaultdict[str, int] = defaultdict(int)
    for sample in samples:
        totals.update(sample.hook_ns)
        for hook, elapsed in sample.longest_ns.items():
            longest[hook] = max(longest[hook], elapsed)
    return {hook: (total - longest[hook]) * count / (count - 1) for hook, total in totals.items()}
