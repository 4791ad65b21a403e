"""Rows of the migration page for what is logged: the same scalars at the same steps, read back from real files."""

from __future__ import annotations

import csv
import gzip
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from lightning.pytorch.callbacks import (
    Callback,
    DeviceStatsMonitor,
    LearningRateMonitor,
    RichProgressBar,
    ThroughputMonitor,
)
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities import grad_norm
from lightning.pytorch.utilities.model_summary import summarize
from rich import get_console

from hookbus import HookBus, Trainer
from hookbus_gradient_flow import GradientFlowHook
from hookbus_logger import CsvHook, JsonlHook, LoggerHook, ProgressHook
from hookbus_model_summary import summarize as summarize_model
from hookbus_profiler import ProfilerHook
from hookbus_system_monitor import MemoryProfilerHook, SystemMonitorHook
from hookbus_timer import IterTimerHook, TimeTrackingHook
from tests.wandb_files import read_rows

from .migration import covers
from .toys import Mean, attach, make_loader

Curve = list[tuple[int, float]]

# Losses of 2 epochs of the batches 1 and 2: the weights are 1, 0.9, 0.7 and 0.6, and after the epochs 0.7 and 0.4.
TRAIN, VAL = [1.0, 1.8, 0.7, 1.2], [3 * 0.7, 3 * 0.4]
INDICES: dict[str, Curve] = {"loss": [*enumerate(TRAIN)], "val_loss": [(1, VAL[0]), (3, VAL[1])]}
"""Curves of Lightning, which counts steps from 0."""
COUNTS: dict[str, Curve] = {"train/loss": [*enumerate(TRAIN, 1)], "val/loss": [(2, VAL[0]), (4, VAL[1])]}
"""Curves of hookbus: the number of completed steps."""


