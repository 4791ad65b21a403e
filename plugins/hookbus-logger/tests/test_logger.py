"""Tests of the console output of a training."""

import logging
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Trainer, get_default_hooks
from hookbus._run.run import Run
from hookbus.testing import check_hook, fake_training
from hookbus_logger import LoggerHook, ProgressHook

from .toys import TrackBest


@pytest.fixture
def read_lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Return a function that reads the lines printed since its last call, without time and trailing spaces."""

    def read() -> list[str]:
        return [
            re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line).rstrip()
            for line in capsys.readouterr().out.splitlines()
        ]

    return read


def select_train_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("train")]


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(LoggerHook)


# -- training ----------------------------------------------------------------------------------------------


def test_training_line_contains_position_learning_rate_and_means(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=2)], epochs=2, batches=10, losses=float)

    assert select_train_lines(read_lines())[:2] == [
        "train  epoch 1/2   2/10  lr 0.1  loss 1.500",
        "train  epoch 1/2   4/10  lr 0.1  loss 3.500",
    ]


def test_training_line_counts_iterations_without_by_epoch(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=4, by_epoch=False)], epochs=2, batches=3, losses=float)

    assert select_train_lines(read_lines()) == [
        "train  iteration 4/6  lr 0.1  loss 2.500",
        "train  iteration 6/6  lr 0.1  loss 5.500",
    ]


def test_training_line_omits_unknown_totals(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer], unsized_loader: Any
) -> None:
    trainer(LoggerHook(interval=2), train_loader=unsized_loader([1.0, 2.0, 3.0]), iterations=5).fit()

    assert select_train_lines(read_lines()) == [
        "train  epoch 1  iteration 2  lr 0.1  loss 1.500",
        "train  epoch 2  iteration 2  lr 0.1  loss 1.500",
    ]


def test_lines_of_a_loop_without_epochs_contain_iterations_and_their_limit(read_lines: Callable[[], list[str]]) -> None:
    class Timer(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.bus.emit("log_scalars", values={"time/iter": 0.25, "time/eta": 61.0})

    bus = HookBus([LoggerHook(interval=2), Timer()])
    with bus.run(iterations=3) as run:
        for loss in (1.0, 2.0, 3.0):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter", outputs={"loss": loss})
        bus.emit("before_val_epoch")
        bus.emit("after_val_epoch", metrics={"loss": 0.5})
        assert run.should_stop

    lines = read_lines()
    assert lines[0] == "train  iteration 2/3  loss 1.500  iter 250 ms  eta 0:01:01"
    assert "val    iteration 3  loss 0.5000" in lines
    assert lines[-1] == "finished  iteration 3, 0:00:00"


def test_training_line_reports_a_nan_loss(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=3)], epochs=1, losses=lambda i: math.nan if i == 2 else 1.0)

    assert select_train_lines(read_lines()) == ["train  epoch 1/1  3/3  lr 0.1  loss nan (1 not finite)"]


def test_training_line_contains_each_distinct_learning_rate_once(read_lines: Callable[[], list[str]]) -> None:
    layers = [torch.nn.Linear(1, 1) for _ in range(3)]
    groups = [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(layers, (0.1, 0.1, 1e-5), strict=True)]
    bus = HookBus([LoggerHook(interval=1)])

    with bus.run(optimizer=torch.optim.SGD(groups), epochs=1) as run:
        for _ in run.epochs():
            for i, batch in run.batches([torch.zeros(1)]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                run.optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})

    assert select_train_lines(read_lines()) == ["train  epoch 1/1  1/1  lr 0.1, 1e-05  loss 1.000"]


def test_training_line_ends_with_the_times_logged_per_iteration(read_lines: Callable[[], list[str]]) -> None:
    class Timer(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.log({"time/data": 0.001})
            run.bus.emit("log_scalars", values={"time/iter": 0.25, "time/eta": 61.0, "throughput/x": 3.0, 0: 1.0})

        def after_epoch(self, run: Run) -> None:
            run.bus.emit("log_scalars", values={"time/epoch": 9.0})

    fake_training([LoggerHook(interval=3), Timer()], epochs=2)

    lines = select_train_lines(read_lines())
    assert lines[0].endswith("  data 1.00 ms  iter 250 ms  eta 0:01:01")
    assert "epoch 9" not in lines[1]


def test_times_are_printed_with_the_interval_in_which_they_were_logged_only(
    read_lines: Callable[[], list[str]],
) -> None:
    class Timer(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 2:
                run.bus.emit("log_scalars", values={"time/iter": 0.25, "time/eta": 61.0})

        def after_train_epoch(self, run: Run) -> None:
            run.bus.emit("log_scalars", values={"time/iter": 0.5, "time/eta": 0.0})

    fake_training([LoggerHook(interval=2), Timer()], epochs=1, batches=5)

    lines = select_train_lines(read_lines())
    assert lines[0].endswith("  iter 250 ms  eta 0:01:01")
    assert "iter 2" not in lines[1]
    assert "eta" not in lines[1]
    assert lines[2].endswith("  iter 500 ms  eta 0:00:00")


# -- results -----------------------------------------------------------------------------------------------


def select_rows(lines: list[str], unit: str = "epoch") -> list[str]:
    """Return the lines of epochs, without their times."""
    return [re.sub(r"  time \d:\d\d", "", line) for line in lines if line.startswith(f"{unit} ")]


def test_epoch_is_one_line_of_names_and_values(read_lines: Callable[[], list[str]]) -> None:
    hooks = [LoggerHook(), TrackBest()]
    fake_training(hooks, epochs=2, losses=float, scores=lambda epoch: {"accuracy": epoch / 4, "loss": 1.0})

    assert select_rows(read_lines()) == [
        "epoch 1/2  train/loss 2.000  val/loss 1.000  val/accuracy 0.2500  lr 0.1",
        "epoch 2/2  train/loss 5.000  val/loss 1.000  val/accuracy 0.5000  lr 0.1  best val/accuracy",
    ]


def test_results_are_printed_once(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=2)], epochs=1, scores=lambda epoch: {"accuracy": 0.5})

    assert [line.split()[0] for line in read_lines()] == ["Sequential,", "train", "train", "epoch", "finished"]


def test_row_contains_the_iteration_without_log_metric_by_epoch(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(log_metric_by_epoch=False)], epochs=2, losses=float, scores=lambda _: {"accuracy": 0.5})

    assert select_rows(read_lines(), "iteration") == [
        "iteration 3/6  train/loss 2.000  val/accuracy 0.5000  lr 0.1",
        "iteration 6/6  train/loss 5.000  val/accuracy 0.5000  lr 0.1",
    ]


def test_each_validation_loader_has_a_column(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    loaders = {"clean": [torch.tensor([1.0])], "noisy": [torch.tensor([3.0])]}

    trainer(LoggerHook(), losses=[2.0], val_loader=loaders).fit()

    assert select_rows(read_lines()) == [
        "epoch 1/1  train/loss 2.000  val/clean/loss 1.000  val/noisy/loss 3.000  lr 0.1"
    ]


@pytest.mark.parametrize(("setting", "is_terminal", "count"), [(None, False, 3), (False, False, 0), (True, True, 3)])
def test_lines_of_intervals_are_printed_without_a_terminal_or_on_request(
    setting: bool | None, is_terminal: bool, count: int, read_lines: Any, on_terminal: Any, terminal: Any
) -> None:
    hooks = [LoggerHook(interval=1, interval_lines=setting), *([on_terminal] if is_terminal else [])]
    fake_training(hooks, epochs=1)

    lines = terminal.getvalue().splitlines() if is_terminal else read_lines()
    assert len([line for line in lines if "epoch 1/1  " in line and "loss" in line and "train/" not in line]) == count


def test_sanity_check_is_one_line_and_no_row(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    trainer(LoggerHook(), losses=[1.0], val_loader=[torch.tensor([9.0])], validate_first=True).fit()

    lines = read_lines()
    assert [line for line in lines if line.startswith("val")] == ["val    before training  loss 9.000"]
    assert select_rows(lines) == ["epoch 1/1  train/loss 1.000  val/loss 9.000  lr 0.1"]


def test_separate_validation_and_test_are_one_line_each(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    trained = trainer(LoggerHook(), val_loader=[torch.tensor([2.0])], test_loader=[torch.tensor([4.0])])
    trained.validate()
    trained.test()

    assert read_lines() == ["val    loss 2.000", "test   loss 4.000"]


# -- table -------------------------------------------------------------------------------------------------


def read_screen(terminal: Any) -> list[str]:
    """Return the lines of a terminal without styles and times."""
    text = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    return [re.sub(r"   time$|   \d:\d\d$", "", line).rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("priority", [10, 90])
def test_each_epoch_is_a_row_that_marks_an_improvement(terminal: Any, on_terminal: Any, priority: int) -> None:
    scores = [0.5, 0.75, 0.25]
    hooks = [on_terminal, LoggerHook(priority=priority), TrackBest()]

    fake_training(hooks, epochs=3, losses=float, scores=lambda epoch: {"accuracy": scores[epoch - 1], "loss": 1.0})

    assert read_screen(terminal)[1:-1] == [
        "epoch  train/loss  val/loss  accuracy        lr",
        "  1/3       2.000     1.000    0.5000       0.1",
        "  2/3       5.000     1.000   *0.7500       0.1",
        "  3/3       8.000     1.000    0.2500       0.1",
        "best accuracy 0.7500 (epoch 2)",
    ]


def test_header_is_repeated_every_20_rows_and_if_the_columns_change(terminal: Any, on_terminal: Any) -> None:
    class ValidateLate(Hook):
        def after_train_epoch(self, run: Run, epoch: int) -> None:
            if epoch == 2:
                run.request_validation()

    bus = HookBus([on_terminal, LoggerHook(), ValidateLate()])
    with bus.run(epochs=24, validate=lambda: {"accuracy": 0.5}) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([1]):
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})
            bus.emit("after_train_epoch")

    lines = read_screen(terminal)
    assert [i for i, line in enumerate(lines) if line.startswith("epoch")] == [0, 3, 24]
    assert lines[3:6] == ["epoch  train/loss  accuracy", " 3/24       1.000    0.5000", " 4/24       1.000"]


def test_validation_within_an_epoch_is_a_row_with_its_position(terminal: Any, on_terminal: Any) -> None:
    class Validate(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 6:
                run.request_validation()

    bus = HookBus([on_terminal, LoggerHook(), Validate()])
    with bus.run(epochs=2, validate=lambda: {"accuracy": 0.5}) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([1] * 4):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})
            bus.emit("after_train_epoch")

    rows = [line.split() for line in read_screen(terminal) if "/2 " in line and not line.startswith("finished")]
    assert rows == [["1/2", "1.000"], ["1.50/2", "0.5000"], ["2/2", "1.000"]]


@pytest.mark.parametrize(
    ("limit", "positions"), [(2, ["1/2 it 3", "1/2", "2/2 it 2", "2/2"]), (None, ["1 it 3", "1", "2 it 2", "2"])]
)
def test_position_in_an_epoch_of_unknown_length_is_epoch_and_iteration(
    terminal: Any, on_terminal: Any, read_lines: Callable[[], list[str]], limit: int | None, positions: list[str]
) -> None:
    class Validate(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done in (3, 6):
                run.request_validation()

    def train(*hooks: Any) -> None:
        bus = HookBus([*hooks, LoggerHook(interval_lines=False), Validate()])
        with bus.run(epochs=limit, validate=lambda: {"accuracy": 0.5}) as run:
            for _ in range(2):
                bus.emit("before_train_epoch")
                for i, batch in run.batches(iter([1] * 4)):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})
                bus.emit("after_train_epoch")

    train()
    train(on_terminal)

    lines = [line.split("  ")[:2] for line in read_lines() if line.startswith("epoch")]
    values = ["val/accuracy 0.5000", "train/loss 1.000"] * 2
    assert lines == [[f"epoch {position}", value] for position, value in zip(positions, values, strict=True)]
    cells = [line.strip().split("  ")[0] for line in read_screen(terminal)]
    assert [cell for cell in cells if cell[:1].isdigit()] == positions


def test_loop_with_epochs_that_emits_iterations_only_has_a_row_per_interval(terminal: Any, on_terminal: Any) -> None:
    bus = HookBus([on_terminal, LoggerHook(interval=2)])
    with bus.run(epochs=2) as run:
        for _ in run.epochs():
            for i, batch in run.batches([1] * 2):
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})

    rows = [line.split() for line in read_screen(terminal)[:-1]]
    assert rows == [["epoch", "train/loss"], ["1.00/2", "1.000"], ["2.00/2", "1.000"]]


def test_iteration_of_a_loop_without_epochs_has_no_limit_in_epochs(
    terminal: Any, on_terminal: Any, read_lines: Callable[[], list[str]]
) -> None:
    def train(*hooks: Any) -> None:
        bus = HookBus([*hooks, LoggerHook(interval=1, log_metric_by_epoch=False)])
        with bus.run(epochs=2, epoch_length=2) as run:
            for i, batch in run.batches([1] * 2):
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})

    train()
    train(on_terminal)

    assert select_train_lines(read_lines()) == [f"train  iteration {i}  loss 1.000" for i in (1, 2)]
    assert [line.split() for line in read_screen(terminal)[1:3]] == [["1", "1.000"], ["2", "1.000"]]


def test_run_without_epochs_has_a_row_per_interval(terminal: Any, on_terminal: Any) -> None:
    bus = HookBus([on_terminal, LoggerHook(interval=2)])
    with bus.run(iterations=5) as run:
        for loss in (1.0, 2.0, 3.0, 4.0, 5.0):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter", outputs={"loss": loss})
            if loss == 4:
                bus.emit("before_val_epoch")
                bus.emit("after_val_epoch", metrics={"loss": 0.5})
        assert run.should_stop

    assert read_screen(terminal)[:-1] == [
        "iteration  train/loss",
        "      2/5       1.500",
        "iteration  train/loss  val/loss",
        "      4/5       3.500    0.5000",
        "      5/5       5.000",
    ]


def test_run_limited_in_tokens_has_rows_of_tokens(terminal: Any, on_terminal: Any) -> None:
    bus = HookBus([on_terminal, LoggerHook(interval=1)])
    with bus.run(tokens=20_000, batch_tokens=len) as run:
        for _ in run.epochs():
            for _, batch in run.batches([[0] * 8_000] * 4):
                bus.emit("before_train_iter", batch=batch)
                bus.emit("after_train_iter", batch=batch, outputs={"loss": 1.0})

    assert [line.split() for line in read_screen(terminal)[:3]] == [
        *(["tokens", "train/loss"], ["8k/20k", "1.000"], ["16k/20k", "1.000"]),
    ]


def test_named_optimizers_have_a_column_each(terminal: Any, on_terminal: Any) -> None:
    layers = {name: torch.nn.Linear(1, 1) for name in "GD"}
    optimizers = {name: torch.optim.SGD(layers[name].parameters(), lr=lr) for name, lr in (("G", 0.1), ("D", 0.01))}
    bus = HookBus([on_terminal, LoggerHook()])
    with bus.run(optimizer=optimizers, epochs=1) as run:
        for _ in run.epochs():
            for i, batch in run.batches([1]):
                for optimizer in optimizers.values():
                    optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})

    assert [line.split() for line in read_screen(terminal)[:2]] == [
        *(["epoch", "train/loss", "lr/G", "lr/D"], ["1/1", "1.000", "0.1", "0.01"]),
    ]


def test_first_line_describes_the_run(read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]) -> None:
    fake_training([LoggerHook()], epochs=1)
    trainer(LoggerHook(), losses=[1.0, 2.0], epochs=3).fit()

    assert [line for line in read_lines() if " parameter" in line] == [
        "Sequential, 26 parameters · cpu · 1 epoch",
        "Values, 1 parameter · cpu · 3 epochs x 2 iterations",
    ]


# -- outcome -----------------------------------------------------------------------------------------------


class EndRun(Hook):
    """End the run in the second iteration."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == 2 and self.how == "stop":
            run.request_stop("target reached")
        elif run.iters_done == 2 and self.how != "finish":
            raise {"fail": RuntimeError, "interrupt": KeyboardInterrupt}[self.how]("reason")


