"""Optimizers with modes: schedule-free optimizers train other weights than those to evaluate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from schedulefree import AdamWScheduleFree, RAdamScheduleFree, ScheduleFreeWrapper, SGDScheduleFree
from torch import Tensor, nn

from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.checkpoint.state import read_checkpoint
from hookbus.hook import Hook
from hookbus.trainer.trainer import Trainer
from tests.toys import Saver, pairs

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda parameters: SGDScheduleFree(parameters, lr=0.5),
    "AdamW": lambda parameters: AdamWScheduleFree(parameters, lr=0.05, warmup_steps=3),
    "RAdam": lambda parameters: RAdamScheduleFree(parameters, lr=0.05),
}


class Recipe(Hook):
    """Switch the modes as the documentation of the package describes."""

    def before_train(self, run: Run) -> None:
        run.optimizer.train()  # type: ignore[union-attr]

    def before_val(self, run: Run) -> None:
        run.optimizer.eval()  # type: ignore[union-attr]

    def after_val(self, run: Run) -> None:
        run.optimizer.train()  # type: ignore[union-attr]

    def before_save_checkpoint(self, run: Run) -> None:
        run.optimizer.eval()  # type: ignore[union-attr]

    def after_save_checkpoint(self, run: Run) -> None:
        run.optimizer.train()  # type: ignore[union-attr]


class RecordWeights(Hook):
    """Record the weights of the model at a point."""

    def __init__(self, *points: str) -> None:
        super().__init__()
        self.points = points
        self.weights: list[Tensor] = []

    def before_val(self, model: nn.Module) -> None:
        self._record("before_val", model)

    def after_train_iter(self, model: nn.Module) -> None:
        self._record("after_train_iter", model)

    def _record(self, point: str, model: nn.Module) -> None:
        if point in self.points:
            self.weights.append(get_weights(model))


def get_weights(model: nn.Module) -> Tensor:
    """Return a copy of all parameters, as one tensor."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def build(*hooks: object, optimizer: str = "SGD", **options: Any) -> Trainer:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), pairs(5)
    settings = {"train_loader": data, "val_loader": pairs(2), "epochs": 3, "default_hooks": False, "seed": 0}
    return Trainer(
        model=model,
        optimizer=OPTIMIZERS[optimizer](model.parameters()),
        loss_fn=nn.functional.cross_entropy,
        hooks=list(hooks),
        **settings | options,
    )


def train_plainly(optimizer: str = "SGD", iterations: int = 15) -> tuple[nn.Module, Any]:
    """Train without hookbus, and without leaving training mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    trained = OPTIMIZERS[optimizer](model.parameters())
    trained.train()
    for i in range(iterations):
        inputs, targets = pairs(5)[i % 5]
        trained.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        trained.step()
    return model, trained


class StopAt(Hook):
    """Stop at an iteration, with a checkpoint."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            run.request_save()
            run.request_stop()


