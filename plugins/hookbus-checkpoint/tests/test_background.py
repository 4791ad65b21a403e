"""Saves on another thread: the same files, in the Trainer and in a loop of one's own, whatever the threads do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hookbus import Hook, HookBus, Trainer
from hookbus.checkpoints.files import verify
from hookbus.errors import CheckpointError, HookWarning
from hookbus.run import Run
from hookbus.state import read_checkpoint
from hookbus_checkpoint import CheckpointConfig, CheckpointHook

MODES: list[Any] = [True, "overlap"]


def checkpoint_hook(mode: bool | str, **settings: Any) -> CheckpointHook:
    """A hook whose mode is its default, so that its settings in the file do not tell of it."""

    class Config(CheckpointConfig):
        async_save: Any = mode

    kind = type("CheckpointHook", (CheckpointHook,), {"Config": Config})
    made: CheckpointHook = kind(settings)
    return made


class Net(nn.Module):
    """Parameters, buffers that the forward changes, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(self.norm(self.first(x)))))  # type: ignore[no-any-return]


class Still(Hook):
    """The clock stands still, so that files of two runs can be the same."""

    def before_run(self, run: Run) -> None:
        run.clock.timer = lambda: 0.0


class Averages(Hook):
    """Averages the weights after each update; validations see the averages."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] | None = None

    def before_run(self, run: Run) -> None:
        run.weights.provide(self)
        run.around_validation(run.weights.applied)
        assert run.model is not None
        self.mean = {name: each.detach().clone() for name, each in run.model.named_parameters()}

    def after_optimizer_step(self, run: Run) -> None:
        assert run.model is not None
        for name, each in run.model.named_parameters():
            self.mean[name].mul_(0.5).add_(each.detach(), alpha=0.5)

    def raw(self) -> dict[str, Tensor] | None:
        return self.kept

    def averaged(self) -> dict[str, Tensor]:
        return self.mean

    def applied(self) -> AbstractContextManager[Any]:
        return self._applied() if self.kept is None else nullcontext()

    @contextmanager
    def _applied(self) -> Iterator[None]:
        assert self.run.model is not None
        self.kept = {name: each.clone() for name, each in self.run.model.state_dict().items()}
        self._put(self.mean)
        yield
        self._put(self.kept)
        self.kept = None

    def _put(self, values: dict[str, Tensor]) -> None:
        assert self.run.model is not None
        for name, each in self.run.model.named_parameters():
            each.data.copy_(values[name])

    def wait(self) -> None:
        pass


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The copies that other threads make, each of which takes its time."""
    made: list[str] = []
    real = Tensor.copy_

    def slow(self: Tensor, source: Tensor, *args: Any) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            made.append(threading.current_thread().name)
            time.sleep(0.0005)
        return real(self, source, *args)

    monkeypatch.setattr(Tensor, "copy_", slow)
    return made


@pytest.fixture(autouse=True)
def _same_time_and_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "2026-01-01T00:00:00+0000")
    real = Run.__init__

    def init(self: Run, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.id = "the same"

    monkeypatch.setattr(Run, "__init__", init)


def data(count: int = 6) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(count, 8, 4, generator=torch.Generator().manual_seed(1))
    return [(each, (each.sum(1) > 0).long()) for each in x]


def in_trainer(directory: Path, hooks: list[Hook], accumulate: int, epochs: int = 3) -> Run:
    model, loader = fresh_net(), data()
    return Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        functional.cross_entropy,
        loader,
        loader[:2],
        metrics=["accuracy"],
        epochs=epochs,
        accumulate=accumulate,
        hooks=hooks,
        default_hooks=False,
        work_dir=directory,
    ).fit()


