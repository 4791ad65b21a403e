"""Learning rates of the optimizer at each iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from hookbus import HookBus
from hookbus.errors import ConfigError, HookError
from hookbus.testing import check_hook, fake_training
from hookbus_schedule import ParamSchedulerHook, YOLOXLrUpdaterHook
from hookbus_schedule.yolox_lr import yolox_lr


def get_rates(hook: YOLOXLrUpdaterHook, count: int, lr: float = 0.01, **options: Any) -> list[float]:
    """Return the learning rate of each iteration of a custom loop."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    rates, bus = [], HookBus([hook])
    with bus.run(optimizer=optimizer, **options):
        for i in range(count):
            bus.emit("before_train_iter", batch_idx=i)
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            bus.emit("after_train_iter", batch_idx=i)
    return rates


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"warmup_iters": 2, "num_last_iters": 1}, {"by_epoch": True, "warmup_epochs": 0, "num_last_epochs": 1}]
)
def test_hook_passes_the_conformance_checks(settings: dict[str, Any]) -> None:
    check_hook(YOLOXLrUpdaterHook, **settings)


class TestInIterations:
    def test_rate_increases_decays_and_stays_constant(self) -> None:
        hook = YOLOXLrUpdaterHook(warmup_iters=10, num_last_iters=20, min_lr=0.0005)
        rates = get_rates(hook, 100, iterations=100)

        assert rates[4] == pytest.approx(0.0025)
        assert rates[9] == pytest.approx(0.01)
        assert rates[44] == pytest.approx(0.00525)
        assert rates[79:] == [0.0005] * 21

    @pytest.mark.parametrize("off", [0, False, None])
    def test_rate_without_warm_up_starts_near_the_base(self, off: Any) -> None:
        hook = YOLOXLrUpdaterHook({"warmup_epochs": off, "num_last_iters": 20})

        assert get_rates(hook, 1, iterations=100)[0] >= 0.0099

    def test_lengths_in_epochs_are_converted_to_iterations(self, kit: Any) -> None:
        hooks = [YOLOXLrUpdaterHook(warmup_epochs=1, num_last_epochs=2, min_lr_ratio=0.0) for _ in range(2)]
        expected = [1 / 9, 4 / 9, 1, 0.75, 0.25, 0, 0, 0, 0, 0, 0, 0]

        for hook, limit in zip(hooks, ({"epochs": 4}, {"iterations": 12}), strict=True):
            assert kit.train(hook, lr=1.0, **limit).rates == pytest.approx(expected, abs=1e-12)

    def test_groups_keep_the_ratio_of_their_rates(self) -> None:
        weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 3.0}], lr=1.0)
        bus = HookBus([YOLOXLrUpdaterHook(warmup_iters=2, num_last_iters=0)])
        with bus.run(optimizer=optimizer, iterations=4):
            bus.emit("before_train_iter")

        assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.75]

    def test_tensor_learning_rate_is_set_in_place(self) -> None:
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(1.0))
        bus = HookBus([YOLOXLrUpdaterHook(warmup_iters=2, num_last_iters=0)])
        with bus.run(optimizer=optimizer, iterations=4):
            bus.emit("before_train_iter")

        assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.25))


class TestInEpochs:
    def test_rate_changes_per_epoch_and_is_constant_in_the_final_phase(self, kit: Any) -> None:
        hook = YOLOXLrUpdaterHook(by_epoch=True, warmup_epochs=2, num_last_epochs=3, min_lr_ratio=0.0)
        recorder = kit.train(hook, epochs=8, lr=1.0)

        # 1/4 and 1 in the warm-up; then the cosine at 0, 1/3 and 2/3 of its length; constant in the last three epochs.
        assert recorder.rates[::3] == pytest.approx([0.25, 1, 1, 0.75, 0.25, 0, 0, 0], abs=1e-12)
        assert recorder.rates[1::3] == recorder.rates[::3] == recorder.rates[2::3]

    def test_limit_in_iterations_with_by_epoch_is_an_error(self) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
        run = HookBus([YOLOXLrUpdaterHook(by_epoch=True)]).run(optimizer=optimizer, iterations=5)
        with pytest.raises(ConfigError, match="by_epoch requires a limit in epochs"):
            run.__enter__()


class TestResume:
    @pytest.mark.parametrize("at", [1, 3, 5])
    def test_rates_are_the_same_after_a_resume(self, kit: Any, tmp_path: Path, at: int) -> None:
        path, settings = tmp_path / "saved.pth", {"warmup_epochs": 1, "num_last_epochs": 1}
        uninterrupted = kit.train(YOLOXLrUpdaterHook(settings), epochs=3).rates
        kit.train(YOLOXLrUpdaterHook(settings), kit.SaveAt(path, at), epochs=3)

        assert kit.train(YOLOXLrUpdaterHook(settings), epochs=3, resume=path).rates == uninterrupted[at:]


