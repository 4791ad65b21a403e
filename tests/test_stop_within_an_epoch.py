"""A run that ends within an epoch saves its last checkpoint before the rest of the epoch body is executed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import read_checkpoint
from hookbus_checkpoint import CheckpointHook, PreemptionHook
from hookbus_eval import EvalHook

BATCHES, EPOCHS = 4, 3

STOPS: dict[str, Callable[[Run], object]] = {
    "a request": lambda run: run.request_stop("for now"),
    "Ctrl-C": lambda run: os.kill(os.getpid(), signal.SIGINT),
    "SIGTERM": lambda run: os.kill(os.getpid(), signal.SIGTERM),
    "SIGUSR1": lambda run: os.kill(os.getpid(), signal.SIGUSR1),
}


class StopAt(Hook):
    """Hook that stops the run at a point after N iterations."""

    def __init__(self, kind: str, iteration: int, point: str = "after_train_iter") -> None:
        super().__init__()
        self.kind, self.iteration, self.point = kind, iteration, point

    def before_epoch(self, run: Run) -> None:
        self._stop(run, "before_epoch")

    def before_train_epoch(self, run: Run) -> None:
        self._stop(run, "before_train_epoch")

    def after_train_iter(self, run: Run) -> None:
        self._stop(run, "after_train_iter")

    def _stop(self, run: Run, point: str) -> None:
        if (point, run.iters_done) == (self.point, self.iteration):
            STOPS[self.kind](run)


class UserState(Hook):
    """State that the epoch body of the loop changes: an average of the weights, and a metric that it resets."""

    def __init__(self) -> None:
        super().__init__()
        self.average, self.total = torch.zeros(1), 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average, self.total = state["average"], state["total"]


class Stream:
    """Loader without a length."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)


def data() -> list[Tensor]:
    return list(torch.linspace(-1, 1, BATCHES * 8).reshape(BATCHES, 4, 2).unbind())


def train(
    directory: Path,
    *hooks: Hook,
    loader: Any = None,
    has_epochs: bool = True,
    checks_stop: bool = False,
    resume: str = "auto",
    **limits: int,
) -> list[tuple[Any, ...]]:
    """Train in a custom loop whose epoch body has a tail. Returns learning rate, weight and metric of each iteration.

    Args:
        directory: Work directory.
        hooks: Hooks in addition to those that save.
        loader: Training data.
        has_epochs: Whether the loop emits the events of epochs.
        checks_stop: Whether the loop checks `run.should_stop` also after its batches.
        resume: As in `bus.run`.
        limits: Limits of the run. Default: `EPOCHS` epochs.
    """
    torch.manual_seed(0)
    model, user, loader = nn.Linear(2, 1), UserState(), data() if loader is None else loader
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    bus, rows = HookBus([user, PreemptionHook(), *hooks]), []
    settings: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    settings |= {"work_dir": directory, "resume": resume, **(limits or {"epochs": EPOCHS})}
    with contextlib.suppress(KeyboardInterrupt), bus.run(**settings) as run:
        for _ in run.epochs():
            if has_epochs:
                bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.zero_grad()
                loss = (model(batch) - 1).square().mean()
                loss.backward()
                optimizer.step()
                user.total += float(loss.detach())
                rows.append((optimizer.param_groups[0]["lr"], float(model.bias.detach()), user.total))
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss.detach()})
            if has_epochs:
                bus.emit("after_train_epoch")
            if checks_stop:
                assert run.should_stop == run.should_stop
            scheduler.step()
            user.average, user.total = user.average.lerp(model.bias.detach(), 0.5), 0.0
    return [*rows, (float(user.average), model.weight.tolist())]


def saver(**settings: Any) -> CheckpointHook:
    return CheckpointHook(interval=1, save_best=False, **settings)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return train(tmp_path_factory.mktemp("runs") / "uninterrupted", saver())


@pytest.mark.parametrize("iteration", [6, 8, 9])
@pytest.mark.parametrize("kind", STOPS)
def test_resumed_run_executes_the_rest_of_the_epoch(
    tmp_path: Path, expected: list[tuple[Any, ...]], kind: str, iteration: int
) -> None:
    first = train(tmp_path, saver(), StopAt(kind, iteration))
    rest = train(tmp_path, saver())
    assert len(first) == iteration + 1
    assert first[:-1] + rest == expected


@pytest.mark.parametrize("point", ["before_epoch", "before_train_epoch"])
def test_stop_before_the_first_iteration_of_an_epoch_is_resumed_there(
    tmp_path: Path, expected: list[tuple[Any, ...]], point: str
) -> None:
    first = train(tmp_path, saver(), StopAt("a request", BATCHES, point))
    assert first[:-1] + train(tmp_path, saver()) == expected


