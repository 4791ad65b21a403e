"""Rows of docs/coming-from.md that record: what Transformers and the hook write in the same training."""

from __future__ import annotations

import csv
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from hookbus import HookBus, Run
from hookbus.testing import HostTask
from hookbus_logger import CsvHook, LoggerHook, ProgressHook
from hookbus_timer import IterTimerHook, TimeTrackingHook
from tests.conformance.backends import mlflow_numbers, tensorboard_numbers, wandb_numbers
from tests.wandb_files import read_rows

from .migration import covers, get_logs, train_native

Curve = list[tuple[int, float]]
EVERY_STEP: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1}


def train_with(callback: TrainerCallback, hook: Any, directory: Path) -> dict[str, Curve]:
    """Return the curves of a training of twelve steps in which a callback and a hook write, according to its log."""
    trainer = train_native(directory, callbacks=[callback], hooks=[hook], **EVERY_STEP)
    curves = {"train/loss": get_logs(trainer, "loss"), "val/loss": get_logs(trainer, "eval_loss")}
    assert [step for step, _ in curves["train/loss"]] == [*range(1, 13)]
    assert [step for step, _ in curves["val/loss"]] == [6, 12]
    return curves


def select(numbers: list[tuple[str, int, float]], name: str) -> Curve:
    return [(step, value) for key, step, value in numbers if key == name]


def match(curve: Curve) -> Any:
    """Return what the values of a curve match; Transformers 4 rounds them to 4 digits."""
    return [(step, pytest.approx(value, abs=1e-4)) for step, value in curve]


@covers("`TensorBoardCallback`", "`tensorboard`")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    from hookbus_tensorboard import TensorBoardHook

    # With a writer of its own: the setting of the directory depends on the version.
    native_callback = TensorBoardCallback(SummaryWriter(str(tmp_path / "native")))
    curves = train_with(native_callback, TensorBoardHook(interval=1), tmp_path)
    numbers, native = tensorboard_numbers(tmp_path / "hookbus"), EventAccumulator(str(tmp_path / "native")).Reload()
    for name, other in (("train/loss", "train/loss"), ("val/loss", "eval/loss")):
        assert select(numbers, name) == match(curves[name])
        assert [(event.step, event.value) for event in native.Scalars(other)] == match(curves[name])


@pytest.mark.slow
@covers("`MLflowCallback`", "`mlflow`")
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    from transformers.integrations import MLflowCallback

    from hookbus_mlflow import MLflowHook

    uri = f"sqlite:///{tmp_path / 'native.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "native")
    client = mlflow.MlflowClient(uri)
    # Before the hook creates its database on another thread: MLflow cannot create two at once.
    client.create_experiment("native")
    curves = train_with(MLflowCallback(), MLflowHook(interval=1), tmp_path)
    mlflow.flush_async_logging()
    (run,) = client.search_runs([client.get_experiment_by_name("native").experiment_id])
    for name, other in (("train/loss", "loss"), ("val/loss", "eval_loss")):
        assert select(mlflow_numbers(tmp_path / "hookbus"), name) == match(curves[name])
        metrics = client.get_metric_history(run.info.run_id, other)
        assert sorted((metric.step, metric.value) for metric in metrics) == match(curves[name])


@pytest.mark.slow
@covers("`WandbCallback`", "`wandb`")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from transformers.integrations import WandbCallback

    from hookbus_wandb import WandbHook

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    curves = train_with(WandbCallback(), WandbHook(interval=1, mode="offline"), tmp_path)
    wandb.finish()
    rows = read_rows(tmp_path / "wandb")
    for name, other in (("train/loss", "train/loss"), ("val/loss", "eval/loss")):
        assert select(wandb_numbers(tmp_path / "hookbus"), name) == match(curves[name])
        assert [(row["train/global_step"], row[other]) for row in rows if other in row] == match(curves[name])


@covers("`PrinterCallback`", "`logger`")
def test_printer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = train_with(PrinterCallback(), LoggerHook(interval=1), tmp_path)
    printed = capsys.readouterr().out
    losses = [value for _, value in curves["train/loss"]]
    native = [float(value) for value in re.findall(r"\{'loss': '?([\d.]+)", printed)]
    # TrainingArguments(disable_tqdm=True) adds the same callback: each entry is printed twice.
    assert native[::2] == native[1::2] == [pytest.approx(value, abs=1e-3) for value in losses]
    lines = re.findall(r"train  epoch \d/2 .* loss ([\d.]+)", printed)
    assert [float(line) for line in lines] == [pytest.approx(value, abs=1e-3) for value in losses]


