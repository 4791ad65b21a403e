"""Rows of the migration page for what changes a training: the part of Lightning and the hook have the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LambdaCallback,
    StochasticWeightAveraging,
    Timer,
)

from hookbus import Hook, HookBus, Trainer
from hookbus.errors import HookbusError
from hookbus.testing import RecordingBus
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook, SWAHook
from hookbus_eval import EvalHook
from hookbus_guards import CheckInvalidLossHook
from hookbus_runtime import TimeLimitHook
from hookbus_schedule import AccumulationHook, FreezeHook, ParamSchedulerHook
from hookbus_sync import DistSamplerSeedHook

from .migration import covers
from .toys import Validated, attach, make_loader

VALUES = torch.linspace(-1, 1, 16).reshape(8, 2)
"""Data of 4 batches, of which no gradient is zero."""


def make_data() -> Any:
    return DataLoader(TensorDataset(VALUES, VALUES.sum(1, keepdim=True) + 1), batch_size=2)


class Regression(pl.LightningModule):
    """Two layers, trained with SGD. Results of validations are those of `val_losses`, by epoch."""

    def __init__(self, val_losses: Any = (0.0,) * 9) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)
        self.val_losses = val_losses

    def compute_loss(self, batch: Any) -> Any:
        return (self.second(self.first(batch[0]).tanh()) - batch[1]).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.compute_loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", torch.tensor(self.val_losses[self.current_epoch]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)

    @property
    def vector(self) -> torch.Tensor:
        """All weights."""
        return nn.utils.parameters_to_vector(self.parameters()).detach().clone()


def fit(directory: Path, *, hooks: Any = (), module: Any = None, bus: HookBus | None = None, **options: Any) -> Any:
    """Train in the Trainer of Lightning with hooks, 2 epochs of 4 batches, and return the bridge and the module."""
    module = Regression() if module is None else module
    bridge = attach(bus or HookBus(hooks), directory, **{"max_epochs": 2, **options})
    bridge.host.fit(module, make_data(), make_loader(1.0, 2.0))
    return bridge, module


def fit_in_hookbus(*hooks: Any, module: Any = None, **options: Any) -> Any:
    """Train the same in the Trainer of hookbus, and return the run and the module."""
    module = Regression() if module is None else module
    trainer = Trainer(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        step_fn=lambda model, batch: model.compute_loss(batch),
        hooks=hooks,
        **{
            "train_loader": make_data(),
            "epochs": 2,
            "default_hooks": False,
            "work_dir": None,
            "device": "cpu",
            **options,
        },
    )
    return trainer.fit(), module


@covers("`gradient_clip_val`", "`training.clip_grad_norm`")
def test_gradients_are_clipped_to_the_same_norm(tmp_path: Path) -> None:
    _, native = fit(tmp_path, gradient_clip_val=0.25)
    _, ours = fit_in_hookbus(clip_grad_norm=0.25)
    _, unclipped = fit_in_hookbus()
    assert torch.equal(native.vector, ours.vector)
    assert not torch.equal(ours.vector, unclipped.vector)


@covers("`GradientAccumulationScheduler`", "`accumulation`, with epochs counted from 1")
def test_batches_are_accumulated_from_the_same_epoch_on(tmp_path: Path) -> None:
    bridge, native = fit(tmp_path, callbacks=[GradientAccumulationScheduler({0: 1, 1: 2})])
    run, ours = fit_in_hookbus(AccumulationHook(schedule={1: 1, 2: 2}))  # epochs are counted from 1
    assert bridge.host.global_step == run.steps_done == 4 + 2
    assert torch.equal(native.vector, ours.vector)


@covers("`EarlyStopping`", "`early_stopping`, which also restores the best weights by default")
@pytest.mark.parametrize("restores", [False, True])
def test_training_stops_after_the_same_validation(tmp_path: Path, restores: bool) -> None:
    losses, weights = [3.0, 2.0, 2.5, 2.6, 1.0], []
    native, module = fit(
        tmp_path, module=Regression(losses), callbacks=[EarlyStopping("val_loss", patience=2)], max_epochs=5
    )
    bus = HookBus([EarlyStoppingHook(monitor="val/loss", patience=2, restore_best_weights=restores)])
    bus.on("after_epoch")(lambda run: weights.append(run.model.vector))
    ours, other = fit(tmp_path, module=Regression(losses), bus=bus, max_epochs=5)
    assert native.host.current_epoch == ours.host.current_epoch == ours.run.epochs_done == 4
    assert torch.equal(module.vector, weights[3])
    assert torch.equal(other.vector, weights[1 if restores else 3])


def make_averaging(**options: Any) -> Any:
    """Return Lightning's average with the weight 0.75 of the old average."""
    callbacks = pytest.importorskip("lightning.pytorch.callbacks.weight_averaging", reason="since Lightning 2.6")
    if not hasattr(callbacks, "EMAWeightAveraging"):
        pytest.skip("EMAWeightAveraging is new in Lightning 2.6")
    return callbacks.EMAWeightAveraging(decay=0.75, **options)