def test_second_training_continues_from_the_initial_rates() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    bus, rates = HookBus([YOLOXLrUpdaterHook(warmup_iters=4, num_last_iters=0)]), []
    for _ in range(2):
        with bus.run(optimizer=optimizer, iterations=4):
            for _ in range(2):
                bus.emit("before_train_iter")
                rates.append(optimizer.param_groups[0]["lr"])
                bus.emit("after_train_iter")

    assert rates == [1 / 16, 1 / 4, 9 / 16, 1]


class TestErrors:
    def test_additional_scheduler_is_an_error(self, kit: Any) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        bus = HookBus([YOLOXLrUpdaterHook()])
        with (
            pytest.raises(ConfigError, match="sets the learning rate, as does the scheduler StepLR of the run"),
            bus.run(optimizer=optimizer, scheduler=StepLR(optimizer, 1), epochs=1),
        ):
            bus.emit("before_train_epoch")

    def test_missing_optimizer_is_an_error(self) -> None:
        bus = HookBus([YOLOXLrUpdaterHook()])
        with pytest.raises(HookError, match="Pass `optimizer` to the run"), bus.run(epochs=1):
            bus.emit("before_train_epoch")

    def test_lengths_are_compared_before_training_if_they_are_known(self) -> None:
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        hook = YOLOXLrUpdaterHook(warmup_epochs=2, num_last_epochs=2)
        with (
            pytest.raises(ConfigError, match="^hook 'yolox_lr' .* training of 9 iterations, got 6 and 6"),
            HookBus([hook]).run(optimizer=optimizer, epochs=3, train_loader=[0] * 3),
        ):
            pytest.fail("the loop has started")

    def test_warm_up_and_final_phase_longer_than_the_training_are_an_error(self) -> None:
        hook = YOLOXLrUpdaterHook(warmup_iters=6, num_last_iters=5)
        with pytest.raises(ConfigError, match="must not exceed the training of 10 iterations, got 6 and 5"):
            get_rates(hook, 1, iterations=10)

    def test_unknown_limit_or_epoch_length_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="requires a limit of the run, got none"):
            get_rates(YOLOXLrUpdaterHook(), 1)
        with pytest.raises(ConfigError, match="requires the length of the training loader"):
            get_rates(YOLOXLrUpdaterHook(), 1, epochs=20)


def test_loader_can_be_passed_in_the_loop() -> None:
    assert fake_training([YOLOXLrUpdaterHook(warmup_epochs=1, num_last_epochs=0)]).run.outcome == "finished"


def test_group_that_is_added_later_has_its_own_initial_rate() -> None:
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


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            YOLOXLrUpdaterHook(name="a"),
            "hook 'b' also sets the learning rate, and the result depends on their order",
        ),
        (
            ParamSchedulerHook(name="a", schedulers={"type": "ExponentialLR", "gamma": 0.5}),
            "sets the learning rate, as does hook 'a'. Remove one of the two.",
        ),
    ],
    ids=["same hook", "param_scheduler"],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_second_hook_that_sets_the_learning_rate_is_an_error(other: Any, message: str, is_reversed: bool) -> None:
    hooks = [YOLOXLrUpdaterHook(name="b"), other]
    with pytest.raises(ConfigError, match=message):
        fake_training(hooks[::-1] if is_reversed else hooks)


CASE = {"base": 0.01, "floor": 0.0005, "total": 100, "warmup": 10, "last": 20}


@pytest.mark.parametrize(
    ("number", "rate"),
    [
        (1, 0.0001),  # 0.01 * (1/10)^2
        (5, 0.0025),  # 0.01 * (5/10)^2
        (10, 0.01),
        (27.5, 0.0086087572),  # 0.0005 + 0.00475 * (1 + sqrt(2)/2)
        (45, 0.00525),  # half of the decay
        (80, 0.0005),
        (81, 0.0005),
        (100, 0.0005),
    ],
)
def test_rate_increases_decays_and_stays_constant(number: float, rate: float) -> None:
    assert yolox_lr(number, **CASE) == pytest.approx(rate, rel=1e-8)


def test_rate_is_above_the_floor_before_the_final_phase() -> None:
    assert yolox_lr(79, **CASE) > 0.0005


def test_rate_without_warm_up_starts_near_the_base() -> None:
    assert yolox_lr(1, base=0.01, floor=0.0005, total=100, last=20) >= 0.0099


def test_rate_without_final_phase_reaches_the_floor_at_the_end() -> None:
    rates = [yolox_lr(number, base=1.0, floor=0.0, total=4) for number in range(1, 5)]

    assert rates == pytest.approx([0.8535533906, 0.5, 0.1464466094, 0.0], abs=1e-9)


def test_offset_evaluates_the_rate_at_the_start_of_an_epoch() -> None:
    rates = [yolox_lr(number, base=1.0, floor=0.0, total=4, last=2, offset=1) for number in range(1, 5)]

    assert rates == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_warm_up_can_cover_the_whole_training() -> None:
    assert [yolox_lr(n, base=1.0, floor=0.25, total=2, warmup=2) for n in (1, 2)] == [0.25, 1.0]
