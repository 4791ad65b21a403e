"""The data and the loss of the last epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError, LoopError
from hookbus.testing import check_hook
from hookbus_schedule import YOLOXModeSwitchHook


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([torch.zeros(2)])


def per_epoch(values: list[Any]) -> list[Any]:
    """One value for each epoch of three iterations, all of which must have it."""
    epochs = [set(values[i : i + 3]) for i in range(0, len(values), 3)]
    assert all(len(epoch) == 1 for epoch in epochs), values
    return [epoch.pop() for epoch in epochs]


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(YOLOXModeSwitchHook, num_last_epochs=0)


@pytest.mark.parametrize("workers", ["here", "2 workers", "2 that stay"])
class TestInEpochs:
    def test_the_last_ones_are_switched_in_every_batch(self, kit: Any, workers: str) -> None:
        watch = kit.train(YOLOXModeSwitchHook(num_last_epochs=3), epochs=10, workers=workers)

        assert per_epoch(watch.left_out) == [0] * 7 + [3] * 3
        assert per_epoch(watch.l1) == [False] * 7 + [True] * 3

    def test_a_run_that_was_resumed_after_the_switch_is_switched(self, kit: Any, workers: str, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        kit.train(YOLOXModeSwitchHook(num_last_epochs=3), kit.SaveAt(path, 24), epochs=10)
        watch = kit.train(YOLOXModeSwitchHook(num_last_epochs=3), epochs=10, workers=workers, resume=path)

        assert per_epoch(watch.epochs) == [9, 10]
        assert per_epoch(watch.left_out) == [3, 3]
        assert per_epoch(watch.l1) == [True, True]

    def test_a_run_that_was_resumed_inside_an_epoch_is_switched(self, kit: Any, workers: str, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        kit.train(YOLOXModeSwitchHook(num_last_epochs=1), kit.SaveAt(path, 4), epochs=2)
        watch = kit.train(YOLOXModeSwitchHook(num_last_epochs=1), epochs=2, workers=workers, resume=path)

        assert watch.left_out == [3, 3]
        assert watch.l1 == [True, True]


@pytest.mark.parametrize("workers", ["here", "2 that stay"])
class TestInIterations:
    def test_the_last_epochs_are_counted_back_from_the_end(self, kit: Any, workers: str) -> None:
        watch = kit.train(YOLOXModeSwitchHook(num_last_epochs=1), iterations=8, workers=workers)

        assert watch.left_out == [0] * 5 + [3] * 3
        assert watch.l1 == [False] * 5 + [True] * 3

    @pytest.mark.parametrize("limit", [{"iterations": 6}, {"epochs": 2}])
    def test_the_last_part_may_be_said_in_iterations(self, kit: Any, workers: str, limit: dict[str, int]) -> None:
        watch = kit.train(YOLOXModeSwitchHook(num_last_iters=2), workers=workers, **limit)

        assert watch.left_out == [0, 0, 0, 0, 3, 3]

    def test_a_resumed_run_is_switched_where_the_first_was(self, kit: Any, workers: str, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        for at, rest in ((2, [0, 3, 3]), (4, [3])):
            kit.train(YOLOXModeSwitchHook(num_last_iters=2), kit.SaveAt(path, at), iterations=5)
            watch = kit.train(YOLOXModeSwitchHook(num_last_iters=2), iterations=5, workers=workers, resume=path)

            assert watch.left_out == rest


class TestOtherCases:
    def test_without_a_last_part_nothing_is_switched(self, kit: Any) -> None:
        watch = kit.train(YOLOXModeSwitchHook(num_last_epochs=0), epochs=2)

        assert set(watch.left_out) == {0}
        assert set(watch.l1) == {False}

    def test_a_training_that_is_made_longer_has_its_last_part_at_its_end(self, kit: Any) -> None:
        model, data, left_out, extra = kit.Net(), kit.Mosaic(), [], []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = Trainer(
            model, optimizer, train_loader=DataLoader(data, batch_size=2), epochs=2, work_dir=None, default_hooks=False
        )
        trainer.register_hook(YOLOXModeSwitchHook(num_last_epochs=1))

        @trainer.bus.on("after_forward")
        def note(batch: torch.Tensor) -> None:
            left_out.append(int(batch[0, 0]))
            extra.append(model.use_l1)

        trainer.fit()
        trainer.fit(epochs=4)

        assert per_epoch(left_out) == [0, 3, 0, 3]
        assert per_epoch(extra) == [False, True, False, True]

    def test_a_switch_may_be_a_number(self, kit: Any) -> None:
        model = kit.Net()
        model.use_l1 = 0
        kit.train(YOLOXModeSwitchHook(num_last_epochs=1), epochs=2, model=model)

        assert model.use_l1 is True

    def test_a_last_part_longer_than_the_training_is_all_of_it(self, kit: Any) -> None:
        assert set(kit.train(YOLOXModeSwitchHook(), epochs=2).left_out) == {3}

    def test_data_sets_inside_others_are_switched(self, kit: Any) -> None:
        data = ConcatDataset([Subset(kit.Mosaic(), [0, 1]), kit.Mosaic()])
        watch = kit.train(YOLOXModeSwitchHook(num_last_epochs=1, skip_type_keys=["Mosaic"]), epochs=2, dataset=data)

        assert watch.left_out == [0] * 4 + [1] * 4

    def test_data_that_cannot_be_switched_is_an_error_at_the_start(self, kit: Any) -> None:
        with pytest.raises(
            ConfigError, match=r"list cannot be told to leave transforms out: .* update_skip_type_keys\(keys\)"
        ):
            kit.train(YOLOXModeSwitchHook(), epochs=2, dataset=Subset([torch.zeros(2)], [0]))

    def test_workers_that_cannot_be_reached_are_an_error(self, kit: Any) -> None:
        stream = Stream()
        stream.update_skip_type_keys = lambda keys: None  # type: ignore[attr-defined]
        with pytest.raises(LoopError, match="cannot reach the workers of this DataLoader"):
            kit.train(
                YOLOXModeSwitchHook(), epochs=2, loader=torch.utils.data.DataLoader(stream, batch_size=1, num_workers=1)
            )

    def test_a_loop_that_reads_its_data_by_itself_is_told(self) -> None:
        bus = HookBus([YOLOXModeSwitchHook()])
        with pytest.raises(LoopError, match=r"take the batches from run\.batches\(loader\)"), bus.run(epochs=1):
            bus.emit("before_train_iter")

    def test_a_length_that_nobody_knows_is_an_error_at_the_start(self) -> None:
        bus = HookBus([YOLOXModeSwitchHook()])
        with pytest.raises(ConfigError, match="the training loader does not tell its length"), bus.run(iterations=5):
            bus.emit("before_train_epoch")
        with (
            pytest.raises(ConfigError, match="The last part of a run without a limit never begins"),
            bus.run(fresh=True),
        ):
            bus.emit("before_train_epoch")
