"""Trial steps inside `run.sandbox()` leave no trace in the training."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from hookbus import Hook, HookBus, Run, Trainer, hookimpl
from hookbus.checkpoint.state import build_checkpoint
from hookbus.data import limit_loader
from hookbus.errors import LoopError
from hookbus.testing import fake_training, fingerprint
from hookbus_ema import EMAHook
from tests.toys import Saver

Options = dict[str, Any]


class CallAt(Hook):
    """Call a function of the run at a point, after a number of iterations."""

    def __init__(self, point: str, iterations: int, call: Callable[[Run], object]) -> None:
        super().__init__()
        setattr(self, point, hookimpl(lambda run: call(run) if run.iters_done == iterations else None))


class Observer(Hook):
    """Record the order of the data, the logged means, and the state at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []
        self.means: list[dict[str, float]] = []

    def before_train_iter(self, batch: Any) -> None:
        self.seen.append(float(batch[0].sum()))

    def after_train_epoch(self, metrics: Any) -> None:
        self.means.append(dict(metrics))

    def after_train(self, run: Run) -> None:
        checkpoint = copy.deepcopy(build_checkpoint(run))
        for key in ("meta", "hooks"):
            del checkpoint[key]
        # Of the wall clock, and of the run.
        loop = checkpoint["loop"]
        loop["clock"] = {name: value for name, value in loop["clock"].items() if "second" not in name}
        del loop["id"]
        self.state = fingerprint(checkpoint)


def range_test(run: Run) -> None:
    """Train with growing learning rates, and change everything that a training step may change."""
    with run.sandbox() as trial:
        assert run.model is not None
        run.model.eval()
        for batch in trial.batches():
            for optimizer in run.optimizers.values():
                optimizer.param_groups[0]["lr"] *= 3
            trial.train_step(batch)
            run.log(trial=1.0)
            random.random(), np.random.rand(), torch.rand(1)
        for scheduler in run.schedulers.values():
            scheduler.step()