@pytest.mark.parametrize("settings", [{"async_save": True}, {"async_save": "overlap"}, {"interval": None}])
def test_file_does_not_contain_the_rest_of_the_epoch_with_any_setting(
    tmp_path: Path, expected: list[tuple[Any, ...]], settings: dict[str, Any]
) -> None:
    hooks = [CheckpointHook({"interval": 1, "save_best": False} | settings) for _ in range(2)]
    first = train(tmp_path, hooks[0], StopAt("a request", 6))
    assert first[:-1] + train(tmp_path, hooks[1]) == expected


@pytest.mark.parametrize("iteration", [6, 8])
def test_loader_without_a_length_is_resumed_at_the_same_place(tmp_path: Path, iteration: int) -> None:
    expected = train(tmp_path / "uninterrupted", saver(), loader=Stream(data()))
    first = train(tmp_path / "stopped", saver(), StopAt("a request", iteration), loader=Stream(data()))
    assert first[:-1] + train(tmp_path / "stopped", saver(), loader=Stream(data())) == expected


def test_stop_between_two_loaders_of_the_first_epoch_is_resumed_there(tmp_path: Path) -> None:
    def train_phases(directory: Path, *hooks: Hook) -> list[float]:
        torch.manual_seed(0)
        model, phases = nn.Linear(2, 1), (data(), data()[:2])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        bus, rates = HookBus([saver(), *hooks]), []
        settings: dict[str, Any] = {"model": model, "optimizer": optimizer, "epochs": 2}
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        with bus.run(**settings, scheduler=scheduler, work_dir=directory, resume="auto") as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for phase in phases:
                    for i, _ in run.batches(phase):
                        rates.append(optimizer.param_groups[0]["lr"])
                        optimizer.step()
                        bus.emit("after_train_iter", batch_idx=i)
                bus.emit("after_train_epoch")
                scheduler.step()
        return rates

    first = train_phases(tmp_path, StopAt("a request", BATCHES))
    assert first + train_phases(tmp_path) == [1.0] * 6 + [0.5] * 6


def test_limit_of_iterations_leaves_the_rest_of_the_epoch_to_a_longer_run(
    tmp_path: Path, expected: list[tuple[Any, ...]]
) -> None:
    first = train(tmp_path, saver(), iterations=6)
    assert first[:-1] + train(tmp_path, saver()) == expected


def test_loop_that_emits_no_epochs_is_resumed_exactly(tmp_path: Path, expected: list[tuple[Any, ...]]) -> None:
    first = train(tmp_path, saver(), StopAt("a request", 6), has_epochs=False)
    assert first[:-1] + train(tmp_path, saver(), has_epochs=False) == expected


def test_reading_should_stop_writes_no_file(tmp_path: Path, expected: list[tuple[Any, ...]]) -> None:
    class Kill(Hook):
        def before_train_iter(self, run: Run) -> None:
            if run.iters_done == BATCHES:
                os._exit(9)

    if (child := os.fork()) == 0:
        train(tmp_path, saver(), Kill(), checks_stop=True)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert train(tmp_path, saver(), checks_stop=True) == expected[BATCHES:]


def test_every_checkpoint_hook_saves_when_the_run_ends(tmp_path: Path, expected: list[tuple[Any, ...]]) -> None:
    def savers() -> list[Hook]:
        return [saver(name=name, out_dir=str(tmp_path / name)) for name in ("one", "other")]

    first = train(tmp_path / "run", *savers(), StopAt("a request", 6))
    for name in ("one", "other"):
        path = tmp_path / name / "last.pth"
        assert read_checkpoint(path)["loop"]["clock"]["iters_done"] == 6
    rest = train(tmp_path / "run", *savers(), resume=str(tmp_path / "other" / "last.pth"))
    assert first[:-1] + rest == expected


def get_files(directory: Path) -> dict[str, int]:
    return {path.name: read_checkpoint(path)["meta"]["iter"] for path in (directory / "checkpoints").glob("*.pth")}


def test_stop_at_a_periodic_save_writes_one_file(tmp_path: Path) -> None:
    class CountSaves(Hook):
        saves = 0

        def before_save_checkpoint(self) -> None:
            self.saves += 1

    counter = CountSaves()
    train(tmp_path, saver(by_epoch=False), counter, StopAt("a request", 2))
    assert (get_files(tmp_path), counter.saves) == ({"iter_1.pth": 1, "iter_2.pth": 2, "last.pth": 2}, 2)


