"""Preemption signals: checkpoint, outcome, and restored handlers."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Trainer
from hookbus._run.run import Run
from hookbus._run.status import read_status
from hookbus.bridge import Capabilities
from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import check_hook, fake_training
from hookbus_checkpoint import CheckpointHook, PreemptionHook


class SignalSender(Hook):
    """Send a signal to the own process at an iteration."""

    def __init__(self, number: signal.Signals, at: int) -> None:
        super().__init__()
        self.number, self.at = number, at

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.slow
def test_hook_passes_the_conformance_check() -> None:
    check_hook(PreemptionHook)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_saves_once_and_ends_the_run(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    hooks = [CheckpointHook(interval=50), PreemptionHook(), SignalSender(number, at=2)]

    run = fake_training(hooks, epochs=3, work_dir=tmp_path).run

    assert run.outcome == "preempted"
    assert run.stop_reasons == [f"preemption: received {number.name}"]
    assert run.iters_done in (2, 3)
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == run.iters_done
    assert read_status(tmp_path)["exit_code"] == 75
    assert signal.getsignal(number) is before


class SavingTrainer:
    """Trainer that saves and stops when hooks request it."""

    checkpoints = "host"
    capabilities = Capabilities(host="Other", bridge="unused:Unused", requests={"stop": "now", "save": "now"})

    def __init__(self) -> None:
        self.calls: list[str] = []

    def save(self, reasons: Sequence[str]) -> None:
        self.calls.append(f"save {reasons}")

    def stop(self, reasons: Sequence[str]) -> None:
        self.calls.append(f"stop {reasons}")


def test_checkpoint_of_another_trainer_is_saved_before_it_stops() -> None:
    trainer, bus = SavingTrainer(), HookBus([PreemptionHook(), SignalSender(signal.SIGUSR1, at=1)])
    run = bus.open(host=trainer)
    for _ in range(2):
        bus.emit("after_train_iter")
    run.close()
    reasons = ["preemption: received SIGUSR1"]
    assert (trainer.calls, run.outcome) == ([f"save {reasons}", f"stop {reasons}"], "preempted")


def test_resumed_run_completes_the_training(tmp_path: Path) -> None:
    fake_training([CheckpointHook(), PreemptionHook(), SignalSender(signal.SIGTERM, at=2)], epochs=3, work_dir=tmp_path)
    run = fake_training([CheckpointHook(), PreemptionHook()], epochs=3, work_dir=tmp_path, resume="auto").run

    assert (run.outcome, run.iters_done) == ("finished", 9)


@pytest.mark.parametrize("mode", [True, "overlap"])
def test_signal_during_an_asynchronous_save_results_in_both_checkpoints(tmp_path: Path, mode: Any) -> None:
    """The write of iteration 3 is blocked until the signal was sent."""
    sent = threading.Event()

    class BlockedSave(Hook):
        def before_save_checkpoint(self, run: Run) -> None:
            if run.iters_done == 3:
                checkpoints._writer._async_writer._executor.submit(sent.wait)

        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 5:
                os.kill(os.getpid(), signal.SIGTERM)
                sent.set()

    checkpoints: Any = CheckpointHook(async_save=mode, interval=3, by_epoch=False)
    hooks = [checkpoints, PreemptionHook(), BlockedSave()]
    run = fake_training(hooks, epochs=3, work_dir=tmp_path).run

    assert run.outcome == "preempted"
    assert read_status(tmp_path)["exit_code"] == 75
    assert read_checkpoint(tmp_path / "checkpoints/iter_3.pth")["meta"]["iter"] == 3
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == run.iters_done
    assert fake_training([CheckpointHook()], epochs=3, work_dir=tmp_path, resume="auto").run.iters_done == 9


def test_previous_handler_is_called_and_restored(tmp_path: Path) -> None:
    called: list[int] = []

    def previous(number: int, frame: FrameType | None) -> None:
        called.append(number)

    original = signal.signal(signal.SIGUSR1, previous)
    try:
        fake_training([PreemptionHook(), SignalSender(signal.SIGUSR1, at=1)], work_dir=tmp_path)
        assert called == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) is previous
    finally:
        signal.signal(signal.SIGUSR1, original)


def test_signal_stops_a_run_without_checkpoint_hook(tmp_path: Path) -> None:
    run = fake_training([PreemptionHook(), SignalSender(signal.SIGTERM, at=1)], work_dir=tmp_path).run

    assert run.outcome == "preempted"


def test_first_signal_after_a_stop_does_not_kill_the_run(tmp_path: Path) -> None:
    """In distributed training another rank may have received the signal first."""

    class Stopper(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.request_stop("another rank stops", outcome="preempted")

        def after_train(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    run = fake_training([CheckpointHook(), PreemptionHook(), Stopper()], work_dir=tmp_path).run

    assert run.outcome == "preempted"
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 1


@pytest.mark.slow
def test_second_signal_kills_the_process(tmp_path: Path) -> None:
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
    process = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)

    assert process.returncode == -signal.SIGTERM
    assert "still here" not in process.stdout


class Lost:
    """A loader that loses its worker at its third batch, after a signal or without one."""

    def __init__(self, number: signal.Signals | None) -> None:
        self.number = number

    def __iter__(self) -> Iterator[Any]:
        for index in range(2):
            yield torch.full((2, 1), float(index)), torch.zeros(2, 1)
        if self.number is not None:
            os.kill(os.getpid(), self.number)
        raise RuntimeError("DataLoader worker (pid(s) 1) exited unexpectedly")


def trained(tmp_path: Path, train: Any, val: Any = None) -> Run:
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.functional.mse_loss,
        train,
        val,
        epochs=2,
        work_dir=tmp_path,
        hooks=[CheckpointHook(save_best=False), PreemptionHook()],
        default_hooks=False,
        device="cpu",
    )
    return trainer.fit()


def test_worker_lost_to_the_signal_ends_the_run_at_the_last_iteration(tmp_path: Path) -> None:
    run = trained(tmp_path, Lost(signal.SIGTERM))

    assert (run.outcome, run.iters_done, run.epochs_done) == ("preempted", 2, 0)
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 2
    assert read_status(tmp_path)["exit_code"] == 75


def test_worker_of_a_validation_lost_to_the_signal_ends_the_run(tmp_path: Path) -> None:
    batches = [(torch.ones(2, 1), torch.zeros(2, 1))] * 3
    run = trained(tmp_path, batches, Lost(signal.SIGTERM))

    assert (run.outcome, run.iters_done) == ("preempted", 3)
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 3


def test_worker_lost_to_ctrl_c_ends_the_run_with_a_last_checkpoint(tmp_path: Path) -> None:
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, Lost(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, earlier)

    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 2
    assert read_status(tmp_path)["exit_code"] == 130


def test_worker_lost_without_a_signal_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        trained(tmp_path, Lost(None))


def test_custom_loop_that_reads_its_own_loader_is_left_after_the_last_iteration(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    bus = HookBus([CheckpointHook(save_best=False), PreemptionHook()])
    with bus.run(model=model, epochs=2, work_dir=tmp_path) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for batch in Lost(signal.SIGUSR1):
                bus.emit("before_train_iter", batch=batch)
                bus.emit("after_train_iter", batch=batch, outputs={"loss": 1.0})

    assert (run.outcome, run.iters_done, run.epochs_done) == ("preempted", 2, 0)
    assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["iter"] == 2


GROUP = """
import os, signal, sys, time, torch
from hookbus import Trainer
from hookbus_checkpoint import CheckpointHook, PreemptionHook

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, index): time.sleep(0.01); return torch.ones(1), torch.zeros(1)

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return (Slow()[index] for index in range(400))

