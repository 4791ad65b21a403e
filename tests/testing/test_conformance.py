"""Tests of the conformance check: faulty hooks fail, conforming hooks pass."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import ConfigDict, Field
from torch import nn

from hookbus import Hook, HookConfig, every, hookimpl
from hookbus.data.rng import get_rng_state
from hookbus.testing import check_hook, fingerprint


class GoodConfig(HookConfig):
    interval: int = 2


class Good(Hook):
    """Count iterations and draw from a separate generator; the state contains both."""

    Config = GoodConfig
    observer = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.generator = torch.Generator().manual_seed(0)
        self.noise = torch.zeros(2)
        self.count = 0

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Any) -> None:
        self.count += 1
        self.noise = torch.rand(2, generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "noise": self.noise, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.noise = state["count"], state["noise"]
        self.generator.set_state(state["generator"])


@pytest.mark.slow
def test_conforming_hook_passes() -> None:
    check_hook(Good)
    check_hook(Good, interval=1)
    check_hook(Hook)


class FailingInValidation(Hook):
    """Fail at the batches of a validation, which a function `validate=` has not."""

    def after_val_iter(self, batch: Any) -> None:
        batch["image"]


class NeverDue(Hook):
    """Listen only after more iterations than the conformance check trains."""

    @hookimpl(when=every(50))
    def after_train_iter(self, run: Any) -> None: ...

    @hookimpl(when=every(50))
    def before_val_iter(self, run: Any) -> None: ...


class OutsideTraining(Hook):
    """Record the calls of listeners outside of the training part of a run."""

    points: ClassVar[set[str]] = set()

    def after_val_iter(self, run: Any) -> None:
        self.points.add("after_val_iter")

    def after_test_iter(self, run: Any) -> None:
        self.points.add("after_test_iter")

    def after_predict_iter(self, run: Any) -> None:
        self.points.add("after_predict_iter")


class Loose(Good):
    class Config(GoodConfig):
        model_config = ConfigDict(extra="ignore")


class WithoutSettings(Good):
    def __init__(self) -> None:
        super().__init__()


class WithOwnParameters(Good):
    def __init__(self, tag: str, repeat: int = 1) -> None:
        super().__init__()


class DroppingTheFrequency(Good):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._config = self.config.model_copy(update={"frequency": None})


class Misspelt(Good):
    def after_trian_epoch(self) -> None: ...


class Forgetful(Good):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Objects(Good):
    def state_dict(self) -> dict[str, Any]:
        return {"path": Path("runs")}


class Late(Hook):
    def before_train(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}


class Unsaved(Hook):
    def after_train_iter(self) -> None: ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Breaking(Good):
    observer = False

    def after_epoch(self, run: Any) -> None:
        raise ValueError(f"epoch {run.epoch}")


class BreakingTheSecondRun(Good):
    observer = False

    def before_run(self) -> None:
        if self.count:
            raise ValueError("used already")


class Meddling(Good):
    def after_backward(self, run: Any) -> None: ...

    def before_optimizer_step(self, run: Any) -> None:
        for parameter in run.model.parameters():
            parameter.grad *= 1.0001


class Shuffling(Good):
    def after_epoch(self) -> None:
        random.random()


class ShufflingTorch(Good):
    def after_epoch(self) -> None:
        torch.rand(1)


class ShufflingNumpy(Good):
    def after_epoch(self) -> None:
        np.random.rand()


class Demanding(Good):
    def __init__(self, *args: Any, path: str, **settings: Any) -> None:
        super().__init__(*args, **settings)


class Failing(Good):
    def after_epoch(self) -> None:
        raise OSError("no disk")


class WrongSignature(Good):
    def after_epoch(self, loss: float) -> None: ...


class RequiredSetting(Good):
    class Config(GoodConfig):
        path: str


class IgnoringKeywords(Good):
    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config)


class ReadingTheLoss(Good):
    observer = False

    def after_backward(self, loss: torch.Tensor) -> None:
        self.last = loss.item()


class ReadingByFloat(ReadingTheLoss):
    def after_backward(self, loss: torch.Tensor) -> None: ...

    def before_optimizer_step(self, run: Any) -> None:
        self.norm = float(next(run.model.parameters()).grad.norm())


class Copying(ReadingTheLoss):
    def after_backward(self, loss: torch.Tensor) -> None:
        self.last = loss.to("cpu")


class Deciding(ReadingTheLoss):
    def after_backward(self, loss: torch.Tensor) -> None:
        if loss.isnan():
            raise ValueError("no number")


class WritingHere(Good):
    def after_epoch(self) -> None:
        Path("stray.txt").write_text("anything")


class WritingByTorch(Good):
    def after_run(self) -> None:
        torch.save({}, "stray.pth")


class WritingAndDeleting(Good):
    def after_epoch(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"for a moment")


class MakingADirectory(Good):
    def before_run(self) -> None:
        Path("logs").mkdir(exist_ok=True)


class LeavingAHelper(Good):
    observer = False

    def before_run(self, run: Any) -> None:
        if not self.count:
            run.bus.register(Hook(name="helper"))


class ResettingOnSave(Good):
    def state_dict(self) -> dict[str, Any]:
        self.count, count = 0, self.count
        return {"count": count, "noise": self.noise}


class Draining(Good):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.noise = state.pop("count"), state["noise"]
        self.generator.set_state(state["generator"])


class Sharing(Good):
    counts: ClassVar[dict[str, int]] = {}

    def after_epoch(self) -> None:
        self.counts["epochs"] = self.counts.get("epochs", 0) + 1

    def state_dict(self) -> dict[str, Any]:
        return dict(self.counts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.update(state)


class NonDeterministic(Good):
    numbers = itertools.count()

    def state_dict(self) -> dict[str, Any]:
        return {f"{next(self.numbers)}": 1}


class HoldingALock(Good):
    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.lock = threading.Lock()


class ChangingSettings(Good):
    class Config(GoodConfig):
        labels: dict[str, int] = Field(default_factory=dict)

    def before_train(self) -> None:
        self.config.labels["cat"] = 1


class SeedingTorch(Good):
    observer = False

    def before_train_epoch(self) -> None:
        torch.manual_seed(0)


class CollectingNoGarbage(Good):
    def before_run(self) -> None:
        gc.disable()


class Moving(Good):
    def before_run(self) -> None:
        os.chdir("/")


class IgnoringSignals(Good):
    def before_run(self) -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


class Redirecting(Good):
    def before_run(self) -> None:
        os.environ["A_VARIABLE_OF_THE_USER"] = "mine"


class Listening(Good):
    def before_train(self, model: nn.Module) -> None:
        model[0].register_forward_hook(lambda module, inputs, output: None)  # type: ignore[operator]


class ListeningToGradients(Good):
    def before_train(self, model: nn.Module) -> None:
        next(model.parameters()).register_hook(lambda gradient: None)


class ListeningToUpdates(Good):
    def before_train(self, run: Any) -> None:
        run.optimizer.register_step_post_hook(lambda *arguments: None)


class KeepingBatches(Good):
    def before_train_iter(self, batch: Any) -> None:
        self.batches = [*getattr(self, "batches", []), batch]


class KeepingGraphs(Good):
    def after_backward(self, loss: torch.Tensor) -> None:
        self.losses = [*getattr(self, "losses", []), loss]


class LeavingEvalMode(Good):
    def after_train(self, model: nn.Module) -> None:
        model.eval()


class ForgettingMomentum(Good):
    def after_train(self, run: Any) -> None:
        run.optimizer.state.clear()


class Freezing(Good):
    def after_train(self, model: nn.Module) -> None:
        model.requires_grad_(False)


class Patching(Good):
    def before_train(self, model: nn.Module) -> None:
        forward = model.forward
        model.forward = lambda inputs: forward(inputs)


class Masking(ReadingTheLoss):
    def after_backward(self, batch: Any) -> None:
        self.last = batch[0][batch[0] > 0]


class Finding(ReadingTheLoss):
    def after_backward(self, batch: Any) -> None:
        self.last = torch.where(batch[1] > 0)


class ReadingInAWrapper(Good):
    @hookimpl(wrapper=True)
    def train_step(self) -> Iterator[None]:
        outputs = yield
        self.last = outputs["loss"].item()
        return outputs


class ReadingOnTheModel(Good):
    def before_train(self, model: nn.Module) -> None:
        self.handle = model.register_forward_hook(self.record_output)

    def record_output(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.last = output.sum().tolist()

    def cleanup(self) -> None:
        self.handle.remove()


class LeavingAThread(Good):
    end: ClassVar[threading.Event] = threading.Event()

    def before_run(self) -> None:
        threading.Thread(target=self.end.wait, name="poller", daemon=True).start()


class SeedingNumpy(Good):
    observer = False

    def before_epoch(self) -> None:
        np.random.seed(7)
        np.random.rand(1000)


class SeedingPython(Good):
    observer = False

    def before_epoch(self) -> None:
        random.seed(7)


class LeavingAProcess(Good):
    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    def before_run(self) -> None:
        self.started.append(subprocess.Popen(["sleep", "60"]))


class AliasingTheWeights(Good):
    """Store references to the best weights instead of copies."""

    best: ClassVar[dict[str, Any]] = {}

    def after_epoch(self, model: nn.Module) -> None:
        self.best = {"weights": [model.state_dict()]}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.best = state["best"]


class AliasingTheMomentum(AliasingTheWeights):
    def after_epoch(self, run: Any) -> None:  # type: ignore[override]
        self.best = {"momentum": run.optimizer.state_dict()["state"][0]["momentum_buffer"][:2]}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that a faulty hook makes to the process."""
    monkeypatch.setenv("A_VARIABLE_OF_THE_USER", "original")
    monkeypatch.setattr("hookbus.testing.leaks.TIMEOUT_S", 0.2)
    handler = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, handler)
    gc.enable()
    Sharing.counts.clear()
    for child in LeavingAProcess.started:
        child.kill()
        child.wait()
    LeavingAProcess.started.clear()


