"""SWA hook in a run: learning rates, equal and custom averages, statistics of BatchNorm layers, resume."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_avg_fn, get_swa_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, HookBus, Priority, Trainer
from hookbus._run.run import Run
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import ConfigError, HookError
from hookbus.testing import check_hook, fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import SWAHook
from hookbus_schedule import ParamSchedulerHook, YOLOXLrUpdaterHook

EPOCHS, BATCHES = 10, 5


@pytest.fixture(autouse=True)
def _skip_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `fsync`: these tests do not depend on durability after a power loss."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def pairs(batches: int = BATCHES) -> list[tuple[Tensor, Tensor]]:
    inputs = torch.randn(batches, 6, 4, generator=torch.Generator().manual_seed(1))
    return [(batch, (batch.sum(1) > 0).long()) for batch in inputs]


class Rates(Hook):
    """Record the learning rates that each step uses."""

    priority = Priority.LOWEST

    def __init__(self) -> None:
        super().__init__()
        self.used: list[float] = []

    def before_optimizer_step(self, run: Run) -> None:
        self.used.append(run.optimizer.param_groups[0]["lr"])


Loop = Callable[..., tuple[Run, nn.Module]]


def train(*hooks: object, scheduler: Any = None, epochs: int = EPOCHS, **options: Any) -> tuple[Run, nn.Module]:
    """Train with a Trainer."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    defaults: dict[str, Any] = {"default_hooks": False, "work_dir": None, "device": "cpu"}
    options = {**defaults, **options}
    if scheduler is not None:
        options["scheduler"] = scheduler(optimizer)
    trainer = Trainer(model, optimizer, functional.cross_entropy, pairs(), epochs=epochs, hooks=hooks, **options)
    return trainer.fit(), model


def train_custom(*hooks: object, epochs: int = EPOCHS, scheduler: Any = None, **options: Any) -> tuple[Run, nn.Module]:
    """Train with a custom loop."""
    model, bus, data = net(), HookBus(hooks), pairs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = None if scheduler is None else scheduler(optimizer)
    torch.manual_seed(7)
    with bus.run(model=model, optimizer=optimizer, epochs=epochs, train_loader=data, scheduler=made, **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, (inputs, targets) in run.batches(data):
                bus.emit("before_train_iter", batch_idx=i)
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i)
            bus.emit("after_train_epoch")
            if made is not None:
                made.step()
    return run, model


