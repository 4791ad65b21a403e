"""What a training looks like on the console."""

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Trainer, get_default_hooks
from hookbus.requests import Request
from hookbus.run import Best, Run
from hookbus.testing import check_hook, fake_training
from hookbus_logger import LoggerHook, ProgressHook


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The lines that were printed since the last look, without the time in front of them and spaces behind."""

    def read() -> list[str]:
        return [
            re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line).rstrip()
            for line in capsys.readouterr().out.splitlines()
        ]

    return read


def train_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("train")]


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(LoggerHook)


# -- training ----------------------------------------------------------------------------------------------


def test_a_line_of_training_says_where_at_what_rate_and_the_means(shown: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=2)], epochs=2, batches=10, losses=float)

    assert train_lines(shown())[:2] == [
        "train  epoch 1/2   2/10  lr 0.1  loss 1.500",
        "train  epoch 1/2   4/10  lr 0.1  loss 3.500",
    ]


def test_a_run_counted_in_iterations_says_so(shown: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=4, by_epoch=False)], epochs=2, batches=3, losses=float)

    assert train_lines(shown()) == [
        "train  iteration 4/6  lr 0.1  loss 2.500",
        "train  iteration 6/6  lr 0.1  loss 5.500",
    ]


def test_what_nobody_knows_is_left_out(
    shown: Callable[[], list[str]], trainer: Callable[..., Trainer], stream: Any
) -> None:
    trainer(LoggerHook(interval=2), train_loader=stream([1.0, 2.0, 3.0]), iterations=5).fit()

    assert train_lines(shown()) == [
        "train  epoch 1  iteration 2  lr 0.1  loss 1.500",
        "train  epoch 2  iteration 2  lr 0.1  loss 1.500",
    ]


def test_a_broken_loss_is_not_hidden_behind_a_mean(shown: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=3)], epochs=1, losses=lambda i: math.nan if i == 2 else 1.0)

    assert train_lines(shown()) == ["train  epoch 1/1  3/3  lr 0.1  loss nan (1 not finite)"]


def test_each_distinct_rate_is_shown_once(shown: Callable[[], list[str]]) -> None:
    layers = [torch.nn.Linear(1, 1) for _ in range(3)]
    groups = [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(layers, (0.1, 0.1, 1e-5), strict=True)]
    bus = HookBus([LoggerHook(interval=1)])

    with bus.run(optimizer=torch.optim.SGD(groups), epochs=1) as run:
        for _ in run.epochs():
            for i, batch in run.batches([torch.zeros(1)]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                run.optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})

    assert train_lines(shown()) == ["train  epoch 1/1  1/1  lr 0.1, 1e-05  loss 1.000"]


def test_times_that_others_report_at_iterations_stand_at_the_end_of_the_line(shown: Callable[[], list[str]]) -> None:
    class Timer(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.log({"time/data": 0.001})
            run.bus.emit("log_scalars", values={"time/iter": 0.25, "time/eta": 61.0, "throughput/x": 3.0, 0: 1.0})

        def after_epoch(self, run: Run) -> None:
            run.bus.emit("log_scalars", values={"time/epoch": 9.0})

    fake_training([LoggerHook(interval=3), Timer()], epochs=2)

    lines = train_lines(shown())
    assert lines[0].endswith("  data 1.00 ms  iter 250 ms  eta 0:01:01")
    assert "epoch 9" not in lines[1]


# -- results -----------------------------------------------------------------------------------------------


def test_a_validation_is_one_line_labelled_by_epoch(shown: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook()], epochs=2, scores=lambda epoch: {"accuracy": epoch / 4, "loss": 1.0})

    lines = [line for line in shown() if line.startswith("val")]
    assert lines == ["val    epoch 1/2  accuracy 0.2500  loss 1.000", "val    epoch 2/2  accuracy 0.5000  loss 1.000"]


def test_the_last_record_of_training_stands_before_the_results_that_follow_it(shown: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(interval=2)], epochs=1, scores=lambda epoch: {"accuracy": 0.5})

    assert [line.split()[0] for line in shown()[:3]] == ["train", "train", "val"]


def test_or_labelled_by_iteration(shown: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(log_metric_by_epoch=False)], epochs=2, scores=lambda epoch: {"accuracy": 0.5})

    lines = [line for line in shown() if line.startswith("val")]
    assert lines == ["val    iteration 3  accuracy 0.5000", "val    iteration 6  accuracy 0.5000"]


def test_several_loaders_have_a_line_and_a_column_each(
    shown: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    loaders = {"clean": [torch.tensor([1.0])], "noisy": [torch.tensor([3.0])]}

    trainer(LoggerHook(), losses=[2.0], val_loader=loaders).fit()

    assert shown()[:6] == [
        "train  epoch 1/1  1/1  lr 0.1  loss 2.000",
        "val    epoch 1/1  clean  loss 1.000",
        "val    epoch 1/1  noisy  loss 3.000",
        "                     epoch 1/1   train   val clean   val noisy",
        "                     ─────────────────────────────────────────",
        "                     loss        2.000       1.000       3.000",
    ]


def test_the_validation_before_training_is_shown_as_such_and_counts_for_nothing(
    shown: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    trainer(LoggerHook(), losses=[1.0], val_loader=[torch.tensor([9.0])], validate_first=True).fit()

    lines = shown()
    assert [line for line in lines if line.startswith("val")] == [
        "val    before training  loss 9.000",
        "val    epoch 1/1  loss 9.000",
    ]
    assert len([line for line in lines if "─" in line]) == 1


def test_the_validation_before_training_is_in_no_table(
    shown: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    class NeverValidates(Hook):
        schedules_validation = True

    options: dict[str, Any] = {"val_loader": [torch.tensor([9.0])], "validate_first": True}
    trainer(LoggerHook(), NeverValidates(), losses=[1.0], **options).fit()

    assert [line.split() for line in shown() if line.startswith(" ") and "─" not in line] == [
        ["epoch", "1/1", "train"],
        ["loss", "1.000"],
    ]


def test_a_test_and_a_validation_on_their_own_are_one_line(
    shown: Callable[[], list[str]], trainer: Callable[..., Trainer]
) -> None:
    made = trainer(LoggerHook(), val_loader=[torch.tensor([2.0])], test_loader=[torch.tensor([4.0])])
    made.validate()
    made.test()

    assert shown() == ["val    loss 2.000", "test   loss 4.000"]


# -- the table of an epoch ---------------------------------------------------------------------------------


class KeepsBest(Hook):
    """Remembers the best accuracy, as late as a checkpoint hook does: when it writes."""

    def after_epoch(self, run: Run) -> None:
        run.request_save(saver=self)

    def plan(self, run: Run, requests: list[Request]) -> Path | None:
        score = run.metrics.results["val/accuracy"]
        if "val/accuracy" not in run.best or score > run.best["val/accuracy"].value:
            run.best["val/accuracy"] = Best(score, run.epochs_done, run.steps_done)
        return None

    def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
        """Nothing is planned, so nothing is written."""


@pytest.mark.parametrize("priority", [10, 90])
def test_each_epoch_has_a_table_with_the_best_so_far(shown: Callable[[], list[str]], priority: int) -> None:
    scores = [0.5, 0.75, 0.25]
    hooks = [LoggerHook(interval=3, priority=priority), KeepsBest()]

    fake_training(hooks, epochs=3, losses=float, scores=lambda epoch: {"accuracy": scores[epoch - 1], "loss": 1.0})

    indent = " " * 21
    lines = [line.removeprefix(indent) for line in shown() if line.startswith(indent) and "─" not in line]
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


def test_results_of_an_earlier_epoch_are_not_in_the_table(shown: Callable[[], list[str]]) -> None:
    class ValidatesOnce(Hook):
        def after_train_epoch(self, run: Run, epoch: int) -> None:
            if epoch == 0:
                run.request_validation()

    bus = HookBus([LoggerHook(), ValidatesOnce()])
    with bus.run(epochs=2, validate=lambda: {"accuracy": 0.5}) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([1]):
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})
            bus.emit("after_train_epoch")

    heads = [line.split() for line in shown() if line.strip().startswith("epoch")]
    assert heads == [["epoch", "1/2", "train", "val"], ["epoch", "2/2", "train"]]


# -- how it ends -------------------------------------------------------------------------------------------


class Ends(Hook):
    """Ends the run in the second iteration."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == 2 and self.how == "stop":
            run.request_stop("enough is enough")
        elif run.iters_done == 2 and self.how != "finish":
            raise {"fail": RuntimeError, "interrupt": KeyboardInterrupt}[self.how]("why")