class Group(CheckpointHook):
    sent = False
    def after_train_iter(self, run): self.send(run, "train")
    def after_val_iter(self, run): self.send(run, "val")
    def send(self, run, part):
        if part == sys.argv[4] and run.iters_done == 3 and not self.sent:
            self.sent = True
            signal.raise_signal(NUMBER) if os.getenv("RANK", "0") != "0" else os.killpg(0, NUMBER)

if __name__ == "__main__":
    kind, method, NUMBER = sys.argv[1], sys.argv[2], signal.Signals[sys.argv[3]]
    model = torch.nn.Linear(1, 1)
    options = dict(batch_size=4, num_workers=2, multiprocessing_context=method)
    slow = torch.utils.data.DataLoader({"map": Slow, "stream": Stream}[kind](), **options)
    loader, val = (slow, None) if sys.argv[4] == "train" else ([(torch.ones(4, 1), torch.zeros(4, 1))] * 3, slow)
    run = Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.functional.mse_loss, loader, val, epochs=2,
        work_dir="run", hooks=[Group(), PreemptionHook()], default_hooks=False, device="cpu",
    ).fit()
    sys.exit(75 if run.outcome == "preempted" else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method", "number", "part"),
    [
        pytest.param("map", "fork", "SIGTERM", "train", marks=pytest.mark.exhaustive),
        ("stream", "fork", "SIGTERM", "train"),
        ("map", "spawn", "SIGUSR1", "train"),
        ("map", "forkserver", "SIGINT", "train"),
        pytest.param("map", "fork", "SIGINT", "val", marks=pytest.mark.exhaustive),
        ("stream", "spawn", "SIGTERM", "val"),
    ],
)
def test_signal_to_the_process_group_leaves_the_workers_running(
    tmp_path: Path, kind: str, method: str, number: str, part: str
) -> None:
    (tmp_path / "script.py").write_text(GROUP)
    command = [sys.executable, "script.py", kind, method, number, part]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False, start_new_session=True
    )

    assert done.returncode == (-signal.SIGINT if number == "SIGINT" else 75), done.stderr
    assert "DataLoader worker" not in done.stderr
    assert read_status(tmp_path / "run")["exit_code"] == (130 if number == "SIGINT" else 75)
    assert read_checkpoint(tmp_path / "run/checkpoints/last.pth")["meta"]["iter"] in (3, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    ["SIGINT", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("SIGTERM", "SIGUSR1"))],
)
def test_signal_to_the_group_of_torchrun_ends_all_ranks_with_a_checkpoint(tmp_path: Path, number: str) -> None:
    (tmp_path / "script.py").write_text(GROUP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "script.py", "map", "fork", number, "train"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False, start_new_session=True,
    )  # fmt: skip

    assert "DataLoader worker" not in done.stderr
    status = read_status(tmp_path / "run")
    assert status["exit_code"] == (130 if number == "SIGINT" else 75), done.stderr
    assert read_checkpoint(tmp_path / "run/checkpoints/last.pth")["meta"]["iter"] == status["iters_done"]
