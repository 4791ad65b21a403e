"""Tests of the progress hook in a terminal and in a pipe."""

import io
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console, Group

from hookbus import Hook, HookBus, Trainer
from hookbus._run.run import Run
from hookbus.testing import check_hook, fake_training
from hookbus_logger import LoggerHook, ProgressHook
from hookbus_logger import progress as progress_module
from hookbus_logger.progress import (
    ProgressState,
    Ticker,
    build_bar,
    format_line,
)
from hookbus_logger.throughput import ThroughputMeter, format_throughput

from .toys import StopAt

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class RecordProgress(Hook):
    """Record the progress after each iteration and each validation or test batch."""

    def __init__(self, progress: ProgressHook) -> None:
        super().__init__()
        self.progress = progress
        self.entries: list[tuple[str, int, int | None]] = []

    def record(self, run: Run) -> None:
        state = self.progress.get_progress(run)
        self.entries.append((state.label, state.done, state.total))

    def before_train(self, run: Run) -> None:
        self.record(run)

    def after_train_iter(self, run: Run) -> None:
        self.record(run)

    def after_val_iter(self, run: Run) -> None:
        self.record(run)

    def after_test_iter(self, run: Run) -> None:
        self.record(run)


class WaitFor(Hook):
    """Block each iteration until an event is set."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self.event = event

    def after_train_iter(self) -> None:
        self.event.clear()
        assert self.event.wait(60)


def record_progress(build: Callable[..., Trainer], *hooks: object, **options: Any) -> list[tuple[str, int, int | None]]:
    """Return the progress that a training displays, one entry per event."""
    progress = ProgressHook()
    recorder = RecordProgress(progress)
    build(progress, recorder, *hooks, **options).fit()
    return recorder.entries


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(ProgressHook)


# -- progress of the run -----------------------------------------------------------------------------------


def test_progress_follows_the_iterations_of_each_epoch(trainer: Callable[..., Trainer]) -> None:
    entries = record_progress(trainer, losses=[1.0, 2.0], epochs=2)

    assert entries == [
        *(("epoch 1/2", 0, 2), ("epoch 1/2", 1, 2), ("epoch 1/2", 2, 2)),
        *(("epoch 2/2", 1, 2), ("epoch 2/2", 2, 2)),
    ]


def test_progress_of_a_run_limited_in_iterations_spans_the_run(trainer: Callable[..., Trainer]) -> None:
    entries = record_progress(trainer, losses=[1.0, 2.0], iterations=3)

    assert entries == [("iteration", 0, 3), ("iteration", 1, 3), ("iteration", 2, 3), ("iteration", 3, 3)]


def test_progress_of_a_run_limited_in_tokens_counts_tokens() -> None:
    progress, states = ProgressHook(), []
    bus = HookBus([progress])
    bus.on("after_train_iter")(lambda run: states.append(progress.get_progress(run)))
    with bus.run(tokens=20, batch_tokens=len) as run:
        for _ in run.epochs():
            for _, batch in run.batches([[0] * 8] * 4):
                bus.emit("after_train_iter", batch=batch)
    assert [(state.label, state.done, state.total) for state in states] == [
        ("token", 8, 20),
        ("token", 16, 20),
        ("token", 24, 20),
    ]


def test_total_is_none_for_a_loader_without_length(trainer: Callable[..., Trainer], unsized_loader: Any) -> None:
    entries = record_progress(trainer, train_loader=unsized_loader([1.0, 2.0]), val_loader=unsized_loader([3.0]))

    assert entries == [("epoch 1/1", 0, None), ("epoch 1/1", 1, None), ("epoch 1/1", 2, None), ("validating", 1, None)]


def test_progress_of_a_validation_counts_its_batches_per_loader(trainer: Callable[..., Trainer]) -> None:
    loaders = {"clean": [torch.tensor([1.0])] * 2, "noisy": [torch.tensor([1.0])]}

    entries = record_progress(trainer, losses=[1.0], val_loader=loaders)

    assert entries[2:] == [("validating clean", 1, 2), ("validating clean", 2, 2), ("validating noisy", 1, 1)]


def test_progress_of_a_separate_test_counts_its_batches(trainer: Callable[..., Trainer]) -> None:
    progress = ProgressHook()
    recorder = RecordProgress(progress)

    trainer(progress, recorder, test_loader=[torch.tensor([1.0])] * 2).test()

    assert recorder.entries == [("testing", 1, 2), ("testing", 2, 2)]


def test_progress_of_a_prediction_counts_its_batches_with_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    progress, states, seconds = ProgressHook(), list[ProgressState](), iter(range(0, 100, 2))
    trainer = Trainer(torch.nn.Identity(), hooks=[progress], default_hooks=False, work_dir=None, device="cpu")
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    trainer.bus.on("after_predict_iter")(lambda run: states.append(progress.get_progress(run)))
    trainer.predict({"clean": [torch.tensor([1.0])] * 4}, return_predictions=False)
    assert [(state.label, state.done, state.total) for state in states] == [
        ("predicting clean", done, 4) for done in (1, 2, 3, 4)
    ]
    # One batch in 2 seconds.
    assert [(state.per_second, state.eta) for state in states] == [
        (None, ""),
        (0.5, "0:00:04"),
        (0.5, "0:00:02"),
        (0.5, "0:00:00"),
    ]


def test_progress_after_a_resume_starts_at_the_restored_iteration(
    trainer: Callable[..., Trainer], save_at: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"losses": [1.0, 2.0, 3.0], "epochs": 2}
    record_progress(trainer, save_at(tmp_path, 5), **options)

    entries = record_progress(trainer, **options, resume=tmp_path / "5.pth")

    assert entries == [("epoch 2/2", 2, 3), ("epoch 2/2", 3, 3)]


class Clock:
    """Clock that is advanced by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_eta_ignores_restored_iterations_and_validations(
    trainer: Callable[..., Trainer], save_at: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("hookbus_logger.progress.time.monotonic", clock)

    class AdvanceClock(Hook):
        def before_run(self, run: Run) -> None:
            progress.get_progress(run)
            clock.now += 5

        def after_train_iter(self, run: Run) -> None:
            clock.now += 1
            state = progress.get_progress(run)
            self.details = (state.per_second, state.eta)

        def after_val_iter(self) -> None:
            clock.now += 20

    progress, hook = ProgressHook(), AdvanceClock()
    options: dict[str, Any] = {"losses": [1.0] * 10, "val_loader": [torch.tensor([1.0])], "epochs": 10}
    trainer(save_at(tmp_path, 80), **options).fit()
    resumed = trainer(progress, RecordProgress(progress), hook, StopAt(93), resume=tmp_path / "80.pth", **options)
    resumed.fit()

    assert hook.details == (1.0, "0:00:07")


def test_eta_is_unknown_if_the_length_is_unknown(trainer: Callable[..., Trainer], unsized_loader: Any) -> None:
    progress = ProgressHook()

    class ReadProgress(Hook):
        def after_train_iter(self, run: Run) -> None:
            self.eta = progress.get_progress(run).eta

    hook = ReadProgress()
    trainer(progress, hook, train_loader=unsized_loader([1.0])).fit()

    assert hook.eta == "unknown"


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (2, [None, None, 1.5, 1.5, 6.0, 6.0, 8.5, 8.5, 3.0, 3.0]),
        (100, [None, None, None, None, None, 6.2, 6.2, 6.2, 6.2, 6.2]),
    ],
)
def test_displayed_loss_is_the_mean_over_the_last_interval(
    trainer: Callable[..., Trainer], interval: int, expected: list[float | None]
) -> None:
    progress = ProgressHook(interval=interval)

    class ReadProgress(Hook):
        def before_run(self) -> None:
            self.losses: list[float | None] = []

        def before_train_iter(self, run: Run) -> None:
            self.losses.append(progress.get_progress(run).loss)

    hook = ReadProgress()
    trainer(progress, hook, losses=[1.0, 2.0, 4.0, 8.0, 16.0], epochs=2).fit()

    assert hook.losses == expected


