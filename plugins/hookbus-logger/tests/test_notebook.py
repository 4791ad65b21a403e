"""Tests of the display of a notebook, with a simulated kernel. tests/test_notebooks.py has a real one."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hookbus import BestResult, Hook, Run, Trainer
from hookbus.metrics import Metrics
from hookbus_logger import LoggerHook, ProgressHook
from hookbus_logger.epoch_table import Row
from hookbus_logger.notebook import NotebookDisplay, get_notebook, is_notebook

from .toys import StopAt


class Kernel:
    """Kernel that records the outputs of a cell."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0

    def build_handle(self) -> Any:
        outputs, index = self.outputs, len(self.outputs)

        def update(content: dict[str, str], raw: bool) -> None:
            assert raw
            outputs[index] = content
            self.updates += 1

        return SimpleNamespace(display=lambda content, raw: outputs.append(content), update=update)


class Services:
    """Run with services only."""

    def __init__(self) -> None:
        self.services: dict[str, object] = {}
        self.get, self.provide = self.services.get, self.services.__setitem__


def install_shell(monkeypatch: pytest.MonkeyPatch, shell: object, kernel: Kernel) -> None:
    module, display = ModuleType("IPython"), ModuleType("IPython.display")
    module.get_ipython, display.DisplayHandle = lambda: shell, kernel.build_handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    install_shell(monkeypatch, SimpleNamespace(kernel=kernel), kernel)
    return kernel


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no shell", "terminal"])
def test_only_a_kernel_is_a_notebook(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    install_shell(monkeypatch, shell, Kernel())

    assert not is_notebook()


def test_without_ipython_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)

    assert not is_notebook()
    assert get_notebook(Services()) is None  # type: ignore[arg-type]


def test_display_is_updated_in_place(kernel: Kernel) -> None:
    display = NotebookDisplay()
    for index in range(3):
        display.open(f"title {index}")

    (output,) = kernel.outputs
    assert output["text/plain"] == "title 2"
    assert "<div>title 2</div>" in output["text/html"]


def test_updates_by_rows_are_limited_in_time(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    display = NotebookDisplay()
    for index in range(50):  # 5 seconds
        now += 0.1
        display.print_row(Row(str(index), {"train/loss": 1.0}))

    assert 15 <= kernel.updates <= 26
    display.close("finished")
    assert [line.split()[0] for line in kernel.outputs[0]["text/plain"].splitlines()[-2:]] == ["49", "finished"]


def test_hooks_of_a_run_share_one_display(kernel: Kernel) -> None:
    run: Any = Services()

    assert get_notebook(run) is get_notebook(run)


def test_progress_of_a_run_is_one_output_that_ends_with_the_last_state(
    kernel: Kernel, trainer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainer(ProgressHook(), StopAt(3), losses=[1.0] * 5).fit()

    assert run.iters_done == 3
    (output,) = kernel.outputs
    assert "width:60.0%" in output["text/html"]
    assert "3/5" in output["text/plain"]
    assert capsys.readouterr().out == ""


def test_each_training_has_a_display_of_its_own(kernel: Kernel, trainer: Any) -> None:
    training: Trainer = trainer(ProgressHook(), losses=[1.0], epochs=1)
    training.fit()
    training.fit(epochs=2)

    first, second = kernel.outputs
    assert "epoch 1/1" in first["text/plain"]
    assert "epoch 2/2" in second["text/plain"]


def test_table_and_progress_share_one_output(kernel: Kernel, trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trainer(LoggerHook(), ProgressHook(), losses=[4.0, 2.0], epochs=2).fit()

    (output,) = kernel.outputs
    lines = output["text/plain"].splitlines()
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["epoch", "train/loss", "lr"],
        ["1/2", "3.000", "0.1"],
        ["2/2", "3.000", "0.1"],
    ]
    assert len(lines) == 5
    assert lines[4].startswith("finished  epoch 2/2, iteration 4, ")
    assert capsys.readouterr().out == ""


def test_validation_outside_of_a_training_is_a_table_of_its_results(kernel: Kernel, trainer: Any) -> None:
    loaders = {"clean": [torch.tensor([2.0])], "noisy": [torch.tensor([4.0])]}
    trainer(LoggerHook(), losses=[1.0], val_loader=loaders).validate()

    (output,) = kernel.outputs
    assert [line.split() for line in output["text/plain"].splitlines()] == [
        ["data", "loss"],
        ["clean", "2.000"],
        ["noisy", "4.000"],
    ]


def test_improvements_are_marked_and_the_best_result_is_stated(kernel: Kernel, trainer: Any) -> None:
    class Track(Hook):
        """Track the training loss."""

        def after_epoch(self, run: Run, metrics: Metrics) -> None:
            run.best["train/loss"] = BestResult(metrics["train/loss"], run.epochs_done, run.steps_done)

    trainer(LoggerHook(), Track(), losses=[1.0], epochs=2).fit()

    assert kernel.outputs[0]["text/html"].count("<b>*1.000</b>") == 1, "the first value is no improvement"
    assert "best train/loss 1.000 (epoch 2)" in kernel.outputs[0]["text/plain"]


def test_title_describes_the_run(kernel: Kernel, trainer: Any) -> None:
    trainer(LoggerHook(), losses=[1.0] * 4, epochs=3).fit()

    assert kernel.outputs[0]["text/plain"].splitlines()[0] == "Values, 1 parameter · cpu · 3 epochs x 4 iterations"


def test_intervals_of_a_run_without_epochs_are_rows(
    kernel: Kernel, trainer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer(LoggerHook(interval=2, by_epoch=False), losses=[4.0, 2.0], iterations=4).fit()

    lines = [line.split()[:2] for line in kernel.outputs[0]["text/plain"].splitlines()]
    assert lines[1:4] == [["iteration", "train/loss"], ["2/4", "3.000"], ["4/4", "3.000"]]
    assert capsys.readouterr().out == ""


def test_only_the_last_rows_of_a_long_training_are_displayed(kernel: Kernel, trainer: Any) -> None:
    trainer(LoggerHook(), losses=[1.0], epochs=60).fit()

    lines = kernel.outputs[0]["text/plain"].splitlines()
    assert lines[1] == "the last 50 of 60 rows; run.history contains every epoch"
    assert [line.split()[0] for line in (lines[3], lines[-2])] == ["11/60", "60/60"]