def average(first: torch.Tensor, rest: Any) -> torch.Tensor:
    for value in rest:
        first = 0.75 * first + 0.25 * value
    return first


def read_weights(tmp_path: Path, *callbacks: Any) -> tuple[list[torch.Tensor], Any]:
    """Return the weights after each step, from the initial ones on, and the module after a training in Lightning."""
    weights = [Regression().vector]

    class Read(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            weights.append(pl_module.vector)

    return weights, fit(tmp_path, callbacks=[*callbacks, Read()])[1]


def fit_average(tmp_path: Path, module: Any, **settings: Any) -> torch.Tensor:
    hook = EMAHook(momentum=0.75, warm_up=0, **settings)
    fit(tmp_path, hooks=[hook])
    averaged = hook.average.averaged()
    return torch.cat([averaged[name].flatten() for name, _ in module.named_parameters()])


@covers(
    "`EMAWeightAveraging`",
    "`ema` with `warm_up: 0` and `start_step: 1`; `update_starting_at_step=n` is `start_step: n + 1`",
)
@pytest.mark.parametrize("start", [None, 3])
def test_averages_have_the_same_decay_and_start(tmp_path: Path, start: int | None) -> None:
    # Lightning swaps the average into the module at the end; its first average is the weights after the first step.
    weights, native = read_weights(tmp_path, make_averaging(update_starting_at_step=start))
    first = 1 + (start or 0)
    torch.testing.assert_close(native.vector, average(weights[first], weights[first + 1 :]))
    torch.testing.assert_close(fit_average(tmp_path, native, start_step=first), native.vector)


@covers(
    "`update_starting_at_epoch`",
    "`ema` with `start_epoch`; its first average is that of the weights at the start of the epoch",
)
def test_average_starts_with_an_epoch(tmp_path: Path) -> None:
    weights, native = read_weights(tmp_path)
    ours = fit_average(tmp_path, native, start_epoch=1)
    torch.testing.assert_close(ours, average(weights[4], weights[5:]))  # an epoch has 4 steps


@covers(
    "`StochasticWeightAveraging`", "`swa` with `swa_lrs`; it averages the weights after each epoch, not those before it"
)
def test_last_epochs_are_averaged_at_the_same_learning_rates(tmp_path: Path) -> None:
    class Read(Hook):
        def __init__(self) -> None:
            super().__init__()
            self.rates: list[float] = []
            self.weights: list[torch.Tensor] = []

        def after_train_iter(self, run: Any) -> None:
            self.rates.append(run.optimizer.param_groups[0]["lr"])

        def before_train_epoch(self, model: Any) -> None:
            self.weights.append(model.vector)

        def after_train(self, model: Any) -> None:
            self.weights.append(model.vector)

    def read(*hooks: Any, **options: Any) -> tuple[list[float], list[torch.Tensor], Any]:
        record = Read()
        _, module = fit(tmp_path, hooks=[*hooks, record], max_epochs=5, **options)
        return record.rates, record.weights, module

    options = {"swa_epoch_start": 3, "annealing_epochs": 2, "annealing_strategy": "linear"}
    native, begins, module = read(callbacks=[StochasticWeightAveraging(0.3, **options)])
    hook = SWAHook(swa_lrs=0.3, **options)
    rates, ends, other = read(hook)
    assert native[::4] == rates[::4] == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.3])
    assert hook.average is not None
    ours = torch.cat([hook.average.averaged()[name].flatten() for name, _ in other.named_parameters()])
    torch.testing.assert_close(module.vector, torch.stack(begins[2:5]).mean(0))
    torch.testing.assert_close(ours, torch.stack(ends[3:6]).mean(0))


@covers("`check_val_every_n_epoch`", "`eval`, by default also at the end")
def test_validations_follow_the_same_epochs(tmp_path: Path) -> None:
    def count(hook: Any = None, **options: Any) -> list[int]:
        epochs: list[int] = []
        bus = HookBus([hook] if hook else [])
        bus.on("after_val")(lambda run: epochs.append(run.current("epoch")))
        fit(tmp_path, bus=bus, max_epochs=5, **options)
        return epochs

    assert count(check_val_every_n_epoch=2) == [2, 4]
    assert count(EvalHook(interval=2, at_end=False, save_best=False), check_val_every_n_epoch=100) == [2, 4]
    assert count(EvalHook(interval=2, save_best=False), check_val_every_n_epoch=100) == [2, 4, 5]


