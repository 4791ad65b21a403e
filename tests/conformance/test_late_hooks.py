"""Every installed hook works if it is registered during a run: in the second of four epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from hookbus import Hook, HookBus, Run, discovery
from hookbus._events.instrumentation import trace_hooks
from hookbus_logger import read_jsonl

from .test_plugins import PLUGINS, get_example_settings

pytestmark = pytest.mark.slow

OPENING = ["before_run", "log_config", "before_train", "before_epoch", "before_train_epoch"]
CLOSING = ["after_train", "after_run", "cleanup"]

SETTINGS: dict[str, dict[str, Any]] = {
    "checkpoint": {"interval": 1, "save_best": False},
    "early_stopping": {"monitor": "val/loss"},
    "ema": {"momentum": 0.5, "warm_up": 0},
    "freeze": {"modules": ["*"]},
    "jsonl": {"interval": 1},
    "csv": {"interval": 1},
    "param_scheduler": {"schedulers": {"type": "ExponentialLR", "gamma": 0.5}},
    "pipeline_switch": {"switch_epoch": 2, "switch_pipeline": f"{__name__}:negate"},
    "tensorboard": {"interval": 1},
    "wandb": {"mode": "offline"},
    "yolox_lr": {"warmup_epochs": 1, "num_last_epochs": 1},
    "yolox_mode_switch": {"num_last_epochs": 1},
}


def negate(x: Tensor) -> Tensor:
    return -x


class Numbers(Dataset[Tensor]):
    """Four ones, or zeros if transforms are skipped, with all methods that hooks call on a dataset."""

    skipped: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.pipeline: Callable[[Tensor], Tensor] = torch.clone

    def update_skip_type_keys(self, keys: list[str]) -> None:
        self.skipped = tuple(keys)

    def update_dynamic_scale(self, size: Any) -> None:
        pass

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return self.pipeline(torch.zeros(1) if self.skipped else torch.ones(1))


class Pair(nn.Module):
    """Student and teacher with one weight each; the weight of the student increases by 1 at each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (nn.Linear(1, 1, bias=False) for _ in range(2))
        self.epochs: list[int] = []
        self.teacher.requires_grad_(False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.student(x)
        return output


class Training:
    """Training of 4 epochs of 2 iterations, each epoch validated.

    Args:
        hook: Hook to register.
        work_dir: Output directory.
        is_late: Whether the hook is registered between the iterations of the second epoch, and not before the run.

    Attributes:
        before, events: Points of the hook before and after that position.
        inputs, rates: First input and learning rate of each iteration.
        weights: Weight of the student in each validation.
    """

    def __init__(self, hook: Hook, work_dir: Path, *, is_late: bool = True) -> None:
        self.model, self.dataset, self.hook, self.work_dir = Pair(), Numbers(), hook, work_dir
        self.before: list[str] = []
        self.events: list[str] = []
        self.inputs: list[float] = []
        self.rates: list[float] = []
        self.weights: list[float] = []
        self._is_past = False
        self.bus = HookBus([] if is_late else [hook])
        with trace_hooks(self.bus, self._record):
            self._train()

    def _record(self, name: str, point: str) -> None:
        if name == self.hook.name:
            (self.events if self._is_past else self.before).append(point)

    def _train(self) -> None:
        bus, optimizer = self.bus, torch.optim.SGD(self.model.student.parameters(), lr=1.0)
        self.sampler: Any = DistributedSampler(self.dataset, num_replicas=1, rank=0)
        loader, step = (
            DataLoader(self.dataset, batch_size=2, sampler=self.sampler),
            bus.action("train_step", self._step),
        )
        options: Any = {"epochs": 4, "work_dir": self.work_dir, "validate": self._validate, "train_loader": loader}
        with bus.run(model=self.model, optimizer=optimizer, config={"lr": 1.0}, **options) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for index, batch in run.batches(loader):
                    bus.emit("before_train_iter", batch_idx=index, batch=batch)
                    self.rates.append(optimizer.param_groups[0]["lr"])
                    bus.emit("after_train_iter", batch_idx=index, batch=batch, outputs=step(batch))
                    if run.iters_done == 3:
                        self._register()
                run.request_validation()
                bus.emit("after_train_epoch")

    def _register(self) -> None:
        if self.hook not in self.bus.hooks.values():
            self.bus.register(self.hook)
        self._is_past = True

    def _step(self, run: Run, batch: Tensor) -> dict[str, Tensor]:
        assert run.optimizer is not None
        run.optimizer.zero_grad()
        loss = -self.model(batch).mean()
        loss.backward()
        run.optimizer.step()
        self.inputs.append(batch[0].item())
        return {"loss": loss.detach()}

    def _validate(self, run: Run) -> dict[str, float]:
        self.weights.append(self.model.student.weight.item())
        return {"loss": -self.weights[-1], "accuracy": 0.5}


def build(name: str) -> Hook:
    cls = discovery.load_entry(discovery.find_entry(name))
    hook: Hook = cls(**(SETTINGS.get(name) or get_example_settings(cls)))
    return hook


@pytest.mark.parametrize("name", [plugin.name for plugin in PLUGINS])
def test_late_hook_receives_the_events_of_a_hook_of_the_start(name: str, tmp_path: Path) -> None:
    early = Training(build(name), tmp_path / "early", is_late=False)
    late = Training(build(name), tmp_path / "late")
    assert late.before == [point for point in OPENING if point in early.before]
    assert late.events == early.events
    assert all(late.events.count(point) <= 1 for point in CLOSING)


def list_files(training: Training, pattern: str) -> list[str]:
    return sorted(path.name for path in training.work_dir.rglob(pattern))


def read_iterations(training: Training) -> list[int]:
    """Return the iterations of the records of training in the JSONL file."""
    return [row["iteration"] for row in read_jsonl(training.work_dir / "logs/metrics.jsonl") if row["kind"] == "train"]


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("checkpoint", lambda t: list_files(t, "epoch_*.pth"), ["epoch_2.pth", "epoch_3.pth", "epoch_4.pth"]),
        ("dist_sampler_seed", lambda t: t.sampler.epoch, 3),
        # Averages of the previous average, first the weight 3, and the new weight: 3.5, 4.25, 5.125, 6.0625, 7.03125.
        ("ema", lambda t: t.weights, [2, 3.5, 5.125, 7.03125]),
        ("freeze", lambda t: t.weights, [2, 3, 3, 3]),
        ("jsonl", read_iterations, [4, 5, 6, 7, 8]),
        ("mean_teacher", lambda t: t.model.teacher.weight.item() > 0, True),
        ("param_scheduler", lambda t: t.rates, [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]),
        ("pipeline_switch", lambda t: t.inputs, [1, 1, 1, 1, -1, -1, -1, -1]),
        ("set_epoch_info", lambda t: t.model.epochs, [1, 2, 3]),
        ("tensorboard", lambda t: len(list_files(t, "events.out*")), 1),
        ("yolox_mode_switch", lambda t: t.inputs, [1, 1, 1, 1, 1, 1, 0, 0]),
    ],
)
def test_late_hook_works(name: str, read: Callable[[Training], Any], expected: Any, tmp_path: Path) -> None:
    assert read(Training(build(name), tmp_path)) == expected


def test_late_early_stopping_restores_the_best_weights_since_then(tmp_path: Path) -> None:
    stopping = discovery.load_entry(discovery.find_entry("early_stopping"))
    training = Training(stopping(monitor="val/loss", mode="max", patience=1), tmp_path)
    assert training.weights == [2, 4, 6]
    assert training.model.student.weight.item() == 4