@covers(
    "`state.log_history`",
    "`run.history`, with a row for each epoch; `csv` or `jsonl` for the values of each step",
)
def test_history(tmp_path: Path) -> None:
    bus = HookBus([CsvHook(interval=1)])
    trainer = train_native(tmp_path, hooks=[bus], **EVERY_STEP)
    losses, history = get_logs(trainer, "loss"), bus.current.history
    assert list(zip(history["step"], history["val/loss"], strict=True)) == match(get_logs(trainer, "eval_loss"))
    means = [sum(value for _, value in losses[first : first + 6]) / 6 for first in (0, 6)]
    assert history["train/loss"] == pytest.approx(means, abs=1e-4)
    with (tmp_path / "hookbus/logs/metrics.csv").open() as file:
        rows = [(int(row["step"]), float(row["train/loss"])) for row in csv.DictReader(file)]
    assert rows == match(losses)


class Kernel:
    """Kernel of a notebook that records what is displayed: the last content of each output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.native: list[str] = []
        self.own: list[str] = []
        module, display = ModuleType("IPython"), ModuleType("IPython.display")
        names: dict[str, Any] = {
            "display": lambda *_, **__: SimpleNamespace(update=lambda html: self.native.append(html)),
            "HTML": str,
            "DisplayHandle": lambda: SimpleNamespace(display=self._show, update=self._show),
        }
        vars(display).update(names)
        vars(module).update(get_ipython=lambda: SimpleNamespace(kernel=self), display=display)
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def _show(self, content: dict[str, str], raw: bool) -> None:
        self.own.append(content["text/html"])


def read_table(html: str) -> list[list[str]]:
    """Return the cells of the rows of a table, without its header."""
    rows = re.findall(r"<tr.*?</tr>", html, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in cells if row]


@covers("`NotebookProgressCallback`", "`logger` and `progress`, whose table has a row for each epoch")
def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    monkeypatch.delitem(sys.modules, "transformers.utils.notebook", raising=False)
    callback: Any = import_module("transformers.utils.notebook").NotebookProgressCallback()
    trainer = train_native(
        tmp_path, callbacks=[callback], hooks=[LoggerHook(), ProgressHook()], eval_strategy="epoch", **EVERY_STEP
    )
    losses = [value for _, value in get_logs(trainer, "eval_loss")]
    native, own = read_table(kernel.native[-1]), read_table(kernel.own[-1])
    assert [row[0] for row in native] == ["1", "2"]
    assert [float(row[2]) for row in native] == pytest.approx(losses, abs=1e-4)
    assert [row[0] for row in own] == ["1/2", "2/2"]
    assert [float(row[2]) for row in own] == pytest.approx(losses, rel=1e-3)


class RecordBar(TrainerCallback):
    """Record the position of the bar of a callback after each step."""

    def __init__(self, callback: ProgressCallback) -> None:
        self.callback = callback
        self.positions: list[tuple[int, int | None]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        bar = self.callback.training_bar
        self.positions.append((bar.n, bar.total))


@covers("`ProgressCallback`", "`progress`")
def test_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hook, native = ProgressHook(), ProgressCallback()
    bus, bar, positions = HookBus([hook]), RecordBar(native), []

    @bus.on("after_train_iter")
    def record(run: Run) -> None:
        progress = hook.get_progress(run)
        positions.append((progress.done, progress.total))

    train_native(tmp_path, HostTask(epochs=1), [native, bar], hooks=[bus])
    assert positions == bar.positions == [(step, 6) for step in range(1, 7)]
    assert "6/6" in capfd.readouterr().err


@covers("`speed_metrics`", "`iter_timer`, `time_tracking`")
def test_speed(tmp_path: Path) -> None:
    bus, logged = HookBus([IterTimerHook(interval=6), TimeTrackingHook()]), set()
    bus.on("log_scalars")(lambda values, step: logged.update((step, name) for name in values))
    trainer = train_native(tmp_path, hooks=[bus])
    (entry,) = [entry for entry in trainer.state.log_history if "train_runtime" in entry]
    assert {"train_runtime", "train_samples_per_second", "train_steps_per_second"} <= entry.keys()
    names = {"time/epoch", *(f"throughput/{unit}_per_second" for unit in ("samples", "iterations"))}
    assert {(step, name) for step in (6, 12) for name in names} <= logged
    assert {step for step, _ in logged} == {6, 12}