@pytest.mark.usefixtures("process")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Loose, "Loose accepts an unknown setting. Set extra='forbid' in its Config, as HookConfig does."),
        (
            WithoutSettings,
            r"cannot be built from \{\}: .* 2 were given. Define `__init__\(self, config=None, \*\*settings\)`",
        ),
        (
            WithOwnParameters,
            r"cannot be built from \{\}: .* missing .* Define `__init__\(self, config=None, \*\*settings\)`",
        ),
        (
            DroppingTheFrequency,
            "DroppingTheFrequency accepts `frequency: 7`, but no listener changes. Pass the settings",
        ),
        (Misspelt, "unknown point after_trian_epoch. Did you mean 'after_train_epoch'"),
        (Forgetful, "Forgetful: a new instance differs from the state that it loaded."),
        (Objects, r"Objects.state_dict\(\) contains objects that torch.load"),
        (Late, r"Late.state_dict\(\) fails in a new instance: AttributeError: .* no attribute 'count'"),
        (Unsaved, r"Unsaved.load_state_dict\(\) fails for the state of state_dict\(\): KeyError: 'count'"),
        (Breaking, "Breaking fails in a small training: ValueError: epoch 0"),
        (BreakingTheSecondRun, "BreakingTheSecondRun fails in a small training of .*: ValueError: used already"),
        (Meddling, "Meddling is declared an observer, but the weights differ from a training without it"),
        (Shuffling, "Shuffling is declared an observer, but uses the RNGs of the training"),
        (ShufflingTorch, "ShufflingTorch is declared an observer, but"),
        (ShufflingNumpy, "ShufflingNumpy is declared an observer, but uses the RNGs"),
        (Demanding, "Demanding cannot be built from {}: .* missing 1 required keyword-only argument: 'path'"),
        (
            Failing,
            "Failing fails in a small training: HookWarning: hook 'failing' .* failed at after_epoch: OSError: no disk",
        ),
        (WrongSignature, "unknown argument 'loss'. Available: epoch, metrics, model, run"),
        (RequiredSetting, "RequiredSetting cannot be built from {}: RequiredSetting: path: required, but missing"),
        (ReadingTheLoss, r"ReadingTheLoss synchronizes with the device at every iteration \(after_backward: item\)"),
        (
            ReadingByFloat,
            r"ReadingByFloat synchronizes with the device .* \(before_optimizer_step: __float__\)\. Pass the tensor",
        ),
        (Copying, r"Copying synchronizes with the device at every iteration \(after_backward: to\)"),
        (Deciding, r"Deciding synchronizes with the device at every iteration \(after_backward: __bool__\)"),
        (WritingHere, r"WritingHere writes outside the work directory: .*stray\.txt\. Write below a directory"),
        (WritingByTorch, r"WritingByTorch writes outside the work directory: .*stray\.pth\."),
        (MakingADirectory, r"MakingADirectory writes outside the work directory: .*logs\."),
        (
            ResettingOnSave,
            r"ResettingOnSave.state_dict\(\) differs between two consecutive calls. Calling it must not change",
        ),
        (Draining, r"Draining.load_state_dict\(state\) modifies its argument. Copy the values"),
        (Sharing, "Sharing: the state of one instance is part of the state of a new one. Store state on the instance"),
        (
            NonDeterministic,
            r"NonDeterministic.state_dict\(\) differs between two new instances. Return a deterministic",
        ),
        (
            HoldingALock,
            r"copy.deepcopy fails: hook 'holding_a_lock': cannot be .* '_thread.lock' object. Define __getstate__",
        ),
        (ChangingSettings, "ChangingSettings changes its own settings while it trains"),
        (SeedingTorch, r"SeedingTorch changes process-wide settings: torch.initial_seed\(\)\. Restore them"),
        (CollectingNoGarbage, r"CollectingNoGarbage changes process-wide .*: gc.isenabled\(\)\. Restore them"),
        (Moving, r"Moving changes process-wide settings: the current directory\."),
        (IgnoringSignals, r"IgnoringSignals changes process-wide settings: the handler of SIGUSR2\."),
        (Redirecting, "Redirecting changes .*: the environment variable A_VARIABLE_OF_THE_USER"),
        (
            ListeningToGradients,
            "ListeningToGradients does not remove its PyTorch hooks: backward_hooks of model.0.weight",
        ),
        (KeepingBatches, "KeepingBatches keeps the batch, the loss or the graph of every iteration in memory"),
        (KeepingGraphs, "KeepingGraphs keeps the batch, the loss or the graph of every iteration in memory"),
        (
            LeavingEvalMode,
            "LeavingEvalMode is declared an observer, but changes model.0.training, model.1.training",
        ),
        (ForgettingMomentum, "ForgettingMomentum is declared an .*, but changes the optimizer state"),
        (Freezing, "Freezing is declared an observer, but changes model.0.bias.requires_grad"),
        (Patching, r"Patching is declared an observer, but changes the attributes of model"),
        (Masking, r"Masking synchronizes with the device at every iteration \(after_backward: __getitem__\)"),
        (Finding, r"Finding synchronizes with the device at every iteration \(after_backward: where\)"),
        (ReadingInAWrapper, r"ReadingInAWrapper synchronizes with the device at every iteration \(train_step: item\)"),
        (
            ReadingOnTheModel,
            r"ReadingOnTheModel synchronizes with the device at every iteration \(train_step: tolist\)",
        ),
        (
            SeedingNumpy,
            r"SeedingNumpy calls numpy.random.seed, which affects all users of the global RNG\. Use a",
        ),
        (SeedingPython, r"SeedingPython calls random.seed, which affects all users"),
        (
            LeavingAProcess,
            "LeavingAProcess leaves processes running after a training: sleep. Terminate them in cleanup",
        ),
        (
            AliasingTheWeights,
            r"AliasingTheWeights.state_dict\(\)\['best'\]\['weights'\]\[0\]\['0.weight'\] is a tensor of",
        ),
        (
            AliasingTheMomentum,
            r"AliasingTheMomentum.state_dict\(\)\['best'\]\['momentum'\] is a tensor of the model or",
        ),
        (
            LeavingAThread,
            "LeavingAThread leaves threads running after a training: poller, poller. Join them in cleanup",
        ),
        (
            FailingInValidation,
            "FailingInValidation fails in a small training of the Trainer with loaders and a validation: TypeError",
        ),
        (
            NeverDue,
            r"NeverDue was not called: none of its listeners \(after_train_iter, before_val_iter\) was due in two",
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_faulty_hook_fails_with_a_message(cls: type[Hook], message: str) -> None:
    LeavingAThread.end.clear()
    try:
        with pytest.raises(AssertionError, match=message):
            check_hook(cls)
    finally:
        LeavingAThread.end.set()


def test_listeners_of_validations_tests_and_predictions_are_called() -> None:
    OutsideTraining.points.clear()
    check_hook(OutsideTraining)
    assert {"after_val_iter", "after_test_iter", "after_predict_iter"} == OutsideTraining.points


def test_invalid_settings_are_an_error() -> None:
    with pytest.raises(AssertionError, match="Good cannot be built from {'interval': 0.5}: Good: interval: should be"):
        check_hook(Good, interval=0.5)


def test_ignored_keyword_settings_are_an_error() -> None:
    with pytest.raises(AssertionError, match="IgnoringKeywords differs between creation from keywords and from a dict"):
        check_hook(IgnoringKeywords, interval=5)


@pytest.mark.slow
def test_required_settings_are_passed_to_the_hook() -> None:
    check_hook(RequiredSetting, path="runs")


@pytest.mark.slow
def test_hook_that_is_no_observer_may_change_the_training() -> None:
    class Scaling(Meddling):
        observer = False

    check_hook(Scaling)


@pytest.mark.slow
def test_scheduled_hook_may_synchronize_with_the_device() -> None:
    class Scheduled(Good):
        @hookimpl(when=every("interval"))
        def after_train_iter(self, run: Any, loss: torch.Tensor) -> None:
            self.count += bool(loss > 0)

    class WithPredicate(ReadingTheLoss):
        def should_trigger(self, step: int) -> bool:
            return step % 2 == 0

    class AfterEachEpoch(Good):
        def after_train_epoch(self, run: Any) -> None:
            self.norm = next(run.model.parameters()).norm().item()

    check_hook(Scheduled)
    check_hook(WithPredicate)
    check_hook(AfterEachEpoch)


@pytest.mark.slow
def test_listener_with_a_frequency_of_one_may_synchronize_with_the_device() -> None:
    class Logging(Good):
        def after_backward(self, run: Any, loss: Any) -> None:
            loss.item()

    check_hook(Logging, frequency=1)


def test_listener_that_ignores_the_frequency_must_not_synchronize() -> None:
    class Measuring(Good):
        @hookimpl(frequency=False)
        def after_backward(self, run: Any, loss: Any) -> None:
            loss.item()

    with pytest.raises(AssertionError, match=r"Measuring synchronizes .* \(after_backward: item\)"):
        check_hook(Measuring, frequency=2)


def test_listener_of_an_undeclared_point_is_an_error() -> None:
    class Waiting(Hook):
        def on_my_own_point(self) -> None: ...

    with pytest.raises(AssertionError, match="unknown point on_my_own_point"):
        check_hook(Waiting)


@pytest.mark.slow
def test_scheduled_listener_within_the_step_may_synchronize() -> None:
    class ReadingLoss(Good):
        @hookimpl(when=every("interval"))
        def after_forward(self, loss: torch.Tensor) -> None:
            self.last = loss.item()

    check_hook(ReadingLoss)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [LeavingAHelper, Listening, ListeningToUpdates])
