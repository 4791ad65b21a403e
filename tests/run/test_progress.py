"""Progress of a run, as hooks read it."""

from __future__ import annotations

from typing import Any

import torch

from hookbus import HookBus
from hookbus._run.run import Run


def iterate(bus: HookBus, *batches: Any) -> None:
    for batch in batches:
        bus.emit("before_train_iter", batch=batch)
        bus.emit("after_train_iter", batch=batch)


def test_counts_are_of_completed_work_and_indices_of_work_in_progress() -> None:
    bus, seen = HookBus(), []

    def record_counts(run: Run) -> None:
        counts = (run.epochs_done, run.iters_done, run.steps_done, run.samples_done)
        seen.append((*counts, run.epoch, run.iter, run.stepped))

    for point in ("before_train_iter", "after_train_iter", "after_train_epoch"):
        bus.on(point, name=point)(record_counts)
    with bus.run(epochs=2) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            iterate(bus, torch.zeros(3, 1))
            bus.emit("after_train_epoch")
    assert seen == [
        (0, 0, 0, 0, 0, 0, False),
        (0, 1, 1, 3, 0, 0, True),
        (1, 1, 1, 3, 0, 0, True),
        (1, 1, 1, 3, 1, 1, False),
        (1, 2, 2, 6, 1, 1, True),
        (2, 2, 2, 6, 1, 1, True),
    ]


def test_limits_are_the_arguments_of_the_run() -> None:
    with HookBus().run(epochs=3) as run:
        assert (run.max_epochs, run.max_iters) == (3, None)
    with HookBus().run(iterations=7) as run:
        assert (run.max_epochs, run.max_iters) == (None, 7)


def test_epoch_is_complete_at_its_end_unless_a_stop_truncates_it() -> None:
    bus, seen = HookBus(), []
    bus.on("before_epoch", name="before")(lambda run: seen.append(run.epoch_complete))
    bus.on("after_train_epoch", name="after")(lambda run: seen.append(run.epoch_complete))
    with bus.run(iterations=3) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for _ in run.batches([1, 2]):
                iterate(bus, 1)
            bus.emit("after_train_epoch")
    assert seen == [False, True, False, False]
