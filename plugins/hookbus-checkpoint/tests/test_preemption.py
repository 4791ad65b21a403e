"""What happens when the machine is taken away."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hookbus import Hook
from hookbus.run import Run
from hookbus.runs.workdir import read_status
from hookbus.state import read_checkpoint
from hookbus.testing import check_hook, fake_training
from hookbus_checkpoint import CheckpointHook, PreemptionHook


class Signal(Hook):
    """Sends a signal to its own process at an iteration."""

    def __init__(self, number: signal.Signals, at: int) -> None:
        super().__init__()
        self.number, self.at = number, at

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.at:
            os.kill(os.getpid(), self.number)


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(PreemptionHook)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_once_and_ends_the_run(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    hooks = [CheckpointHook(interval=50), PreemptionHook(), Signal(number, at=2)]

    run = fake_training(hooks, epochs=3, work_dir=tmp_path).run

    assert run.outcome == "preempted"
    assert run.stop_reasons == [f"preemption: received {number.name}"]
    assert run.iters_done in (2, 3)
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == run.iters_done
    assert read_status(tmp_path)["exit_code"] == 75
    assert signal.getsignal(number) is before


def test_a_resumed_run_goes_on_to_the_end(tmp_path: Path) -> None:
    fake_training([CheckpointHook(), PreemptionHook(), Signal(signal.SIGTERM, at=2)], epochs=3, work_dir=tmp_path)
    run = fake_training([CheckpointHook(), PreemptionHook()], epochs=3, work_dir=tmp_path, resume="auto").run

    assert (run.outcome, run.iters_done) == ("finished", 9)


@pytest.mark.parametrize("mode", [True, "overlap"])
def test_while_a_save_is_being_written_that_one_and_the_one_of_the_signal_are_there(tmp_path: Path, mode: Any) -> None:
    """The file of iteration 3 is held back until the signal has come."""
    came = threading.Event()

    class Holds(Hook):
        def before_save_checkpoint(self, run: Run) -> None:
            if run.iters_done == 3:
                checkpoints._writer._background._executor.submit(came.wait)

        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 5:
                os.kill(os.getpid(), signal.SIGTERM)
                came.set()

    checkpoints: Any = CheckpointHook(async_save=mode, interval=3, by_epoch=False)
    hooks = [checkpoints, PreemptionHook(), Holds()]
    run = fake_training(hooks, epochs=3, work_dir=tmp_path).run

    assert run.outcome == "preempted"
    assert read_status(tmp_path)["exit_code"] == 75
    assert read_checkpoint(tmp_path / "checkpoints/iter_3.pth")["meta"]["iter"] == 3
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == run.iters_done
    assert fake_training([CheckpointHook()], epochs=3, work_dir=tmp_path, resume="auto").run.iters_done == 9


def test_a_handler_that_was_there_before_is_called_and_put_back(tmp_path: Path) -> None:
    called: list[int] = []

    def earlier(number: int, frame: FrameType | None) -> None:
        called.append(number)

    kept = signal.signal(signal.SIGUSR1, earlier)
    try:
        fake_training([PreemptionHook(), Signal(signal.SIGUSR1, at=1)], work_dir=tmp_path)
        assert called == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) is earlier
    finally:
        signal.signal(signal.SIGUSR1, kept)


def test_without_a_checkpoint_hook_it_stops_all_the_same(tmp_path: Path) -> None:
    run = fake_training([PreemptionHook(), Signal(signal.SIGTERM, at=1)], work_dir=tmp_path).run

    assert run.outcome == "preempted"


def test_a_first_signal_that_comes_after_a_stop_lets_the_run_end_in_order(tmp_path: Path) -> None:
    """As in one of several processes whose others had the signal before."""

    class Stop(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.request_stop("the others leave", outcome="preempted")

        def after_train(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    run = fake_training([CheckpointHook(), PreemptionHook(), Stop()], work_dir=tmp_path).run

    assert run.outcome == "preempted"
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 1


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from hookbus import Hook\n"
        "from hookbus.testing import fake_training\n"
        "from hookbus_checkpoint import PreemptionHook\n"
        "class Twice(Hook):\n"
        "    def before_train_iter(self, run):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('still here', flush=True)\n"
        "fake_training([PreemptionHook(), Twice()])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == -signal.SIGTERM
    assert "still here" not in done.stdout