def test_registrations_that_leave_with_the_hook_pass(cls: type[Hook]) -> None:
    check_hook(cls)


@pytest.mark.slow
def test_hook_that_restores_its_changes_passes() -> None:
    class Restoring(Good):
        def before_train(self, model: nn.Module) -> None:
            self.handle = model.register_forward_hook(lambda module, inputs, output: None)
            gc.disable()

        def cleanup(self) -> None:
            self.handle.remove()
            gc.enable()

    check_hook(Restoring)


@pytest.mark.slow
def test_hook_that_is_no_observer_may_use_the_global_rngs() -> None:
    class Drawing(Good):
        observer = False

        def after_train_iter(self) -> None:
            random.sample(range(5000), 5000)
            np.random.rand(5000)

    check_hook(Drawing)


@pytest.mark.slow
def test_terminated_process_may_exit_with_a_delay() -> None:
    slow_to_end = ["sh", "-c", "trap 'sleep 0.2; exit' TERM; while :; do sleep 0.05; done"]

    class Serving(Good):
        started: ClassVar[list[subprocess.Popen[bytes]]] = []

        def before_run(self) -> None:
            if not self.started:
                self.started.append(subprocess.Popen(["sleep", "60"]))
            self.started.append(subprocess.Popen(slow_to_end))

        def cleanup(self) -> None:
            self.started[-1].terminate()

    try:
        check_hook(Serving)
    finally:
        for child in Serving.started:
            child.kill()
            child.wait()