def train(*hooks: object, **options: Any) -> Observer:
    """Train a model with dropout and batch norm on shuffled data."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data: Any = [(torch.randn(4), i % 2) for i in range(20)]
    observer = Observer()
    settings: Options = {
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12),
        "scheduler_interval": "step",
        "epochs": 2,
        "work_dir": None,
        "default_hooks": False,
        **options,
    }
    loader: Any = DataLoader(data, batch_size=4, shuffle=True)
    Trainer(model, optimizer, nn.functional.cross_entropy, loader, hooks=[*hooks, observer], **settings).fit()
    return observer


def assert_same(first: Observer, second: Observer) -> None:
    assert first.seen == second.seen
    assert first.means == second.means
    assert first.state == second.state


@pytest.mark.parametrize(
    ("point", "iterations"),
    [("before_train", 0), ("before_train_iter", 3), ("after_train_iter", 7), ("after_epoch", 5)],
)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "precision": "fp16"}], ids=["plain", "scaled"])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_training_with_a_range_test_is_bitwise_the_same(point: str, iterations: int, options: Options) -> None:
    assert_same(train(CallAt(point, iterations, range_test), **options), train(**options))


def test_averaged_weights_and_records_are_unaffected() -> None:
    ema = [EMAHook(momentum=0.5) for _ in range(2)]
    assert_same(train(CallAt("after_train_iter", 3, range_test), ema[0]), train(ema[1]))


def test_everything_is_restored_after_an_exception() -> None:
    def fail(run: Run) -> None:
        with suppress(ZeroDivisionError), run.sandbox() as trial:
            trial.train_step(next(trial.batches()))
            raise ZeroDivisionError

    assert_same(train(CallAt("before_train_iter", 3, fail)), train())


def test_sandbox_inside_a_sandbox_is_restored_as_well() -> None:
    def nest(run: Run) -> None:
        with run.sandbox() as outer:
            range_test(run)
            outer.train_step(next(outer.batches()))

    assert_same(train(CallAt("after_train_iter", 3, nest)), train())


class Gan(Hook):
    """Train two models with two optimizers."""

    def train_step(self, run: Run, batch: Any) -> dict[str, Any]:
        losses, models = {}, run.model
        assert isinstance(models, nn.ModuleDict)
        for name, optimizer in run.optimizer.items():
            optimizer.zero_grad()
            losses[name] = models[name](batch[0]).square().mean()
            losses[name].backward()
            optimizer.step()
        return {"loss": losses["g"].detach(), "d": losses["d"].detach()}


def train_two(*hooks: object) -> Observer:
    torch.manual_seed(0)
    models = {"g": nn.Linear(4, 1), "d": nn.Linear(4, 1)}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.1) for name, model in models.items()}
    data = [(torch.randn(2, 4), torch.zeros(2)) for _ in range(4)]
    observer = Observer()
    common: Options = {"work_dir": None, "default_hooks": False, "epochs": 2}
    Trainer(models, optimizers, None, data, hooks=[Gan(), *hooks, observer], **common).fit()
    return observer


def test_steps_of_two_optimizers_are_not_counted() -> None:
    assert_same(train_two(CallAt("after_train_iter", 3, range_test)), train_two())


def test_lbfgs_is_restored_with_its_history() -> None:
    def run_loop(*, trial: bool) -> str:
        torch.manual_seed(0)
        model, inputs = nn.Linear(4, 1), torch.randn(8, 4)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        bus = HookBus()
        with bus.run(model=model, optimizer=optimizer, iterations=4) as run:
            for i in range(4):
                bus.emit("before_train_iter")
                optimizer.step(closure)
                bus.emit("after_train_iter")
                if trial and i == 1:
                    with run.sandbox():
                        optimizer.step(closure)
            assert run.steps_done == 4
        return fingerprint([model.state_dict(), optimizer.state_dict()])

    assert run_loop(trial=True) == run_loop(trial=False)


def test_time_of_a_trial_is_not_training_time() -> None:
    bus = HookBus()
    with bus.run() as run:
        seconds = iter([0.0, 5.0, 100.0])
        run.clock.timer = lambda: next(seconds)
        bus.emit("before_train")
        with run.sandbox():
            pass
        run.clock.timer = lambda: 102.0
        assert run.clock.seconds == 7


def test_metrics_inside_are_those_of_the_trial() -> None:
    bus = HookBus()
    with bus.run() as run:
        bus.emit("before_train_iter")
        run.log(x=1.0)
        bus.emit("after_train_iter")
        with run.sandbox():
            assert dict(run.metrics) == {}
            run.log(x=2.0)
            assert run.metrics["x"] == 2
        assert dict(run.metrics) == {"train/x": 1.0}


def test_replaced_batch_remains_replaced_after_a_skipped_trial_step() -> None:
    seen = []

    def replace(run: Run) -> None:
        run.replace_batch([5])
        with run.sandbox():
            run.request_skip_iter()

    bus = HookBus([CallAt("before_train_iter", 0, replace)])
    with bus.run() as run:
        bus.emit("before_train_iter", batch=[1])
        assert not run.should_skip_iter
        seen = run.resolve_batch([1])
        bus.emit("after_train_iter", batch=seen)
    assert seen == [5]


class TestCustomLoop:
    def run_loop(self, *hooks: object) -> tuple[str, Run]:
        training = fake_training(hooks, epochs=2)
        return fingerprint(
            [training.model.state_dict(), training.run.optimizer.state_dict(), training.rng]
        ), training.run

    def test_training_is_the_same_with_trial_steps(self) -> None:
        def try_steps(run: Run) -> None:
            with run.sandbox() as trial:
                for batch in islice(trial.batches([(torch.ones(2, 3), torch.tensor([0, 1]))] * 3), 2):
                    trial.train_step(batch)
                    run.bus.emit("after_train_iter", batch=batch)

        state, run = self.run_loop(CallAt("after_train_iter", 2, try_steps))
        plain, other = self.run_loop()
        assert state == plain
        assert (run.steps_done, run.iters_done, run.samples_done) == (other.steps_done, other.iters_done, 24)

    def test_state_of_the_loop_is_restored(self) -> None:
        values = {"hidden": [1.0]}

        def change(run: Run) -> None:
            with run.sandbox():
                values["hidden"].append(2.0)

        bus = HookBus([CallAt("before_train", 0, change)])
        state = {"hidden": (lambda: values["hidden"], lambda value: values.update(hidden=value))}
        with bus.run(state=state):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter")
        assert values == {"hidden": [1.0]}

    def test_trial_step_requires_the_action(self) -> None:
        def try_step(run: Run) -> None:
            with run.sandbox() as trial, pytest.raises(LoopError, match=r"bus\.action\('train_step', step\)"):
                trial.train_step(None)

        bus = HookBus([CallAt("before_train", 0, try_step)])
        with bus.run():
            bus.emit("before_train")

    def test_generator_of_the_loader_is_restored(self) -> None:
        generator = torch.Generator().manual_seed(3)
        data: Any = list(range(8))
        loader: Any = DataLoader(data, shuffle=True, generator=generator)
        before = generator.get_state()
        bus = HookBus()
        with bus.run(train_loader=loader) as run:
            with run.sandbox():
                assert len(list(loader)) == 8
            assert torch.equal(generator.get_state(), before)


class TestDiscarded:
    def test_requests_and_records_are_discarded_with_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        def request(run: Run) -> None:
            with run.sandbox():
                run.request_stop("diverged")
                run.request_save()
                for step in range(2):
                    run.bus.emit("log_scalars", values={"lr": 1.0}, step=step)

        hooks = [CallAt("after_train_iter", 2, request), saver := Saver(iteration=-1)]
        training = fake_training(hooks)
        assert training.run.iters_done == 6
        assert [record.message.partition(": ")[2] for record in caplog.records] == [
            "discarded because trial steps are not part of the training: 2 x log_scalars, 1 x save requested by "
            "call_at, 1 x stop requested by call_at: diverged. Make requests and log records after the `with` block."
        ]
        assert saver.files == []

    def test_ctrl_c_in_a_trial_stops_the_run(self) -> None:
        def interrupt(run: Run) -> None:
            with run.sandbox():
                run.interrupt()

        with pytest.raises(KeyboardInterrupt):
            fake_training([CallAt("after_train_iter", 2, interrupt)])

    def test_skipped_trial_step_skips_no_iteration(self) -> None:
        class SkipInTrial(Hook):
            @hookimpl(wrapper=True)
            def train_step(self, run: Run) -> Iterator[None]:
                if run.trial is not None:
                    run.request_skip_iter()
                return (yield)

        def try_step(run: Run) -> None:
            with run.sandbox() as trial:
                trial.train_step((torch.ones(2, 3), torch.tensor([0, 1])))

        training = fake_training([SkipInTrial(), CallAt("before_train_iter", 2, try_step)])
        assert training.run.steps_done == 6


class TestRefused:
    @pytest.mark.parametrize(
        ("point", "place"),
        [
            ("before_run", "before the training has begun"),
            ("after_forward", "within after_forward"),
            ("before_optimizer_step", "within before_optimizer_step"),
            ("before_val", "within a validation"),
            ("after_run", "after the training"),
        ],
    )
    def test_place_is_named(self, point: str, place: str) -> None:
        def enter(run: Run) -> None:
            with run.sandbox():
                pytest.fail("the sandbox was entered")

        hook = Hook()
        bus = HookBus([hook])
        bus.on(point)(lambda run: enter(run))
        with pytest.raises(LoopError, match=f"run.sandbox: called {place}. Call it from before_train on"):
            fake_training(bus=bus, scores=lambda epoch: {"loss": 1.0})

    @pytest.mark.parametrize("call", ["validate", "test", "epochs", "settle"])
    def test_operations_on_the_run_are_refused_in_a_trial(self, call: str) -> None:
        bus = HookBus()
        with bus.run(epochs=1) as run, run.sandbox(), pytest.raises(LoopError, match=f"run.{call}: called inside of"):
            getattr(run, call)()

    def test_iterator_cannot_be_read_in_a_trial(self) -> None:
        bus = HookBus()
        with bus.run(train_loader=iter([1, 2])) as run:
            with run.sandbox() as trial, pytest.raises(LoopError, match="Pass a second loader"):
                trial.batches()
            assert list(run.train_loader) == [1, 2]

    def test_obstacle_is_the_type_of_a_loader_that_a_trial_cannot_read(self) -> None:
        class Stream(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                yield from range(4)

        workers = DataLoader(Stream(), num_workers=1, persistent_workers=True)
        map_style = DataLoader([1, 2], num_workers=1, persistent_workers=True)
        for loader, obstacle in (
            (None, ""),
            ([1, 2], ""),
            (DataLoader(Stream()), ""),
            (map_style, ""),
            (iter([1, 2]), "list_iterator"),
            (limit_loader(iter([1, 2]), 1), "list_iterator"),
            (PositionLoader(), "PositionLoader"),
            (workers, "DataLoader"),
        ):
            with HookBus().run(train_loader=loader) as run:
                assert run.trial_obstacle == obstacle

    @pytest.mark.parametrize(("module", "count"), [(nn.LazyLinear(2), 2), (nn.LazyBatchNorm1d(affine=False), 2)])
    def test_model_that_is_not_initialized_is_refused(self, module: nn.Module, count: int) -> None:
        bus = HookBus()
        with bus.run(model=module) as run, pytest.raises(LoopError, match=f"{count} uninitialized ones"):  # noqa: SIM117
            with run.sandbox():
                pytest.fail("the sandbox was entered")


class PositionLoader:
    """Loader that saves its position."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 4:
            self.position += 1
            yield self.position
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class TestLoaderWithPosition:
    def test_position_is_restored_before_the_training_reads(self) -> None:
        loader, bus = PositionLoader(), HookBus()
        with bus.run(train_loader=loader, epochs=1) as run:
            with run.sandbox() as trial:
                assert next(iter(loader)) == 1
                with pytest.raises(LoopError, match="got PositionLoader. Pass a second loader"):
                    trial.batches()
                assert list(trial.batches(PositionLoader())) == [1, 2, 3, 4]
            for _ in run.epochs():
                assert [batch for _, batch in run.batches(loader)] == [1, 2, 3, 4]

    def test_change_of_the_position_within_a_pass_is_an_error(self) -> None:
        loader, bus = PositionLoader(), HookBus()
        with bus.run(train_loader=loader) as run:
            for _ in run.batches(loader):
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")
                with pytest.raises(LoopError, match="a trial has read the loader"), run.sandbox():
                    next(iter(loader))