def test_hook_reads_no_tensor_between_two_records(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    for name in ("item", "tolist", "__float__"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, read=read: (reads.append(1), read(self))[1])
    progress = ProgressHook(interval=100)
    recorder = RecordProgress(progress)

    trainer(progress, recorder, losses=[1.0] * 20).fit()

    assert len(recorder.entries) == 21
    assert len(reads) == 2  # at the end of the epoch, for the display and for `run.history`


# -- output ------------------------------------------------------------------------------------------------


def test_hook_displays_a_bar_and_restores_the_terminal(terminal: Any, on_terminal: Any) -> None:
    streams = sys.stdout, sys.stderr

    fake_training([on_terminal, ProgressHook(refresh_per_second=30), WaitFor(terminal.written)], epochs=1)

    output = terminal.getvalue()
    assert "epoch 1/1" in output
    assert "━" in output
    assert output.rindex(SHOW) > output.rindex(HIDE)
    assert (sys.stdout, sys.stderr) == streams


def test_output_of_other_hooks_appears_above_the_bar(terminal: Any, on_terminal: Any) -> None:
    class Print(Hook):
        def after_epoch(self) -> None:
            print("printed")  # noqa: T201 - as users do

    hooks = [on_terminal, LoggerHook(), ProgressHook(refresh_per_second=30), WaitFor(terminal.written), Print()]
    fake_training(hooks, epochs=1)

    output = terminal.getvalue()
    for text in ("printed", "train/loss"):
        erased = output.rindex("\x1b[2K", 0, output.index(text))
        assert "\n" not in output[erased : output.index(text)]


def test_epoch_of_the_bar_is_below_the_first_column_of_the_table(on_terminal: Any) -> None:
    progress = ProgressHook()
    labels = []

    class ReadLabel(Hook):
        def after_train_epoch(self, run: Run) -> None:
            labels.append(progress.get_progress(run).label)

    fake_training([on_terminal, LoggerHook(), progress, ReadLabel()], epochs=1)
    fake_training([LoggerHook(), progress, ReadLabel()], epochs=1)

    assert labels == ["  1/1", "epoch 1/1"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_hook_restores_the_terminal_after_an_error(terminal: Any, on_terminal: Any, error: type[BaseException]) -> None:
    class Fail(Hook):
        def after_train_iter(self) -> None:
            raise error

    streams = sys.stdout, sys.stderr
    with pytest.raises(error):
        fake_training([on_terminal, ProgressHook(), Fail()])

    assert terminal.getvalue().rindex(SHOW) > terminal.getvalue().rindex(HIDE)
    assert (sys.stdout, sys.stderr) == streams


def test_pipe_receives_periodic_plain_lines() -> None:
    class Pipe(io.StringIO):
        written = threading.Event()

        def write(self, text: str) -> int:
            self.written.set()
            return super().write(text)

    class OnPipe(Hook):
        priority = 0

        def before_run(self, run: Run) -> None:
            run.provide("console", Console(file=pipe))

    pipe = Pipe()
    fake_training([OnPipe(), ProgressHook(line_every=0.01), WaitFor(pipe.written)], epochs=1)

    lines = pipe.getvalue().splitlines()
    assert lines[-1][10:].split()[:3] == ["epoch", "1/1", "3/3"]
    assert "\x1b" not in pipe.getvalue()


def test_short_run_prints_nothing_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    fake_training([ProgressHook()])

    assert capsys.readouterr() == ("", "")


def test_other_ranks_display_nothing(terminal: Any, on_terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = set(threading.enumerate())

    with HookBus([on_terminal, ProgressHook(refresh_per_second=30)]).run():
        assert set(threading.enumerate()) == before

    assert terminal.getvalue() == ""


def test_consecutive_runs_display_a_bar_each(terminal: Any, on_terminal: Any) -> None:
    bus = HookBus([on_terminal, ProgressHook()])
    for _ in range(2):
        fake_training(bus=bus, epochs=1, fresh=True)

    assert terminal.getvalue().count(HIDE) == 2
    assert terminal.getvalue().count(SHOW) == 2


def render(state: ProgressState, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(Group(build_bar(state, width)))
    return captured.get()


def test_throughput_is_the_number_of_iterations_per_second() -> None:
    meter = ThroughputMeter()
    for done, now in ((80, 100.0), (85, 105.0), (90, 110.0)):
        meter.update(done, now)

    assert meter.per_second == 1.0


def test_throughput_excludes_pauses() -> None:
    meter = ThroughputMeter()
    meter.update(0, 0.0)
    meter.pause(5.0)
    meter.update(10, 12.0)
    meter.resume(25.0)
    meter.update(20, 30.0)

    assert meter.per_second == 20 / 10


def test_throughput_uses_only_the_window() -> None:
    meter = ThroughputMeter(span=10.0)
    meter.update(0, 0.0)
    for second in range(1, 31):
        meter.update(100 * second, float(second))
    for second in range(31, 41):
        meter.update(3000 + second - 30, float(second))

    assert meter.per_second == 1.0


def test_two_measurements_outside_the_window_yield_a_throughput() -> None:
    meter = ThroughputMeter(span=10.0)
    meter.update(0, 0.0)
    meter.update(50, 100.0)

    assert meter.per_second == 0.5


def test_throughput_is_none_before_an_iteration_is_completed() -> None:
    meter = ThroughputMeter()
    assert meter.per_second is None
    meter.update(7, 1.0)
    assert meter.per_second is None
    meter.update(7, 2.0)
    assert meter.per_second is None


@pytest.mark.parametrize(
    ("per_second", "text"), [(1234.5, "1234 it/s"), (46.94, "46.9 it/s"), (1.0, "1.0 it/s"), (0.25, "4.0 s/it")]
)
def test_throughput_below_one_is_formatted_in_seconds_per_iteration(per_second: float, text: str) -> None:
    assert format_throughput(per_second) == text


def test_plain_line_contains_all_fields() -> None:
    state = ProgressState("epoch 2/5", 150, 450, loss=0.4213, per_second=12.3, eta="0:00:24")

    assert format_line(state) == "epoch 2/5  150/450  loss 0.4213  12.3 it/s  eta 0:00:24"
    assert format_line(ProgressState("validating", 3)) == "validating  3 it"


def test_bar_fits_on_one_line_at_any_width() -> None:
    state = ProgressState("epoch 2/5", 225, 450, loss=0.4213, per_second=12.3, eta="0:00:24")

    assert render(state).split() == [
        *("epoch", "2/5", "━" * 16, "225/450"),
        *("loss", "0.4213", "12.3", "it/s", "eta", "0:00:24"),
    ]
    for width in range(10, 100):
        assert render(state, width).count("\n") == 1
        assert len(render(state, width).rstrip("\n")) <= width


def test_narrow_terminal_omits_the_bar() -> None:
    state = ProgressState("epoch 2/5", 225, 450, loss=0.4213, per_second=12.3, eta="0:00:24")

    assert render(state, 60) == "epoch 2/5  225/450  loss 0.4213  12.3 it/s  eta 0:00:24\n"
    assert render(state, 50) == "epoch 2/5  225/450  loss 0.4213  12.3 it/s\n"
    assert render(state, 30) == "epoch 2/5  225/450\n"


def test_bar_without_a_total_contains_the_count() -> None:
    assert "━" in render(ProgressState("validating", 3))
    assert render(ProgressState("validating", 3)).split()[-2:] == ["3", "it"]


def test_ticker_calls_the_function_until_stopped_and_joins_its_thread() -> None:
    called, threads = threading.Event(), set(threading.enumerate())

    ticker = Ticker(0.001, called.set)
    assert called.wait(60)
    ticker.stop()
    called.clear()

    assert set(threading.enumerate()) <= threads
    assert not called.is_set()


FORK_SCRIPT = """
    import os, threading
    from hookbus_logger.progress import Ticker

    lock, ticked = threading.Lock(), threading.Event()

    def tick():
        with lock:
            for _ in range(200_000):
                pass
        ticked.set()

    ticker = Ticker(0.0001, tick)
    ticked.wait(60)
    for _ in range(20):
        child = os.fork()
        if not child:
            os._exit(not lock.acquire(timeout=5))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child process deadlocks"
    ticker.stop()
"""


@pytest.mark.slow
def test_forked_process_does_not_inherit_a_lock_of_the_thread() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK_SCRIPT)], check=True, timeout=100)
