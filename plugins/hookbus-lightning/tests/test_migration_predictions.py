"""Rows of the migration page for predictions: Lightning and hookbus return and write the same."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BasePredictionWriter

from hookbus import Hook, Trainer
from hookbus_predictions import PredictionsHook

from .migration import covers
from .toys import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")

DATA = TensorDataset(torch.arange(5.0)[:, None])
EXPECTED = torch.tensor([[1.0], [3.0], [5.0], [7.0], [9.0]])


class Line(pl.LightningModule):
    """The function 2 x + 1."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * inputs + 1

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs: Tensor = self(batch[0])
        return outputs


def make_loader() -> DataLoader[Any]:
    return DataLoader(DATA, 2)


def predict(*hooks: Hook, work_dir: Path | None = None, **options: Any) -> Any:
    """Predict in the Trainer of hookbus."""
    trainer = Trainer(Line(), hooks=hooks, default_hooks=False, work_dir=work_dir, device="cpu")
    return trainer.predict(make_loader(), **options)


@covers("`trainer.predict`", "`Trainer.predict(loader)`, which returns the batches as one")
def test_predictions(tmp_path: Path) -> None:
    native: Any = make_trainer(tmp_path).predict(Line(), make_loader())
    ours = predict()
    assert torch.equal(torch.cat(native), EXPECTED)
    assert torch.equal(ours, EXPECTED)


class Writer(BasePredictionWriter):
    """Store what is to be written."""

    def __init__(self) -> None:
        super().__init__("batch_and_epoch")
        self.batches: list[tuple[Tensor, list[int]]] = []
        self.epoch: list[tuple[Tensor, list[int]]] = []

    def write_on_batch_end(
        self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Any, *_: Any, **__: Any
    ) -> None:
        self.batches.append((prediction, batch_indices))

    def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
        (indices,) = batch_indices
        self.epoch = [*zip(predictions, indices, strict=True)]


def read(path: Path) -> tuple[Tensor, list[int]]:
    content = torch.load(path, weights_only=True)
    return content["output"], content["index"].tolist()


def assert_equal(values: tuple[Tensor, list[int]], others: tuple[Tensor, list[int]]) -> None:
    assert values[1] == others[1]
    assert torch.equal(values[0], others[0])


@covers("`BasePredictionWriter`", "`predictions` with `interval`, whose values are the same")
def test_written_predictions(tmp_path: Path) -> None:
    writer, received = Writer(), []

    class Receive(Hook):
        def after_predict_iter(self, outputs: Any, indices: Any) -> None:
            received.append((outputs["output"], [*indices]))

    make_trainer(tmp_path, callbacks=[writer]).predict(Line(), make_loader())
    predict(PredictionsHook(interval=writer.interval.value), Receive(), work_dir=tmp_path, return_predictions=False)
    files = sorted((tmp_path / "predictions-batches").iterdir())
    for batch, other, path in zip(writer.batches, received, files, strict=True):
        assert_equal(batch, other)
        assert_equal(batch, read(path))
    outputs, indices = zip(*writer.epoch, strict=True)
    assert_equal((torch.cat(outputs), [*chain.from_iterable(indices)]), read(tmp_path / "predictions.pt"))
    assert_equal(read(tmp_path / "predictions.pt"), (EXPECTED, [0, 1, 2, 3, 4]))