@pytest.mark.parametrize(
    ("how", "error", "line"),
    [
        ("finish", None, "finished  epoch 2/2, iteration 6, TIME"),
        ("stop", None, "stopped  epoch 1/2, iteration 2, TIME  end_run: target reached"),
        ("fail", RuntimeError, "failed  epoch 1/2, iteration 2, TIME  RuntimeError: reason"),
        ("interrupt", KeyboardInterrupt, "interrupted  epoch 1/2, iteration 2, TIME  KeyboardInterrupt: reason"),
    ],
)
def test_last_line_contains_the_outcome_of_the_run(
    read_lines: Callable[[], list[str]], how: str, error: type[BaseException] | None, line: str
) -> None:
    def train() -> None:
        fake_training([LoggerHook(), EndRun(how)])

    if error is None:
        train()
    else:
        with pytest.raises(error):
            train()

    lines = read_lines()
    assert re.sub(r"\d:\d\d:\d\d", "TIME", lines[-1]) == line
    assert len([text for text in lines if text.startswith(line.split()[0])]) == 1


def test_position_of_a_truncated_epoch_is_a_fraction(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(), EndRun("stop")], losses=float)

    assert select_rows(read_lines()) == ["epoch 0.66/2  train/loss 1.500  lr 0.1"]


# -- messages ----------------------------------------------------------------------------------------------


