"""Ctrl-C in a training, in a custom loop and in a terminal."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from hookbus import HookBus
from hookbus._run.acquisition import acquire
from hookbus._run.interrupts import handle_interrupts
from hookbus._run.run import Run
from hookbus._run.status import read_status
from hookbus.testing import RecordingBus
from tests import toys

if TYPE_CHECKING:
    from tests.conftest import Project


class TestInterrupts:
    @pytest.fixture(autouse=True)
    def default_handler(self) -> Any:
        earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, earlier)

    def test_ctrl_c_adds_a_stop_request_and_the_handler_is_restored(self) -> None:
        run = Run(HookBus())
        with handle_interrupts(run):
            signal.raise_signal(signal.SIGINT)
            (request,) = run.queue.waiting
            assert (str(request), request.details) == ("Ctrl-C", {"outcome": "interrupted"})
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert run.interrupted

    def test_handler_is_restored_after_an_error(self) -> None:
        with pytest.raises(ValueError, match="broken"), handle_interrupts(Run(HookBus())):
            raise ValueError("broken")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_handler_of_the_program_is_not_replaced(self) -> None:
        called = []

        def mine(number: int, frame: FrameType | None) -> None:
            called.append(number)

        signal.signal(signal.SIGINT, mine)
        training = toys.trainer(iterations=1)
        training.bus.on("before_train")(lambda: signal.raise_signal(signal.SIGINT))
        assert training.fit().outcome == "finished"
        assert called == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is mine

    def test_training_runs_in_a_thread(self) -> None:
        outcomes: list[str] = []
        training = toys.trainer(iterations=1)
        thread = threading.Thread(target=lambda: outcomes.append(training.fit().outcome))
        thread.start()
        thread.join()
        assert outcomes == ["finished"]


class TestInterruptsInCustomLoop:
    """Ctrl-C in the second iteration of three."""

    @pytest.fixture(autouse=True)
    def default_handler(self) -> Any:
        earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, earlier)

    def step(self, bus: RecordingBus, index: int, *, opens: bool = True) -> None:
        if opens:
            bus.emit("before_train_iter", batch_idx=index)
        if bus.current.iters_done == 1:
            signal.raise_signal(signal.SIGINT)
        bus.emit("after_train_iter", batch_idx=index)

    def loop_over_run_batches(self, bus: RecordingBus, run: Run) -> None:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for index, _ in run.batches([1, 2, 3]):
                self.step(bus, index)
            bus.emit("after_train_epoch")

    def loop_that_checks_should_stop(self, bus: RecordingBus, run: Run) -> None:
        bus.emit("before_train_epoch")
        for index in range(3):
            self.step(bus, index)
            if run.should_stop:
                break
        bus.emit("after_train_epoch")

    def loop_without_checks(self, bus: RecordingBus, run: Run) -> None:
        bus.emit("before_train_epoch")
        for index in range(3):
            self.step(bus, index)
        pytest.fail("the loop continued to its end")

    def loop_of_iteration_ends(self, bus: RecordingBus, run: Run) -> None:
        for index in range(4):
            self.step(bus, index, opens=False)
        pytest.fail("the loop continued to its end")

    def loop_that_catches_the_interrupt(self, bus: RecordingBus, run: Run) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self.loop_without_checks(bus, run)

    def interrupt_twice(self, bus: RecordingBus) -> None:
        bus.emit("before_train_epoch")
        bus.emit("before_train_iter")
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the loop continued")

    @pytest.mark.parametrize(
        ("loop", "iterations"),
        [
            (loop_over_run_batches, 2),
            (loop_that_checks_should_stop, 2),
            (loop_without_checks, 2),
            (loop_of_iteration_ends, 3),
            (loop_that_catches_the_interrupt, 2),
        ],
    )
    def test_ctrl_c_ends_a_custom_loop_at_a_boundary_with_a_final_checkpoint(
        self, tmp_path: Path, loop: Any, iterations: int
    ) -> None:
        bus = RecordingBus([toys.Saver("after_train")])
        with pytest.raises(KeyboardInterrupt), bus.run(epochs=1, work_dir=tmp_path) as run:
            loop(self, bus, run)
        assert (run.outcome, run.iters_done) == ("interrupted", iterations)
        assert [path.name for path in (tmp_path / "checkpoints").glob("*.pth")] == [f"iter_{iterations}.pth"]
        assert bus.emitted_points[-5:] == ["after_train", *SAVED, "after_run", "cleanup"]
        assert "on_exception" not in bus.emitted_points
        assert read_status(tmp_path)["exit_code"] == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_second_ctrl_c_ends_a_custom_loop_at_once(self, tmp_path: Path) -> None:
        bus = RecordingBus([toys.Saver("after_train")])
        with pytest.raises(KeyboardInterrupt), bus.run(epochs=1, work_dir=tmp_path) as run:
            self.interrupt_twice(bus)
        assert (run.outcome, run.iters_done) == ("interrupted", 0)
        assert "after_train" not in bus.emitted_points

    def test_ctrl_c_after_the_last_event_is_raised(self) -> None:
        with pytest.raises(KeyboardInterrupt), HookBus().run() as run:
            signal.raise_signal(signal.SIGINT)
        assert run.outcome == "interrupted"


SAVED = ["before_save_checkpoint", "after_save_checkpoint"]
RUN = """
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 2}
    default_hooks: false
    hooks: ["parts:QuietHook"]
