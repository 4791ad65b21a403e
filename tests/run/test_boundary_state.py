"""A checkpoint that is saved after a failure, with the state of the last iteration boundary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from tests.toys import Augmented, pairs

EPOCHS, BATCHES = 3, 5


class FailAt(Hook):
    """Hook that fails at a point, when a number of iterations is complete."""

    def __init__(self, point: str, iteration: int) -> None:
        super().__init__()
        self.point, self.iteration = point, iteration

    def fail(self, run: Run, point: str) -> None:
        """Raise an exception if this is the point of the failure."""
        if (point, run.iters_done) == (self.point, self.iteration):
            raise ZeroDivisionError(point)


def listen_at(point: str) -> Callable[[FailAt, Run], None]:
    """Return a listener that fails at a point."""

    def listen(self: FailAt, run: Run) -> None:
        self.fail(run, point)

    return listen


for _point in (
    "before_train_iter",
    "after_forward",
    "after_backward",
    "before_optimizer_step",
    "after_optimizer_step",
    "after_train_iter",
    "after_train_epoch",
    "before_val",
    "after_val",
    "before_epoch",
):
    setattr(FailAt, _point, listen_at(_point))


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 2))


def saver(**settings: Any) -> CheckpointHook:
    return CheckpointHook({"interval": 2, "save_best": False, "save_on_exception": True} | settings)


def run_custom_loop(directory: Path, *hooks: Hook) -> dict[str, Any]:
    """Train in a custom loop with a learning rate of each iteration, and return the final state."""
    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    bus, loader = HookBus(hooks), DataLoader(Augmented(), batch_size=4, shuffle=True)
    failing = [hook for hook in hooks if isinstance(hook, FailAt)]
    settings: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epochs": EPOCHS}
    with bus.run(**settings, work_dir=directory, validate=lambda: {"loss": 1.0}, resume="auto", seed=3) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
                bus.emit("after_forward", batch=batch, outputs={"loss": loss})
                loss.backward()
                bus.emit("after_backward", batch=batch, outputs={"loss": loss})
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
            run.request_validation()
            bus.emit("after_train_epoch")
            scheduler.step()
            for hook in failing:
                hook.fail(run, "tail")
    return get_state(directory)


def run_trainer(directory: Path, *hooks: Hook) -> dict[str, Any]:
    """Train with the Trainer, and return the final state."""
    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    Trainer(
        model,
        optimizer,
        nn.functional.cross_entropy,
        DataLoader(Augmented(), batch_size=4, shuffle=True),
        pairs(1),
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        epochs=EPOCHS,
        hooks=hooks,
        default_hooks=False,
        device="cpu",
        work_dir=directory,
        resume="auto",
        seed=3,
    ).fit()
    return get_state(directory)


def get_state(directory: Path) -> dict[str, Any]:
    """Return the parts of the last checkpoint that do not depend on times and file names."""
    checkpoint = read_checkpoint(directory / "checkpoints" / "last.pth")
    parts = {name: checkpoint[name] for name in ("state_dict", "optimizer", "scheduler", "rng")}
    parts |= {name: checkpoint["loop"][name] for name in ("metrics", "data", "accumulated", "validated_at")}
    return {name: fingerprint(part) for name, part in parts.items()} | {"iteration": checkpoint["meta"]["iter"]}


LOOPS: dict[str, Callable[..., dict[str, Any]]] = {"Trainer": run_trainer, "custom loop": run_custom_loop}
RESUMED = [  # point and iteration of the failure
    ("before_train_iter", 0),
    ("before_train_iter", 7),
    ("after_forward", 7),
    ("after_backward", 7),
    ("before_optimizer_step", 7),
    ("before_train_iter", 5),
    ("after_train_epoch", 5),
    ("before_val", 5),
    ("before_epoch", 5),
]


@pytest.fixture(scope="module", params=LOOPS)
def loop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A loop, and the state at the end of its uninterrupted run."""
    run = LOOPS[request.param]
    return run, run(tmp_path_factory.mktemp("runs") / "uninterrupted", saver())


