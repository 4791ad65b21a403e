"""Tests of the console output of a training."""

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Trainer, get_default_hooks
from hookbus._run.requests import Request
from hookbus._run.run import BestResult, Run
from hookbus.testing import check_hook, fake_training
from hookbus_logger import LoggerHook, ProgressHook


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


def test_validation_is_one_line_labeled_by_epoch(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook()], epochs=2, scores=lambda epoch: {"accuracy": epoch / 4, "loss": 1.0})

    lines = [line for line in read_lines() if line.startswith("val")]
    assert lines == ["val    epoch 1/2  accuracy 0.2500  loss 1.000", "val    epoch 2/2  accuracy 0.5000  loss 1.000"]


def test_last_training_line_precedes_the_validation_line(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=2)], epochs=1, scores=lambda epoch: {"accuracy": 0.5})

    assert [line.split()[0] for line in read_lines()[:3]] == ["train", "train", "val"]


def test_validation_is_labeled_by_iteration_without_log_metric_by_epoch(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(log_metric_by_epoch=False)], epochs=2, scores=lambda epoch: {"accuracy": 0.5})

    lines = [line for line in read_lines() if line.startswith("val")]
    assert lines == ["val    iteration 3  accuracy 0.5000", "val    iteration 6  accuracy 0.5000"]


def test_each_validation_loader_has_a_line_and_a_column(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    loaders = {"clean": [torch.tensor([1.0])], "noisy": [torch.tensor([3.0])]}

    trainer(LoggerHook(), losses=[2.0], val_loader=loaders).fit()

    assert read_lines()[:6] == [
        "train  epoch 1/1  1/1  lr 0.1  loss 2.000",
        "val    epoch 1/1  clean  loss 1.000",
        "val    epoch 1/1  noisy  loss 3.000",
        "                     epoch 1/1   train   val clean   val noisy",
        "                     ─────────────────────────────────────────",
        "                     loss        2.000       1.000       3.000",
    ]


def test_sanity_check_is_one_line_and_no_table(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    trainer(LoggerHook(), losses=[1.0], val_loader=[torch.tensor([9.0])], validate_first=True).fit()

    lines = read_lines()
    assert [line for line in lines if line.startswith("val")] == [
        "val    before training  loss 9.000",
        "val    epoch 1/1  loss 9.000",
    ]
    assert len([line for line in lines if "─" in line]) == 1


def test_epoch_table_excludes_the_sanity_check(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    class DisableValidation(Hook):
        schedules_validation = True

    options: dict[str, Any] = {"val_loader": [torch.tensor([9.0])], "validate_first": True}
    trainer(LoggerHook(), DisableValidation(), losses=[1.0], **options).fit()

    assert [line.split() for line in read_lines() if line.startswith(" ") and "─" not in line] == [
        ["epoch", "1/1", "train"],
        ["loss", "1.000"],
    ]


def test_separate_validation_and_test_are_one_line_each(
    read_lines: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    trained = trainer(LoggerHook(), val_loader=[torch.tensor([2.0])], test_loader=[torch.tensor([4.0])])
    trained.validate()
    trained.test()

    assert read_lines() == ["val    loss 2.000", "test   loss 4.000"]


# -- epoch table -------------------------------------------------------------------------------------------


class TrackBest(Hook):
    """Store the best accuracy when a checkpoint is planned, as a checkpoint hook does."""

    def after_epoch(self, run: Run) -> None:
        run.request_save(saver=self)

    def plan(self, run: Run, requests: list[Request]) -> Path | None:
        score = run.metrics.results["val/accuracy"]
        if "val/accuracy" not in run.best or score > run.best["val/accuracy"].value:
            run.best["val/accuracy"] = BestResult(score, run.epochs_done, run.steps_done)
        return None

    def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
        """Write nothing, as nothing is planned."""


@pytest.mark.parametrize("priority", [10, 90])
def test_each_epoch_has_a_table_with_the_best_value(read_lines: Callable[[], list[str]], priority: int) -> None:
    scores = [0.5, 0.75, 0.25]
    hooks = [LoggerHook(interval=3, priority=priority), TrackBest()]

    fake_training(hooks, epochs=3, losses=float, scores=lambda epoch: {"accuracy": scores[epoch - 1], "loss": 1.0})

    indent = " " * 21
    lines = [line.removeprefix(indent) for line in read_lines() if line.startswith(indent) and "─" not in line]
    assert lines == [
        "epoch 1/3   train       val   best",
        "loss        2.000     1.000",
        "accuracy            *0.5000   0.5000  epoch 1",
        "epoch 2/3   train       val   best",
        "loss        5.000     1.000",
        "accuracy            *0.7500   0.7500  epoch 2",
        "epoch 3/3   train      val   best",
        "loss        8.000    1.000",
        "accuracy            0.2500   0.7500  epoch 2",
    ]


def test_epoch_table_excludes_results_of_previous_epochs(read_lines: Callable[[], list[str]]) -> None:
    class ValidateOnce(Hook):
        def after_train_epoch(self, run: Run, epoch: int) -> None:
            if epoch == 0:
                run.request_validation()

    bus = HookBus([LoggerHook(), ValidateOnce()])
    with bus.run(epochs=2, validate=lambda: {"accuracy": 0.5}) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([1]):
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})
            bus.emit("after_train_epoch")

    heads = [line.split() for line in read_lines() if line.strip().startswith("epoch")]
    assert heads == [["epoch", "1/2", "train", "val"], ["epoch", "2/2", "train"]]


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


def test_table_title_marks_a_truncated_epoch(read_lines: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(), EndRun("stop")], losses=float)

    assert [line.strip() for line in read_lines()[1:4:2]] == [
        "epoch 1/2, truncated   train",
        "loss                   1.500",
    ]


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
    assert "\x1b[32mval" in terminal.getvalue()


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