class Logged(Mean):
    """Module that logs its losses."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.compute_loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.compute_loss(batch))


def fit(directory: Path, *hooks: Any, module: Any = None, **options: Any) -> Any:
    """Train 2 epochs of 2 batches, and return the bridge."""
    options = {"max_epochs": 2, "log_every_n_steps": 1, **options}
    bridge = attach(HookBus(hooks), directory, options={"work_dir": directory / "run"}, **options)
    bridge.host.fit(module or Logged(), make_loader(1.0, 2.0), make_loader(3.0))
    return bridge


def read_csv(directory: Path, name: str) -> Curve:
    """Return a curve of the CSV logger."""
    return read_csv_file(directory / "csv/v/metrics.csv", name)


def read_csv_file(path: Path, name: str) -> Curve:
    """Return a curve of a CSV file."""
    with path.open() as file:
        return [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row.get(name)]


def read_jsonl(directory: Path, name: str) -> Curve:
    """Return a curve of the JSON lines hook."""
    (path,) = (directory / "run").rglob("metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["step"], row["values"][name]) for row in rows if name in row["values"]]


def approximate(curves: dict[str, Curve]) -> dict[str, Any]:
    return {name: [(step, pytest.approx(value)) for step, value in curve] for name, curve in curves.items()}


def make_csv_logger(directory: Path) -> Any:
    return CSVLogger(directory, "csv", "v")


@covers("`CSVLogger`", "`csv`, with all values of a step in one row")
def test_csv(tmp_path: Path) -> None:
    fit(tmp_path, JsonlHook(interval=1), CsvHook(interval=1), logger=make_csv_logger(tmp_path))
    (path,) = (tmp_path / "run").rglob("*.csv")
    assert {name: read_csv(tmp_path, name) for name in INDICES} == approximate(INDICES)
    assert {name: read_csv_file(path, name) for name in COUNTS} == approximate(COUNTS)
    assert {name: read_jsonl(tmp_path, name) for name in COUNTS} == approximate(COUNTS)


@covers("`TensorBoardLogger`", "`tensorboard`")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from hookbus_tensorboard import TensorBoardHook

    def read(directory: Path, names: Any) -> dict[str, Curve]:
        (path,) = directory.rglob("events.out.*")
        events = EventAccumulator(str(path.parent)).Reload()
        return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}

    fit(tmp_path, TensorBoardHook(interval=1), logger=TensorBoardLogger(tmp_path / "native"))
    assert read(tmp_path / "native", INDICES) == approximate(INDICES)
    assert read(tmp_path / "run", COUNTS) == approximate(COUNTS)


@covers("`MLFlowLogger`", "`mlflow`")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    from hookbus_mlflow import MLflowHook
    from hookbus_mlflow.target import ensure_database

    ensure_database(tmp_path / "mlflow.db", (tmp_path / "artifacts").as_uri())
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def read(client: Any, experiment: str, names: Any) -> dict[str, Curve]:
        (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
        histories = {name: client.get_metric_history(run.info.run_id, name) for name in names}
        return {name: [(metric.step, metric.value) for metric in history] for name, history in histories.items()}

    logger = MLFlowLogger("native", tracking_uri=uri)
    fit(tmp_path, MLflowHook(interval=1, tracking_uri=uri, experiment="ours"), logger=logger)
    client = MlflowClient(uri)
    assert read(client, "native", INDICES) == approximate(INDICES)
    assert read(client, "ours", COUNTS) == approximate(COUNTS)


@covers("`WandbLogger`", "`wandb`")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from hookbus_wandb import WandbHook

    for name, value in {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "wandb-home"))

    def read(directory: Path, step: str, names: Any) -> dict[str, Curve]:
        rows = read_rows(directory)
        return {name: [(row[step], row[name]) for row in rows if name in row] for name in names}

    fit(tmp_path, WandbHook(interval=1, mode="offline"))
    fit(tmp_path / "second", logger=WandbLogger(save_dir=tmp_path / "native", offline=True))
    wandb.finish()
    assert read(tmp_path / "native", "trainer/global_step", INDICES) == approximate(INDICES)
    assert read(tmp_path / "run", "trainer/step", COUNTS) == approximate(COUNTS)


@covers(
    "`LearningRateMonitor`",
    "`logger` and every writer log `lr`, with `log_momentum`, `log_weight_decay` and `logging_interval`",
)
@pytest.mark.parametrize(
    ("interval", "indices", "counts", "rates"),
    [("step", [0, 1, 2, 3], [1, 2, 3, 4], [0.1, 0.1, 0.05, 0.05]), ("epoch", [0, 2], [2, 4], [0.1, 0.05])],
)
def test_optimizer_values(
    interval: Any, indices: list[int], counts: list[int], rates: list[float], tmp_path: Path, capsys: Any
) -> None:
    class Scheduled(Logged):
        def configure_optimizers(self) -> Any:
            groups = [{"params": self.parameters(), "name": "all"}]
            optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.5, weight_decay=0.25)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    values: dict[str, Any] = {"log_momentum": True, "log_weight_decay": True}
    schedule = {"interval": 1} if interval == "step" else {"logging_interval": "epoch"}
    hooks = JsonlHook(**schedule, **values), LoggerHook(**schedule, **values)
    monitor = LearningRateMonitor(interval, **values)
    fit(tmp_path, *hooks, module=Scheduled(), logger=make_csv_logger(tmp_path), callbacks=[monitor])
    printed = "".join(capsys.readouterr())
    expected = {"lr": rates, "momentum": [0.5] * len(rates), "weight_decay": [0.25] * len(rates)}
    for name, numbers in expected.items():
        native = "lr-SGD/all" if name == "lr" else f"lr-SGD/all-{name}"
        assert read_csv(tmp_path, native) == [*zip(indices, numbers, strict=True)]
        assert read_jsonl(tmp_path, f"{name}/all") == [*zip(counts, numbers, strict=True)]
    for rate in {*rates}:
        assert printed.count(f"lr all {rate}  momentum all 0.5  weight_decay all 0.25 ") == rates.count(rate)


@covers("`grad_norm`", "`gradient_flow`")
def test_norms_of_gradients(tmp_path: Path) -> None:
    native = []

    class Norms(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            native.append(float(grad_norm(pl_module, 2)["grad_2.0_norm/weight"]))

    fit(tmp_path, GradientFlowHook(frequency=1), JsonlHook(interval=1), callbacks=[Norms()])
    assert native == [1.0, 2.0, 1.0, 2.0]
    assert read_jsonl(tmp_path, "gradients/weight/l2") == [*enumerate(native, 1)]


@covers("`DeviceStatsMonitor`", "`system_monitor`, `memory_profiler`")
def test_statistics_of_the_device(tmp_path: Path) -> None:
    hooks = MemoryProfilerHook(interval=1), SystemMonitorHook(frequency=1), JsonlHook(interval=1)
    fit(tmp_path, *hooks, logger=make_csv_logger(tmp_path), callbacks=[DeviceStatsMonitor(cpu_stats=True)])
    native = read_csv(tmp_path, "DeviceStatsMonitor.on_train_batch_end/cpu_vm_percent")
    ours = read_jsonl(tmp_path, "memory/system_percent")
    assert len(native) == len(ours) == 4
    assert all(0 < value < 100 for _, value in [*native, *ours])
    assert read_jsonl(tmp_path, "system/memory_percent")


@pytest.mark.filterwarnings("ignore:When using the `ThroughputMonitor`")  # which also counts operations
def test_throughput(tmp_path: Path) -> None:
    monitor = ThroughputMonitor(batch_size_fn=lambda batch: 1, window_size=2)
    hooks = IterTimerHook(interval=1, flops_per_batch=1e6, peak_flops=1e9), TimeTrackingHook(), JsonlHook(interval=1)
    fit(tmp_path, *hooks, logger=make_csv_logger(tmp_path), callbacks=[monitor])
    assert len(read_csv(tmp_path, "train/device/batches_per_sec")) > 0  # from a full window on
    assert len(read_csv(tmp_path, "train/time")) == len(read_jsonl(tmp_path, "time/iter")) == 4
    rates = read_jsonl(tmp_path, "throughput/iterations_per_second")
    assert len(rates) == 4
    # A million operations per batch on a device with 1e9 FLOP/s.
    utilization = [(step, pytest.approx(rate / 1e3)) for step, rate in rates]
    assert read_jsonl(tmp_path, "throughput/mfu") == utilization
    assert len(read_jsonl(tmp_path, "time/epoch")) == 2


@covers(
    "`ThroughputMonitor` with `length_fn`",
    "`iter_timer` with `flops_per_batch`, `time_tracking`; `training.batch_tokens` counts tokens",
)
@pytest.mark.filterwarnings("ignore:When using the `ThroughputMonitor`")
def test_throughput_of_tokens(tmp_path: Path) -> None:
    def count(batch: Any) -> int:
        return 3 * int(batch[0].sum())

    monitor = ThroughputMonitor(batch_size_fn=lambda batch: 1, length_fn=count, window_size=2)
    fit(tmp_path, logger=make_csv_logger(tmp_path), callbacks=[monitor])
    module, observed = Logged(), []
    trainer = Trainer(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        None,
        make_loader(1.0, 2.0),
        step_fn=lambda _, batch: module.compute_loss(batch),
        batch_tokens=count,
        hooks=[IterTimerHook(interval=1)],
        default_hooks=False,
        work_dir=None,
        device="cpu",
    )

    @trainer.bus.on("log_scalars")
    def observe(values: Any, step: int) -> None:
        observed.append((step - 1, values["progress/tokens"]))
        assert values["throughput/tokens_per_second"] > 0

    trainer.fit(epochs=2)
    totals = [(0, 3), (1, 9), (2, 12), (3, 18)]
    assert read_csv(tmp_path, "train/lengths") == totals
    assert observed == totals


@covers("`RichProgressBar`", "`progress`")
def test_progress(tmp_path: Path) -> None:
    if hasattr(get_console(), "_live_stack") and "_live_stack" not in inspect.getsource(RichProgressBar):
        pytest.skip("RichProgressBar of this version of Lightning requires an older version of rich")
    bar, progress = RichProgressBar(), ProgressHook()
    native, ours = [], []

    class Read(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            task = bar.progress.tasks[bar.train_progress_bar_id]
            native.append((task.completed, task.total))
            state = progress.get_progress(bridge.run)
            ours.append((state.done, state.total))

    bridge = attach(HookBus([progress]), tmp_path, max_epochs=2, callbacks=[bar, Read()], enable_progress_bar=True)
    bridge.host.fit(Logged(), make_loader(1.0, 2.0), make_loader(3.0))
    assert native == ours == 2 * [(1, 2), (2, 2)]


@covers("`trainer.callback_metrics`, `trainer.logged_metrics`", "`run.metrics`; `run.history` has a row for each epoch")
def test_last_values_and_history(tmp_path: Path) -> None:
    bridge = fit(tmp_path)
    trainer, run = bridge.host, bridge.run
    native = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert native == pytest.approx({"loss": TRAIN[-1], "val_loss": VAL[-1]})
    assert {name: float(value) for name, value in trainer.logged_metrics.items()} == pytest.approx(native)
    assert [run.metrics["train/loss"], run.metrics["val/loss"]] == pytest.approx([native["loss"], native["val_loss"]])
    assert run.history["train/loss"] == pytest.approx([(TRAIN[0] + TRAIN[1]) / 2, (TRAIN[2] + TRAIN[3]) / 2])
    assert run.history["val/loss"] == pytest.approx(VAL)


def read_backward(directory: Path, name: str) -> set[str]:
    """Return the functions of the backward pass in the only trace of a directory whose file name contains a text."""
    (path,) = directory.rglob(f"*{name}*.pt.trace.json*")
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    names = [event.get("name", "") for event in json.loads(text)["traceEvents"]]
    prefix = "autograd::engine::evaluate_function: "
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


@covers("`PyTorchProfiler`", "`profiler`")
@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")  # that of Lightning
def test_profiler(tmp_path: Path) -> None:
    native, own = tmp_path / "native", tmp_path / "own"
    schedule = {"wait": 1, "warmup": 1, "active": 2}
    # Validations are steps of another count in the same profiler of PyTorch, in which they end in segmentation faults.
    profiler = PyTorchProfiler(native, "trace", schedule=torch.profiler.schedule(**schedule))
    fit(native, profiler=profiler, limit_val_batches=0)
    fit(own, ProfilerHook(profile_iters=4, schedule=schedule))
    # Lightning divides the loss by the number of accumulated batches.
    expected = {"SumBackward0", "MulBackward0", "DivBackward0", "torch::autograd::AccumulateGrad"}
    assert read_backward(native, "training_step") == read_backward(own, "rank0") == expected


@covers("`ModelSummary`", "`model_summary`, or `hookbus summary run.yaml`")
@pytest.mark.parametrize("max_depth", [1, -1])
def test_model_summary(max_depth: int) -> None:
    class Module(Logged):
        def __init__(self) -> None:
            super().__init__()
            del self.weight
            self.example_input_array = torch.ones(2, 1, 8, 8)
            self.conv = torch.nn.Conv2d(1, 4, 3)
            self.head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 10))

        def forward(self, images: Any) -> Any:
            return self.head(self.conv(images))

    native = summarize(Module(), max_depth=max_depth)
    module = Module()
    ours = summarize_model(module, lambda: module(module.example_input_array), max_depth=max_depth)
    rows = {row.name: row for row in ours.rows}
    layers = dict(
        zip(native.layer_names, zip(native.param_nums, native.in_sizes, native.out_sizes, strict=True), strict=True)
    )
    assert {name: row.parameters.total for name, row in rows.items()} == {name: row[0] for name, row in layers.items()}
    shapes = {name: [[*row.calls.inputs[0]], [*row.calls.outputs[0]]] for name, row in rows.items() if row.calls}
    assert shapes == {name: [*row[1:]] for name, row in layers.items()}
    assert ours.parameters.trainable == native.trainable_parameters
    assert ours.flops == getattr(native, "total_flops", 2 * (2 * 4 * 9 * 36 + 2 * 144 * 10))  # not in Lightning 2.5