@pytest.mark.slow
def test_state_may_contain_copies_of_the_weights() -> None:
    class Keeping(AliasingTheWeights):
        def after_epoch(self, model: nn.Module) -> None:
            self.best = {"weights": {name: tensor.clone() for name, tensor in model.state_dict().items()}}

    check_hook(Keeping)


@pytest.mark.slow
def test_hook_may_keep_the_last_batch() -> None:
    class Remembering(Good):
        def before_train_iter(self, batch: Any) -> None:
            self.batch = batch

    check_hook(Remembering)


@pytest.mark.slow
def test_check_restores_the_rng_states() -> None:
    np.random.seed(0)  # the state of NumPy is part of it as soon as NumPy is imported
    before = fingerprint(get_rng_state())
    check_hook(Good)
    assert fingerprint(get_rng_state()) == before


@pytest.mark.slow
def test_hook_that_stores_tensors_does_not_synchronize() -> None:
    class Keeping(Good):
        def after_backward(self, run: Any, loss: torch.Tensor) -> None:
            run.log(doubled=2 * loss.detach())
            self.last = loss.detach().to(torch.float64).clone()
            self.copy = loss.detach().to("cpu", non_blocking=True)

    check_hook(Keeping)


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("anything")


def change_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"A")


def change_by_descriptor(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY))