@pytest.mark.parametrize(
    ("how", "error", "line"),
    [
        ("finish", None, "finished  epoch 2/2, iteration 6, TIME"),
        ("stop", None, "stopped  epoch 1/2, iteration 2, TIME  ends: enough is enough"),
        ("fail", RuntimeError, "failed  epoch 1/2, iteration 2, TIME  RuntimeError: why"),
        ("interrupt", KeyboardInterrupt, "interrupted  epoch 1/2, iteration 2, TIME  KeyboardInterrupt: why"),
    ],
)
def test_the_last_line_says_once_how_the_run_ended(
    shown: Callable[[], list[str]], how: str, error: type[BaseException] | None, line: str
) -> None:
    def train() -> None:
        fake_training([LoggerHook(), Ends(how)])

    if error is None:
        train()
    else:
        with pytest.raises(error):
            train()

    lines = shown()
    assert re.sub(r"\d:\d\d:\d\d", "TIME", lines[-1]) == line
    assert len([each for each in lines if each.startswith(line.split()[0])]) == 1


def test_a_cut_epoch_is_called_one(shown: Callable[[], list[str]]) -> None:
    fake_training([LoggerHook(), Ends("stop")], losses=float)

    assert [line.strip() for line in shown()[1:4:2]] == ["epoch 1/2, cut   train", "loss             1.500"]


