from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import ConfigError, LoopError
from hookbus.testing import check_hook
from hookbus_schedule import PipelineSwitchHook, YOLOXModeSwitchHook

WORKERS = ["main process", pytest.param("2 workers", marks=pytest.mark.slow), "2 persistent workers"]


def three(sample: Any) -> float:
    return 3.0


@pytest.mark.parametrize("settings", [{"switch_epoch": 1, "switch_pipeline": "math:sqrt"}])
def test_import_string_of_the_pipeline_is_resolved(settings: dict[str, Any]) -> None:
    with pytest.raises(
        AssertionError, match="The pipeline of list cannot be switched: neither the dataset nor a wrapper"
    ):
        check_hook(PipelineSwitchHook, **settings)  # its training data is a list of tensors


@pytest.mark.parametrize("workers", WORKERS)
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


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([torch.zeros(2)])


def per_epoch(values: list[Any]) -> list[Any]:
    """Return one value per epoch of three iterations, which must be equal."""
    epochs = [set(values[i : i + 3]) for i in range(0, len(values), 3)]
    assert all(len(epoch) == 1 for epoch in epochs), values
    return [epoch.pop() for epoch in epochs]


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(YOLOXModeSwitchHook, num_last_epochs=0)


def test_second_hook_registered_during_the_run_skips_its_transforms(kit: Any) -> None:
    class Register(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 2:
                run.bus.register(YOLOXModeSwitchHook(name="b", num_last_epochs=1, skip_type_keys=["Mosaic", "MixUp"]))

    first = YOLOXModeSwitchHook(name="a", num_last_epochs=2, skip_type_keys=["Mosaic"])
    assert per_epoch(kit.train(first, Register(), epochs=4).skipped) == [0, 0, 1, 2]


@pytest.mark.parametrize("workers", WORKERS)
class TestInEpochs:
    def test_all_batches_of_the_last_epochs_are_switched(self, kit: Any, workers: str) -> None:
        recorder = kit.train(YOLOXModeSwitchHook(num_last_epochs=3), epochs=10, workers=workers)

        assert per_epoch(recorder.skipped) == [0] * 7 + [3] * 3
        assert per_epoch(recorder.l1) == [False] * 7 + [True] * 3

    def test_run_resumed_after_the_switch_is_switched(self, kit: Any, workers: str, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        kit.train(YOLOXModeSwitchHook(num_last_epochs=3), kit.SaveAt(path, 24), epochs=10)
        recorder = kit.train(YOLOXModeSwitchHook(num_last_epochs=3), epochs=10, workers=workers, resume=path)

        assert per_epoch(recorder.epochs) == [9, 10]
        assert per_epoch(recorder.skipped) == [3, 3]
        assert per_epoch(recorder.l1) == [True, True]

    def test_run_resumed_inside_an_epoch_is_switched(self, kit: Any, workers: str, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        kit.train(YOLOXModeSwitchHook(num_last_epochs=1), kit.SaveAt(path, 4), epochs=2)
        recorder = kit.train(YOLOXModeSwitchHook(num_last_epochs=1), epochs=2, workers=workers, resume=path)

        assert recorder.skipped == [3, 3]
        assert recorder.l1 == [True, True]


@pytest.mark.parametrize("workers", ["main process", "2 persistent workers"])
class TestInIterations:
    def test_final_phase_in_epochs_of_a_run_limited_by_iterations(self, kit: Any, workers: str) -> None:
        recorder = kit.train(YOLOXModeSwitchHook(num_last_epochs=1), iterations=8, workers=workers)

        assert recorder.skipped == [0] * 5 + [3] * 3
        assert recorder.l1 == [False] * 5 + [True] * 3

    @pytest.mark.parametrize("limit", [{"iterations": 6}, {"epochs": 2}])
    def test_final_phase_can_be_set_in_iterations(self, kit: Any, workers: str, limit: dict[str, int]) -> None:
        recorder = kit.train(YOLOXModeSwitchHook(num_last_iters=2), workers=workers, **limit)

        assert recorder.skipped == [0, 0, 0, 0, 3, 3]

    def test_resumed_run_is_switched_at_the_same_iteration(self, kit: Any, workers: str, tmp_path: Path) -> None:
        for at, expected in ((2, [0, 3, 3]), (4, [3])):
            path = tmp_path / f"saved_{at}.pth"
            kit.train(YOLOXModeSwitchHook(num_last_iters=2), kit.SaveAt(path, at), iterations=5)
            recorder = kit.train(YOLOXModeSwitchHook(num_last_iters=2), iterations=5, workers=workers, resume=path)

            assert recorder.skipped == expected


class TestOtherCases:
    def test_run_without_final_phase_is_not_switched(self, kit: Any) -> None:
        recorder = kit.train(YOLOXModeSwitchHook(num_last_epochs=0), epochs=2)

        assert set(recorder.skipped) == {0}
        assert set(recorder.l1) == {False}

    def test_extended_training_has_its_final_phase_at_the_new_end(self, kit: Any) -> None:
        model, data, skipped, l1 = kit.Net(), kit.DetectionDataset(), [], []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = Trainer(
            model, optimizer, train_loader=DataLoader(data, batch_size=2), epochs=2, work_dir=None, default_hooks=False
        )
        trainer.register_hook(YOLOXModeSwitchHook(num_last_epochs=1))

        @trainer.bus.on("after_forward")
        def record(batch: torch.Tensor) -> None:
            skipped.append(int(batch[0, 0]))
            l1.append(model.use_l1)

        trainer.fit()
        trainer.fit(epochs=4)

        assert per_epoch(skipped) == [0, 3, 0, 3]
        assert per_epoch(l1) == [False, True, False, True]

    def test_integer_flag_is_set(self, kit: Any) -> None:
        model = kit.Net()
        model.use_l1 = 0
        kit.train(YOLOXModeSwitchHook(num_last_epochs=1), epochs=2, model=model)

        assert model.use_l1 is True

    def test_final_phase_longer_than_the_training_covers_all_of_it(self, kit: Any) -> None:
        assert set(kit.train(YOLOXModeSwitchHook(), epochs=2).skipped) == {3}

    def test_datasets_inside_wrappers_are_switched(self, kit: Any) -> None:
        data = ConcatDataset([Subset(kit.DetectionDataset(), [0, 1]), kit.DetectionDataset()])
        recorder = kit.train(YOLOXModeSwitchHook(num_last_epochs=1, skip_type_keys=["Mosaic"]), epochs=2, dataset=data)

        assert recorder.skipped == [0] * 4 + [1] * 4

    def test_dataset_without_a_method_to_skip_is_an_error(self, kit: Any) -> None:
        with pytest.raises(ConfigError, match=r"list cannot skip transforms: .* update_skip_type_keys\(keys\)"):
            kit.train(YOLOXModeSwitchHook(), epochs=2, dataset=Subset([torch.zeros(2)], [0]))

    def test_iterable_dataset_with_workers_is_an_error(self, kit: Any) -> None:
        stream = Stream()
        stream.update_skip_type_keys = lambda keys: None  # type: ignore[attr-defined]
        with pytest.raises(
            LoopError, match="hooks that change the dataset require a DataLoader of a map-style dataset"
        ):
            kit.train(
                YOLOXModeSwitchHook(), epochs=2, loader=torch.utils.data.DataLoader(stream, batch_size=1, num_workers=1)
            )

    def test_custom_loop_without_run_batches_is_an_error(self) -> None:
        bus = HookBus([YOLOXModeSwitchHook()])
        with pytest.raises(LoopError, match=r"Iterate over run\.batches\(loader\)"), bus.run(epochs=1):
            bus.emit("before_train_iter")

    def test_unknown_length_or_limit_is_an_error(self) -> None:
        bus = HookBus([YOLOXModeSwitchHook()])
        with pytest.raises(ConfigError, match="requires the length of the training loader"), bus.run(iterations=5):
            bus.emit("before_train_epoch")
        with (
            pytest.raises(ConfigError, match="The final phase requires a limit of the run"),
            bus.run(fresh=True),
        ):
            bus.emit("before_train_epoch")


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("workers", WORKERS)
class TestTwoHooks:
    def make_hooks(self, is_reversed: bool) -> list[YOLOXModeSwitchHook]:
        hooks = [
            YOLOXModeSwitchHook(name="a", num_last_epochs=3, skip_type_keys=["Mosaic"]),
            YOLOXModeSwitchHook(name="b", num_last_iters=3, skip_type_keys=["Mosaic", "MixUp"]),
        ]
        return hooks[::-1] if is_reversed else hooks

    def test_transforms_of_all_phases_are_skipped(self, kit: Any, workers: str, is_reversed: bool) -> None:
        recorder = kit.train(*self.make_hooks(is_reversed), epochs=5, workers=workers)

        assert per_epoch(recorder.skipped) == [0, 0, 1, 1, 2]
        assert per_epoch(recorder.l1) == [False] * 2 + [True] * 3

    @pytest.mark.slow
    @pytest.mark.parametrize(("at", "expected"), [(6, [1, 1, 2]), (12, [2])])
    def test_resumed_run_skips_the_transforms_of_all_phases(
        self, kit: Any, workers: str, is_reversed: bool, at: int, expected: list[int], tmp_path: Path
    ) -> None:
        path = tmp_path / "saved.pth"
        kit.train(*self.make_hooks(not is_reversed), kit.SaveAt(path, at), epochs=5)
        recorder = kit.train(*self.make_hooks(is_reversed), epochs=5, workers=workers, resume=path)

        assert per_epoch(recorder.skipped) == expected
