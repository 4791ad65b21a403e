"""The kit for people who write hooks finds what is wrong with one, and nothing in a good one."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ConfigDict
from torch import nn

from hookbus import Hook, HookBus, HookConfig, every, hookimpl
from hookbus.testing import Event, RecordingBus, check_hook, fake_training, fingerprint


class GoodConfig(HookConfig):
    interval: int = 2


class Good(Hook):
    """Counts, draws from a generator of its own, and keeps all of it."""

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
        return {"count": self.count, "noise": self.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.noise = state["count"], state["noise"]


# -- check_hook ------------------------------------------------------------------------------------------------


def test_a_good_hook_passes() -> None:
    check_hook(Good)
    check_hook(Good, interval=1)
    check_hook(Hook)


class Loose(Good):
    class Config(GoodConfig):
        model_config = ConfigDict(extra="ignore")


class Misspelt(Good):
    def after_trian_epoch(self) -> None: ...


class Forgetful(Good):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Objects(Good):
    def state_dict(self) -> dict[str, Any]:
        return {"path": Path("runs")}


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


class Undefaulted(Good):
    class Config(GoodConfig):
        path: str


class DeafToKeywords(Good):
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


class LeavingAThread(Good):
    def before_run(self) -> None:
        threading.Thread(target=time.sleep, args=[1], name="poller", daemon=True).start()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Loose, "Loose accepts an unknown setting; let its Config forbid extra fields, as HookConfig does."),
        (Misspelt, "after_trian_epoch is not a point. Did you mean 'after_train_epoch'"),
        (Forgetful, "Forgetful: a fresh instance that loads the state of another has a different state."),
        (Objects, r"Objects.state_dict\(\) is not plain data"),
        (Breaking, "Breaking breaks a small training: ValueError: epoch 0"),
        (BreakingTheSecondRun, "BreakingTheSecondRun breaks a small training: ValueError: used already"),
        (Meddling, "Meddling calls itself an observer, but the weights are not what they are without it"),
        (Shuffling, "Shuffling calls itself an observer, but it uses the random streams of the training"),
        (ShufflingTorch, "ShufflingTorch calls itself an observer, but"),
        (ShufflingNumpy, "ShufflingNumpy calls itself an observer, but it uses the random streams"),
        (Demanding, "Demanding cannot be built from {}: .* missing 1 required keyword-only argument: 'path'"),
        (
            Failing,
            "Failing breaks a small training: HookWarning: hook 'failing' .* failed at after_epoch: OSError: no disk",
        ),
        (WrongSignature, "asks for 'loss', which after_epoch does not have. There are: epoch, metrics, model, run"),
        (Undefaulted, "Undefaulted cannot be built from {}: Undefaulted: path: required, but not given"),
        (ReadingTheLoss, r"ReadingTheLoss waits for the device at every iteration \(after_backward: item\)"),
        (
            ReadingByFloat,
            r"ReadingByFloat waits for the device .* \(before_optimizer_step: __float__\)\. Keep the tensor",
        ),
        (Copying, r"Copying waits for the device at every iteration \(after_backward: to\)"),
        (Deciding, r"Deciding waits for the device at every iteration \(after_backward: __bool__\)"),
        (WritingHere, r"WritingHere writes outside the work directory: .*stray\.txt\. Write below one of"),
        (WritingByTorch, r"WritingByTorch writes outside the work directory: .*stray\.pth\."),
        (MakingADirectory, r"MakingADirectory writes outside the work directory: .*logs\."),
        (LeavingAHelper, "LeavingAHelper leaves something on the bus when it is unregistered: helper"),
        (LeavingAThread, "LeavingAThread leaves threads running after a training: poller, poller. End them in cleanup"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_planted_fault_is_found_and_told(cls: type[Hook], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_hook(cls)


def test_settings_that_do_not_hold_are_told() -> None:
    with pytest.raises(AssertionError, match="Good cannot be built from {'interval': 0.5}: Good: interval: should be"):
        check_hook(Good, interval=0.5)


def test_settings_that_are_lost_as_keywords_are_told() -> None:
    with pytest.raises(AssertionError, match="DeafToKeywords differs when built from keywords and from a dict"):
        check_hook(DeafToKeywords, interval=5)


def test_a_hook_that_needs_settings_is_tried_with_those_that_are_given() -> None:
    check_hook(Undefaulted, path="runs")


def test_a_hook_that_changes_training_may_do_so_unless_it_calls_itself_an_observer() -> None:
    class Scaling(Meddling):
        observer = False

    check_hook(Scaling)


def test_a_hook_that_tells_how_often_it_reads_may_wait_for_the_device() -> None:
    class Scheduled(Good):
        @hookimpl(when=every("interval"))
        def after_train_iter(self, run: Any, loss: torch.Tensor) -> None:
            self.count += bool(loss > 0)

    class Asked(ReadingTheLoss):
        def should_trigger(self, step: int) -> bool:
            return step % 2 == 0

    class AfterEachEpoch(Good):
        def after_train_epoch(self, run: Any) -> None:
            self.norm = next(run.model.parameters()).norm().item()

    check_hook(Scheduled)
    check_hook(Asked)
    check_hook(AfterEachEpoch)


def test_a_hook_that_keeps_tensors_at_every_iteration_does_not_wait() -> None:
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
    Path("scratch").touch()
    Path("scratch").rename(path)


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
def test_a_hook_that_writes_elsewhere_is_found_however_it_does(write: Any, tmp_path: Path) -> None:
    class WritingThere(Good):
        def after_run(self) -> None:
            write(tmp_path / "stray.txt")

    for name in ("stray.txt", "given.txt"):
        (tmp_path / name).write_text("anything")
    with pytest.raises(
        AssertionError, match=rf"WritingThere writes outside the work directory: {tmp_path}/stray\.txt\."
    ):
        check_hook(WritingThere)


def test_files_in_the_work_dir_scratch_that_is_gone_and_reading_are_no_faults(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("given")

    class Careful(Good):
        def after_epoch(self, run: Any) -> None:
            (Path(run.require("logs_dir")) / "good.txt").write_text((tmp_path / "given.txt").read_text())
            (tmp_path / "scratch.txt").write_text("anything")
            (tmp_path / "scratch.txt").unlink()

    check_hook(Careful)


def test_a_hook_is_tried_in_a_directory_that_is_gone_afterwards(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="WritingHere"):
        check_hook(WritingHere)
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []


# -- RecordingBus ----------------------------------------------------------------------------------------------


def test_a_recording_bus_writes_down_events_with_arguments_and_the_calls_of_listeners() -> None:
    bus: Any = RecordingBus([Good(name="good")])
    for i in range(2):
        bus.emit("after_train_iter", batch_idx=i, outputs={"loss": 0.5})
    assert bus.fired == ["after_train_iter", "after_train_iter"]
    expected = {"step": 1, "batch_idx": 0, "batch": None, "model": None, "outputs": {"loss": 0.5}, "loss": 0.5}
    assert bus.events[0] == Event("after_train_iter", expected)
    assert [each["step"] for each in bus.arguments("after_train_iter")] == [1, 2]
    assert bus.arguments("before_epoch") == []
    assert bus.calls_made == [("good", "after_train_iter")]


def test_a_recording_bus_has_the_order_it_is_given() -> None:
    bus: Any = RecordingBus([Good(name="a", priority=90), Good(name="b")], order="ascending")
    bus.emit("after_train_iter")
    bus.emit("after_train_iter")
    assert bus.calls_made == [("b", "after_train_iter"), ("a", "after_train_iter")]


# -- fake_training ---------------------------------------------------------------------------------------------


def test_a_small_training_ends_well_with_so_many_iterations() -> None:
    training = fake_training([good := Good()], epochs=3, batches=5, batch_size=2)
    run = training.run
    assert (run.outcome, run.epochs_done, run.iters_done, run.steps_done) == ("finished", 3, 15, 15)
    assert run.samples_done == 30
    assert good.count == 7
    assert isinstance(training.model, nn.Module)


def test_the_same_training_gives_the_same_bits() -> None:
    first, second = fake_training(), fake_training()
    assert fingerprint(first.model.state_dict()) == fingerprint(second.model.state_dict())
    assert fingerprint(first.rng) == fingerprint(second.rng)
    longer = fake_training(epochs=3)
    assert fingerprint(longer.model.state_dict()) != fingerprint(first.model.state_dict())


def test_losses_and_scores_are_those_that_were_asked_for(tmp_path: Path) -> None:
    bus: Any = RecordingBus()
    training = fake_training(
        bus=bus, losses=lambda i: i / 2, scores=lambda epoch: {"accuracy": epoch / 10}, work_dir=tmp_path / "run"
    )
    assert [each["loss"] for each in bus.arguments("after_train_iter")] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [dict(each["metrics"]) for each in bus.arguments("after_val")] == [
        {"val/accuracy": 0.1},
        {"val/accuracy": 0.2},
    ]
    assert (tmp_path / "run").is_dir()
    assert training.run.work_dir is not None


def test_an_iteration_has_its_events_with_the_gradients_between_them() -> None:
    seen = []

    class Looking(Hook):
        def after_forward(self, run: Any, loss: torch.Tensor) -> None:
            seen.append(("forward", run.model[0].weight.grad, loss.requires_grad))

        def after_backward(self, run: Any, outputs: dict[str, Any]) -> None:
            seen.append(("backward", run.model[0].weight.grad is not None, outputs["loss"]))

    fake_training([Looking()], epochs=1, batches=1, losses=lambda i: 0.5 * i)
    assert seen == [("forward", None, True), ("backward", True, 0.5)]


def test_options_are_those_of_a_run() -> None:
    assert fake_training(seed=7).run.seed == 7
    assert isinstance(fake_training().run.bus, HookBus)


# -- fingerprint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1, 2], [2, 1]),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
        (None, 0),
    ],
    ids=str,
)
def test_values_that_differ_in_any_bit_have_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_equal_bits_have_equal_fingerprints() -> None:
    value = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(2, 3), "c": torch.tensor(1.5, dtype=torch.bfloat16)}
    same = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(3, 2).reshape(2, 3), "c": value["c"].clone()}
    assert fingerprint(value) == fingerprint(same)
    assert fingerprint(torch.arange(6).reshape(2, 3).T) == fingerprint(torch.arange(6).reshape(2, 3).T.contiguous())
    assert fingerprint(torch.ones(1, requires_grad=True)) == fingerprint(torch.ones(1))


# -- the fixtures ----------------------------------------------------------------------------------------------

AUTHORS_TEST = """
    from hookbus import Hook

    class Mine(Hook):
        def before_run(self): ...

    def test_mine(recording_bus):
        recording_bus.register(Mine())
        recording_bus.emit("before_run")
        assert recording_bus.calls_made == [("mine", "before_run")]

    def test_a_bus_of_its_own(recording_bus):
        assert recording_bus.fired == []
"""


@pytest.mark.slow
def test_the_fixtures_work_in_a_package_of_an_author(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["hookbus.testing.plugin"]\n')
    (tmp_path / "test_mine.py").write_text(dedent(AUTHORS_TEST))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_kit_itself_needs_no_pytest() -> None:
    code = "import sys; import hookbus.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_temporary_file_that_is_gone_again_is_no_stray() -> None:
    check_hook(WritingAndDeleting)