@covers("`lr_scheduler`", "`param_scheduler`")
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_learning_rates_are_the_same(tmp_path: Path, interval: str) -> None:
    class Scheduled(Regression):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval}}

    def read(module: Any, *hooks: Any) -> tuple[list[float], Any]:
        rates: list[float] = []
        bus = HookBus(hooks)
        bus.on("before_train_iter")(lambda run: rates.append(run.optimizer.param_groups[0]["lr"]))
        fit(tmp_path, bus=bus, module=module)
        return rates, module

    schedule = {"type": "StepLR", "step_size": 1, "gamma": 0.5}
    native, module = read(Scheduled())
    ours, other = read(Regression(), ParamSchedulerHook(schedulers=[schedule], interval=interval))
    exponents = range(8) if interval == "step" else [0, 0, 0, 0, 1, 1, 1, 1]
    assert native == ours == [0.1 * 0.5**exponent for exponent in exponents]
    assert torch.equal(module.vector, other.vector)


@covers("`BaseFinetuning`", "`freeze`")
def test_layer_is_frozen_for_the_same_epochs(tmp_path: Path) -> None:
    class Finetuning(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.first)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.first, optimizer, lr=0.1, initial_denom_lr=1)

    _, native = fit(tmp_path, callbacks=[Finetuning()])
    _, ours = fit(tmp_path, hooks=[FreezeHook(modules=["first"], until_epoch=1)])
    _, trained = fit(tmp_path)
    assert torch.equal(native.vector, ours.vector)
    assert not torch.equal(ours.vector, trained.vector)


