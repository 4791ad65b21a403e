from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_schedule import PipelineSwitchHook


def three(sample: Any) -> float:
    return 3.0


@pytest.mark.parametrize("settings", [{"switch_epoch": 1, "switch_pipeline": "math:sqrt"}])
def test_its_settings_are_taken_from_a_file(settings: dict[str, Any]) -> None:
    with pytest.raises(
        AssertionError, match="The pipeline of list cannot be switched: neither it nor a wrapper around it"
    ):
        check_hook(PipelineSwitchHook, **settings)  # its training has a list of tensors


@pytest.mark.parametrize("workers", ["here", "2 workers", "2 that stay"])
class TestSwitching:
    def test_comes_after_so_many_epochs(self, kit: Any, workers: str) -> None:
        watch = kit.train(PipelineSwitchHook(switch_epoch=2, switch_pipeline=kit.weak), epochs=3, workers=workers)

        assert watch.pipelines == [1] * 6 + [2] * 3

    def test_comes_after_so_many_iterations(self, kit: Any, workers: str) -> None:
        watch = kit.train(PipelineSwitchHook(switch_iter=4, switch_pipeline=kit.weak), iterations=7, workers=workers)

        assert watch.pipelines == [1] * 4 + [2] * 3

    @pytest.mark.parametrize(("at", "rest"), [(5, [1, 2, 2, 2]), (7, [2, 2])])
    def test_is_right_after_a_resume(self, kit: Any, workers: str, tmp_path: Path, at: int, rest: list[int]) -> None:
        path = tmp_path / "saved.pth"
        hooks = [PipelineSwitchHook(switch_epoch=2, switch_pipeline=kit.weak) for _ in range(2)]
        kit.train(hooks[0], kit.SaveAt(path, at), epochs=3)

        assert kit.train(hooks[1], epochs=3, workers=workers, resume=path).pipelines == rest


class TestData:
    def test_may_hold_its_pipeline_as_its_transform(self, kit: Any) -> None:
        class Images(torch.utils.data.Dataset[Any]):
            transform = staticmethod(kit.strong)

            def __len__(self) -> int:
                return 2

            def __getitem__(self, index: int) -> Any:
                return torch.tensor([0.0, self.transform(index)])

        hook = PipelineSwitchHook(switch_epoch=1, switch_pipeline=kit.weak)
        assert kit.train(hook, epochs=2, dataset=Subset(Images(), [1, 0])).pipelines == [1, 2]

    def test_with_a_pipeline_around_another_keeps_the_inner_one(self, kit: Any) -> None:
        class Around(Subset[Any]):
            pipeline = staticmethod(lambda sample: sample)

            def __getitem__(self, index: Any) -> Any:
                return self.pipeline(super().__getitem__(index))

            __getitems__ = None  # type: ignore[assignment]

        data = Around(kit.Mosaic(), [0, 1])
        del Around.__getitems__
        hook = PipelineSwitchHook(switch_epoch=1, switch_pipeline=lambda sample: sample * 5)

        assert kit.train(hook, epochs=2, dataset=data).pipelines[-1] == 5

    def test_without_a_pipeline_is_an_error_at_the_start(self, kit: Any) -> None:
        with pytest.raises(ConfigError, match=r"of list cannot be switched: .* has an attribute pipeline or transform"):
            kit.train(
                PipelineSwitchHook(switch_epoch=1, switch_pipeline=three),
                epochs=2,
                dataset=Subset([torch.zeros(2)], [0]),
            )


class TestSeveral:
    def hooks(self, kit: Any, late: dict[str, int]) -> list[PipelineSwitchHook]:
        return [
            PipelineSwitchHook(name="late", switch_pipeline=three, **late),
            PipelineSwitchHook(name="early", switch_epoch=1, switch_pipeline=kit.weak),
        ]

    def test_come_one_after_the_other_after_a_resume_as_well(self, kit: Any, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        late = {"switch_epoch": 2}
        first = kit.train(*self.hooks(kit, late), kit.SaveAt(path, 9), epochs=4)
        second = kit.train(*self.hooks(kit, late), epochs=4, resume=path)

        assert first.pipelines == [1] * 3 + [2] * 3 + [3] * 3
        assert second.pipelines == [3] * 3

    @pytest.mark.parametrize("late", [{"switch_iter": 6}, {"switch_epoch": 1}])
    def test_that_cannot_be_put_in_order_are_refused(self, kit: Any, late: dict[str, int]) -> None:
        with pytest.raises(ConfigError, match="hooks 'late' and 'early' switch the pipeline of the same data"):
            kit.train(*self.hooks(kit, late), epochs=4)


def test_a_loop_may_read_other_data_in_each_epoch(kit: Any) -> None:
    seen: list[float] = []
    bus = HookBus([PipelineSwitchHook(switch_epoch=1, switch_pipeline=kit.weak)])
    with bus.run(epochs=3) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(DataLoader(kit.Mosaic(), batch_size=6)):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                seen.append(float(batch[0, 1]))
                bus.emit("after_train_iter", batch_idx=i, batch=batch)

    assert seen == [1, 2, 2]


@pytest.mark.parametrize(("own", "lines"), [(False, 1), (True, 0)])
def test_validation_data_that_is_switched_along_is_told(
    kit: Any, own: bool, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = kit.Mosaic()
    others = kit.Mosaic() if own else data
    bus = HookBus([PipelineSwitchHook(switch_epoch=1, switch_pipeline=kit.weak)])
    loaders = {"train_loader": DataLoader(Subset(data, [0, 1])), "val_loader": {"x": DataLoader(Subset(others, [2]))}}
    with bus.run(epochs=1, **loaders):
        bus.emit("before_train_epoch")

    told = [record.getMessage() for record in caplog.records]
    assert [
        text.endswith("the training data's own Mosaic, so it is switched as well: give it a data set of its own.")
        for text in told
    ] == [True] * lines
