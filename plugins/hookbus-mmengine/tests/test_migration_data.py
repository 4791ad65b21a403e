"""Rows of the migration table of MMEngine: hooks that change the data, and those that release memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.hooks import EmptyCacheHook as ForeignEmptyCacheHook
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from hookbus import HookBus
from hookbus.testing import HostTask
from hookbus_runtime import EmptyCacheHook
from hookbus_schedule import PipelineSwitchHook, YOLOXModeSwitchHook
from hookbus_sync import DistSamplerSeedHook

from .migration_rows import (
    CallRecorder,
    attach_and_train,
    build_plain_runner,
    build_plain_trainer,
    load_detection_hook,
    runs_row,
)


class RecordingSampler(SequentialSampler):
    """Sampler that records the epochs that are set."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@runs_row("`DistSamplerSeedHook`", "`dist_sampler_seed`; the Trainer sets the epoch itself")
def test_same_epochs_are_set(tmp_path: Path) -> None:
    task = HostTask(epochs=3, validate=False)
    samplers = {name: RecordingSampler(task.train_data()) for name in ("native", "trainer", "loop")}
    loaders = {name: DataLoader(task.train_data(), 4, sampler=sampler) for name, sampler in samplers.items()}
    build_plain_runner(task, tmp_path, train_dataloader=loaders["native"]).train()
    build_plain_trainer(task, None, train_loader=loaders["trainer"], val_loader=None).fit()
    bus = HookBus([DistSamplerSeedHook()])
    with bus.run(train_loader=loaders["loop"], epochs=3) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in enumerate(loaders["loop"]):
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
    assert {name: sampler.epochs for name, sampler in samplers.items()} == {name: [0, 1, 2] for name in samplers}


@runs_row("`EmptyCacheHook`", "`empty_cache`; in addition `gc`")
@pytest.mark.parametrize("settings", [{}, {"before_epoch": True, "after_epoch": False}, {"after_iter": True}])
def test_cache_is_released_at_the_same_points(
    settings: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, ours, positions = [], [], []
    position = CallRecorder(lambda name, runner: positions.append(name), "before_train_iter", "before_val_iter")
    monkeypatch.setattr("mmengine.hooks.empty_cache_hook.is_cuda_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: native.append(len(positions)))
    monkeypatch.setattr("hookbus_runtime.memory.empty_cache", lambda: ours.append(len(positions)))
    hooks = [position, ForeignEmptyCacheHook(**settings)]
    attach_and_train(build_plain_runner(HostTask(), tmp_path, custom_hooks=hooks), EmptyCacheHook(**settings))
    ends = [6, 9, 15, 18]
    if settings == {}:
        assert native == ends
    elif settings == {"after_iter": True}:
        assert native == sorted([*range(1, 19), *ends])
    else:
        assert native == [0, 6, 9, 15]
    assert ours == native


class Transformed(Dataset):
    """Data with a pipeline of transforms and transforms to skip, as those of MMDetection."""

    def __init__(self, task: HostTask) -> None:
        self.data, self.pipeline, self.skipped = task.train_data(), keep, ()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        inputs, target = self.data[index]
        return self.pipeline(inputs if "Mosaic" in self.skipped else inputs + 100), target

    def update_skip_type_keys(self, keys: Any) -> None:
        self.skipped = tuple(keys)


def keep(inputs: Tensor) -> Tensor:
    return inputs


def negate(inputs: Tensor) -> Tensor:
    return -inputs


class Head(nn.Module):
    use_l1 = False


def train_transformed(directory: Path, epochs: int, *hooks: Any, foreign: Any = None) -> Iterator[tuple[float, bool]]:
    """Train with either hook, and yield the mean of the inputs of each epoch and whether its end uses the L1 loss."""
    task, heads = HostTask(epochs=epochs, validate=False), []
    loader, head = DataLoader(Transformed(task), 4), Head()
    if foreign is not None:
        record = CallRecorder(lambda name, runner: heads.append(head.use_l1), "after_train_epoch")
        runner = build_plain_runner(task, directory, train_dataloader=loader, custom_hooks=[foreign, record])
        runner.model.bbox_head = head
        runner.train()
    else:
        trainer = build_plain_trainer(task, None, *hooks, train_loader=loader, val_loader=None)
        trainer.model.bbox_head = head
        trainer.bus.on("after_train_epoch")(lambda: heads.append(head.use_l1))
        trainer.fit()
    for epoch in range(epochs):
        inputs = torch.cat(task.inputs[6 * epoch : 6 * epoch + 6])
        yield round(float(inputs.mean()), 3), heads[epoch]


@runs_row(
    "`YOLOXModeSwitchHook`, `PipelineSwitchHook`",
    "`yolox_mode_switch`, whose final phase is one epoch shorter, `pipeline_switch`",
)
class TestSwitches:
    def test_pipeline_is_switched_in_the_same_epoch(self, tmp_path: Path) -> None:
        foreign = load_detection_hook("pipeline_switch_hook", "PipelineSwitchHook")
        native = train_transformed(tmp_path, 3, foreign=foreign(1, [negate]))
        ours = [*train_transformed(tmp_path, 3, PipelineSwitchHook(switch_epoch=1, switch_pipeline=negate))]
        assert [*native] == ours
        assert [mean > 0 for mean, _ in ours] == [True, False, False]

    def test_final_phase_of_mmdetection_has_one_epoch_more(self, tmp_path: Path) -> None:
        foreign = load_detection_hook("yolox_mode_switch_hook", "YOLOXModeSwitchHook")
        native = [*train_transformed(tmp_path, 4, foreign=foreign(num_last_epochs=2))]
        ours = [*train_transformed(tmp_path, 4, YOLOXModeSwitchHook(num_last_epochs=3))]
        assert native == ours
        assert [(mean < 50, is_l1) for mean, is_l1 in ours] == [(False, False), *[(True, True)] * 3]
