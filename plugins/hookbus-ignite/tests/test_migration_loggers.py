"""Rows of loggers and metrics: the handler of Ignite and the hook that replaces it write in the same training."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ignite", reason="ignite is not installed: run `make bridges HOST=ignite`")

from ignite.engine import Engine, Events
from ignite.handlers import ProgressBar, global_step_from_engine
from ignite.metrics import GpuInfo

from hookbus import HookBus, Run
from hookbus.testing import RecordingBus
from hookbus_gradient_flow import GradientFlowHook
from hookbus_logger import ProgressHook
from hookbus_system_monitor import MemoryProfilerHook, SystemMonitorHook
from tests.wandb_files import read_rows

from .migration import covers
from .toys import Toy, pairs

Curve = list[tuple[int, float]]
"""Steps and values of a scalar."""

LOSSES: Curve = [(1, 0.0), (2, -2.0), (3, -12.0), (4, -7.0), (5, -16.0), (6, -40.0)]
"""Loss of each iteration with batches 1, 2 and 4: the weight is 0, -1, -3, -7, -8 and -10."""
ERRORS: Curve = [(3, 28.0), (6, 56.0)]
"""Error of the validation after each epoch: |4 * -7| and |4 * -14|."""


def train_with(logger: Any, hook: Any, work_dir: Path) -> None:
    """Train two epochs with a logger of Ignite and a hook, which both write losses and errors."""
    toy = Toy([1.0, 2.0, 4.0])
    toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: toy.evaluator.run(pairs([4.0])))
    logger.attach_output_handler(
        toy.trainer, Events.ITERATION_COMPLETED, tag="train", output_transform=lambda loss: {"loss": loss}
    )
    logger.attach_output_handler(
        toy.evaluator,
        Events.COMPLETED,
        tag="val",
        metric_names="all",
        global_step_transform=global_step_from_engine(toy.trainer, Events.ITERATION_COMPLETED),
    )
    toy.attach(HookBus([hook]), evaluators={"val": toy.evaluator}, work_dir=work_dir)
    toy.trainer.run(toy.data, max_epochs=2)
    logger.close()


def read_events(directory: Path) -> Any:
    """Return the TensorBoard events of a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory), size_guidance={"histograms": 0}).Reload()


@covers("`TensorboardLogger`", "`tensorboard`")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from ignite.handlers import TensorboardLogger

    from hookbus_tensorboard import TensorBoardHook

    logger, hook = TensorboardLogger(log_dir=tmp_path / "ignite"), TensorBoardHook(interval=1)
    train_with(logger, hook, tmp_path)
    for directory in (tmp_path / "ignite", tmp_path / "logs/tensorboard"):
        events = read_events(directory)
        for name, curve in (("train/loss", LOSSES), ("val/error", ERRORS)):
            assert [(event.step, event.value) for event in events.Scalars(name)] == curve


@covers("`evaluator.state.metrics`", "`run.metrics`; `run.history` has a row for each epoch")
def test_history() -> None:
    toy, native = Toy([1.0, 2.0, 4.0]), []

    @toy.trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine: Engine) -> None:
        toy.evaluator.run(pairs([4.0]))
        native.append(toy.evaluator.state.metrics["error"])

    bridge: Any = toy.attach(HookBus([]), evaluators={"val": toy.evaluator})
    toy.trainer.run(toy.data, max_epochs=2)
    run = bridge.run
    assert native == run.history["val/error"] == [error for _, error in ERRORS]
    assert run.metrics["val/error"] == toy.evaluator.state.metrics["error"]
    assert run.history["train/loss"] == pytest.approx([-14 / 3, -63 / 3])


@covers(
    "`WeightsHistHandler`, `GradsHistHandler`",
    "`tensorboard` with `log_weights: true`, `log_gradients: true`, before the optimizer step; `gradient_flow`",
)
def test_histograms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from ignite.handlers import TensorboardLogger
    from ignite.handlers.tensorboard_logger import GradsHistHandler, WeightsHistHandler

    from hookbus_tensorboard import TensorBoardHook

    toy, logger = Toy([1.0, 2.0, 4.0]), TensorboardLogger(log_dir=tmp_path / "ignite")
    logger.attach(toy.trainer, WeightsHistHandler(toy.model), Events.ITERATION_COMPLETED)
    logger.attach(toy.trainer, GradsHistHandler(toy.model), Events.ITERATION_COMPLETED)
    hooks = [
        TensorBoardHook(interval=1, log_weights=True, log_gradients=True, histogram_interval=1),
        GradientFlowHook(frequency=1),
    ]
    bus = RecordingBus(hooks)
    toy.attach(bus, work_dir=tmp_path)
    toy.trainer.run(toy.data)
    logger.close()

    def read(directory: str, name: str) -> Curve:
        events = read_events(tmp_path / directory).Histograms(name)
        return [(event.step, event.histogram_value.sum) for event in events]

    # Ignite writes after the optimizer step; the hook before it.
    assert read("ignite", "weights/weight") == [(1, -1.0), (2, -3.0), (3, -7.0)]
    assert read("logs/tensorboard", "weights/weight") == [(0, 0.0), (1, -1.0), (2, -3.0)]
    assert read("ignite", "grads/weight") == [(1, 1.0), (2, 2.0), (3, 4.0)]
    assert read("logs/tensorboard", "gradients/weight") == [(0, 1.0), (1, 2.0), (2, 4.0)]
    norms = [arguments["values"]["gradients/weight/l2"] for arguments in bus.get_arguments("log_scalars")]
    assert norms == [1.0, 2.0, 4.0]


