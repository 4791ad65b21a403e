"""The rates that the optimizer has at each iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from hookbus import HookBus
from hookbus.errors import ConfigError, HookError
from hookbus.testing import check_hook, fake_training
from hookbus_schedule import YOLOXLrUpdaterHook


def rates_of(hook: YOLOXLrUpdaterHook, count: int, lr: float = 0.01, **options: Any) -> list[float]:
    """The rate of each iteration of a loop of one's own."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    rates, bus = [], HookBus([hook])
    with bus.run(optimizer=optimizer, **options):
        for i in range(count):
            bus.emit("before_train_iter", batch_idx=i)
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            bus.emit("after_train_iter", batch_idx=i)
    return rates


@pytest.mark.parametrize(
    "settings", [{"warmup_iters": 2, "num_last_iters": 1}, {"by_epoch": True, "warmup_epochs": 0, "num_last_epochs": 1}]
)
def test_it_keeps_what_every_hook_promises(settings: dict[str, Any]) -> None:
    check_hook(YOLOXLrUpdaterHook, **settings)


class TestInIterations:
    def test_it_rises_falls_and_stays(self) -> None:
        hook = YOLOXLrUpdaterHook(warmup_iters=10, num_last_iters=20, min_lr=0.0005)
        rates = rates_of(hook, 100, iterations=100)

        assert rates[4] == pytest.approx(0.0025)
        assert rates[9] == pytest.approx(0.01)
        assert rates[44] == pytest.approx(0.00525)
        assert rates[79:] == [0.0005] * 21

    @pytest.mark.parametrize("off", [0, False, None])
    def test_without_a_warm_up_it_starts_at_the_top(self, off: Any) -> None:
        hook = YOLOXLrUpdaterHook({"warmup_epochs": off, "num_last_iters": 20})

        assert rates_of(hook, 1, iterations=100)[0] >= 0.0099

    def test_lengths_in_epochs_are_multiples_of_the_epoch(self, kit: Any) -> None:
        hooks = [YOLOXLrUpdaterHook(warmup_epochs=1, num_last_epochs=2, min_lr_ratio=0.0) for _ in range(2)]
        expected = [1 / 9, 4 / 9, 1, 0.75, 0.25, 0, 0, 0, 0, 0, 0, 0]

        for hook, limit in zip(hooks, ({"epochs": 4}, {"iterations": 12}), strict=True):
            assert kit.train(hook, lr=1.0, **limit).rates == pytest.approx(expected, abs=1e-12)

    def test_groups_keep_their_proportion(self) -> None:
        weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 3.0}], lr=1.0)
        bus = HookBus([YOLOXLrUpdaterHook(warmup_iters=2, num_last_iters=0)])
        with bus.run(optimizer=optimizer, iterations=4):
            bus.emit("before_train_iter")

        assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.75]

    def test_a_rate_that_is_a_tensor_stays_one(self) -> None:
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(1.0))
        bus = HookBus([YOLOXLrUpdaterHook(warmup_iters=2, num_last_iters=0)])
        with bus.run(optimizer=optimizer, iterations=4):
            bus.emit("before_train_iter")

        assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.25))


class TestInEpochs:
    def test_the_rate_is_one_for_an_epoch_and_constant_in_the_last_ones(self, kit: Any) -> None:
        hook = YOLOXLrUpdaterHook(by_epoch=True, warmup_epochs=2, num_last_epochs=3, min_lr_ratio=0.0)
        watch = kit.train(hook, epochs=8, lr=1.0)

        # 1/4 and 1 of the warm-up; then the cosine at 0, 1/3 and 2/3 of its length; the last three epochs are constant.
        assert watch.rates[::3] == pytest.approx([0.25, 1, 1, 0.75, 0.25, 0, 0, 0], abs=1e-12)
        assert watch.rates[1::3] == watch.rates[::3] == watch.rates[2::3]

    def test_a_limit_in_iterations_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="by_epoch needs a limit in epochs"):
            rates_of(YOLOXLrUpdaterHook(by_epoch=True), 1, iterations=5)


class TestResume:
    @pytest.mark.parametrize("at", [1, 3, 5])
    def test_goes_on_where_it_was(self, kit: Any, tmp_path: Path, at: int) -> None:
        path, settings = tmp_path / "saved.pth", {"warmup_epochs": 1, "num_last_epochs": 1}
        whole = kit.train(YOLOXLrUpdaterHook(settings), epochs=3).rates
        kit.train(YOLOXLrUpdaterHook(settings), kit.SaveAt(path, at), epochs=3)

        assert kit.train(YOLOXLrUpdaterHook(settings), epochs=3, resume=path).rates == whole[at:]


def test_a_second_training_goes_on_from_the_first_rates() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    bus, rates = HookBus([YOLOXLrUpdaterHook(warmup_iters=4, num_last_iters=0)]), []
    for _ in range(2):
        with bus.run(optimizer=optimizer, iterations=4):
            for _ in range(2):
                bus.emit("before_train_iter")
                rates.append(optimizer.param_groups[0]["lr"])
                bus.emit("after_train_iter")

    assert rates == [1 / 16, 1 / 4, 9 / 16, 1]


class TestRefusals:
    def test_another_scheduler_besides(self, kit: Any) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        bus = HookBus([YOLOXLrUpdaterHook()])
        with (
            pytest.raises(ConfigError, match="sets the learning rate, and so does the run's StepLR: leave one"),
            bus.run(optimizer=optimizer, scheduler=StepLR(optimizer, 1), epochs=1),
        ):
            bus.emit("before_train_epoch")

    def test_no_optimizer(self) -> None:
        bus = HookBus([YOLOXLrUpdaterHook()])
        with pytest.raises(HookError, match="give optimizer= to the run"), bus.run(epochs=1):
            bus.emit("before_train_epoch")

    def test_parts_that_do_not_fit(self) -> None:
        hook = YOLOXLrUpdaterHook(warmup_iters=6, num_last_iters=5)
        with pytest.raises(ConfigError, match="a warm-up of 6 and a last part of 5 iterations do not fit .* of 10"):
            rates_of(hook, 1, iterations=10)

    def test_an_end_that_nobody_knows(self) -> None:
        with pytest.raises(ConfigError, match="needs the end of the run"):
            rates_of(YOLOXLrUpdaterHook(), 1)
        with pytest.raises(ConfigError, match="does not tell its length"):
            rates_of(YOLOXLrUpdaterHook(), 1, epochs=20)


def test_a_loader_that_is_first_seen_in_the_loop_will_do() -> None:
    assert fake_training([YOLOXLrUpdaterHook(warmup_epochs=1, num_last_epochs=0)]).run.outcome == "finished"


def test_a_group_that_is_added_in_the_middle_has_its_own_first_rate() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    bus, rates = HookBus([YOLOXLrUpdaterHook(warmup_iters=4, num_last_iters=0)]), []
    with bus.run(optimizer=optimizer, iterations=4):
        for i in range(4):
            if i == 2:
                optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.5})
            bus.emit("before_train_iter")
            rates.append([group["lr"] for group in optimizer.param_groups])
            bus.emit("after_train_iter")

    assert rates == [[1 / 16], [1 / 4], [9 / 16, 9 / 32], [1, 0.5]]