def move(path: Path) -> None:
    scratch = path.with_name("scratch.txt")  # on the same device
    scratch.touch()
    scratch.rename(path)


def make_database(path: Path) -> None:
    path.unlink(missing_ok=True)
    sqlite3.connect(path).close()


def make_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.link(path.with_name("given.txt"), path)


def make_symbolic_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.with_name("given.txt"))


@pytest.mark.parametrize(
    "write", [append, change_in_place, change_by_descriptor, move, make_database, make_link, make_symbolic_link]
)
def test_write_outside_the_work_dir_fails(write: Any, tmp_path: Path) -> None:
    class WritingThere(Good):
        def after_run(self) -> None:
            write(tmp_path / "stray.txt")

    for name in ("stray.txt", "given.txt"):
        (tmp_path / name).write_text("anything")
    with pytest.raises(
        AssertionError, match=rf"WritingThere writes outside the work directory: {tmp_path}/stray\.txt\."
    ):
        check_hook(WritingThere)


@pytest.mark.slow
def test_work_dir_and_temporary_files_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("given")

    class Restoring(Good):
        def after_epoch(self, run: Any) -> None:
            (Path(run.require("logs_dir")) / "good.txt").write_text((tmp_path / "given.txt").read_text())
            (tmp_path / "scratch.txt").write_text("anything")
            (tmp_path / "scratch.txt").unlink()

    check_hook(Restoring)


def test_check_runs_in_a_temporary_directory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="WritingHere"):
        check_hook(WritingHere)
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_deleted_temporary_file_is_allowed() -> None:
    check_hook(WritingAndDeleting)