def train_torch(
    swa_lr: float, *, start: int = 7, scheduler: Any = None, avg_fn: Any = None, **options: Any
) -> tuple[list[float], AveragedModel, nn.Module]:
    """Train with the parts of torch: the learning rates of the steps, the average, and the model."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule, average, rates, swa = scheduler and scheduler(optimizer), AveragedModel(model, avg_fn=avg_fn), [], None
    torch.manual_seed(7)
    for epoch in range(EPOCHS):
        if epoch == start:
            swa = SWALR(optimizer, swa_lr, **options)
        for inputs, targets in pairs():
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if swa is not None:
            average.update_parameters(model)
            swa.step()
        elif schedule is not None:
            schedule.step()
    update_bn(pairs(), average)
    return rates, average, model


def assert_equal_averages(hook: SWAHook, average: AveragedModel) -> None:
    assert hook.average is not None
    expected = average.module.state_dict()
    assert hook.average.averaged().keys() == expected.keys()
    for name, value in hook.average.averaged().items():
        torch.testing.assert_close(value, expected[name], msg=name)


@pytest.mark.slow
def test_hook_passes_the_conformance_check() -> None:
    check_hook(SWAHook)
    check_hook(SWAHook, swa_lrs=0.01, swa_epoch_start=1, device="cpu")


class TestTorch:
    """50 steps have the learning rates, averages and statistics of `torch.optim.swa_utils`."""

    @pytest.mark.parametrize("loop", [train, train_custom])
    @pytest.mark.parametrize(
        ("settings", "options"),
        [
            ({}, {}),
            (
                {"annealing_strategy": "linear", "annealing_epochs": 2},
                {"anneal_strategy": "linear", "anneal_epochs": 2},
            ),
            ({"annealing_epochs": 3}, {"anneal_epochs": 3}),
        ],
    )
    def test_training_is_that_of_torch(self, loop: Loop, settings: Any, options: Any) -> None:
        hook, rates = SWAHook(swa_lrs=0.02, **settings), Rates()
        _, model = loop(rates, hook)
        expected, average, other = train_torch(0.02, **{"anneal_epochs": 10, **options})
        assert len(rates.used) == 50
        assert rates.used == pytest.approx(expected)
        assert expected[-1] != expected[0]
        assert_equal_averages(hook, average)
        for name, value in other.state_dict().items():  # the raw weights, and the raw statistics
            torch.testing.assert_close(model.state_dict()[name], value)

    @pytest.mark.parametrize("start", [8, 0.8, 0.89])
    def test_eighth_epoch_of_ten_is_the_first(self, start: float) -> None:
        hook, rates = SWAHook(swa_lrs=0.5, swa_epoch_start=start, annealing_epochs=0), Rates()
        train(rates, hook)
        assert rates.used == [0.1] * 35 + [0.5] * 15
        assert hook.average is not None
        assert hook.average.steps == 3

    def test_share_is_not_subject_to_rounding_errors(self) -> None:
        hook, rates = SWAHook(swa_lrs=0.5, swa_epoch_start=0.58, annealing_epochs=0), Rates()
        train(rates, hook, epochs=50)  # 0.58 * 50 is 28.999999999999996
        assert rates.used == [0.1] * 5 * 28 + [0.5] * 5 * 22

    @pytest.mark.parametrize("avg_fn", [get_swa_avg_fn(), get_ema_avg_fn(0.6)])
    def test_custom_average_is_that_of_torch(self, avg_fn: Any) -> None:
        hook = SWAHook(avg_fn=avg_fn)
        train(hook)
        _, average, _ = train_torch(0.1, avg_fn=avg_fn)
        assert_equal_averages(hook, average)

    @pytest.mark.parametrize("owner", ["trainer", "hook", "loop"])
    def test_schedule_is_taken_over_from_the_start_on(self, owner: str) -> None:
        def decay(optimizer: Any) -> ExponentialLR:
            return ExponentialLR(optimizer, gamma=0.9)

        hook, rates = SWAHook(swa_lrs=0.3, annealing_epochs=2), Rates()
        if owner == "hook":
            train(ParamSchedulerHook(schedulers={"type": "ExponentialLR", "gamma": 0.9}), hook, rates)
        else:
            {"trainer": train, "loop": train_custom}[owner](hook, rates, scheduler=decay)
        expected, average, _ = train_torch(0.3, scheduler=decay, anneal_epochs=2)
        assert rates.used == pytest.approx(expected)
        assert rates.used[35] == pytest.approx(0.1 * 0.9**7)
        assert_equal_averages(hook, average)


def test_schedule_of_steps_and_of_another_hook_are_taken_over() -> None:
    for hooks, options in (
        (
            (
                ParamSchedulerHook(
                    schedulers={"type": "OneCycleLR", "max_lr": 1.0, "total_steps": 50, "interval": "step"}
                ),
            ),
            {},
        ),
        ((YOLOXLrUpdaterHook(warmup_epochs=1, num_last_epochs=1),), {}),
    ):
        rates = Rates()
        train(*hooks, SWAHook(swa_lrs=0.25, annealing_epochs=1, swa_epoch_start=9), rates, **options)
        assert rates.used[45:] == [0.25] * 5
        assert len(set(rates.used[40:45])) == 1
        assert len(set(rates.used[30:40])) > 1


def test_parameter_groups_have_their_own_rates() -> None:
    class GroupRates(Hook):
        priority = Priority.LOWEST

        def before_optimizer_step(self, run: Run) -> None:
            self.used = [group["lr"] for group in run.optimizer.param_groups]

    model, record = net(), GroupRates()
    groups = [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": torch.tensor(0.4)}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    rate = optimizer.param_groups[1]["lr"]
    hook = SWAHook(swa_lrs=[0.2, 0.6], annealing_epochs=2, annealing_strategy="linear", swa_epoch_start=1)
    Trainer(
        model,
        optimizer,
        functional.cross_entropy,
        pairs(),
        epochs=2,
        hooks=[hook, record],
        default_hooks=False,
        work_dir=None,
        device="cpu",
    ).fit()
    assert record.used == pytest.approx([0.15, 0.5])
    assert record.used[1] is rate


class TestStatistics:
    def test_pass_over_the_data_changes_nothing_else(self, tmp_path: Path) -> None:
        """RNG states, data, raw weights and their statistics are those of a training without the hook."""

        class Observe(Hook):
            def __init__(self) -> None:
                super().__init__()
                self.seen: list[Any] = []

            def after_train_iter(self, batch: Any, model: nn.Module) -> None:
                self.seen.append(
                    (batch[0].sum().item(), torch.get_rng_state().sum().item(), fingerprint(model.state_dict()))
                )

        loader = DataLoader(TensorDataset(*map(torch.cat, zip(*pairs(), strict=True))), 6, shuffle=True)
        seen = []
        for hooks in ((), (SWAHook(swa_epoch_start=1),)):
            observe, model = Observe(), net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            Trainer(
                model,
                optimizer,
                functional.cross_entropy,
                loader,
                epochs=3,
                hooks=[*hooks, observe],
                seed=3,
                default_hooks=False,
                work_dir=None,
                device="cpu",
            ).fit()
            seen.append(observe.seen)
        assert len(seen[0]) == 15
        assert seen[0] == seen[1]

    def test_validations_and_files_have_the_recomputed_statistics(self, tmp_path: Path) -> None:
        validated: list[Tensor] = []

        class Look(Hook):
            def before_val(self, model: nn.Sequential) -> None:
                validated.append(model[1].running_mean.clone())

        saver = CheckpointHook(interval=1, save_best=False, max_keep_ckpts=None)
        hook = SWAHook(swa_epoch_start=2)
        train(hook, Look(), saver, epochs=3, val_loader=pairs(), work_dir=tmp_path)
        for epoch in (2, 3):
            checkpoint = read_checkpoint(tmp_path / f"checkpoints/epoch_{epoch}.pth")
            averaged, model = checkpoint["ema_state_dict"], net()
            model.load_state_dict(averaged)
            update_bn(pairs(), model)
            torch.testing.assert_close(averaged["1.running_mean"], model[1].running_mean)
            torch.testing.assert_close(averaged["1.running_var"], model[1].running_var)
            assert torch.equal(validated[epoch - 1], averaged["1.running_mean"])
            assert not torch.equal(checkpoint["state_dict"]["1.running_mean"], averaged["1.running_mean"])

    def test_frozen_layer_keeps_its_statistics(self) -> None:
        class Freeze(Hook):
            def before_train_epoch(self, model: nn.Sequential) -> None:
                model[1].eval()

        hook = SWAHook(swa_epoch_start=1)
        train(Freeze(), hook, epochs=2)
        assert hook.average is not None
        assert torch.equal(hook.average.averaged()["1.running_mean"], torch.zeros(8))

    def test_loader_is_required_for_the_statistics_only(self) -> None:
        with (
            pytest.raises(
                HookError, match="training loader of the run .* BatchNorm layers, got None. Pass `train_load"
            ),
            HookBus([SWAHook()]).run(model=net(), epochs=2),
        ):
            pytest.fail("the loop has started")
        with HookBus([SWAHook()]).run(model=nn.Linear(1, 1), epochs=2):
            pass

    def test_loader_that_cannot_be_read_twice_is_refused_before_the_training(self) -> None:
        message = "loader that can be read twice at a time to recompute .* BatchNorm layers, got list_iterator. Pass a"
        with (
            pytest.raises(HookError, match=message),
            HookBus([SWAHook()]).run(model=net(), epochs=2, train_loader=iter(pairs())),
        ):
            pytest.fail("the loop has started")
        with HookBus([SWAHook()]).run(model=nn.Linear(1, 1), epochs=2, train_loader=iter(pairs())):
            pass

    def test_batches_of_other_types_are_passed_to_the_model(self) -> None:
        class Named(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(1)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(x)

        values = torch.tensor([[1.0], [3.0]])
        for batch in (values, {"x": values}, (values, 0), [values]):
            model, bus, hook = Named(), HookBus(), SWAHook(swa_epoch_start=1)
            bus.register(hook)
            with bus.run(model=model, epochs=1, train_loader=[batch]) as run:
                for _ in run.epochs():
                    bus.emit("before_train_epoch")
                    for i, _batch in run.batches([batch]):
                        bus.emit("before_train_iter", batch_idx=i)
                        bus.emit("after_train_iter", batch_idx=i)
                    bus.emit("after_train_epoch")
            assert hook.average is not None
            assert hook.average.averaged()["norm.running_mean"].item() == 2
            assert hook.average.averaged()["norm.running_var"].item() == 2  # (1 + 1) / (2 - 1)
            assert model.norm.running_mean.item() == 0  # type: ignore[operator, union-attr]


class TestResume:
    @pytest.mark.parametrize("loop", [train, train_custom])
    @pytest.mark.parametrize("epoch", [1, 3, 4])
    def test_resumed_run_is_identical_to_an_uninterrupted_one(self, loop: Loop, epoch: int, tmp_path: Path) -> None:
        def build() -> list[Any]:
            settings = {"swa_lrs": 0.3, "swa_epoch_start": 3, "annealing_epochs": 2, "avg_fn": get_ema_avg_fn(0.7)}
            return [SWAHook(settings), Rates(), CheckpointHook(interval=1, save_best=False, max_keep_ckpts=None)]

        whole, rest = build(), build()
        _, expected = loop(*whole, epochs=5, work_dir=tmp_path / "a")
        file = tmp_path / f"a/checkpoints/epoch_{epoch}.pth"
        _, actual = loop(*rest, epochs=5, work_dir=tmp_path / "b", resume=file)
        assert fingerprint(actual.state_dict()) == fingerprint(expected.state_dict())
        assert fingerprint(rest[0].state_dict()) == fingerprint(whole[0].state_dict())
        assert rest[1].used == whole[1].used[epoch * BATCHES :]

    def test_average_that_has_begun_continues_in_a_longer_run(self, tmp_path: Path) -> None:
        hook, saver = SWAHook(swa_epoch_start=0.5), CheckpointHook(interval=1, save_best=False)
        train(hook, saver, epochs=2, work_dir=tmp_path)
        longer = SWAHook(swa_epoch_start=0.5)
        train(longer, saver, epochs=8, work_dir=tmp_path, resume="auto")
        assert longer.average is not None
        assert longer.average.steps == 8  # from the first epoch on, and not from the fourth


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"swa_lrs": -0.1}, "swa_lrs: "),
        ({"swa_epoch_start": -1}, "swa_epoch_start: "),
        ({"swa_epoch_start": 1.0}, "swa_epoch_start: "),
        ({"annealing_strategy": "exp", "swa_lrs": 0.1}, "annealing_strategy: should be 'cos' or 'linear'"),
        ({"annealing_epochs": 3}, "annealing_epochs: no effect without `swa_lrs`, got 3"),
        ({"avg_fn": "math:no_such"}, "avg_fn: "),
        ({"avg_fn": lambda a: a}, "avg_fn: should be a function (average, weight, num_averaged), got <function"),
        ({"frequency": 2}, "frequency: not supported, got 2: the average is updated after each epoch"),
        ({"when": "every(2)"}, "when: not supported, got every(2): the average is updated after each epoch"),
    ],
)
def test_constructor_names_the_invalid_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        SWAHook(settings)
    assert message in str(error.value)


def test_function_is_an_import_string_of_the_function_or_of_one_that_makes_it() -> None:
    made = SWAHook(avg_fn="torch.optim.swa_utils:get_swa_avg_fn").config.avg_fn
    assert made is not None
    assert made(torch.tensor(1.0), torch.tensor(4.0), 2) == 2
    own = SWAHook(avg_fn=f"{__name__}:take_largest").config.avg_fn
    assert own is take_largest


def take_largest(average: Tensor, weight: Tensor, num_averaged: int) -> Tensor:
    return torch.maximum(average, weight)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"epochs": None, "iterations": 3}, "swa_epoch_start: a share requires a limit in epochs, got none"),
        ({"swa_lrs": [0.1, 0.2]}, {}, r"swa_lrs: requires one value per parameter group \(1\), got 2"),
    ],
)
def test_settings_that_do_not_match_the_run_are_refused(
    settings: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(SWAHook(settings), **options)


def test_two_owners_of_the_learning_rate_are_refused() -> None:
    with pytest.raises(ConfigError, match="swa_lrs: hook 'b' also sets the learning rate. Remove `swa_lrs` of one"):
        train(SWAHook(name="a", swa_lrs=0.1), SWAHook(name="b", swa_lrs=0.1))
    train(SWAHook(name="a", swa_lrs=0.1), SWAHook(name="b"), epochs=1)


def test_rate_without_an_optimizer_is_refused() -> None:
    bus = HookBus([SWAHook(swa_lrs=0.1)])
    with (
        pytest.raises(HookError, match="swa_lrs: requires one optimizer, got 0"),
        bus.run(model=nn.Linear(1, 1), epochs=2),
    ):
        pytest.fail("the loop has started")


def test_loop_without_the_end_of_epochs_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    bus, model = HookBus([SWAHook(swa_epoch_start=2)]), nn.Linear(1, 1)
    with bus.run(model=model, epochs=2) as run:
        for _ in run.epochs():
            for i, _batch in run.batches([1]):
                bus.emit("after_train_iter", batch_idx=i)
    assert [m for m in caplog.messages if "swa: no average, because the loop has emitted no after_train_epoch" in m]


def test_start_that_the_run_does_not_reach_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    train(SWAHook(swa_epoch_start=3), epochs=2)
    assert [m for m in caplog.messages if "requires 3 epochs for 'swa_epoch_start'" in m]
