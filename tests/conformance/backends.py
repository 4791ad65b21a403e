"""Test cases of the backends of this repository, which read back records with the library of each backend."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from hookbus.testing import WriterTestCase
from hookbus_logger import CsvHook, JsonlHook, read_jsonl
from hookbus_logger.csv_file import FIRST_COLUMNS, escape, iter_rows
from hookbus_mlflow import MLflowHook
from hookbus_mlflow.config import to_mlflow_name as stored_by_mlflow
from hookbus_tensorboard import TensorBoardHook
from hookbus_wandb import WandbHook
from hookbus_wandb.config import STEP
from hookbus_wandb.config import to_wandb_name as stored_by_wandb
from hookbus_wandb.files import TransactionLog, find_run_files

__all__ = ["TEST_CASES"]


def tensorboard_numbers(work_dir: Path) -> list[tuple[str, int, float]]:
    """Read TensorBoard records, which have single precision: 7 significant digits."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(work_dir / "logs" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    events = [(tag, event) for tag in accumulator.Tags()["scalars"] for event in accumulator.Scalars(tag)]
    return [(tag, event.step, float(f"{event.value:.7g}")) for tag, event in events]


def jsonl_numbers(work_dir: Path) -> list[tuple[str, int, float]]:
    rows: list[dict[str, Any]] = list(read_jsonl(work_dir / "logs" / "metrics.jsonl"))
    return [
        (name, row["step"], float(row["nonfinite"][name]) if value is None else value)
        for row in rows
        for name, value in row.get("values", {}).items()
    ]


def csv_numbers(work_dir: Path) -> list[tuple[str, int, float]]:
    return [
        (name, int(row["step"]), float(cell))
        for row in iter_rows(work_dir / "logs" / "metrics.csv")
        for name, cell in row.items()
        if name not in FIRST_COLUMNS
    ]


def stored_by_csv(name: str) -> str:
    return escape(name).encode("utf-8", "backslashreplace").decode()


def mlflow_numbers(work_dir: Path) -> list[tuple[str, int, float]]:
    """Read MLflow records, which store infinities as the largest floats."""
    from mlflow import MlflowClient

    directory = work_dir / "logs" / "mlflow"
    client, run_id = MlflowClient(f"sqlite:///{directory / 'mlflow.db'}"), (directory / "run_id").read_text()
    metrics = [
        metric for name in client.get_run(run_id).data.metrics for metric in client.get_metric_history(run_id, name)
    ]
    ends = {sys.float_info.max: math.inf, -sys.float_info.max: -math.inf}
    return [(metric.key, metric.step, ends.get(metric.value, metric.value)) for metric in metrics]


def wandb_numbers(work_dir: Path) -> list[tuple[str, int, float]]:
    """Read the W&B records of all processes that wrote."""
    directory = work_dir / "logs" / "wandb"
    rows = [
        row
        for path in find_run_files(directory, (directory / "run_id").read_text())
        for row in TransactionLog(path).read_rows()
    ]
    own = ("_step", "_runtime", "_timestamp", STEP)
    return [(name, row[STEP], value) for row in rows for name, value in row.items() if name not in own]


TEST_CASES = [
    WriterTestCase(TensorBoardHook, tensorboard_numbers),
    WriterTestCase(JsonlHook, jsonl_numbers),
    WriterTestCase(CsvHook, csv_numbers, backend_name=stored_by_csv),
    WriterTestCase(MLflowHook, mlflow_numbers, backend_name=stored_by_mlflow, writes_own_files=False),
    WriterTestCase(WandbHook, wandb_numbers, {"mode": "offline"}, backend_name=stored_by_wandb, writes_own_files=False),
]
