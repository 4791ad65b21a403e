"""Situations in which ranks of other projects have parted ways, of three ranks here: the same everywhere, and right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SITUATIONS = '''
    import math
    import sys

    import toys
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from hookbus import Hook, HookBus
    from hookbus.state import read_checkpoint
    from hookbus_checkpoint import CheckpointHook
    from hookbus_early_stopping import EarlyStoppingHook
    from hookbus_ema import EMAHook
    from hookbus_sync import SyncNormHook

    def scored(scores, hooks, epochs=8, **settings):
        """A loop that validates after each epoch, with these results on this rank."""
        results = iter(scores)
        bus = HookBus(hooks)
        with bus.run(model=nn.Linear(1, 1), epochs=epochs, validate=lambda: next(results), **settings) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("after_train_iter")
                run.validate()
                bus.emit("after_train_epoch")
        return [run.epochs_done, run.outcome]

    def accuracies(*values):
        return [{"acc": value} for value in values]

    def stopper(patience):
        return EarlyStoppingHook(monitor="acc", mode="max", patience=patience)

    def scores_of(main, others):
        return scored(main if RANK == 0 else others, [stopper(2)])

    def patience_goes_on():
        def part(scores, epochs, resume):
            hooks = [stopper(3), CheckpointHook(save_best=False)]
            return scored(accuracies(*scores), hooks, epochs, work_dir=f"{HERE}/patience", resume=resume)

        return [part((0.5, 0.4, 0.3), 3, "never"), part((0.2, 0.1, 0.0), 6, "auto")]

    class Steps(Hook):
        def __init__(self):
            super().__init__()
            self.seen = []

        def after_train_iter(self, run):
            self.seen.append(run.steps_done)

    class StopOfOne(Hook):
        def after_train_iter(self, run):
            if RANK == 2 and run.iters_done == 3:
                run.request_stop("enough")

    def odd(name, *hooks, **settings):
        """Five iterations per epoch, two per update."""
        data, place = toys.loader(8, 120), f"{HERE}/{name}"
        every = [EMAHook(momentum=0.5), CheckpointHook(save_best=False), *hooks]
        return toys.trainer(train_loader=data, accumulate=2, work_dir=place, hooks=every, **settings)

    def counts():
        steps, ema = Steps(), EMAHook(momentum=0.5)
        toys.trainer(train_loader=toys.loader(8, 120), accumulate=2, hooks=[steps, ema]).fit()
        return [steps.seen, ema.average.steps]

    def middle_of_an_update():
        whole = odd("whole")
        whole.fit()
        cut = odd("cut", StopOfOne()).fit()
        rest = odd("cut", resume="auto")
        return [cut.iters_done, rest.fit().steps_done, toys.numbers(rest.model) == toys.numbers(whole.model)]

    def keys_of_a_wrapped_model():
        wrapped = DistributedDataParallel(nn.Linear(4, 2).double())
        saving = CheckpointHook(save_best=False)
        trainer = toys.trainer(wrapped, epochs=1, work_dir=f"{HERE}/wrapped", hooks=[saving])
        trainer.fit()
        bare = nn.Linear(4, 2).double()
        bare.load_state_dict(read_checkpoint(f"{HERE}/wrapped/checkpoints/last.pth")["state_dict"])
        return toys.numbers(bare) == toys.numbers(trainer.model)

    def norms(layer):
        model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2)).double()
        return toys.trainer(model, epochs=1, hooks=[SyncNormHook()]).fit().outcome

    def best_of_two_runs():
        def best():
            saving = CheckpointHook(best_metric="loss")
            run = toys.trainer(epochs=1, work_dir=f"{HERE}/best", val_loader=toys.loader(), hooks=[saving]).fit()
            path = run.best["val/loss"].path
            return [str(path.relative_to(HERE)), path.exists()]

        return [best(), best()]

    HERE = sys.argv[1]
    rising, falling = accuracies(*(i / 10 for i in range(8))), accuracies(*(1 - i / 10 for i in range(8)))
    sick = accuracies(0.1, math.nan, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    answer({
        "main rises": scores_of(rising, falling),
        "main falls": scores_of(falling, rising),
        "main alone has a score": scores_of(falling, [{}] * 8),
        "NaN on the main rank": scores_of(sick, rising),
        "NaN on another rank": scores_of(rising, sick),
        "patience": patience_goes_on(),
        "counts": counts(),
        "middle of an update": middle_of_an_update(),
        "keys": keys_of_a_wrapped_model(),
        "no norm": norms(nn.Identity()),
        "a norm without statistics": norms(nn.BatchNorm1d(4, track_running_stats=False)),
        "a norm of plain means": norms(nn.BatchNorm1d(4, momentum=None)),
        "best": best_of_two_runs(),
    })
'''

EXPECTED: dict[str, Any] = {
    "main rises": [8, "finished"],
    "main falls": [3, "stopped"],
    "main alone has a score": [3, "stopped"],
    "NaN on the main rank": [2, "stopped"],
    "NaN on another rank": [8, "finished"],
    "patience": [[3, "finished"], [4, "stopped"]],
    "counts": [[0, 1, 1, 2, 2, 3, 3, 4, 4, 5], 5],
    "middle of an update": [3, 5, True],
    "keys": True,
    "no norm": "finished",
    "a norm without statistics": "finished",
    "a norm of plain means": "finished",
    "best": [["best/checkpoints/best_loss.pth", True], ["best-2/checkpoints/best_loss.pth", True]],
}


def test_three_ranks_decide_alike_and_rightly(launch: Launch, tmp_path: Path) -> None:
    done = launch(SITUATIONS, str(tmp_path), ranks=3, limit=100)

    assert done.answers == dict.fromkeys(range(3), EXPECTED)
