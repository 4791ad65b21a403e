"""Rows of docs/coming-from.md: predictions, tokens, and what metrics receive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from hookbus import Trainer

from .migration import covers
from .toys import make_classifier, make_labeled_texts, make_model_trainer


def make_reference(model: Any, **options: Any) -> Trainer:
    """Return a Trainer of a model that computes its own loss."""
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        default_hooks=False,
        work_dir=None,
        device="cpu",
        **options,
    )


def make_loader(batch_size: int) -> Any:
    return DataLoader(make_labeled_texts(8), batch_size)  # type: ignore[arg-type]


@covers("`trainer.predict`", "`Trainer.predict(loader)`, or `hookbus predict run.yaml`")
def test_both_predict_each_sample(tmp_path: Path) -> None:
    model = make_classifier()
    native = make_model_trainer(model, tmp_path, make_labeled_texts(8)).predict(make_labeled_texts(7))
    ours = make_reference(model).predict(DataLoader(make_labeled_texts(7), 4))  # type: ignore[arg-type]
    assert native.predictions.shape == (7, 2)
    assert torch.equal(ours["logits"], torch.from_numpy(native.predictions))


@covers("`include_num_input_tokens_seen`", "`training.batch_tokens`, counted in `run.tokens_done`")
def test_both_count_tokens(tmp_path: Path) -> None:
    native = make_model_trainer(make_classifier(), tmp_path, make_labeled_texts(8), include_num_input_tokens_seen=True)
    native.train()
    trainer = make_reference(
        make_classifier(), train_loader=make_loader(2), epochs=2, batch_tokens=lambda batch: batch["input_ids"].numel()
    )
    # Two epochs of 8 samples of 6 tokens.
    assert trainer.fit().tokens_done == native.state.num_input_tokens_seen == 96


@covers("`include_for_metrics`", "`after_val_iter`, which receives `batch` and `outputs`")
def test_inputs_and_losses_are_available(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def compute_metrics(predictions: Any) -> dict[str, float]:
        seen.update(inputs=predictions.inputs, losses=predictions.losses)
        return {}

    model = make_classifier()
    options: dict[str, Any] = {"compute_metrics": compute_metrics, "include_for_metrics": ["inputs", "loss"]}
    make_model_trainer(model, tmp_path, make_labeled_texts(8), **options).evaluate()
    trainer, inputs, losses = make_reference(model, val_loader=make_loader(4)), [], []

    @trainer.bus.on("after_val_iter")
    def observe(batch: Any, outputs: Any) -> None:
        inputs.append(batch["input_ids"])
        losses.extend([outputs["loss"]] * len(batch["input_ids"]))

    trainer.validate()
    assert torch.equal(torch.cat(inputs), torch.from_numpy(seen["inputs"]))
    assert torch.stack(losses).tolist() == pytest.approx(seen["losses"].tolist())
