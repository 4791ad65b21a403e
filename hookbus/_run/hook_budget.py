"""Budget of the hooks: a warning if they take more than a share of the iterations.

Samples of consecutive iterations are measured. In all other iterations the functions of the points are those of a run
without a budget, and one comparison at the end of an iteration finds the start of the next sample. The statements are
in `hookbus._run.point_effects`: they enclose the listeners of every hook, in either order of a bus.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from hookbus._run.iteration_sample import IterationSample, estimate_times
from hookbus._utils.numbers import format_ns, format_quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM_UP_ITERATIONS = 10
"""Number of iterations before the first one that is measured."""

SAMPLE_ITERATIONS = 50
"""Number of consecutive iterations of a sample."""

MIN_ITERATIONS = 10
"""Minimum number of measured iterations of a sample; with fewer, it is discarded."""

# A prime number: hooks with a round interval are in some of the samples, instead of in all or in none.
SAMPLE_INTERVAL = 1039
"""Number of iterations between the starts of two samples."""

MAX_SAMPLES = 20
"""Maximum number of last samples that are considered together."""

MIN_SHARE = 0.0005
"""Minimum share of an iteration of a hook that the warning lists, which is 0.1% when rounded."""

MAX_LISTED = 5
"""Maximum number of hooks that the warning lists."""


def check_hook_budget(value: object) -> str:
    """Return the error message of an invalid budget, "" for a valid one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None or (is_number and 0 < value < 1):  # type: ignore[operator]
        return ""
    return f"hook_budget: should be a share between 0 and 1, got {value!r}. Pass 0.05 for 5 %."


class HookBudget:
    """Warn once if the hooks of this process take more than a share of the iterations of a run.

    Args:
        run: Run whose iterations are measured.
        share: Share of the time of an iteration, with the time in which the loop waits for data.

    Attributes:
        next: Number of completed iterations at which the next sample starts.
    """

    def __init__(self, run: Any, share: float) -> None:
        self._run, self._share = run, share
        self._sample: IterationSample | None = None
        self._samples: deque[IterationSample] = deque(maxlen=MAX_SAMPLES)
        self._first_epoch = run.epochs_done
        self._has_started = self._is_unmeasurable = False
        self.next = 0

    @property
    def is_sampling(self) -> bool:
        """Whether a sample is in progress, in which the points call `begin_iter` and `end_iter`."""
        return self._sample is not None

    def start(self) -> None:
        """Start a sample at the end of an iteration. The first call determines the end of the warm-up."""
        done = self._run.iters_done
        if not self._has_started:
            # The trainer that executes the loop may have restored the counts as late as before this iteration. The
            # first iteration of a sample is not measured.
            self._has_started, self.next = True, done + WARM_UP_ITERATIONS - 2
        if done >= self.next:
            self.next = done + SAMPLE_INTERVAL
            self._sample = IterationSample(self._run)

    def begin_iter(self) -> None:
        """Begin an iteration of the sample."""
        if self._sample is not None:
            self._sample.begin_iter()

    def end_iter(self) -> None:
        """End an iteration of the sample, and the sample after its last one."""
        if self._sample is not None:
            self._sample.end_iter()
            if self._sample.position == SAMPLE_ITERATIONS:
                self._check_sample(self._end_sample())

    def close(self) -> None:
        """End a sample in progress at the end of the run, and warn if no iteration could be measured."""
        sample = self._end_sample()
        if self._run.exception is not None:
            return
        self._check_sample(sample)
        # A loop without events of iterations; not a run that was complete when it was resumed.
        is_unseen = not self._has_started and not self._run.resumed and self._run.epochs_done > self._first_epoch
        if is_unseen or (self._is_unmeasurable and not self._samples):
            self._run.logger.warning(
                "hook_budget: no iteration could be measured. Emit before_train_iter and after_train_iter in each "
                "iteration."
            )

    def _end_sample(self) -> IterationSample | None:
        sample, self._sample = self._sample, None
        if sample is not None:
            sample.close()
        return sample

    def _check_sample(self, sample: IterationSample | None) -> None:
        """Warn if the hooks exceed their share in a sample, or in the last samples together."""
        if sample is None:
            return
        if sample.count < MIN_ITERATIONS:
            self._is_unmeasurable = self._is_unmeasurable or sample.position == SAMPLE_ITERATIONS
            return
        self._samples.append(sample)
        for samples in ([sample], list(self._samples)):
            total = sum(sample.total_ns for sample in samples)
            times = estimate_times(samples)
            if sum(times.values()) > self._share * total:
                self.next = sys.maxsize
                self._run.logger.warning("%s", self._format_warning(samples, total, times))
                return

    def _format_warning(self, samples: Sequence[IterationSample], total: int, times: dict[str, float]) -> str:
        count = sum(sample.count for sample in samples)
        ranked = sorted(
            ((name, ns) for name, ns in times.items() if ns >= MIN_SHARE * total), key=lambda item: -item[1]
        )
        listed = [f"{name} {ns / total:.1%} ({format_ns(ns / count)})" for name, ns in ranked[:MAX_LISTED]]
        if omitted := ranked[MAX_LISTED:]:
            listed.append(f"and {format_quantity(len(omitted), 'other')}")
        return (
            f"hook_budget: the hooks take {sum(times.values()) / total:.1%} of an iteration, more than "
            f"{self._share:.1%}: {', '.join(listed)}. Measured: {format_quantity(count, 'iteration')} up to "
            f"{self._run.iters_done:,}, {format_ns(total / count)} each. Increase the intervals of these "
            "hooks or remove them; `hookbus trace` shows their calls."
        )