def in_own_loop(directory: Path, hooks: list[Hook], accumulate: int, epochs: int = 3) -> Run:
    """Nothing but epochs and iterations is emitted: the optimizer's own hook is what guards the weights."""
    model, loader, bus = fresh_net(), data(), HookBus(hooks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def validate() -> dict[str, float]:
        losses = [functional.cross_entropy(model(x), y) for x, y in loader[:2]]
        return {"accuracy": -float(torch.stack(losses).mean())}

    with bus.run(model=model, optimizer=optimizer, epochs=epochs, work_dir=directory, validate=validate) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for index, batch in run.batches(loader):
                loss = functional.cross_entropy(model(batch[0]), batch[1]) / accumulate
                loss.backward()
                if (index + 1) % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                bus.emit("after_train_iter", batch_idx=index, batch=batch, outputs={"loss": loss.detach()})
            run.request_validation()
            bus.emit("after_train_epoch")
    return run


def fresh_net() -> Net:
    torch.manual_seed(0)
    return Net()


def contents(directory: Path) -> dict[str, bytes]:
    """All files of the checkpoints folder; the folder itself is named in them, so it must be the same."""
    return {path.name: path.read_bytes() for path in sorted((directory / "checkpoints").iterdir())}


class TestFiles:
    @pytest.mark.parametrize("loop", [in_trainer, in_own_loop])
    @pytest.mark.parametrize(("accumulate", "averages"), [(1, False), (2, True)])
    def test_are_those_of_a_synchronous_run_byte_for_byte(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        copies: list[str],
        loop: Any,
        accumulate: int,
        averages: bool,
    ) -> None:
        def train(mode: bool | str) -> dict[str, bytes]:
            (tmp_path / str(mode)).mkdir()
            monkeypatch.chdir(tmp_path / str(mode))
            hook = checkpoint_hook(mode, interval=1, by_epoch=False, max_keep_ckpts=None)
            hooks = [hook, Still(), *([Averages()] if averages else [])]
            assert loop(Path("run"), hooks, accumulate, epochs=2).outcome == "finished"
            return contents(Path("run"))

        synchronous = train(False)
        assert len(synchronous) == 2 * (12 + 2)  # every iteration, best and last, each with a sidecar

        assert train(True) == synchronous
        assert copies == []
        assert train("overlap") == synchronous
        assert len(copies) > 12  # several tensors each, from the second update on

    @pytest.mark.parametrize("loop", [in_trainer, in_own_loop])
    def test_hold_the_weights_of_their_moment_when_the_copy_comes_late(self, tmp_path: Path, loop: Any) -> None:
        """The thread can do nothing until long after the next update could have been made."""
        seen: dict[str, list[Tensor]] = {}

        class Late(Hook):
            def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
                seen[f"iter_{run.iters_done}.pth"] = [each.clone() for each in checkpoint["state_dict"].values()]
                background, gate = hook._writer._background, threading.Event()
                assert background is not None
                background._executor.submit(gate.wait)
                threading.Timer(0.05, gate.set).start()

        hook = CheckpointHook(async_save="overlap", interval=1, by_epoch=False, max_keep_ckpts=None, save_best=False)
        loop(tmp_path, [hook, Late()], 1, epochs=1)

        assert len(seen) == 6
        for name, weights in seen.items():
            stored = read_checkpoint(tmp_path / "checkpoints" / name)["state_dict"].values()
            assert all(torch.equal(a, b) for a, b in zip(stored, weights, strict=True)), name

    @pytest.mark.parametrize("late", ["one", "other"])
    def test_of_two_hooks_hold_the_weights_of_their_moment_when_averages_come_into_the_model(
        self, tmp_path: Path, late: str
    ) -> None:
        """The thread of one of them can do nothing until long after the validation could have begun."""
        seen: list[Tensor] = []

        class Late(Hook):
            def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
                seen[:] = [each.clone() for each in checkpoint["state_dict"].values()]
                background, gate = hooks[late]._writer._background, threading.Event()
                assert background is not None
                background._executor.submit(gate.wait)
                threading.Timer(0.05, gate.set).start()

        settings: dict[str, Any] = {"async_save": "overlap", "interval": 2, "by_epoch": False, "save_best": False}
        hooks = {name: CheckpointHook(name=name, out_dir=str(tmp_path / name), **settings) for name in ("one", "other")}
        in_trainer(tmp_path / "run", [*hooks.values(), Averages(), Late()], 1, epochs=1)

        for name in hooks:
            stored = read_checkpoint(tmp_path / name / "iter_6.pth")["state_dict"].values()
            assert all(torch.equal(a, b) for a, b in zip(stored, seen, strict=True)), name


class Clamping(Net):
    """Changes a weight in its forward, in a way that leaves no trace on it."""

    def forward(self, x: Tensor) -> Tensor:
        self.last.weight.data.mul_(0.99)
        return super().forward(x)


class Late(Net):
    """The same, but only from some forward on, and with a trace."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 4:
            with torch.no_grad():
                self.last.weight.mul_(0.99)
        return super().forward(x)


class TestAModelThatChangesItsWeightsInForward:
    def test_is_copied_at_once_and_said_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        folders = {}
        for mode in (False, "overlap"):
            (tmp_path / str(mode)).mkdir()
            monkeypatch.chdir(tmp_path / str(mode))
            torch.manual_seed(0)
            model, loader = Clamping(), data()
            Trainer(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                functional.cross_entropy,
                loader,
                epochs=1,
                hooks=[checkpoint_hook(mode, interval=1, by_epoch=False), Still()],
                default_hooks=False,
                work_dir="run",
            ).fit()
            folders[mode] = contents(Path("run"))

        assert folders["overlap"] == folders[False]
        assert copies == []
        assert caplog.text.count("weights of this model change outside of updates, so they are copied at once") == 1

    def test_later_on_loses_that_save_only(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model, loader = Late(), data()
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            functional.cross_entropy,
            loader,
            epochs=1,
            hooks=[
                hook := CheckpointHook(async_save="overlap", interval=1, by_epoch=False, save_last=False),
                Holding(lambda: hook, until_iteration=4),
            ],
            default_hooks=False,
            work_dir=tmp_path,
        )
        with pytest.warns(HookWarning, match=r"iter_3.pth was not written: the weights changed .* The run goes on"):
            trainer.fit()

        there = {path.name for path in (tmp_path / "checkpoints").glob("*.pth")}
        assert there == {f"iter_{n}.pth" for n in (1, 2, 4, 5, 6)}


class Holding(Hook):
    """Holds the thread of a save back until the forward of an iteration is over."""

    def __init__(self, hook: Any, until_iteration: int) -> None:
        super().__init__()
        self.hook, self.until = hook, until_iteration
        self.gate = threading.Event()

    def before_save_checkpoint(self, run: Run) -> None:
        if run.iters_done == self.until - 1:
            self.hook()._writer._background._executor.submit(self.gate.wait)

    def after_forward(self, run: Run) -> None:
        if run.iter == self.until - 1:
            self.gate.set()


class Events(Hook):
    """Which files are said to be there; each of them is, and whole."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, bool, float | None]] = []

    def after_save_checkpoint(self, path: Path, is_best: bool, metrics: Any) -> None:
        verify(path)
        self.told.append((path.name, is_best, metrics.get("val/accuracy")))


@pytest.mark.parametrize("mode", MODES)
def test_a_save_is_told_of_once_it_is_there_with_the_results_of_its_moment(tmp_path: Path, mode: Any) -> None:
    events = Events()
    run = in_own_loop(tmp_path, [CheckpointHook(async_save=mode, max_keep_ckpts=None), events], 1)

    assert [name for name, *_ in events.told] == ["epoch_1.pth", "epoch_2.pth", "epoch_3.pth"]
    for name, is_best, score in events.told:
        stored = read_checkpoint(tmp_path / "checkpoints" / name)
        assert score == stored["meta"]["metrics"]["val/accuracy"]
        assert is_best == (stored["loop"]["best"]["val/accuracy"]["epoch"] == stored["meta"]["epoch"])
    assert run.outcome == "finished"


def test_there_is_one_save_at_a_time_and_the_second_allocates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, writing, most = torch.save, 0, 0
    allocated: list[int] = []
    hook = CheckpointHook(async_save=True, save_best=False)

    def watched(value: Any, file: Any) -> None:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        time.sleep(0.01)
        real(value, file)
        background = hook._writer._background
        assert background is not None
        allocated.append(background._snapshot.allocated)
        writing -= 1

    monkeypatch.setattr(torch, "save", watched)
    in_trainer(tmp_path, [hook], 1, epochs=3)

    assert most == 1
    losses = 6 * 8  # bytes that are new in each epoch's file
    assert allocated == [allocated[0] + epoch * losses for epoch in range(3)]


class TestAnError:
    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """No file can be written from the given number of saves on."""
        real, free = torch.save, [1]

        def save(value: Any, file: Any) -> None:
            free[0] -= 1
            if free[0] < 0:
                raise OSError(28, "No space left on device")
            real(value, file)

        monkeypatch.setattr(torch, "save", save)
        return free

    @pytest.mark.parametrize("mode", MODES)
    def test_comes_up_at_an_event_soon_after_and_ends_the_run(self, tmp_path: Path, mode: Any, full: list[int]) -> None:
        with pytest.raises(CheckpointError, match="iter_2.pth could not be written: .*No space left") as caught:
            in_trainer(tmp_path, [CheckpointHook(async_save=mode, interval=1, by_epoch=False)], 1)

        assert not any("besides" in note for note in getattr(caught.value, "__notes__", []))
        assert verify(tmp_path / "checkpoints/last.pth").generation == 1

    @pytest.mark.parametrize("mode", MODES)
    def test_comes_up_after_an_iteration_that_saves_nothing(self, tmp_path: Path, mode: Any, full: list[int]) -> None:
        iterations: list[int] = []

        class Wait(Hook):
            def before_train_iter(self, run: Run) -> None:
                time.sleep(0.01)
                iterations.append(run.iters_done)

        full[0] = 0
        hook = CheckpointHook(async_save=mode, interval=100, by_epoch=False, save_last=False)

        class Ask(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 1:
                    run.request_save("once")

        with pytest.raises(CheckpointError, match="iter_1.pth could not be written"):
            in_trainer(tmp_path, [hook, Wait(), Ask()], 1, epochs=100)

        assert max(iterations) < 599

    @pytest.mark.parametrize("mode", MODES)
    def test_of_the_last_save_comes_up_at_the_end(self, tmp_path: Path, mode: Any, full: list[int]) -> None:
        full[0] = 0
        with pytest.raises(CheckpointError, match="last.pth could not be written"):
            in_trainer(tmp_path, [CheckpointHook(async_save=mode, interval=None, save_best=False)], 1)

    @pytest.mark.parametrize("mode", MODES)
    def test_is_a_warning_where_that_was_asked_for(self, tmp_path: Path, mode: Any, full: list[int]) -> None:
        events = Events()
        hook = CheckpointHook(async_save=mode, on_save_error="warn", max_keep_ckpts=1)
        with pytest.warns(HookWarning, match=r"could not be written: .* The run goes on") as caught:
            run = in_trainer(tmp_path, [hook, events], 1)

        assert run.outcome == "finished"
        assert [name for name, *_ in events.told] == ["epoch_1.pth"]
        assert len(caught) == 3  # the second, the third, and the last one that makes up for it
        assert verify(tmp_path / "checkpoints/last.pth").generation == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_run_ends_with_its_save_written_and_its_threads_gone(tmp_path: Path, mode: Any) -> None:
    class Fail(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 4:
                raise ValueError("by a hook")

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="by a hook"):
        in_trainer(tmp_path, [CheckpointHook(async_save=mode, interval=1, by_epoch=False), Fail()], 1)

    assert set(threading.enumerate()) <= before
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 3


def test_two_hooks_may_be_named_when_they_are_registered(tmp_path: Path) -> None:
    bus = HookBus()
    for name in ("one", "other"):
        bus.register(CheckpointHook(async_save=True, out_dir=str(tmp_path / name)), name)
    with bus.run(model=fresh_net(), epochs=1) as run:
        for _ in run.epochs():
            bus.emit("after_train_iter")
    assert all((tmp_path / name / "last.pth").exists() for name in ("one", "other"))


@pytest.mark.parametrize("mode", MODES)
def test_the_bus_is_left_as_it_was(tmp_path: Path, mode: Any) -> None:
    bus = HookBus([CheckpointHook(async_save=mode)])
    model = fresh_net()
    for directory in ("a", "b"):
        with bus.run(model=model, epochs=1, work_dir=tmp_path / directory, fresh=True) as run:
            for _ in run.epochs():
                assert len(bus.hooks) == (2 if mode is True else 3)
                bus.emit("after_train_iter", batch_idx=0, batch=None)
        assert [type(hook) for hook in bus.hooks.values()] == [CheckpointHook]
        verify(tmp_path / directory / "checkpoints/last.pth")
