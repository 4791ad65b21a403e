"""Asynchronous saves in the Trainer and in a custom loop: byte-identical files, errors, and threads."""

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
from hookbus._run.run import Run
from hookbus.checkpoint.sidecars import verify
from hookbus.checkpoint.state import build_checkpoint, read_checkpoint
from hookbus.errors import CheckpointError, HookWarning, RegistrationError
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointConfig, CheckpointHook
from hookbus_checkpoint.async_writer import StableTensors

MODES: list[Any] = [True, "overlap"]


def checkpoint_hook(mode: bool | str, **settings: Any) -> CheckpointHook:
    """Create a hook whose mode is its default, so that the saved settings of all modes are equal."""

    class Config(CheckpointConfig):
        async_save: Any = mode

    hook_class = type("CheckpointHook", (CheckpointHook,), {"Config": Config})
    hook: CheckpointHook = hook_class(settings)
    return hook


class Net(nn.Module):
    """Model with parameters, buffers that the forward changes, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(self.norm(self.first(x)))))  # type: ignore[no-any-return]


class ConstantTime(Hook):
    """Set the clock to a constant, so that the checkpoints of two runs can be identical."""

    def before_run(self, run: Run) -> None:
        run.clock.timer = lambda: 0.0


class AveragingHook(Hook):
    """Average the weights after each optimizer step; validations evaluate the averages."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: dict[str, Tensor] = {}
        self.stored: dict[str, Tensor] | None = None

    def before_run(self, run: Run) -> None:
        run.weights.provide(self)
        assert run.model is not None
        self.mean = {name: weight.detach().clone() for name, weight in run.model.named_parameters()}

    def after_optimizer_step(self, run: Run) -> None:
        assert run.model is not None
        for name, weight in run.model.named_parameters():
            self.mean[name].mul_(0.5).add_(weight.detach(), alpha=0.5)

    def raw(self) -> dict[str, Tensor] | None:
        return self.stored

    def averaged(self) -> dict[str, Tensor]:
        return self.mean

    def applied(self) -> AbstractContextManager[Any]:
        return self._applied() if self.stored is None else nullcontext()

    @contextmanager
    def _applied(self) -> Iterator[None]:
        assert self.run.model is not None
        self.stored = {name: value.clone() for name, value in self.run.model.state_dict().items()}
        self._load(self.mean)
        yield
        self._load(self.stored)
        self.stored = None

    def _load(self, values: dict[str, Tensor]) -> None:
        assert self.run.model is not None
        for name, weight in self.run.model.named_parameters():
            weight.data.copy_(values[name])

    def wait(self) -> None:
        pass


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the copies of other threads, and delay each of them."""
    names: list[str] = []
    real = Tensor.copy_

    def slow(self: Tensor, source: Tensor, *args: Any) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            names.append(threading.current_thread().name)
            time.sleep(0.0005)
        return real(self, source, *args)

    monkeypatch.setattr(Tensor, "copy_", slow)
    return names


@pytest.fixture(autouse=True)
def _constant_time_and_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "2026-01-01T00:00:00+0000")
    real = Run.__init__

    def init(self: Run, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.id = "constant"

    monkeypatch.setattr(Run, "__init__", init)


def data(count: int = 6) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(count, 8, 4, generator=torch.Generator().manual_seed(1))
    return [(inputs, (inputs.sum(1) > 0).long()) for inputs in x]


def run_trainer(directory: Path, hooks: list[Hook], accumulate: int, epochs: int = 3) -> Run:
    model, loader = build_net(), data()
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


def run_custom_loop(directory: Path, hooks: list[Hook], accumulate: int, epochs: int = 3) -> Run:
    """Emit epochs and iterations only, so that the hook of the optimizer guards the weights."""
    model, loader, bus = build_net(), data(), HookBus(hooks)
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


def build_net() -> Net:
    torch.manual_seed(0)
    return Net()


def read_files(directory: Path) -> dict[str, bytes]:
    """Return all files of the checkpoint directory. Their content includes its path, so runs must use the same path."""
    return {path.name: path.read_bytes() for path in sorted((directory / "checkpoints").iterdir())}


class TestFiles:
    @pytest.mark.slow
    @pytest.mark.parametrize("loop", [run_trainer, run_custom_loop])
    @pytest.mark.parametrize(("accumulate", "averages"), [(1, False), (2, True)])
    def test_asynchronous_files_are_byte_identical_to_synchronous_ones(
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
            hooks = [hook, ConstantTime(), *([AveragingHook()] if averages else [])]
            assert loop(Path("run"), hooks, accumulate, epochs=2).outcome == "finished"
            return read_files(Path("run"))

        synchronous = train(False)
        assert len(synchronous) == 2 * (12 + 2)  # every iteration, best and last, each with a sidecar

        assert train(True) == synchronous
        assert copies == []
        assert train("overlap") == synchronous
        assert len(copies) > 12  # multiple tensors each, from the second step on

    @pytest.mark.parametrize("loop", [run_trainer, run_custom_loop])
    def test_delayed_copy_contains_the_weights_of_the_save(self, tmp_path: Path, loop: Any) -> None:
        """The thread is blocked for longer than the time until the next step."""
        expected: dict[str, list[Tensor]] = {}

        class Delay(Hook):
            def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
                weights = checkpoint["state_dict"].values()
                expected[f"iter_{run.iters_done}.pth"] = [weight.clone() for weight in weights]
                writer, gate = hook._writer._async_writer, threading.Event()
                assert writer is not None
                writer._executor.submit(gate.wait)
                threading.Timer(0.05, gate.set).start()

        hook = CheckpointHook(async_save="overlap", interval=1, by_epoch=False, max_keep_ckpts=None, save_best=False)
        loop(tmp_path, [hook, Delay()], 1, epochs=1)

        assert len(expected) == 6
        for name, weights in expected.items():
            stored = read_checkpoint(tmp_path / "checkpoints" / name)["state_dict"].values()
            assert all(torch.equal(a, b) for a, b in zip(stored, weights, strict=True)), name

    @pytest.mark.parametrize("delayed", ["one", "other"])
    def test_files_of_two_hooks_contain_raw_weights_if_averages_are_loaded(self, tmp_path: Path, delayed: str) -> None:
        """The thread of one of them is blocked for longer than the time until the validation."""
        expected: list[Tensor] = []

        class Delay(Hook):
            def before_save_checkpoint(self, run: Run, checkpoint: dict[str, Any]) -> None:
                expected[:] = [weight.clone() for weight in checkpoint["state_dict"].values()]
                writer, gate = hooks[delayed]._writer._async_writer, threading.Event()
                assert writer is not None
                writer._executor.submit(gate.wait)
                threading.Timer(0.05, gate.set).start()

        settings: dict[str, Any] = {"async_save": "overlap", "interval": 2, "by_epoch": False, "save_best": False}
        hooks = {name: CheckpointHook(name=name, out_dir=str(tmp_path / name), **settings) for name in ("one", "other")}
        run_trainer(tmp_path / "run", [*hooks.values(), AveragingHook(), Delay()], 1, epochs=1)

        for name in hooks:
            stored = read_checkpoint(tmp_path / name / "iter_6.pth")["state_dict"].values()
            assert all(torch.equal(a, b) for a, b in zip(stored, expected, strict=True)), name


class Clamping(Net):
    """Model that changes a weight in its forward without an increment of its version counter."""

    def forward(self, x: Tensor) -> Tensor:
        self.last.weight.data.mul_(0.99)
        return super().forward(x)


class ClampingOnce(Net):
    """Model that changes a weight in its fourth forward, with an increment of its version counter."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 4:
            with torch.no_grad():
                self.last.weight.mul_(0.99)
        return super().forward(x)