class TestSave:
    @pytest.mark.slow
    @pytest.mark.parametrize(("point", "iteration"), RESUMED)
    def test_run_resumes_from_the_last_iteration_before_the_failure(
        self, tmp_path: Path, loop: Any, point: str, iteration: int
    ) -> None:
        train, expected = loop
        with pytest.raises(ZeroDivisionError, match=point):
            train(tmp_path, saver(interval=None), FailAt(point, iteration))
        assert get_state(tmp_path)["iteration"] == iteration
        assert train(tmp_path, saver()) == expected

    @pytest.mark.parametrize("async_save", [True, "overlap"])
    def test_asynchronous_save_is_complete(self, tmp_path: Path, async_save: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            run_trainer(tmp_path, saver(interval=None, async_save=async_save), FailAt("after_forward", 7))
        assert get_state(tmp_path)["iteration"] == 7

    def test_rest_of_a_complete_epoch_is_executed_again(self, tmp_path: Path) -> None:
        expected = run_custom_loop(tmp_path / "uninterrupted", saver())
        with pytest.raises(ZeroDivisionError, match="tail"):
            run_custom_loop(tmp_path / "failed", saver(interval=None), FailAt("tail", 5))
        assert run_custom_loop(tmp_path / "failed", saver()) == expected

    def test_hook_of_a_user_may_request_the_save(self, tmp_path: Path) -> None:
        class SaveFailedRun(Hook):
            def on_exception(self, run: Run) -> None:
                run.request_save("the run failed")

        with pytest.raises(ZeroDivisionError):
            run_trainer(tmp_path, CheckpointHook(save_best=False), SaveFailedRun(), FailAt("after_forward", 7))
        assert get_state(tmp_path)["iteration"] == 7

    def test_buffers_of_a_loss_module_are_those_of_the_last_iteration(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model, loss, batch = nn.Linear(2, 2), nn.BatchNorm1d(2), torch.tensor([[1.0, 2.0], [3.0, 5.0]])
        optimizer, bus = torch.optim.SGD(model.parameters(), lr=0.1), HookBus([saver(interval=None)])
        settings: dict[str, Any] = {"model": model, "optimizer": optimizer, "loss": loss, "work_dir": tmp_path}
        at_boundaries = []

        def train() -> None:
            for iteration in range(2):
                bus.emit("before_train_iter")
                loss(model(batch))
                if iteration == 1:
                    raise ZeroDivisionError
                bus.emit("after_train_iter")
                at_boundaries.append(fingerprint(loss.state_dict()))

        with pytest.raises(ZeroDivisionError), bus.run(**settings):
            train()
        assert [fingerprint(read_checkpoint(tmp_path / "checkpoints" / "last.pth")["loss"])] == at_boundaries

    def test_saved_state_is_not_saved_again(self, tmp_path: Path) -> None:
        with pytest.raises(ZeroDivisionError):
            run_trainer(tmp_path, saver(interval=1, by_epoch=False), FailAt("after_forward", 2))
        assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.pth")) == [
            "iter_1.pth",
            "iter_2.pth",
            "last.pth",
        ]


class TestRefusal:
    @pytest.mark.parametrize("point", ["after_optimizer_step", "after_train_iter"])
    def test_save_after_an_optimizer_step_is_refused_with_the_reason(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, point: str
    ) -> None:
        iteration = 6 if point == "after_optimizer_step" else 7
        with pytest.raises(ZeroDivisionError) as raised:
            run_trainer(tmp_path, saver(interval=1), FailAt(point, iteration))
        reason = "was not saved, because an optimizer has stepped since iteration 6. Resume from the latest checkpoint."
        assert sum(reason in note for note in raised.value.__notes__) == 1
        assert sum(reason in message for message in caplog.messages) == 1
        assert get_state(tmp_path)["iteration"] == 5

    def test_save_after_a_changed_weight_is_refused(self, tmp_path: Path) -> None:
        class ChangeWeight(Hook):
            def before_train_iter(self, run: Run) -> None:
                if run.iters_done == 7:
                    with torch.no_grad():
                        next(run.model.parameters()).add_(1)
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as raised:
            run_trainer(tmp_path, saver(interval=None), ChangeWeight())
        reason = "weights, accumulated gradients or the gradient scaler have changed since iteration 7"
        assert any(reason in note for note in raised.value.__notes__)
        assert not (tmp_path / "checkpoints" / "last.pth").exists()

    def test_save_after_new_values_of_a_weight_is_refused(self, tmp_path: Path) -> None:
        class AverageEncoder(Hook):
            def before_train_iter(self, run: Run) -> None:
                weight = next(run.model.parameters())
                if run.iters_done == 7:
                    weight.data = weight.data * 0.9
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as raised:
            run_trainer(tmp_path, saver(interval=None), AverageEncoder())
        assert any("have changed since iteration 7" in note for note in raised.value.__notes__)
        assert not (tmp_path / "checkpoints" / "last.pth").exists()

    def test_save_of_a_loop_that_updates_its_weights_itself_is_refused(self, tmp_path: Path) -> None:
        bus, model = HookBus([saver(interval=None)]), nn.Linear(2, 1)

        def train() -> None:
            bus.emit("before_train_iter")
            bus.emit("after_train_iter")
            bus.emit("before_train_iter")
            model.weight.data.add_(1)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as raised, bus.run(model=model, work_dir=tmp_path):
            train()
        reason = "the run has no optimizer, so that its weights may have changed since iteration 1"
        assert any(reason in note for note in raised.value.__notes__)
        assert not (tmp_path / "checkpoints" / "last.pth").exists()

    @pytest.mark.parametrize(("point", "is_saved"), [("after_forward", True), ("after_backward", False)])
    def test_save_within_an_accumulation_is_refused_if_gradients_were_added(
        self, tmp_path: Path, point: str, is_saved: bool
    ) -> None:
        bus, model = HookBus([saver(interval=None), FailAt(point, 1)]), nn.Linear(2, 1)

        def accumulate() -> None:
            for _ in range(2):
                bus.emit("before_train_iter")
                loss = model(torch.ones(1, 2)).sum()
                bus.emit("after_forward", outputs={"loss": loss})
                loss.backward()
                bus.emit("after_backward", outputs={"loss": loss})
                bus.emit("after_train_iter")

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ZeroDivisionError), bus.run(model=model, optimizer=optimizer, work_dir=tmp_path):
            accumulate()
        assert (tmp_path / "checkpoints" / "last.pth").exists() == is_saved

    def test_save_of_an_aborted_run_is_refused(self, tmp_path: Path) -> None:
        class Abort(Hook):
            def before_train_iter(self, run: Run) -> None:
                if run.iters_done == 2:
                    run.request_abort("NaN")
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run_trainer(tmp_path, saver(interval=None), Abort())
        assert not (tmp_path / "checkpoints" / "last.pth").exists()

    def test_failure_before_the_training_saves_nothing(self, tmp_path: Path) -> None:
        class FailAtStart(Hook):
            def before_train(self) -> None:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as raised:
            run_trainer(tmp_path, saver(), FailAtStart())
        assert any("because the training had not begun" in note for note in raised.value.__notes__)

    def test_original_exception_is_raised_if_the_save_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class FillDisk(FailAt):
            def fail(self, run: Run, point: str) -> None:
                if (point, run.iters_done) == (self.point, self.iteration):
                    (tmp_path / "checkpoints").rmdir()
                    (tmp_path / "checkpoints").touch()
                super().fail(run, point)

        with pytest.raises(ZeroDivisionError, match="after_forward") as raised:
            run_trainer(tmp_path, saver(interval=None), FillDisk("after_forward", 7))
        assert any("could not be written" in note for note in raised.value.__notes__)


def test_nothing_is_recorded_unless_a_hook_may_request_a_save(tmp_path: Path) -> None:
    class Listen(Hook):
        makes_requests = False

        def on_exception(self) -> None:
            pass

    bus = HookBus([saver(save_on_exception=False), Listen()])
    with bus.run(work_dir=tmp_path) as run:
        assert not run.boundary_state.is_needed
        bus.on("on_exception")(lambda: None)
        assert run.boundary_state.is_needed