@pytest.mark.parametrize("recipe", [False, True], ids=["bare", "recipe"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
class TestTrainer:
    def test_training_is_that_of_a_loop_that_never_evaluates(
        self, optimizer: str, recipe: bool, tmp_path: Path
    ) -> None:
        trainer = build(*([Recipe()] if recipe else []), Saver(), optimizer=optimizer, work_dir=tmp_path)
        trainer.fit()
        expected, _ = train_plainly(optimizer)
        assert torch.equal(get_weights(trainer.model), get_weights(expected))

    def test_validation_and_file_use_the_weights_of_evaluation_mode(
        self, optimizer: str, recipe: bool, tmp_path: Path
    ) -> None:
        record, saver = RecordWeights("before_val"), Saver("after_epoch")
        trainer = build(*([Recipe()] if recipe else []), record, saver, optimizer=optimizer, work_dir=tmp_path)
        trainer.fit()
        expected, expected_optimizer = train_plainly(optimizer)
        expected_optimizer.eval()
        saved = read_checkpoint(saver.files[-1])
        for weights in (record.weights[-1], get_weights_of_file(saved)):
            assert torch.equal(weights, get_weights(expected))
        assert [group["train_mode"] for group in saved["optimizer"]["param_groups"]] == [False]

    @pytest.mark.parametrize("stop", [7, 10])
    def test_resumed_run_is_identical_to_the_uninterrupted_one(
        self, stop: int, optimizer: str, recipe: bool, tmp_path: Path
    ) -> None:
        hooks = [Recipe] if recipe else []
        build(*(hook() for hook in hooks), Saver("never"), StopAt(stop), optimizer=optimizer, work_dir=tmp_path).fit()
        resumed = build(
            *(hook() for hook in hooks), Saver("never"), optimizer=optimizer, work_dir=tmp_path, resume="auto"
        )
        assert resumed.fit().iters_done == 15
        expected, _ = train_plainly(optimizer)
        assert torch.equal(get_weights(resumed.model), get_weights(expected))


def get_weights_of_file(checkpoint: dict[str, Any]) -> Tensor:
    return torch.cat([value.flatten() for value in checkpoint["state_dict"].values()])


class Wrapped:
    """Wrapper such as those of Accelerate and Fabric."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def train(self) -> None:
        self.optimizer.train()

    def eval(self) -> None:
        self.optimizer.eval()

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


WRAPPERS: dict[str, Callable[..., Any]] = {
    "none": OPTIMIZERS["SGD"],
    "of a library": lambda parameters: Wrapped(SGDScheduleFree(parameters, lr=0.5)),
    "of another optimizer": lambda parameters: ScheduleFreeWrapper(torch.optim.SGD(parameters, lr=0.5)),
}


def run_loop(
    work_dir: Path | None, *hooks: object, wrapper: str = "none", switches: bool = False, resume: str = "never"
) -> tuple[nn.Module, list[float]]:
    """Train in a custom loop, which may switch the modes itself around its own evaluation."""
    torch.manual_seed(0)
    model, bus = nn.Linear(4, 2), HookBus(hooks=hooks)
    optimizer, losses = WRAPPERS[wrapper](model.parameters()), []
    counts = isinstance(optimizer, ScheduleFreeWrapper)
    with bus.run(
        model=model, optimizer=optimizer, epochs=3, work_dir=work_dir, resume=resume, counts_steps=counts, seed=0
    ) as run:
        for _ in run.epochs():
            if switches:
                optimizer.train()
            bus.emit("before_train_epoch")
            for i, (inputs, targets) in run.batches(pairs(5)):
                bus.emit("before_train_iter", batch_idx=i)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                if counts:
                    bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i)
            if switches:
                optimizer.eval()
                losses.append(float(nn.functional.cross_entropy(model(pairs(1)[0][0]), pairs(1)[0][1]).detach()))
            bus.emit("after_train_epoch")
    return model, losses


class TestCustomLoop:
    @pytest.mark.parametrize("stop", [7, 10])
    @pytest.mark.parametrize("switches", [False, True])
    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_loop_that_switches_itself_resumes_identically(
        self, wrapper: str, switches: bool, stop: int, tmp_path: Path
    ) -> None:
        expected, losses = run_loop(None, wrapper=wrapper, switches=switches)
        run_loop(tmp_path, Saver("never"), StopAt(stop), wrapper=wrapper, switches=switches)
        resumed, resumed_losses = run_loop(tmp_path, Saver("never"), wrapper=wrapper, switches=switches, resume="auto")
        assert torch.equal(get_weights(resumed), get_weights(expected))
        assert resumed_losses == losses[-len(resumed_losses) :] if switches else resumed_losses == []

    def test_save_at_the_end_of_an_epoch_keeps_the_mode_of_the_loop(self, tmp_path: Path) -> None:
        expected, _ = run_loop(None, switches=True)
        saver = Saver("after_epoch")
        model, _ = run_loop(tmp_path, saver, switches=True)
        assert torch.equal(get_weights(model), get_weights(expected))
        assert "training_weights" not in read_checkpoint(saver.files[0])["optimizer"]
        resumed, _ = run_loop(tmp_path, Saver("never"), switches=True, resume=str(saver.files[0]))
        assert torch.equal(get_weights(resumed), get_weights(expected))

    def test_validation_that_fails_leaves_the_weights_of_training_mode(self) -> None:
        model = nn.Linear(4, 2)
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        bus = HookBus()

        def validate() -> None:
            raise RuntimeError("broken")

        with bus.run(model=model, optimizer=optimizer, epochs=1, validate=validate) as run:
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            before = get_weights(model)
            with pytest.raises(RuntimeError, match="broken"):
                run.validate()
            assert torch.equal(get_weights(model), before)
            optimizer.step()


def test_optimizer_that_has_loaded_a_state_before_resumes(tmp_path: Path) -> None:
    def load_own_state(optimizer: Any) -> Any:  # as Accelerate does; it adds options of torch to the defaults
        optimizer.load_state_dict(optimizer.state_dict())
        return optimizer

    def train(resume: str) -> int:
        model = nn.Linear(4, 2)
        optimizer = load_own_state(AdamWScheduleFree(model.parameters()))
        settings: dict[str, Any] = {"work_dir": tmp_path, "resume": resume, "default_hooks": False}
        loss = nn.functional.cross_entropy
        hooks = [StopAt(2), Saver("never")]
        return Trainer(model, optimizer, loss, pairs(4), epochs=1, hooks=hooks, **settings).fit().iters_done

    assert [train("never"), train("auto")] == [2, 4]


class TestNamedOptimizers:
    @staticmethod
    def train(work_dir: Path | None, *hooks: object, resume: str = "never") -> dict[str, nn.Module]:
        torch.manual_seed(0)
        models = {name: nn.Linear(4, 2) for name in ("a", "b", "c")}
        optimizers = {
            "a": SGDScheduleFree(models["a"].parameters(), lr=0.5),
            "b": torch.optim.SGD(models["b"].parameters(), lr=0.5),
            "c": AdamWScheduleFree(models["c"].parameters(), lr=0.05),
        }
        bus = HookBus(hooks=hooks)
        with bus.run(
            model=models, optimizer=optimizers, epochs=3, work_dir=work_dir, resume=resume, seed=0
        ) as run:  # fmt: skip
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for i, (inputs, targets) in run.batches(pairs(5)):
                    bus.emit("before_train_iter", batch_idx=i)
                    for name, model in models.items():
                        optimizers[name].zero_grad()
                        nn.functional.cross_entropy(model(inputs), targets).backward()
                        optimizers[name].step()
                    bus.emit("after_train_iter", batch_idx=i)
                bus.emit("after_train_epoch")
        return models

    def test_every_optimizer_with_modes_is_switched_and_resumes_identically(self, tmp_path: Path) -> None:
        expected, saver = self.train(None), Saver("never")
        self.train(tmp_path, saver, StopAt(7))
        saved = read_checkpoint(saver.files[0])
        assert [name for name, state in saved["optimizer"].items() if "training_weights" in state] == ["a", "c"]
        resumed = self.train(tmp_path, Saver("never"), resume="auto")
        for name in ("a", "b", "c"):
            assert torch.equal(get_weights(resumed[name]), get_weights(expected[name]))


class TestAroundTheTraining:
    def test_test_after_the_training_evaluates_and_restores_training_mode(self) -> None:
        record = RecordWeights()
        trainer = build(record, test_loader=pairs(2))
        trainer.fit()
        trained = get_weights(trainer.model)
        seen: list[Tensor] = []
        trainer.bus.on("before_test")(lambda model: seen.append(get_weights(model)))
        trainer.test()
        assert torch.equal(get_weights(trainer.model), trained)
        evaluated = copy.deepcopy(trainer.model)
        trainer.optimizer.eval()  # type: ignore[union-attr]
        assert torch.equal(seen[0], get_weights(trainer.model))
        assert not torch.equal(seen[0], get_weights(evaluated))

    def test_two_trainings_in_a_row_equal_a_longer_one(self) -> None:
        trainer = build(epochs=1)
        trainer.fit()
        trainer.fit(epochs=3)
        assert torch.equal(get_weights(trainer.model), get_weights(train_plainly()[0]))

    def test_weights_restored_at_the_end_are_those_that_are_evaluated(self) -> None:
        class RestoreFirst(Hook):
            def before_run(self, run: Run) -> None:
                run.weights.restore_at_end(self.restore)

            def after_val(self, run: Run, model: nn.Module) -> None:
                if run.epoch == 0:
                    self.first = copy.deepcopy(model.state_dict())

            def restore(self) -> bool:
                self.run.weights.load(self.first, None)
                return True

        hook, record = RestoreFirst(), RecordWeights("before_val")
        trainer = build(hook, record)
        trainer.fit()
        first = record.weights[0]
        assert torch.equal(get_weights(trainer.model), first)
        trainer.validate()
        assert torch.equal(record.weights[-1], first)
        trainer.fit(epochs=4)  # trains from the restored weights
        assert trainer.bus.current.epochs_done == 4


@pytest.fixture(autouse=True)
def _disable_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, since no test here simulates a power failure."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