def test_optimizer_of_a_trial_is_not_part_of_the_checkpoints(tmp_path: Path) -> None:
    def probe(run: Run) -> None:
        with run.sandbox():
            weight = torch.zeros(1, requires_grad=True)
            weight.sum().backward()
            torch.optim.SGD([weight], lr=1.0).step()

    training = fake_training([Saver("after_epoch"), CallAt("after_train_iter", 2, probe)], work_dir=tmp_path)
    assert training.run.outcome == "finished"


def test_sparse_gradients_and_a_learning_rate_on_the_device_are_restored() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=torch.tensor(0.1))

    def step() -> None:
        model(torch.tensor([0, 1])).sum().backward()
        optimizer.step()

    step()
    gradient: Any = model.weight.grad
    values, state = gradient.to_dense().clone(), fingerprint([model.state_dict(), optimizer.state_dict()])
    bus = HookBus()
    with bus.run(model=model, optimizer=optimizer) as run, run.sandbox():
        optimizer.param_groups[0]["lr"].mul_(3)
        step()
    assert model.weight.grad is gradient
    assert torch.equal(gradient.to_dense(), values)
    assert fingerprint([model.state_dict(), optimizer.state_dict()]) == state


def test_added_parameter_groups_and_modes_are_removed() -> None:
    model, bus = nn.Sequential(nn.Linear(1, 1), nn.Dropout()), HookBus()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[1].eval()
    with bus.run(model=model, optimizer=optimizer) as run:
        with run.sandbox():
            model.train().requires_grad_(False)
            optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
            optimizer.param_groups[0]["lr"] = 9.0
        assert [module.training for module in model.modules()] == [True, True, False]
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert [group["lr"] for group in optimizer.param_groups] == [0.1]


class TestLocal:
    def test_single_process_has_nothing_to_disable(self) -> None:
        def try_step(run: Run) -> None:
            with run.sandbox(local=True) as trial:
                trial.train_step((torch.ones(2, 3), torch.tensor([0, 1])))

        assert fake_training([CallAt("before_train_iter", 2, try_step)]).run.steps_done == 6

    def test_step_of_a_custom_loop_with_several_ranks_is_refused(self) -> None:
        bus = HookBus()
        with bus.run(epochs=1) as run:
            run.ranks.world_size = 2
            with pytest.raises(LoopError, match="may communicate with the 2 ranks"), run.sandbox(local=True):
                pytest.fail("the sandbox was entered")
            run.ranks.world_size = 1