@covers("`detect_anomaly`", "`check_invalid_loss`, which names no function of the backward pass")
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.filterwarnings("ignore:Error detected in")
def test_invalid_loss_ends_the_training_in_the_same_iteration(tmp_path: Path) -> None:
    class Invalid(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.compute_loss(batch) * (float("nan") if batch_idx == 2 else 1)

    def end(error: type[Exception], hooks: Any = (), **options: Any) -> int:
        bus = RecordingBus(hooks)
        with pytest.raises(error, match="(?i)nan"):
            fit(tmp_path, bus=bus, module=Invalid(), **options)
        return len(bus.get_arguments("before_train_iter"))

    assert end(RuntimeError, detect_anomaly=True) == 3
    assert end(HookbusError, [CheckInvalidLossHook(interval=1)]) == 3


@covers("`Timer`", "`time_limit`")
def test_time_limit_ends_the_training_after_the_same_step(tmp_path: Path) -> None:
    class StepTimer(Timer):
        """A step takes one second."""

        def time_elapsed(self, *_: Any) -> float:
            return float(steps["native"])

    steps = {"native": 0, "ours": 0}

    def count(name: str) -> Any:
        return LambdaCallback(on_before_optimizer_step=lambda *_: steps.update({name: steps[name] + 1}))

    native, _ = fit(tmp_path, callbacks=[count("native"), StepTimer({"seconds": 3})])
    hook = TimeLimitHook(max_time=3, per_run=True)
    hook.timer = lambda: float(steps["ours"])
    ours, _ = fit(tmp_path, hooks=[hook], callbacks=[count("ours")])
    assert native.host.global_step == ours.host.global_step == 3


@covers("`use_distributed_sampler`", "`dist_sampler_seed` for the epochs of a sampler in a custom loop")
def test_sampler_receives_the_same_epochs(tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(6.0))

    def make() -> Any:
        return DataLoader(data, sampler=DistributedSampler(data, num_replicas=1, rank=0, shuffle=True))

    def read(batches: list[float], batch: Any) -> None:
        batches.append(batch[0].item())

    native: list[float] = []
    callback = LambdaCallback(on_train_batch_start=lambda trainer, module, batch, *_: read(native, batch))
    bridge = attach(HookBus(), tmp_path, max_epochs=2, callbacks=[callback])
    bridge.host.fit(Validated(), loader := make(), make_loader(1.0))

    ours: list[float] = []
    bus, loader = HookBus([DistSamplerSeedHook()]), make()
    with bus.run(model=nn.Linear(1, 1), train_loader=loader, epochs=2, work_dir=None) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for batch in loader:
                bus.emit("before_train_iter", batch=batch)
                read(ours, batch)
                bus.emit("after_train_iter", batch=batch)
            bus.emit("after_train_epoch")
    assert native == ours
    assert ours[:6] != ours[6:]


class CountBatches(Hook):
    """Number of batches that are validated before the training."""

    batches = 0

    def after_val_iter(self, run: Any) -> None:
        self.batches += run.iters_done == 0


@covers("`num_sanity_val_steps`", "`training.validate_first` with all batches, or `hookbus check`")
def test_validation_before_the_training_has_all_batches(tmp_path: Path) -> None:
    native, ours = CountBatches(), CountBatches()
    fit(tmp_path, hooks=[native], num_sanity_val_steps=-1)
    fit_in_hookbus(ours, val_loader=make_data(), validate_first=True)
    assert (native.batches, ours.batches) == (2, 4)  # those of `make_loader(1.0, 2.0)` and of `make_data()`


class RecordBatches(Hook):
    """First values of the training batches, and number of the batches of validation and test."""

    def __init__(self) -> None:
        super().__init__()
        self.train: list[float] = []
        self.evaluated = 0

    def before_train_iter(self, batch: Any) -> None:
        self.train.append(float(batch[0][0, 0]))

    def before_val_iter(self) -> None:
        self.evaluated += 1

    def before_test_iter(self) -> None:
        self.evaluated += 1


def fit_both(directory: Path, data: Any, **options: Any) -> tuple[RecordBatches, RecordBatches]:
    """Train in both trainers with the same data and options, and compare the weights."""
    native, ours = RecordBatches(), RecordBatches()
    module = Regression()
    attach(HookBus([native]), directory, max_epochs=2, **options).host.fit(module, data(), data())
    _, trained = fit_in_hookbus(ours, train_loader=data(), val_loader=data(), **options)
    assert torch.equal(module.vector, trained.vector)
    return native, ours


@covers("`limit_train_batches`, `limit_val_batches`", "`training.limit_train_batches`, `training.limit_val_batches`")
@pytest.mark.parametrize("limit", [1, 3, 0.5, 1.0])
def test_limits_select_the_same_batches(limit: float, tmp_path: Path) -> None:
    native, ours = fit_both(tmp_path, make_data, limit_train_batches=limit, limit_val_batches=1)
    count = limit if isinstance(limit, int) else int(4 * limit)
    assert native.train == ours.train == pytest.approx([-1 + 8 / 15 * i for i in range(count)] * 2)
    assert native.evaluated == ours.evaluated == 2


@covers("`limit_test_batches`", "`training.limit_test_batches`")
def test_limit_of_the_test(tmp_path: Path) -> None:
    native, ours = RecordBatches(), RecordBatches()
    attach(HookBus([native]), tmp_path, limit_test_batches=0.5).host.test(Validated(), make_loader(1.0, 2.0, 3.0, 4.0))
    model = Validated()
    trainer = Trainer(
        model,
        test_loader=make_loader(1.0, 2.0, 3.0, 4.0),
        step_fn=lambda model, batch: model.compute_loss(batch),
        hooks=[ours],
        default_hooks=False,
        work_dir=None,
        device="cpu",
        limit_test_batches=0.5,
    )
    trainer.test()
    assert native.evaluated == ours.evaluated == 2


@covers("`overfit_batches`", "`training.overfit_batches`, which leaves the samples of a custom sampler to the sampler")
@pytest.mark.filterwarnings("ignore:You requested to overfit")
def test_overfitted_batches_are_the_same(tmp_path: Path) -> None:
    def shuffled() -> Any:
        return DataLoader(make_data().dataset, batch_size=2, shuffle=True)

    native, ours = fit_both(tmp_path, shuffled, overfit_batches=2)
    assert native.train == ours.train
    assert ours.train[:2] == ours.train[2:]
    assert native.evaluated == ours.evaluated == 4


@covers("`fast_dev_run`", "`training.fast_dev_run`, or `hookbus train run.yaml --fast-dev-run`")
def test_fast_dev_run_trains_the_same_batch(tmp_path: Path) -> None:
    native, ours = fit_both(tmp_path, make_data, fast_dev_run=True)
    assert native.train == ours.train == [-1.0]
    assert native.evaluated == ours.evaluated == 1


@covers("`LambdaCallback`", '`@bus.on("after_train_iter")`')
def test_function_is_called_at_the_same_iterations(tmp_path: Path) -> None:
    native, ours = [], []
    bus = HookBus()
    bus.on("after_train_iter")(lambda run, loss: ours.append((run.steps_done, loss.item())))
    callback = LambdaCallback(
        on_train_batch_end=lambda trainer, module, outputs, *_: native.append(
            (trainer.global_step, outputs["loss"].item())
        )
    )
    fit(tmp_path, bus=bus, callbacks=[callback])
    assert len(native) == 8
    assert native == ours