"""
SLOW = """
    import time

    from hookbus import Hook
    from hookbus.checkpoint.state import write_checkpoint

    class SlowHook(Hook):
        def before_run(self, run):
            run.provide("checkpoint_saver", self)

        def after_train_iter(self, run):
            if run.iter == 2:
                print("at work", flush=True)
                for _ in range(100):
                    time.sleep(0.1)
                    if run.queue:
                        break
                print("noticed", flush=True)
                time.sleep(SECONDS)

        def after_train(self, run):
            run.request_save()

        def directory(self, run):
            return run.require("checkpoints_dir")

        def plan(self, run, requests):
            return self.directory(run) / f"iter_{run.iters_done}.pth"

        def write(self, run, checkpoint):
            write_checkpoint(self.plan(run, []), checkpoint, generation=1)
            return False
"""


@pytest.mark.slow
class TestCtrlCInTerminal:
    def start(self, project: Project, seconds: int) -> subprocess.Popen[str]:
        project.write(SLOW.replace("SECONDS", str(seconds)), "slow_parts.py")
        project.write(RUN)
        overrides = ["hooks=[slow_parts:SlowHook]", "training.epochs=1000", "work_dir=x"]
        command = [sys.executable, "-m", "hookbus", "train", "run.yaml", *overrides]
        return subprocess.Popen(command, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def interrupt(self, process: subprocess.Popen[str], at: str) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{at}\n"
        process.send_signal(signal.SIGINT)

    def test_one_ctrl_c_ends_the_iteration_and_writes_a_final_checkpoint(self, project: Project) -> None:
        with self.start(project, 0) as process:
            self.interrupt(process, "at work")
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.splitlines() == [
            "warning: Interrupted: finishing this iteration. Press Ctrl-C again to stop at once.", "interrupted"
        ]  # fmt: skip
        status = json.loads((project.path / "x/status.json").read_text())
        assert (status["outcome"], status["exit_code"], status["iters_done"]) == ("interrupted", 130, 3)
        assert [path.name for path in (project.path / "x/checkpoints").glob("*.pth")] == ["iter_3.pth"]

    def test_two_ctrl_c_end_the_process_at_once(self, project: Project) -> None:
        with self.start(project, 600) as process:
            self.interrupt(process, "at work")
            self.interrupt(process, "noticed")
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.splitlines()[-1] == "interrupted"
        assert "Traceback" not in errors
        assert read_status(project.path / "x")["outcome"] == "interrupted"
        assert list((project.path / "x/checkpoints").glob("*")) == []
        acquire(project.path / "x", resume=True).release()

    def test_ctrl_c_ends_a_script_and_its_threads(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import os, signal, threading\n"
            "from hookbus import HookBus\n"
            "bus, over = HookBus(), threading.Event()\n"
            "bus.on('before_run')(lambda: threading.Thread(target=over.wait).start())\n"
            "bus.on('cleanup', name='cleanup')(over.set)\n"
            "with bus.run(epochs=1) as run:\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGINT
        assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
