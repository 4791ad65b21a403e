"""Settings of installed hooks that require a longer run are reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Trainer, build_hook
from hookbus.errors import ConfigError


class Squares(torch.utils.data.Dataset[Any]):
    """Dataset with the attributes that the hooks of this test require."""

    transform: Any = None

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.ones(1), torch.ones(1)

    def update_dynamic_scale(self, size: Any) -> None:
        """Ignore the size."""


class Pair(nn.Module):
    """Model with a student and a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.student(inputs))


def build_trainer(work_dir: Any, settings: dict[str, Any]) -> Trainer:
    """Return a trainer of 3 epochs with 2 iterations each, which validates after each epoch."""
    model, loader = Pair(), torch.utils.data.DataLoader(Squares())
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.1)
    options: dict[str, Any] = {"epochs": 3, "work_dir": work_dir, "default_hooks": False, "device": "cpu"}
    loaders = {"train_loader": loader, "val_loader": loader}
    return Trainer(model, optimizer, functional.mse_loss, hooks=[build_hook(settings)], **loaders, **options)


@pytest.mark.parametrize(
    ("settings", "required"),
    [
        ({"type": "freeze", "modules": ["student.bias"], "until_epoch": 3}, "4 epochs for 'until_epoch'"),
        ({"type": "freeze", "modules": ["student.bias"], "until_iter": 6}, "7 iterations for 'until_iter'"),
        (
            {"type": "pipeline_switch", "switch_epoch": 3, "switch_pipeline": lambda sample: sample},
            "4 epochs for 'switch_epoch'",
        ),
        ({"type": "accumulation", "schedule": {1: 1, 4: 2}}, "4 epochs for 'schedule'"),
        ({"type": "accumulation", "schedule": {7: 2}, "unit": "iter"}, "7 iterations for 'schedule'"),
        ({"type": "param_scheduler", "schedulers": [{"type": "StepLR", "step_size": 3}]}, "4 epochs for 'StepLR.step_"),
        (
            {
                "type": "param_scheduler",
                "schedulers": [{"type": "LinearLR", "total_iters": 7, "interval": "step"}],
            },
            "7 optimizer steps for 'LinearLR.total_iters'",
        ),
        ({"type": "ema", "warm_up": 7}, "7 optimizer steps for 'warm_up'"),
        ({"type": "ema", "warm_up": 0, "start_step": 6}, "7 optimizer steps for 'start_step'"),
        ({"type": "ema", "warm_up": 0, "start_epoch": 3}, "4 epochs for 'start_epoch'"),
        ({"type": "swa", "swa_epoch_start": 4}, "4 epochs for 'swa_epoch_start'"),
        ({"type": "early_stopping", "min_epochs": 4}, "4 epochs for 'min_epochs'"),
        ({"type": "early_stopping", "min_steps": 7}, "7 optimizer steps for 'min_steps'"),
        ({"type": "early_stopping", "start_from_epoch": 3}, "4 epochs for 'start_from_epoch'"),
        ({"type": "mean_teacher", "interval": 7}, "7 optimizer steps for 'interval'"),
        ({"type": "sync_random_size", "interval": 6}, "7 iterations for 'interval'"),
        ({"type": "checkpoint", "save_best": False, "keep_every": 4}, "4 epochs for 'keep_every'"),
        ({"type": "eval", "dynamic_intervals": [(4, 2)]}, "4 epochs for 'dynamic_intervals'"),
        ({"type": "tensorboard", "log_images": True, "image_interval": 7}, "7 iterations for 'image_interval'"),
        ({"type": "freeze", "modules": ["student.bias"], "until_epoch": 2}, None),
        ({"type": "accumulation", "schedule": {1: 2}}, None),
        ({"type": "ema", "warm_up": 6}, None),
        ({"type": "ema"}, None),
        ({"type": "mean_teacher"}, None),
        ({"type": "sync_random_size"}, None),
        ({"type": "tensorboard", "image_interval": 1000}, None),
    ],
)
def test_setting_that_requires_a_longer_run_is_reported(
    settings: dict[str, Any], required: str | None, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    build_trainer(tmp_path / "run", settings).fit()
    reports = [message for message in caplog.messages if "requires" in message]
    assert len(reports) == (required is not None)
    assert required is None or reports[0].startswith(f"hook {settings['type']!r} requires {required}")


@pytest.mark.parametrize("settings", [{"warmup_iters": 7, "num_last_iters": 0}, {"by_epoch": True, "warmup_epochs": 4}])
def test_warm_up_that_exceeds_the_training_is_refused_before_the_training(settings: dict[str, Any]) -> None:
    trainer = build_trainer(None, {"type": "yolox_lr", **settings})
    for start in (trainer.check, trainer.fit):
        with pytest.raises(ConfigError, match="hook 'yolox_lr' .*: warm-up and final phase must not exceed"):
            start()
    assert trainer.bus.current.iters_done == 0
