"""Where is the run? Counts, the units in which schedules count, and the brackets that are open.

The bus moves the clock from the events it is given, in the Trainer and in a custom loop alike. Counts
(`iters_done`, ...) tell what is complete, from 0; indices (`epoch`, `iter`) tell what is in progress. A count
advances just before its `after_*` event, so at the first `after_train_iter` `iters_done` is 1 and `iter` 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hookbus.lifecycle import Unit

__all__ = ["Clock", "batch_size"]


class Clock:
    """The counts of one run.

    Attributes:
        epochs_done, iters_done, steps_done, samples_done: what is complete.
        epoch, iter: the index, from 0, of the epoch and the iteration in progress or just completed.
        batch: the index, from 0, of the batch within its loader, at validation and test points.
        stepped: whether the iteration in progress, or the last one, has made an optimizer update.
        epoch_complete: whether the epoch reached its end; False while it runs and when it was cut.
        epoch_cut: whether the epoch was left before the end of its loader.
        epoch_first_iter, epoch_first_step, epoch_first_sample: the counts when the epoch began.
        epoch_open: whether an epoch has begun and is not done; a resumed run opens it again.
        max_epochs, max_iters: the limits of the run, None where there are none.
        epoch_length: the number of batches of the training loader, None where it is not known.
        limit_reached: whether the last iteration was the `max_iters`-th.
        counts_iterations: True where no optimizer is known: each iteration counts as one step.
        agreed_seconds: whole seconds on which several processes have agreed; None where this one decides alone.
        counts_seconds: whether a schedule counts seconds, so that each iteration has to look at the time.
        steps_before: the updates that were made before the iteration in progress or just completed.
        seconds_before, seconds_seen: whole seconds when the iteration before it, and this one, looked at the time.
        epoch_seconds_before, epoch_first_second: the same for epochs.
    """

    __slots__ = (
        "_begun",
        "_iter_at_last_step",
        "_seconds",
        "_steps_at_last_iter",
        "_ticking_since",
        "agreed_seconds",
        "batch",
        "batch_samples",
        "counts_iterations",
        "counts_seconds",
        "epoch",
        "epoch_complete",
        "epoch_cut",
        "epoch_first_iter",
        "epoch_first_sample",
        "epoch_first_second",
        "epoch_first_step",
        "epoch_length",
        "epoch_open",
        "epoch_seconds_before",
        "epochs_done",
        "iter",
        "iters_done",
        "limit_reached",
        "max_epochs",
        "max_iters",
        "samples_done",
        "seconds_before",
        "seconds_seen",
        "stepped",
        "steps_before",
        "steps_done",
        "timer",
    )

    SAVED = (
        "epochs_done",
        "iters_done",
        "steps_done",
        "samples_done",
        "epoch_open",
        "epoch_first_iter",
        "epoch_first_step",
        "epoch_first_sample",
        "epoch_first_second",
        "epoch_seconds_before",
        "counts_seconds",
        "seconds_before",
        "seconds_seen",
        "stepped",
        "steps_before",
    )

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.epochs_done = self.iters_done = self.steps_done = self.samples_done = 0
        self.epoch = self.iter = self.batch = self.batch_samples = 0
        self.stepped = self.epoch_complete = self.epoch_cut = self.epoch_open = False
        self.limit_reached = False
        self.epoch_first_iter = self.epoch_first_step = self.epoch_first_sample = self.epoch_first_second = 0
        self.steps_before = self.seconds_before = self.seconds_seen = self.epoch_seconds_before = 0
        self.counts_seconds = False
        self.agreed_seconds: int | None = None
        self.max_epochs: int | None = None
        self.max_iters: int | None = None
        self.epoch_length: int | None = None
        self.counts_iterations = True
        self.timer = timer
        self._seconds = 0.0
        self._ticking_since: float | None = None
        self._steps_at_last_iter = self._iter_at_last_step = 0
        self._begun = False

    # -- moved by the bus ------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """An epoch begins, or one that a resumed run left open goes on."""
        self.epoch = self.epochs_done
        self.epoch_complete = self.epoch_cut = False
        if not self.epoch_open:
            self.epoch_open = True
            self.epoch_first_iter = self.iters_done
            self.epoch_first_step = self.steps_done
            self.epoch_first_sample = self.samples_done
            self.epoch_seconds_before, self.epoch_first_second = self.epoch_first_second, self.whole_seconds

    def end_epoch(self) -> None:
        """The epoch ends; it counts unless it was cut. A second call changes nothing."""
        if self.epoch_open and not self.epoch_cut:
            self.epoch_open = False
            self.epoch_complete = True
            self.epochs_done = self.epoch + 1

    def begin_iter(self, batch: Any) -> None:
        """A micro-batch begins."""
        self.iter = done = self.iters_done
        self.batch = done - self.epoch_first_iter
        self.stepped = False
        self.batch_samples = batch_size(batch)
        self._begun = True
        if self.counts_seconds:
            self._look_at_time()

    def end_iter(self, batch: Any) -> None:
        """A micro-batch is done."""
        if not self._begun:
            self.begin_iter(batch)
        elif not self.batch_samples:
            self.batch_samples = batch_size(batch)
        self._begun = False
        self.iters_done = done = self.iter + 1
        self.samples_done += self.batch_samples
        steps, before = self.steps_done, self._steps_at_last_iter
        if self.counts_iterations:
            self.steps_done = steps = steps + 1
        self.steps_before, self._steps_at_last_iter = before, steps
        self.stepped = steps != before
        if steps != before:
            self._iter_at_last_step = done
        if done == self.max_iters:
            self.limit_reached = True
            self.cut_epoch()

    def cut_epoch(self) -> None:
        """The run ends after this iteration: the epoch is cut, unless this was its last batch."""
        self.epoch_cut = self.epoch_open and self.epoch_iter + 1 != self.epoch_length

    def see_batch(self, batch_idx: int | None, *, opening: bool) -> None:
        """A batch of a validation or test begins or is done."""
        if batch_idx is not None:
            self.batch = batch_idx
        elif opening or not self._begun:
            self.batch += 1
        self._begun = opening

    def count_step(self) -> None:
        """The optimizer has made an update."""
        self.steps_done += 1
        self.stepped = True

    def count_seconds(self) -> None:
        """A schedule counts seconds: those from here on belong to the iterations in which they pass."""
        if not self.counts_seconds:
            self.counts_seconds = True
            self.seconds_before = self.seconds_seen = self.whole_seconds

    def _look_at_time(self) -> None:
        self.seconds_before, self.seconds_seen = self.seconds_seen, self.whole_seconds

    def start(self) -> None:
        """Training time runs from here."""
        if self._ticking_since is None:
            self._ticking_since = self.timer()

    def stop(self) -> None:
        """Training time stands still from here."""
        self._seconds = self.seconds
        self._ticking_since = None

    # -- asked by schedules and hooks ------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before a resume included."""
        running = 0.0 if self._ticking_since is None else self.timer() - self._ticking_since
        return self._seconds + running

    @property
    def whole_seconds(self) -> int:
        """The same as schedules see it: whole seconds, equal in all processes."""
        return int(self.seconds) if self.agreed_seconds is None else self.agreed_seconds

    @property
    def at_limit(self) -> bool:
        """Whether all is done that the run was to do."""
        return self.limit_reached or (self.max_epochs is not None and self.epochs_done >= self.max_epochs)

    @property
    def iters_since_step(self) -> int:
        """Micro-batches since the last update: more than 0 in the middle of an accumulation."""
        return self.iters_done - self._iter_at_last_step

    @property
    def epoch_iter(self) -> int:
        """The index, from 0, of the iteration within its epoch."""
        return self.iter - self.epoch_first_iter

    def number(self, unit: Unit) -> int:
        """The number in progress or just completed, from 1."""
        match unit:
            case "iter":
                return self.iter + 1
            case "batch":
                return self.batch + 1
            case "epoch":
                return self.epoch + 1
            case "step":
                return self.steps_done + (not self.stepped)
            case "sample":
                return self.samples_done
            case "seconds":
                return self.whole_seconds + 1

    def limit(self, unit: Unit) -> int | None:
        """The last number of the run, None where it is not known."""
        if unit == "epoch":
            return self.max_epochs
        if unit != "iter":
            return None
        ends = [end for end in (self.max_iters, self._last_iter_of_epochs()) if end is not None]
        return min(ends, default=None)

    def _last_iter_of_epochs(self) -> int | None:
        if self.max_epochs is None or self.epoch_length is None:
            return None
        first = self.epoch_first_iter if self.epoch_open else self.iters_done
        return first + (self.max_epochs - self.epochs_done) * self.epoch_length

    # -- checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The counts and the training time, as plain values."""
        counts = {name: getattr(self, name) for name in self.SAVED}
        return {**counts, "iter_at_last_step": self._iter_at_last_step, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the clock where a checkpoint was taken."""
        for name in self.SAVED:
            setattr(self, name, state[name])
        self._seconds = state["seconds"]
        self.epoch, self.iter = self.epochs_done, max(self.iters_done - 1, 0)
        self.batch = max(self.epoch_iter, 0)
        self._steps_at_last_iter = self.steps_done
        self._iter_at_last_step = state["iter_at_last_step"]
        self.epoch_complete = self.epoch_cut = self.limit_reached = False


def batch_size(batch: Any) -> int:
    """The number of samples in a batch: the length of the first tensor found in it, 0 for none.

    Args:
        batch: a tensor of shape (N, ...), a tuple, list or mapping with one in it, or a list of N mappings.
    """
    while True:
        if isinstance(batch, (tuple, list)) and batch:
            if isinstance(batch[0], dict):
                return len(batch)
            batch = batch[0]
        elif isinstance(batch, dict) and batch:
            batch = next(iter(batch.values()))
        else:
            shape = getattr(batch, "shape", None)
            return 0 if shape is None else shape[0] if shape else 1
