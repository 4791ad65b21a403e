"""A loss function with parameters: device, modes, checkpoints and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Trainer
from hookbus.checkpoint import read_checkpoint
from hookbus.errors import ConfigError
from hookbus_checkpoint import CheckpointHook
from tests import toys


class WeightedLoss(nn.Module):
    """Cross entropy with a learned weight, and a buffer that counts the training batches."""

    def __init__(self) -> None:
        super().__init__()
        self.log_var = nn.Parameter(torch.zeros(()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.modes: list[bool] = []

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.modes.append(self.training)
        if self.training:
            self.batches += 1
        return functional.cross_entropy(output, target) * torch.exp(-self.log_var) + self.log_var


def momentum_sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def build(directory: Path | None, epochs: int = 2, **options: Any) -> Trainer:
    torch.manual_seed(0)
    hooks = [CheckpointHook()] if directory is not None else []
    settings: dict[str, Any] = {"train_loader": toys.pairs(3), "epochs": epochs, "work_dir": directory, "hooks": hooks}
    return Trainer(toys.net(), momentum_sgd, WeightedLoss(), **{**settings, **options}, default_hooks=False)


def test_parameters_and_buffers_of_the_loss_resume(tmp_path: Path) -> None:
    whole = build(tmp_path / "whole")
    whole.fit()
    build(tmp_path / "cut", 1).fit()
    resumed = build(tmp_path / "cut", resume="auto")
    resumed.fit()
    assert whole.loss is not None
    assert resumed.loss is not None
    assert whole.loss.log_var.item() != 0
    assert int(whole.loss.batches) == 6
    torch.testing.assert_close(resumed.loss.state_dict(), whole.loss.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_loss_has_a_key_of_its_own(tmp_path: Path) -> None:
    trainer = build(tmp_path, 1)
    trainer.fit()
    checkpoint = read_checkpoint(tmp_path / "checkpoints/last.pth")
    assert list(checkpoint["loss"]) == ["log_var", "batches"]
    toys.net().load_state_dict(checkpoint["state_dict"])


def test_loss_without_state_has_no_key(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trainer = Trainer(
        toys.net(),
        momentum_sgd,
        nn.CrossEntropyLoss(),
        toys.pairs(2),
        epochs=1,
        work_dir=tmp_path,
        hooks=[CheckpointHook()],
        default_hooks=False,
    )
    trainer.fit()
    assert "loss" not in read_checkpoint(tmp_path / "checkpoints/last.pth")


def test_validation_switches_the_mode_of_the_loss() -> None:
    trainer = build(None, 1, val_loader=toys.pairs(2))
    trainer.fit()
    assert trainer.loss is not None
    assert trainer.loss.modes == [True] * 3 + [False] * 2
    assert trainer.loss.training


def test_check_does_not_change_the_loss() -> None:
    trainer = build(None)
    trainer.check()
    assert trainer.loss is not None
    assert int(trainer.loss.batches) == 0


def test_clipping_includes_the_gradients_of_the_loss() -> None:
    trainer, norms = build(None, 1, train_loader=toys.pairs(1), clip_grad_norm=1e-3), []

    @trainer.bus.on("after_train_iter")
    def measure() -> None:
        assert trainer.loss is not None
        grads = [parameter.grad for module in (trainer.model, trainer.loss) for parameter in module.parameters()]
        norms.append(float(torch.stack([grad.square().sum() for grad in grads if grad is not None]).sum().sqrt()))

    trainer.fit()
    assert norms == pytest.approx([1e-3], rel=1e-2)


def test_loss_that_no_optimizer_trains_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    model = toys.net()
    trainer = Trainer(
        model, momentum_sgd(model.parameters()), WeightedLoss(), toys.pairs(2), epochs=2, work_dir=None,
        default_hooks=False,
    )  # fmt: skip
    trainer.fit()
    messages = [record.getMessage() for record in caplog.records if "loss" in record.getMessage()]
    assert messages == [
        "loss: 1 of its parameters are in no optimizer and are not trained: log_var. Add loss.parameters() to an "
        "optimizer, or freeze them with requires_grad_(False)."
    ]


@pytest.mark.parametrize(
    ("options", "cause"),
    [({"distributed": "fsdp2"}, 'distributed="fsdp2"'), ({"step_fn": lambda model, batch: model(batch[0])}, "step_fn")],
)
def test_loss_whose_gradients_would_differ_across_ranks_is_refused(options: dict[str, Any], cause: str) -> None:
    from hookbus._training.parallel import build_steps
    from hookbus.distributed.collectives import Collectives

    class TwoRanks(Collectives):
        def __init__(self) -> None:
            super().__init__()
            self.world_size = 2

    settings = {"loss_fn": WeightedLoss(), "step_fn": options.get("step_fn")}
    with pytest.raises(ConfigError) as caught:
        build_steps(options.get("distributed", "ddp"), TwoRanks(), toys.net(), None, **settings)
    assert str(caught.value) == (
        f"loss_fn: the gradients of its parameters are not averaged over ranks with {cause}. Make the loss function a "
        "part of the model, which then returns the loss."
    )
