from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from hookbus import Hook, HookBus, Run
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_schedule import PipelineSwitchHook


def three(sample: Any) -> float:
    return 3.0


@pytest.mark.parametrize("settings", [{"switch_epoch": 1, "switch_pipeline": "math:sqrt"}])
def test_import_string_of_the_pipeline_is_resolved(settings: dict[str, Any]) -> None:
    with pytest.raises(
        AssertionError, match="The pipeline of list cannot be switched: neither the dataset nor a wrapper"
    ):
        check_hook(PipelineSwitchHook, **settings)  # its training data is a list of tensors


@pytest.mark.parametrize("workers", ["main process", "2 workers", "2 persistent workers"])
class TestSwitching:
    def test_pipeline_is_switched_after_n_epochs(self, kit: Any, workers: str) -> None:
        recorder = kit.train(PipelineSwitchHook(switch_epoch=2, switch_pipeline=kit.weak), epochs=3, workers=workers)

        assert recorder.pipelines == [1] * 6 + [2] * 3

    def test_pipeline_is_switched_after_n_iterations(self, kit: Any, workers: str) -> None:
        recorder = kit.train(PipelineSwitchHook(switch_iter=4, switch_pipeline=kit.weak), iterations=7, workers=workers)

        assert recorder.pipelines == [1] * 4 + [2] * 3

    @pytest.mark.parametrize(("at", "expected"), [(5, [1, 2, 2, 2]), (7, [2, 2])])
    def test_pipeline_is_correct_after_a_resume(
        self, kit: Any, workers: str, tmp_path: Path, at: int, expected: list[int]
    ) -> None:
        path = tmp_path / "saved.pth"
        hooks = [PipelineSwitchHook(switch_epoch=2, switch_pipeline=kit.weak) for _ in range(2)]
        kit.train(hooks[0], kit.SaveAt(path, at), epochs=3)

        assert kit.train(hooks[1], epochs=3, workers=workers, resume=path).pipelines == expected


class TestData:
    def test_attribute_transform_is_switched(self, kit: Any) -> None:
        class Images(torch.utils.data.Dataset[Any]):
            transform = staticmethod(kit.strong)

            def __len__(self) -> int:
                return 2

            def __getitem__(self, index: int) -> Any:
                return torch.tensor([0.0, self.transform(index)])

        hook = PipelineSwitchHook(switch_epoch=1, switch_pipeline=kit.weak)
        assert kit.train(hook, epochs=2, dataset=Subset(Images(), [1, 0])).pipelines == [1, 2]

    def test_only_the_outermost_pipeline_is_switched(self, kit: Any) -> None:
        class OuterDataset(Subset[Any]):
            pipeline = staticmethod(lambda sample: sample)

            def __getitem__(self, index: Any) -> Any:
                return self.pipeline(super().__getitem__(index))

            __getitems__ = None  # type: ignore[assignment]

        data = OuterDataset(kit.DetectionDataset(), [0, 1])
        del OuterDataset.__getitems__
        hook = PipelineSwitchHook(switch_epoch=1, switch_pipeline=lambda sample: sample * 5)

        assert kit.train(hook, epochs=2, dataset=data).pipelines[-1] == 5

    def test_dataset_without_a_pipeline_is_an_error(self, kit: Any) -> None:
        with pytest.raises(ConfigError, match=r"of list cannot be switched: .* has an attribute pipeline or transform"):
            kit.train(
                PipelineSwitchHook(switch_epoch=1, switch_pipeline=three),
                epochs=2,
                dataset=Subset([torch.zeros(2)], [0]),
            )


class Register(Hook):
    """Register a hook after iteration 2."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self.hook = hook

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == 2:
            run.bus.register(self.hook)


class TestMultipleHooks:
    def make_hooks(self, kit: Any, late: dict[str, int]) -> list[PipelineSwitchHook]:
        return [
            PipelineSwitchHook(name="late", switch_pipeline=three, **late),
            PipelineSwitchHook(name="early", switch_epoch=1, switch_pipeline=kit.weak),
        ]

    def test_hooks_apply_in_chronological_order_and_after_a_resume(self, kit: Any, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        late = {"switch_epoch": 2}
        first = kit.train(*self.make_hooks(kit, late), kit.SaveAt(path, 9), epochs=4)
        second = kit.train(*self.make_hooks(kit, late), epochs=4, resume=path)

        assert first.pipelines == [1] * 3 + [2] * 3 + [3] * 3
        assert second.pipelines == [3] * 3

    def test_hook_registered_during_the_run_applies_as_well(self, kit: Any) -> None:
        late, early = self.make_hooks(kit, {"switch_epoch": 2})
        recorder = kit.train(early, Register(late), epochs=4)

        assert recorder.pipelines == [1] * 3 + [2] * 3 + [3] * 6

    @pytest.mark.parametrize("late", [{"switch_iter": 6}, {"switch_epoch": 1}])
    def test_hooks_in_an_undefined_order_are_an_error(self, kit: Any, late: dict[str, int]) -> None:
        with pytest.raises(ConfigError, match="hooks 'late' and 'early' switch the pipeline of the same data"):
            kit.train(*self.make_hooks(kit, late), epochs=4)


def test_custom_loop_can_read_a_different_dataset_in_each_epoch(kit: Any) -> None:
    identifiers: list[float] = []
    bus = HookBus([PipelineSwitchHook(switch_epoch=1, switch_pipeline=kit.weak)])
    with bus.run(epochs=3) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(DataLoader(kit.DetectionDataset(), batch_size=6)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                identifiers.append(float(batch[0, 1]))
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

    assert identifiers == [1, 2, 2]


@pytest.mark.parametrize(("separate", "lines"), [(False, 1), (True, 0)])
def test_validation_data_shared_with_training_logs_a_warning(
    kit: Any, separate: bool, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = kit.DetectionDataset()
    val_data = kit.DetectionDataset() if separate else data
    bus = HookBus([PipelineSwitchHook(switch_epoch=1, switch_pipeline=kit.weak)])
    loaders = {"train_loader": DataLoader(Subset(data, [0, 1])), "val_loader": {"x": DataLoader(Subset(val_data, [2]))}}
    with bus.run(epochs=2, **loaders):
        bus.emit("before_train_epoch")

    messages = [record.getMessage() for record in caplog.records]
    assert ["the val loader shares the dataset DetectionDataset with training" in message for message in messages] == [
        True
    ] * lines