def test_messages_of_other_hooks_are_printed_from_start_to_cleanup(read_lines: Callable[[], list[str]]) -> None:
    class LogMessages(Hook):
        def before_run(self, run: Run) -> None:
            run.logger.info("hello")

        def cleanup(self) -> None:
            self.run.logger.warning("bye")

    fake_training([LogMessages(), LoggerHook()])

    lines = read_lines()
    assert (lines[0], lines[-1]) == ("hello", "warning  bye")


@pytest.mark.parametrize("how", ["finish", "fail", "interrupt"])
def test_logger_is_restored_after_several_runs(how: str) -> None:
    logger = logging.getLogger("hookbus")
    before = list(logger.handlers), logger.level

    for _ in range(3):
        try:
            fake_training([LoggerHook(), EndRun(how)])
        except (RuntimeError, KeyboardInterrupt):
            assert how != "finish"
        assert (list(logger.handlers), logger.level) == before


def test_second_cleanup_is_a_no_op() -> None:
    hook = LoggerHook()
    fake_training([hook])

    hook.cleanup()
    hook.cleanup()


def test_other_ranks_print_nothing(read_lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    bus = HookBus([LoggerHook(), ProgressHook()])
    with bus.run() as run:
        run.logger.info("hello")

    assert read_lines() == []


def test_pipe_receives_plain_text_and_terminal_colors(
    read_lines: Callable[[], list[str]], terminal: Any, on_terminal: Any
) -> None:
    fake_training([LoggerHook()], scores=lambda epoch: {"accuracy": 0.5})
    fake_training([LoggerHook(), on_terminal], scores=lambda epoch: {"accuracy": 0.5})

    assert not any("\x1b" in line for line in read_lines())
    assert "\x1b[1maccuracy" in terminal.getvalue()


def test_logger_and_progress_use_the_provided_console(on_terminal: Any, terminal: Any, read_lines: Any) -> None:
    class ReadConsole(Hook):
        def before_train(self, run: Run) -> None:
            self.console = run.get("console")

    hook = ReadConsole()
    fake_training([ProgressHook(), LoggerHook(), hook, on_terminal], epochs=1)

    assert hook.console is on_terminal.console
    assert read_lines() == []


def test_logger_and_progress_are_default_hooks() -> None:
    assert {LoggerHook, ProgressHook} <= {type(hook) for hook in get_default_hooks()}
