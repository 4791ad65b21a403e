"""Progress in a terminal and in a pipe, at every place a run can be in."""

import io
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from hookbus import Hook, HookBus, Trainer
from hookbus.run import Run
from hookbus.testing import check_hook, fake_training
from hookbus_logger import LoggerHook, ProgressHook

from .toys import StopAt

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Looks(Hook):
    """Looks at what would be shown, after each iteration and each batch of a validation."""

    def __init__(self, progress: ProgressHook) -> None:
        super().__init__()
        self.progress = progress
        self.seen: list[tuple[str, int, int | None]] = []

    def look(self, run: Run) -> None:
        view = self.progress.view(run)
        self.seen.append((view.label, view.done, view.total))

    def before_train(self, run: Run) -> None:
        self.look(run)

    def after_train_iter(self, run: Run) -> None:
        self.look(run)

    def after_val_iter(self, run: Run) -> None:
        self.look(run)

    def after_test_iter(self, run: Run) -> None:
        self.look(run)


class Waits(Hook):
    """Holds the training until something was drawn."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self.event = event

    def after_train_iter(self) -> None:
        self.event.clear()
        assert self.event.wait(60)


def looked(make: Callable[..., Trainer], *hooks: object, **options: Any) -> list[tuple[str, int, int | None]]:
    """What a training shows, look by look."""
    progress = ProgressHook()
    looks = Looks(progress)
    make(progress, looks, *hooks, **options).fit()
    return looks.seen


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(ProgressHook)


# -- where the run stands ----------------------------------------------------------------------------------


def test_it_stands_where_the_epoch_stands(trainer: Callable[..., Trainer]) -> None:
    seen = looked(trainer, losses=[1.0, 2.0], epochs=2)

    assert seen == [
        *(("epoch 1/2", 0, 2), ("epoch 1/2", 1, 2), ("epoch 1/2", 2, 2)),
        *(("epoch 2/2", 1, 2), ("epoch 2/2", 2, 2)),
    ]


def test_a_run_counted_in_iterations_is_one_stretch(trainer: Callable[..., Trainer]) -> None:
    seen = looked(trainer, losses=[1.0, 2.0], iterations=3)

    assert seen == [("iteration", 0, 3), ("iteration", 1, 3), ("iteration", 2, 3), ("iteration", 3, 3)]


def test_a_loader_without_length_has_no_total(trainer: Callable[..., Trainer], stream: Any) -> None:
    seen = looked(trainer, train_loader=stream([1.0, 2.0]), val_loader=stream([3.0]))

    assert seen == [("epoch 1/1", 0, None), ("epoch 1/1", 1, None), ("epoch 1/1", 2, None), ("validating", 1, None)]


def test_a_validation_shows_its_own_batches_and_loader(trainer: Callable[..., Trainer]) -> None:
    loaders = {"clean": [torch.tensor([1.0])] * 2, "noisy": [torch.tensor([1.0])]}

    seen = looked(trainer, losses=[1.0], val_loader=loaders)

    assert seen[2:] == [("validating clean", 1, 2), ("validating clean", 2, 2), ("validating noisy", 1, 1)]


def test_a_test_alone_shows_its_batches(trainer: Callable[..., Trainer]) -> None:
    progress = ProgressHook()
    looks = Looks(progress)

    trainer(progress, looks, test_loader=[torch.tensor([1.0])] * 2).test()

    assert looks.seen == [("testing", 1, 2), ("testing", 2, 2)]


def test_right_after_a_resume_it_stands_where_the_run_stands(
    trainer: Callable[..., Trainer], save_at: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"losses": [1.0, 2.0, 3.0], "epochs": 2}
    looked(trainer, save_at(tmp_path, 5), **options)

    seen = looked(trainer, **options, resume=tmp_path / "5.pth")

    assert seen == [("epoch 2/2", 2, 3), ("epoch 2/2", 3, 3)]


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_counts_from_the_resume_and_leaves_validations_out(
    trainer: Callable[..., Trainer], save_at: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("hookbus_logger.progress.time.monotonic", clock)

    class Takes(Hook):
        def before_run(self, run: Run) -> None:
            progress.view(run)
            clock.now += 5

        def after_train_iter(self, run: Run) -> None:
            clock.now += 1
            view = progress.view(run)
            self.facts = (view.per_second, view.eta)

        def after_val_iter(self) -> None:
            clock.now += 20

    progress, takes = ProgressHook(), Takes()
    options: dict[str, Any] = {"losses": [1.0] * 10, "val_loader": [torch.tensor([1.0])], "epochs": 10}
    trainer(save_at(tmp_path, 80), **options).fit()
    made = trainer(progress, Looks(progress), takes, StopAt(93), resume=tmp_path / "80.pth", **options)
    made.fit()

    assert takes.facts == (1.0, "0:00:07")


def test_the_end_is_unknown_where_nobody_knows_it(trainer: Callable[..., Trainer], stream: Any) -> None:
    progress = ProgressHook()

    class Sees(Hook):
        def after_train_iter(self, run: Run) -> None:
            self.eta = progress.view(run).eta

    sees = Sees()
    trainer(progress, sees, train_loader=stream([1.0])).fit()

    assert sees.eta == "unknown"


def test_the_loss_is_that_of_the_last_record(trainer: Callable[..., Trainer]) -> None:
    progress = ProgressHook(interval=2)

    class Sees(Hook):
        def before_run(self) -> None:
            self.losses: list[float | None] = []

        def before_train_iter(self, run: Run) -> None:
            self.losses.append(progress.view(run).loss)

    sees = Sees()
    trainer(progress, sees, losses=[1.0, 2.0, 4.0, 8.0, 16.0]).fit()

    assert sees.losses == [None, 1.0, 2.0, 2.0, 6.0]


def test_no_tensor_is_read_between_two_records(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    for name in ("item", "tolist", "__float__"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, read=read: (reads.append(1), read(self))[1])
    progress = ProgressHook(interval=100)
    looks = Looks(progress)

    trainer(progress, looks, losses=[1.0] * 20).fit()

    assert len(looks.seen) == 21
    assert len(reads) == 1


# -- what is seen ------------------------------------------------------------------------------------------


def test_a_terminal_shows_a_bar_and_is_left_as_it_was(terminal: Any, on_terminal: Any) -> None:
    streams = sys.stdout, sys.stderr

    fake_training([on_terminal, ProgressHook(refresh_per_second=30), Waits(terminal.drawn)], epochs=1)

    shown = terminal.getvalue()
    assert "epoch 1/1" in shown
    assert "━" in shown
    assert shown.rindex(SHOW) > shown.rindex(HIDE)
    assert (sys.stdout, sys.stderr) == streams


def test_lines_of_others_appear_above_the_bar(terminal: Any, on_terminal: Any) -> None:
    class Prints(Hook):
        def after_epoch(self) -> None:
            print("printed")  # noqa: T201 - as users do

    hooks = [on_terminal, LoggerHook(), ProgressHook(refresh_per_second=30), Waits(terminal.drawn), Prints()]
    fake_training(hooks, epochs=1)

    shown = terminal.getvalue()
    for text in ("printed", "train"):
        erased = shown.rindex("\x1b[2K", 0, shown.index(text))
        assert "\n" not in shown[erased : shown.index(text)]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_terminal_is_left_as_it_was_however_the_run_ends(
    terminal: Any, on_terminal: Any, error: type[BaseException]
) -> None:
    class Fails(Hook):
        def after_train_iter(self) -> None:
            raise error

    streams = sys.stdout, sys.stderr
    with pytest.raises(error):
        fake_training([on_terminal, ProgressHook(), Fails()])

    assert terminal.getvalue().rindex(SHOW) > terminal.getvalue().rindex(HIDE)
    assert (sys.stdout, sys.stderr) == streams


def test_a_pipe_gets_a_plain_line_now_and_then() -> None:
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
    fake_training([OnPipe(), ProgressHook(line_every=0.01), Waits(pipe.written)], epochs=1)

    lines = pipe.getvalue().splitlines()
    assert lines[-1][21:].split()[:3] == ["epoch", "1/1", "3/3"]
    assert "\x1b" not in pipe.getvalue()


def test_a_short_run_in_a_pipe_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    fake_training([ProgressHook()])

    assert capsys.readouterr() == ("", "")


def test_other_ranks_show_nothing(terminal: Any, on_terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = set(threading.enumerate())

    with HookBus([on_terminal, ProgressHook(refresh_per_second=30)]).run():
        assert set(threading.enumerate()) == before

    assert terminal.getvalue() == ""


def test_two_runs_one_after_the_other_have_a_bar_each(terminal: Any, on_terminal: Any) -> None:
    bus = HookBus([on_terminal, ProgressHook()])
    for _ in range(2):
        fake_training(bus=bus, epochs=1, fresh=True)

    assert terminal.getvalue().count(HIDE) == 2
    assert terminal.getvalue().count(SHOW) == 2
