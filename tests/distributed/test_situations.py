"""Decisions and results that must be equal on all ranks, with three ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCENARIOS = '''
    import math
    import sys

    import toys
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from hookbus import Hook, HookBus
    from hookbus.checkpoint.state import read_checkpoint
    from hookbus_checkpoint import CheckpointHook
    from hookbus_early_stopping import EarlyStoppingHook
    from hookbus_ema import EMAHook
    from hookbus_sync import SyncNormHook

    def run_custom_loop(metrics, hooks, epochs=8, **settings):
        """Run a loop that validates after each epoch; `metrics` are the results of this rank."""
        results = iter(metrics)
        bus = HookBus(hooks)
        with bus.run(model=nn.Linear(1, 1), epochs=epochs, validate=lambda: next(results), **settings) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("after_train_iter")
                run.validate()
                bus.emit("after_train_epoch")
        return [run.epochs_done, run.outcome]

    def to_results(*values):
        return [{"acc": value} for value in values]

    def early_stopping(patience):
        return EarlyStoppingHook(monitor="acc", mode="max", patience=patience)

    def stop_early(main, others):
        return run_custom_loop(main if RANK == 0 else others, [early_stopping(2)])

    def stop_on_training_loss():
        """The loss falls on rank 0, and its mean over the ranks rises."""
        bus = HookBus([EarlyStoppingHook(monitor="train/loss", patience=2)])
        with bus.run(model=nn.Linear(1, 1), epochs=8) as run:
            for epoch in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("after_train_iter", loss=9.0 - epoch if RANK == 0 else 1.0 + epoch)
                bus.emit("after_train_epoch")
        return [run.epochs_done, run.outcome]

    def resume_patience():
        def train(values, epochs, resume):
            hooks = [early_stopping(3), CheckpointHook(save_best=False)]
            return run_custom_loop(to_results(*values), hooks, epochs, work_dir=f"{HERE}/patience", resume=resume)

        return [train((0.5, 0.4, 0.3), 3, "never"), train((0.2, 0.1, 0.0), 6, "auto")]

    class RecordSteps(Hook):
        def __init__(self):
            super().__init__()
            self.steps = []

        def after_train_iter(self, run):
            self.steps.append(run.steps_done)

    class StopOnRank2(Hook):
        def after_train_iter(self, run):
            if RANK == 2 and run.iters_done == 3:
                run.request_stop("enough")

    def build_trainer(name, *hooks, **settings):
        """Return a trainer with five iterations per epoch, accumulated in pairs."""
        loader, work_dir = toys.loader(8, 120), f"{HERE}/{name}"
        hooks = [EMAHook(momentum=0.5), CheckpointHook(save_best=False), *hooks]
        return toys.trainer(train_loader=loader, accumulate=2, work_dir=work_dir, hooks=hooks, **settings)

    def count_steps():
        recorder, ema = RecordSteps(), EMAHook(momentum=0.5)
        toys.trainer(train_loader=toys.loader(8, 120), accumulate=2, hooks=[recorder, ema]).fit()
        return [recorder.steps, ema.average.steps]

    def resume_in_accumulation():
        full = build_trainer("full")
        full.fit()
        stopped = build_trainer("stopped", StopOnRank2()).fit()
        resumed = build_trainer("stopped", resume="auto")
        run = resumed.fit()
        # Not bitwise: DDP changes its buckets after its first iteration, and thus the order of sums of three ranks.
        pairs = zip(toys.flat_weights(resumed.model), toys.flat_weights(full.model), strict=True)
        return [stopped.iters_done, run.steps_done, all(abs(own - other) < 1e-12 for own, other in pairs)]

    def load_into_unwrapped_model():
        wrapped = DistributedDataParallel(nn.Linear(4, 2).double())
        checkpoint_hook = CheckpointHook(save_best=False)
        trainer = toys.trainer(wrapped, epochs=1, work_dir=f"{HERE}/wrapped", hooks=[checkpoint_hook])
        trainer.fit()
        unwrapped = nn.Linear(4, 2).double()
        unwrapped.load_state_dict(read_checkpoint(f"{HERE}/wrapped/checkpoints/last.pth")["state_dict"])
        return toys.flat_weights(unwrapped) == toys.flat_weights(trainer.model)

    def train_with_norm(layer):
        model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2)).double()
        return toys.trainer(model, epochs=1, hooks=[SyncNormHook()]).fit().outcome

    def train_twice():
        def train():
            checkpoint_hook = CheckpointHook(best_metric="loss")
            settings = {"epochs": 1, "work_dir": f"{HERE}/best", "val_loader": toys.loader()}
            run = toys.trainer(hooks=[checkpoint_hook], **settings).fit()
            path = run.best["val/loss"].path
            return [str(path.relative_to(HERE)), path.exists()]

        return [train(), train()]

    HERE = sys.argv[1]
    rising, falling = to_results(*(i / 10 for i in range(8))), to_results(*(1 - i / 10 for i in range(8)))
    with_nan = to_results(0.1, math.nan, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    report({
        "rank 0 improves": stop_early(rising, falling),
        "rank 0 degrades": stop_early(falling, rising),
        "only rank 0 has a metric": stop_early(falling, [{}] * 8),
        "NaN on rank 0": stop_early(with_nan, rising),
        "NaN on another rank": stop_early(rising, with_nan),
        "mean of the training loss": stop_on_training_loss(),
        "patience": resume_patience(),
        "counts": count_steps(),
        "resume in an accumulation": resume_in_accumulation(),
        "keys": load_into_unwrapped_model(),
        "no norm layer": train_with_norm(nn.Identity()),
        "norm without running statistics": train_with_norm(nn.BatchNorm1d(4, track_running_stats=False)),
        "norm with cumulative averages": train_with_norm(nn.BatchNorm1d(4, momentum=None)),
        "best": train_twice(),
    })
'''

EXPECTED: dict[str, Any] = {
    "rank 0 improves": [8, "finished"],
    "rank 0 degrades": [3, "stopped"],
    "only rank 0 has a metric": [3, "stopped"],
    "NaN on rank 0": [2, "stopped"],
    "NaN on another rank": [8, "finished"],
    "mean of the training loss": [3, "stopped"],
    "patience": [[3, "finished"], [4, "stopped"]],
    "counts": [[0, 1, 1, 2, 2, 3, 3, 4, 4, 5], 5],
    "resume in an accumulation": [3, 5, True],
    "keys": True,
    "no norm layer": "finished",
    "norm without running statistics": "finished",
    "norm with cumulative averages": "finished",
    "best": [["best/checkpoints/best_loss.pth", True], ["best-2/checkpoints/best_loss.pth", True]],
}


def test_results_are_identical_and_correct_on_three_ranks(launch: Launch, tmp_path: Path) -> None:
    completed = launch(SCENARIOS, str(tmp_path), ranks=3, time_limit=100)

    assert completed.reports == dict.fromkeys(range(3), EXPECTED)