class TestChangeInForward:
    def test_model_that_changes_weights_in_forward_is_copied_synchronously(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        files = {}
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
                hooks=[checkpoint_hook(mode, interval=1, by_epoch=False), ConstantTime()],
                default_hooks=False,
                work_dir="run",
            ).fit()
            files[mode] = read_files(Path("run"))

        assert files["overlap"] == files[False]
        assert copies == []
        assert (
            caplog.text.count("the model changes its weights outside of optimizer steps. Copies are synchronous") == 1
        )

    def test_change_during_a_copy_loses_only_that_save(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model, loader = ClampingOnce(), data()
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            functional.cross_entropy,
            loader,
            epochs=1,
            hooks=[
                hook := CheckpointHook(async_save="overlap", interval=1, by_epoch=False, save_last=False),
                BlockedSave(lambda: hook, until_iteration=4),
            ],
            default_hooks=False,
            work_dir=tmp_path,
        )
        with pytest.warns(HookWarning, match=r"iter_3.pth was not written: the weights changed .* Training continues"):
            trainer.fit()

        names = {path.name for path in (tmp_path / "checkpoints").glob("*.pth")}
        assert names == {f"iter_{n}.pth" for n in (1, 2, 4, 5, 6)}


class BlockedSave(Hook):
    """Block the thread of a save until the forward of an iteration is complete."""

    def __init__(self, hook: Any, until_iteration: int) -> None:
        super().__init__()
        self.hook, self.until = hook, until_iteration
        self.gate = threading.Event()

    def before_save_checkpoint(self, run: Run) -> None:
        if run.iters_done == self.until - 1:
            self.hook()._writer._async_writer._executor.submit(self.gate.wait)

    def after_forward(self, run: Run) -> None:
        if run.iter == self.until - 1:
            self.gate.set()


