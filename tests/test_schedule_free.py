"""Files of a training with a schedule-free optimizer contain the weights to evaluate, and resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from schedulefree import SGDScheduleFree
from torch import nn
from torch.nn import functional

from hookbus._run.run import Run
from hookbus.checkpoint.state import read_checkpoint
from hookbus.hook import Hook
from hookbus.trainer.trainer import Trainer
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook


class Recipe(Hook):
    """Switch the modes of the optimizer around saves, as the documentation of the package describes."""

    def before_save_checkpoint(self, run: Run) -> None:
        run.optimizer.eval()  # type: ignore[union-attr]

    def after_save_checkpoint(self, run: Run) -> None:
        run.optimizer.train()  # type: ignore[union-attr]


def train(epochs: int, *hooks: Hook, work_dir: Path | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    trainer = Trainer(
        model=model,
        optimizer=SGDScheduleFree(model.parameters(), lr=0.5),
        loss_fn=functional.cross_entropy,
        train_loader=[(torch.ones(3, 4) * i, torch.tensor([0, 1, 1])) for i in range(4)],
        epochs=epochs,
        work_dir=work_dir,
        hooks=list(hooks),
        default_hooks=False,
        seed=0,
        **options,
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize("mode", [False, True, "overlap"])
@pytest.mark.parametrize("hooks", [(), (Recipe,)], ids=["bare", "recipe"])
def test_files_contain_the_weights_to_evaluate(hooks: Any, mode: Any, tmp_path: Path) -> None:
    saver = CheckpointHook(interval=1, async_save=mode, publish=True)
    train(2, saver, *(hook() for hook in hooks), work_dir=tmp_path)

    expected = train(2)
    expected.optimizer.eval()  # type: ignore[union-attr]
    checkpoints, weight = tmp_path / "checkpoints", expected.model.weight
    assert torch.equal(load_file(checkpoints / "model.safetensors")["weight"], weight)  # type: ignore[arg-type]
    for name in ("epoch_2.pth", "last.pth"):
        assert torch.equal(read_checkpoint(checkpoints / name)["state_dict"]["weight"], weight)  # type: ignore[arg-type]

    saver = CheckpointHook(interval=1, async_save=mode)
    resumed = train(4, saver, *(hook() for hook in hooks), work_dir=tmp_path, resume="auto")
    assert torch.equal(resumed.model.weight, train(4).model.weight)  # type: ignore[arg-type]


def test_moving_average_is_exchanged_with_the_weights_to_evaluate() -> None:
    class RecordWeights(Hook):
        def after_val(self, run: Run, model: nn.Linear) -> None:
            averaged = run.weights.averaged()
            assert averaged is not None
            assert torch.equal(model.weight, averaged["weight"])
            self.raw = run.weights.raw()["weight"].clone()

    record, data = RecordWeights(), [(torch.ones(3, 4), torch.tensor([0, 1, 1]))]
    with_average = train(3, EMAHook(momentum=0.5), record, val_loader=data)
    expected = train(3)
    assert torch.equal(with_average.model.weight, expected.model.weight)  # type: ignore[arg-type]
    expected.optimizer.eval()  # type: ignore[union-attr]
    assert torch.equal(record.raw, expected.model.weight)  # type: ignore[arg-type]
