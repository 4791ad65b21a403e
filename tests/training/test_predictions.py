"""Call of a model without targets, and the outputs of a batch by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus._training.predictions import count_samples, predict_batch, split_samples
from hookbus.errors import LoopError

ROWS = torch.tensor([[1.0], [2.0]])
TARGETS = torch.tensor([[5.0], [7.0]])


class Recorder(nn.Module):
    """Returns the number of arguments, or their names, with each sample."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class WithMask(Recorder):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return 2 * x if mask is None else x * mask


class TwoInputs(Recorder):
    def forward(self, x: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        return x + other


class WithLoss(Recorder):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return (x - y).abs().mean(), 2 * x


class OnlyLoss(Recorder):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return (x - y).abs().mean()


class ByName(Recorder):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:  # type: ignore[override]
        return {"loss": None if labels is None else labels.mean(), "logits": 2 * x, "has_labels": labels is not None}


def predict(model: nn.Module, batch: Any, step_fn: Callable[..., Any] | None = None, *, loss: bool = True) -> Any:
    return predict_batch(model, batch, step_fn=step_fn, has_loss_fn=loss)


class TestArguments:
    @pytest.mark.parametrize("batch", [ROWS, (ROWS,), [ROWS], (ROWS, TARGETS), [ROWS, TARGETS]])
    @pytest.mark.parametrize("loss", [True, False])
    def test_targets_are_not_passed(self, batch: Any, loss: bool) -> None:
        assert predict(Recorder(), batch, loss=loss)["output"].tolist() == [[2.0], [4.0]]

    def test_last_element_is_the_target_with_a_loss_function(self) -> None:
        assert predict(WithMask(), (ROWS, TARGETS))["output"].tolist() == [[2.0], [4.0]]
        assert predict(WithMask(), (ROWS, TARGETS), loss=False)["output"].tolist() == [[5.0], [14.0]]

    def test_all_inputs_of_a_batch_without_targets_are_passed(self) -> None:
        assert predict(TwoInputs(), (ROWS, TARGETS))["output"].tolist() == [[6.0], [9.0]]
        assert predict(TwoInputs(), (ROWS, TARGETS, TARGETS))["output"].tolist() == [[6.0], [9.0]]

    def test_items_of_a_mapping_are_passed_by_name_as_in_training(self) -> None:
        with_labels = predict(ByName(), {"x": ROWS, "labels": TARGETS})
        assert (list(with_labels), with_labels["has_labels"]) == (["logits", "has_labels"], True)
        assert predict(Recorder(), {"x": ROWS, "targets": TARGETS})["output"].tolist() == [[2.0], [4.0]]


class TestLoss:
    def test_loss_in_front_of_the_output_is_removed(self) -> None:
        assert predict(WithLoss(), (ROWS, TARGETS), loss=False)["output"].tolist() == [[2.0], [4.0]]

    def test_only_value_of_a_batch_is_no_loss(self) -> None:
        assert predict(Recorder(), (ROWS[:1], TARGETS[:1]))["output"].tolist() == [[2.0]]

    def test_step_function_replaces_the_call(self) -> None:
        def step_fn(model: nn.Module, batch: Any) -> dict[str, Tensor]:
            x, y = batch
            return {"loss": (model(x) - y).abs().mean(), "scores": model(x) + 1}

        outputs = predict(Recorder(), (ROWS, TARGETS), step_fn)
        assert {name: value.tolist() for name, value in outputs.items()} == {"scores": [[3.0], [5.0]]}

    @pytest.mark.parametrize(
        ("model", "step_fn", "source"),
        [(OnlyLoss(), None, "OnlyLoss"), (Recorder(), lambda model, batch: model(batch[0]).mean(), "step_fn")],
    )
    def test_nothing_but_a_loss_is_an_error(self, model: nn.Module, step_fn: Any, source: str) -> None:
        with pytest.raises(LoopError, match=rf"^predict: expected outputs, got only a loss from {source}\. Return a"):
            predict(model, (ROWS, TARGETS), step_fn, loss=False)


class TestSplit:
    def test_samples_of_nested_outputs_are_found(self) -> None:
        states = (torch.zeros(2, 3), torch.ones(2, 3))
        columns, omitted = split_samples({"output": ROWS, "states": states, "boxes": [{"n": 1}, {"n": 2}]}, 2)
        assert list(columns) == [("output",), ("states", 0), ("states", 1), ("boxes",)]
        assert columns["boxes",] == [{"n": 1}, {"n": 2}]
        assert columns["states", 1].tolist() == [[1.0] * 3] * 2
        assert omitted == []

    @pytest.mark.parametrize(
        ("outputs", "paths"),
        [
            ((ROWS, [ROWS, ROWS]), [(0,), (1, 0), (1, 1)]),
            ((ROWS, {"a": ROWS}), [(0,), (1, "a")]),
            ([ROWS, ROWS], [(0,), (1,)]),
            (("first", "second"), [()]),
            ([[ROWS, ROWS], [ROWS, ROWS]], [()]),
            ((torch.zeros(2, 3), torch.zeros(5, 3)), [()]),
        ],
    )
    def test_two_outputs_of_two_samples_are_distinguished_from_two_samples(self, outputs: Any, paths: Any) -> None:
        columns, omitted = split_samples(outputs, 2)
        assert (list(columns), omitted) == (paths, [])

    def test_sparse_outputs_are_dense(self) -> None:
        columns, _ = split_samples(ROWS.to_sparse(), 2)
        assert torch.equal(columns[()], ROWS)

    def test_values_of_the_batch_are_reported_except_the_loss_and_none(self) -> None:
        outputs = {"loss": torch.tensor(1.0), "cache": None, "output": ROWS, "mean": torch.tensor(2.0), "k": "text"}
        columns, omitted = split_samples(outputs, 2)
        assert list(columns) == [("output",)]
        assert omitted == ["mean: tensor of shape ()", "k: str"]

    def test_tensors_are_detached(self) -> None:
        columns, _ = split_samples({"output": ROWS.clone().requires_grad_()}, 2)
        assert not columns["output",].requires_grad

    @pytest.mark.parametrize(
        ("outputs", "count"),
        [(ROWS, 2), ({"a": torch.tensor(1.0), "b": (None, ROWS)}, 2), (torch.tensor(1.0), 0), ({"a": "text"}, 0)],
    )
    def test_samples_are_counted_by_the_first_tensor(self, outputs: Any, count: int) -> None:
        assert count_samples(outputs) == count