class SaveRecorder(Hook):
    """Record and verify the checkpoints of `after_save_checkpoint`."""

    def __init__(self) -> None:
        super().__init__()
        self.saves: list[tuple[str, bool, float | None]] = []

    def after_save_checkpoint(self, path: Path, is_best: bool, metrics: Any) -> None:
        verify(path)
        self.saves.append((path.name, is_best, metrics.get("val/accuracy")))


@pytest.mark.parametrize("mode", MODES)
def test_completed_save_is_emitted_with_the_metrics_of_its_request(tmp_path: Path, mode: Any) -> None:
    recorder = SaveRecorder()
    run = run_custom_loop(tmp_path, [CheckpointHook(async_save=mode, max_keep_ckpts=None), recorder], 1)

    assert [name for name, *_ in recorder.saves] == ["epoch_1.pth", "epoch_2.pth", "epoch_3.pth"]
    for name, is_best, score in recorder.saves:
        stored = read_checkpoint(tmp_path / "checkpoints" / name)
        assert score == stored["meta"]["metrics"]["val/accuracy"]
        assert is_best == (stored["loop"]["best"]["val/accuracy"]["epoch"] == stored["meta"]["epoch"])
    assert run.outcome == "finished"


def test_saves_are_sequential_and_the_second_allocates_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, writing, most = torch.save, 0, 0
    allocated: list[int] = []
    hook = CheckpointHook(async_save=True, save_best=False)

    def save(value: Any, file: Any) -> None:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        time.sleep(0.01)
        real(value, file)
        writer = hook._writer._async_writer
        assert writer is not None
        allocated.append(writer._snapshot.allocated_bytes)
        writing -= 1

    monkeypatch.setattr(torch, "save", save)
    run_trainer(tmp_path, [hook], 1, epochs=3)

    assert most == 1
    losses = 6 * 8  # bytes that each epoch adds to the checkpoint
    assert allocated == [allocated[0] + epoch * losses for epoch in range(3)]