@covers("`MLflowLogger`", "`mlflow`")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    from ignite.handlers import MLflowLogger

    from hookbus_mlflow import MLflowHook

    monkeypatch.chdir(tmp_path)
    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    previous = mlflow.get_tracking_uri()
    try:
        train_with(MLflowLogger(database), MLflowHook(tracking_uri=database, interval=1), tmp_path)
    finally:
        mlflow.set_tracking_uri(previous)
    client = mlflow.MlflowClient(database)

    def read(experiment: str, name: str) -> Curve:
        (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
        return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]

    assert (read("Default", "train loss"), read("Default", "val error")) == (LOSSES, ERRORS)
    assert (read("hookbus", "train/loss"), read("hookbus", "val/error")) == (LOSSES, ERRORS)


@pytest.fixture
def offline_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the directory of W&B, which uploads nothing and does not replace the functions of `sys`."""
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    for name, value in {"MODE": "offline", "ERROR_REPORTING": "false", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    original = sys.exit, sys.excepthook
    yield tmp_path
    sys.exit, sys.excepthook = original


@covers("`WandBLogger`", "`wandb`")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wandb(offline_wandb: Path) -> None:
    from ignite.handlers.wandb_logger import OutputHandler, WandBLogger

    if hasattr(OutputHandler("train", metric_names="all"), "sync"):
        pytest.skip("WandBLogger of this version of Ignite passes an argument that W&B has removed")

    from hookbus_wandb import WandbHook

    train_with(WandBLogger(dir=offline_wandb), WandbHook(interval=1), offline_wandb / "run")

    def read(directory: Path, step: str, name: str) -> Curve:
        return [(row[step], row[name]) for row in read_rows(directory / "wandb") if name in row]

    for name, curve in (("train/loss", LOSSES), ("val/error", ERRORS)):
        assert read(offline_wandb, "_step", name) == curve
        assert read(offline_wandb / "run/logs/wandb", "trainer/step", name) == curve


@covers("`ProgressBar`", "`progress`")
def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread
    toy, output, hook, bus = Toy([1.0, 2.0, 4.0]), io.StringIO(), ProgressHook(), HookBus()
    native: list[tuple[str, int, int]] = []
    recorded: list[tuple[str, int, int | None]] = []
    bar = ProgressBar(persist=True, file=output)
    bar.attach(toy.trainer)

    @toy.trainer.on(Events.ITERATION_COMPLETED)
    def record_bar(engine: Engine) -> None:
        native.append((bar.pbar.desc, bar.pbar.n, bar.pbar.total))

    @bus.on("after_train_iter")
    def record_hook(run: Run) -> None:
        progress = hook.get_progress(run)
        recorded.append((progress.label, progress.done, progress.total))

    bus.register(hook)
    toy.attach(bus)
    toy.trainer.run(toy.data, max_epochs=2)
    counts = [(epoch, count, 3) for epoch in (1, 2) for count in (1, 2, 3)]
    assert native == [(f"Epoch [{epoch}/2]: ", count, total) for epoch, count, total in counts]
    assert recorded == [(f"epoch {epoch}/2", count, total) for epoch, count, total in counts]
    assert "Epoch [2/2]: [3/3] 100%" in output.getvalue()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the driver by one with a GPU of 100 bytes: 25 are used, 5 are reserved, and the utilization is 37 %."""
    import pynvml

    def get_memory(handle: Any, version: Any = None) -> Any:
        return SimpleNamespace(used=30 if version is None else 25, total=100)

    def query(fields: str) -> dict[str, Any]:
        memory, rates = pynvml.nvmlDeviceGetMemoryInfo(0), pynvml.nvmlDeviceGetUtilizationRates(0)
        usage = {"used": memory.used, "total": memory.total}
        return {"gpu": [{"fb_memory_usage": usage, "utilization": {"gpu_util": rates.gpu}}]}

    results = {"Count": 1, "HandleByIndex": 0, "UUID": "GPU-1", "MigMode": (0, 0)}
    results |= {"Temperature": 50, "PowerUsage": 1000, "ClockInfo": 1000, "TotalEnergyConsumption": 1000}
    for name, result in results.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_, result=result: result)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda handle: SimpleNamespace(gpu=37))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", get_memory)
    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    # The package that Ignite requires contains this module; that of hookbus has the same name and lacks it.
    smi: Any = ModuleType("pynvml.smi")
    smi.nvidia_smi = SimpleNamespace(getInstance=lambda: SimpleNamespace(DeviceQuery=query))
    monkeypatch.setitem(sys.modules, "pynvml.smi", smi)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@covers("`GpuInfo`", "`system_monitor`, without memory that the driver reserves; `memory_profiler`")
@pytest.mark.usefixtures("gpu")
def test_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        info = GpuInfo()
    toy, records = Toy([1.0]), dict[str, float]()
    info.attach(toy.trainer)
    bus = HookBus([SystemMonitorHook(interval=0.01, frequency=1), MemoryProfilerHook(interval=1)])

    @bus.on("log_scalars")
    def stop_after_a_sample(run: Run, values: dict[str, float]) -> None:
        records.update(values)
        if "system/gpu0/percent" in values:  # a thread takes samples; the timeout of pytest is the limit
            run.request_stop()

    toy.attach(bus)
    metrics = toy.trainer.run(toy.data, max_epochs=10**6).metrics
    assert (metrics["gpu:0 util(%)"], metrics["gpu:0 mem(%)"]) == (37, 30)
    assert (records["system/gpu0/percent"], records["system/gpu0/memory_percent"]) == (37.0, 25.0)
    assert records["memory/process_gb"] > 0
