"""Models and datasets of this package in a run file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hookbus import Trainer
from hookbus.errors import ConfigError

RUN_FILE = """\
work_dir: {directory}/run
model: {model}
dataset: {dataset}
optimizer: {{type: SGD, lr: 0.1}}
training: {{epochs: 1}}
default_hooks: false
"""


def make_trainer(directory: Path, model: str, dataset: str) -> Trainer:
    path = directory / "run.yaml"
    path.write_text(RUN_FILE.format(directory=directory, model=model, dataset=dataset))
    return Trainer.from_file(path)


def test_cnn_is_trained_on_digits_by_name(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "{type: cnn, width: 4, dropout: 0.0}", "{type: digits, batch_size: 500, seed: 1}")
    trainer.fit()

    assert trainer.bus.current.iters_done == 3  # 1,438 digits in batches of 500
    assert "val/accuracy" in trainer.bus.current.metrics.results


def test_model_receives_input_shape_and_num_classes_of_the_dataset(tmp_path: Path, small_cifar: Any) -> None:
    trainer = make_trainer(tmp_path, "{type: mlp, width: 5}", f"{{type: cifar10, root: {small_cifar.root}}}")

    sizes = [
        (layer.in_features, layer.out_features) for layer in trainer.model.modules() if isinstance(layer, nn.Linear)
    ]
    assert sizes == [(3 * 32 * 32, 5), (5, 5), (5, 10)]


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ("{type: cnn, width: 0}", "{type: digits}", r"run\.yaml:2:.* model\.width: should be an integer"),
        ("{type: cnn}", "{type: digits, val_share: 2}", r"run\.yaml:3:.* dataset\.val_share: should be a number"),
        ("{type: cnn, widht: 3}", "{type: digits}", r"run\.yaml:2:.*unknown key\. Did you mean 'width'"),
        (
            "{type: cnn}",
            "{type: cifar10}",
            r"run\.yaml:3:.* cifar10 requires torchvision, .* Run: pip install torchvision",
        ),
    ],
)
def test_invalid_argument_raises_with_its_line(
    model: str, dataset: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)

    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, model, dataset)