# -- messages ----------------------------------------------------------------------------------------------


def test_messages_of_other_hooks_are_on_the_same_console_from_beginning_to_end(shown: Callable[[], list[str]]) -> None:
    class Talks(Hook):
        def before_run(self, run: Run) -> None:
            run.logger.info("hello")

        def cleanup(self) -> None:
            self.run.logger.warning("bye")

    fake_training([Talks(), LoggerHook()])

    lines = shown()
    assert (lines[0], lines[-1]) == ("hello", "warning  bye")


@pytest.mark.parametrize("how", ["finish", "fail", "interrupt"])
def test_nothing_is_left_on_the_logger_after_several_runs(how: str) -> None:
    logger = logging.getLogger("hookbus")
    before = list(logger.handlers), logger.level

    for _ in range(3):
        try:
            fake_training([LoggerHook(), Ends(how)])
        except (RuntimeError, KeyboardInterrupt):
            assert how != "finish"
        assert (list(logger.handlers), logger.level) == before


def test_cleaning_up_twice_does_no_harm() -> None:
    hook = LoggerHook()
    fake_training([hook])

    hook.cleanup()
    hook.cleanup()


def test_other_ranks_are_silent(shown: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    bus = HookBus([LoggerHook(), ProgressHook()])
    with bus.run() as run:
        run.logger.info("hello")

    assert shown() == []


def test_a_pipe_gets_plain_text_and_a_terminal_colours(
    shown: Callable[[], list[str]], terminal: Any, on_terminal: Any
) -> None:
    fake_training([LoggerHook()], scores=lambda epoch: {"accuracy": 0.5})
    fake_training([LoggerHook(), on_terminal], scores=lambda epoch: {"accuracy": 0.5})

    assert not any("\x1b" in line for line in shown())
    assert "\x1b[32mval" in terminal.getvalue()


def test_both_use_the_console_that_the_run_was_given(on_terminal: Any, terminal: Any, shown: Any) -> None:
    class Sees(Hook):
        def before_train(self, run: Run) -> None:
            self.console = run.get("console")

    sees = Sees()
    fake_training([ProgressHook(), LoggerHook(), sees, on_terminal], epochs=1)

    assert sees.console is on_terminal.console
    assert shown() == []


def test_a_training_has_both_unless_told_otherwise() -> None:
    assert {LoggerHook, ProgressHook} <= {type(hook) for hook in get_default_hooks()}