def test_run_without_last_checkpoints_saves_nothing_when_it_stops(tmp_path: Path) -> None:
    train(tmp_path, saver(save_last=False), StopAt("a request", 6))
    assert get_files(tmp_path) == {"epoch_1.pth": 4}


def test_aborted_run_saves_nothing(tmp_path: Path) -> None:
    class Abort(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 6:
                run.request_abort("the loss is NaN")

    train(tmp_path, saver(), Abort())
    assert get_files(tmp_path) == {"epoch_1.pth": 4, "last.pth": 4}


def test_save_that_a_hook_requests_after_the_stop_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class SaveAtEnd(Hook):
        def after_train(self, run: Run) -> None:
            run.request_save("at the end")

    train(tmp_path, saver(), SaveAtEnd(name="late"), StopAt("a request", 6))
    assert get_files(tmp_path) == {"epoch_1.pth": 4, "last.pth": 6}
    assert "The run ended before a request was processed: save, requested by late: at the end" in caplog.messages


def test_iterations_after_the_stop_are_reported_and_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = HookBus([saver(), StopAt("a request", 2)])
    with bus.run(model=nn.Linear(1, 1), epochs=1, work_dir=tmp_path):
        bus.emit("before_train_epoch")
        for _ in range(5):
            bus.emit("after_train_iter")
    assert get_files(tmp_path) == {"last.pth": 2}
    assert any("does not contain its 3 further iterations" in message for message in caplog.messages)


@pytest.mark.parametrize("limits", [{"epochs": 2}, {"iterations": 6}])
def test_trainer_that_is_stopped_within_an_epoch_is_resumed_exactly(tmp_path: Path, limits: dict[str, int]) -> None:
    def fit(directory: Path, *hooks: Hook) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        batches = [(batch, batch[:, :1]) for batch in data()]
        Trainer(
            model,
            optimizer,
            nn.functional.mse_loss,
            batches,
            batches[:1],
            scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
            hooks=[CheckpointHook(interval=1, best_metric="val/loss"), EvalHook(interval=1), *hooks],
            default_hooks=False,
            device="cpu",
            work_dir=directory,
            resume="auto",
            **limits,
        ).fit()
        return {
            name: read_checkpoint(directory / "checkpoints" / "last.pth")[name]
            for name in ("state_dict", "optimizer", "scheduler")
        }

    expected = fit(tmp_path / "uninterrupted")
    fit(tmp_path / "stopped", StopAt("a request", 5))
    torch.testing.assert_close(fit(tmp_path / "stopped"), expected, rtol=0, atol=0)


def test_best_checkpoint_of_the_last_validation_is_kept_at_the_limit(tmp_path: Path) -> None:
    bus = HookBus([CheckpointHook(best_metric="val/loss")])
    with bus.run(model=nn.Linear(1, 1), iterations=2, work_dir=tmp_path, validate=lambda: {"loss": 1.0}) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, _ in run.batches(data()):
                bus.emit("after_train_iter", batch_idx=i)
            run.request_validation()
            bus.emit("after_train_epoch")
            assert get_files(tmp_path) == {"best_val_loss.pth": 2, "last.pth": 2}


def test_best_checkpoint_of_a_validation_of_the_loop_contains_the_rest_of_its_epoch(tmp_path: Path) -> None:
    def train_and_validate(directory: Path, *hooks: Hook) -> list[float]:
        torch.manual_seed(0)
        model, rates = nn.Linear(2, 1), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        bus = HookBus([CheckpointHook(interval=None, best_metric="val/loss"), *hooks])
        settings: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epochs": 3}
        with bus.run(**settings, work_dir=directory, resume="auto") as run:
            for epoch in run.epochs():
                bus.emit("before_train_epoch")
                for i, _ in run.batches(data()):
                    rates.append(optimizer.param_groups[0]["lr"])
                    optimizer.step()
                    bus.emit("after_train_iter", batch_idx=i)
                bus.emit("after_train_epoch")
                for point in ("before_val", "before_val_epoch"):
                    bus.emit(point)
                bus.emit("after_val_epoch", metrics={"loss": 1 / (epoch + 1)})
                bus.emit("after_val")
                run.settle()
                scheduler.step()
        return rates

    class Fail(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == BATCHES + 1:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train_and_validate(tmp_path, Fail())
    assert get_files(tmp_path)["best_val_loss.pth"] == BATCHES
    assert train_and_validate(tmp_path) == [0.5] * BATCHES + [0.25] * BATCHES