class TestErrors:
    @pytest.fixture
    def full_disk(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Let saves fail after a number of successful ones, which the returned list contains."""
        real, free = torch.save, [1]

        def save(value: Any, file: Any) -> None:
            free[0] -= 1
            if free[0] < 0:
                raise OSError(28, "No space left on device")
            real(value, file)

        monkeypatch.setattr(torch, "save", save)
        return free

    @pytest.mark.parametrize("mode", MODES)
    def test_failed_save_ends_the_run_at_the_next_event(self, tmp_path: Path, mode: Any, full_disk: list[int]) -> None:
        with pytest.raises(CheckpointError, match="iter_2.pth could not be written: .*No space left") as error:
            run_trainer(tmp_path, [CheckpointHook(async_save=mode, interval=1, by_epoch=False)], 1)

        assert not any("also raised" in note for note in getattr(error.value, "__notes__", []))
        assert verify(tmp_path / "checkpoints/last.pth").generation == 1

    @pytest.mark.parametrize("mode", MODES)
    def test_failed_save_is_raised_after_an_iteration_without_a_save(
        self, tmp_path: Path, mode: Any, full_disk: list[int]
    ) -> None:
        iterations: list[int] = []

        class SlowIterations(Hook):
            def before_train_iter(self, run: Run) -> None:
                time.sleep(0.01)
                iterations.append(run.iters_done)

        full_disk[0] = 0
        hook = CheckpointHook(async_save=mode, interval=100, by_epoch=False, save_last=False)

        class SaveRequester(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 1:
                    run.request_save("once")

        with pytest.raises(CheckpointError, match="iter_1.pth could not be written"):
            run_trainer(tmp_path, [hook, SlowIterations(), SaveRequester()], 1, epochs=100)

        assert max(iterations) < 599

    @pytest.mark.parametrize("mode", MODES)
    def test_failed_last_save_is_raised_at_the_end(self, tmp_path: Path, mode: Any, full_disk: list[int]) -> None:
        full_disk[0] = 0
        with pytest.raises(CheckpointError, match="last.pth could not be written"):
            run_trainer(tmp_path, [CheckpointHook(async_save=mode, interval=None, save_best=False)], 1)

    @pytest.mark.parametrize("mode", MODES)
    def test_failed_save_is_a_warning_with_on_save_error_warn(
        self, tmp_path: Path, mode: Any, full_disk: list[int]
    ) -> None:
        recorder = SaveRecorder()
        hook = CheckpointHook(async_save=mode, on_save_error="warn", max_keep_ckpts=1)
        with pytest.warns(HookWarning, match=r"could not be written: .* Training continues") as warning_records:
            run = run_trainer(tmp_path, [hook, recorder], 1)

        assert run.outcome == "finished"
        assert [name for name, *_ in recorder.saves] == ["epoch_1.pth"]
        assert len(warning_records) == 3  # the second, the third, and the repeated last save
        assert verify(tmp_path / "checkpoints/last.pth").generation == 1


@pytest.mark.parametrize("mode", MODES)
def test_failed_run_completes_its_save_and_ends_its_threads(tmp_path: Path, mode: Any) -> None:
    class Failure(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 4:
                raise ValueError("by a hook")

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="by a hook"):
        run_trainer(tmp_path, [CheckpointHook(async_save=mode, interval=1, by_epoch=False), Failure()], 1)

    assert set(threading.enumerate()) <= before
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 3


def test_two_hooks_may_be_named_at_registration(tmp_path: Path) -> None:
    bus = HookBus()
    for name in ("one", "other"):
        bus.register(CheckpointHook(async_save=True, out_dir=str(tmp_path / name)), name)
    with bus.run(model=build_net(), epochs=1) as run:
        for _ in run.epochs():
            bus.emit("after_train_iter")
    assert all((tmp_path / name / "last.pth").exists() for name in ("one", "other"))


@pytest.mark.parametrize("mode", MODES)
def test_hook_removes_its_listeners_from_the_bus(tmp_path: Path, mode: Any) -> None:
    bus = HookBus([CheckpointHook(async_save=mode)])
    model = build_net()
    for directory in ("a", "b"):
        with bus.run(model=model, epochs=1, work_dir=tmp_path / directory, fresh=True) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                assert len(bus.hooks) == (2 if mode is True else 3)
                bus.emit("after_train_iter", batch_idx=0, batch=None)
        assert [type(hook) for hook in bus.hooks.values()] == [CheckpointHook]
        verify(tmp_path / directory / "checkpoints/last.pth")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Start a run after one optimizer step, whose model has parameters and buffers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    with HookBus().run(model=model, optimizer=optimizer, iterations=1) as run:
        yield run


def get_names(values: list[Any], checkpoint: dict[str, Any]) -> list[str]:
    names = {id(value): name for name, value in checkpoint["state_dict"].items()}
    return [names[id(value)] for value in values if id(value) in names]


def test_listener_of_the_user_with_the_name_of_the_guard_stays_alone(tmp_path: Path) -> None:
    bus = HookBus([checkpoint_hook("overlap")])
    bus.on("after_train", name="checkpoint.background.guard")(lambda run: None)
    with pytest.raises(RegistrationError, match="already registered"):
        fake_training(bus=bus, work_dir=tmp_path)

    assert list(bus.hooks) == ["checkpoint", "checkpoint.background.guard"]


def test_find_returns_parameters_and_states_without_buffers(run: Run) -> None:
    checkpoint = build_checkpoint(run)

    values = StableTensors().find(checkpoint, run)

    assert get_names(values, checkpoint) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [value for value in values if isinstance(value, dict)] == [
        checkpoint["optimizer"]["state"],
        checkpoint["rng"],
    ]


def test_find_returns_nothing_without_an_optimizer() -> None:
    with HookBus().run(model=nn.Linear(1, 1), iterations=1) as run:
        assert StableTensors().find(build_checkpoint(run), run) == []


def test_find_includes_parameters_added_to_the_model(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    assert run.model is not None
    run.model.append(nn.PReLU())

    checkpoint = build_checkpoint(run)

    assert get_names(stable.find(checkpoint, run), checkpoint)[-1] == "2.weight"


def test_change_of_a_weight_is_detected_from_the_save_on(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    stable.watch_weights()
    assert run.model is not None
    with torch.no_grad():
        run.model[0].weight.add_(1)

    stable.watch_states()

    assert not stable.is_unchanged()


def test_change_of_the_optimizer_state_is_detected_during_the_copy(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    stable.watch_weights()
    stable.watch_states()
    assert run.optimizer is not None
    next(iter(run.optimizer.state.values()))["momentum_buffer"].zero_()

    assert not stable.is_unchanged()


def test_change_of_a_buffer_is_ignored(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    stable.watch_weights()
    stable.watch_states()
    assert run.model is not None
    run.model(torch.ones(4, 2))

    assert stable.is_unchanged()
