"""A work directory of an earlier version resumes: keys of checkpoints, sidecars, logs and status are a file format.

`golden/run-0.1.0` was written by the code before its identifiers were renamed: `build` below, stopped after iteration 9
of 18, in the middle of an accumulation. It must not be regenerated.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Trainer
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_logger import JsonlHook

GOLDEN = Path(__file__).parent / "golden" / "run-0.1.0"


def build(work_dir: Path, **options: Any) -> Trainer:
    """Return the trainer that wrote the golden run."""
    generator = torch.Generator().manual_seed(0)
    dataset = TensorDataset(torch.randn(24, 4, generator=generator), torch.randint(0, 2, (24,), generator=generator))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Trainer(
        model,
        optimizer,
        torch.nn.functional.cross_entropy,
        DataLoader(dataset, 4, shuffle=True),
        DataLoader(dataset, 8),
        metrics=["accuracy"],
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        epochs=3,
        accumulate=2,
        seed=0,
        work_dir=work_dir,
        hooks=[
            EMAHook(momentum=0.9),
            CheckpointHook(interval=3, by_epoch=False, max_keep_ckpts=1),
            EvalHook(interval=1, metric="accuracy", save_best=True),
            EarlyStoppingHook(monitor="val/loss", patience=5),
            JsonlHook(interval=1),
        ],
        **options,
    )


def read_rows(work_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of the log that do not contain times."""
    lines = (work_dir / "logs" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{**row, "time": None} for row in rows if row["kind"] in ("train", "val")]


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "run"))


def test_checkpoint_of_an_earlier_version_is_restored_exactly(work_dir: Path) -> None:
    golden = torch.load(GOLDEN / "checkpoints" / "last.pth", weights_only=True)
    restored: dict[str, Any] = {}
    trainer = build(work_dir, resume="auto")

    @trainer.bus.on("before_train")
    def record(run: Any) -> None:
        weights = {name: value.clone() for name, value in run.model.state_dict().items()}
        restored.update(weights, iters_done=run.iters_done, steps_done=run.steps_done)
        restored["best"] = run.best["val/accuracy"].value

    trainer.fit()

    assert {name: restored[name].tolist() for name in golden["state_dict"]} == {
        name: value.tolist() for name, value in golden["state_dict"].items()
    }
    assert (restored["iters_done"], restored["steps_done"], restored["best"]) == (9, 4, 0.25)


def test_run_of_an_earlier_version_continues_as_the_uninterrupted_run(work_dir: Path, tmp_path: Path) -> None:
    resumed = build(work_dir, resume="auto")
    resumed.fit()
    uninterrupted = build(tmp_path / "uninterrupted")
    uninterrupted.fit()

    status = json.loads((work_dir / "status.json").read_text())
    assert (status["run"], status["outcome"], status["iters_done"]) == (
        "b202317d76f1465dab773a1637d61430",
        "finished",
        18,
    )
    # Not bitwise: the golden half was computed on another CPU, whose kernels may round differently.
    torch.testing.assert_close(resumed.model.state_dict(), uninterrupted.model.state_dict())
    rows, expected = read_rows(work_dir), read_rows(tmp_path / "uninterrupted")
    assert [{**row, "values": list(row["values"])} for row in rows] == [
        {**row, "values": list(row["values"])} for row in expected
    ]
    for row, other in zip(rows, expected, strict=True):
        assert row["values"] == pytest.approx(other["values"], rel=1e-5)
