"""Outputs of a model by name, and errors for a loss that cannot be trained on."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from hookbus._training.outputs import extract_loss, extract_scalar_loss, outputs_to_dict
from hookbus.errors import LoopError

ONE, TWO = torch.tensor(3.0), torch.tensor([[2.0], [4.0]])


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (ONE, {"loss": ONE}),
        ({"loss": ONE, "scores": TWO}, {"loss": ONE, "scores": TWO}),
        (OrderedDict(loss=ONE), {"loss": ONE}),
        ((ONE, TWO), {"loss": ONE, "output": TWO}),
        ([ONE, "any"], {"loss": ONE, "output": "any"}),
        ((ONE, 1, 2), {"output": (ONE, 1, 2)}),
        (TWO, {"output": TWO}),
        ("text", {"output": "text"}),
    ],
    ids=["loss", "mapping", "ordered mapping", "loss and output", "list", "three", "multiple elements", "text"],
)
def test_outputs_are_converted_to_a_dictionary(output: Any, expected: dict[str, Any]) -> None:
    assert outputs_to_dict(output) == expected


NO_LOSS_FN = (
    "Pass `loss_fn` (for example F.cross_entropy), return a single number or a mapping with 'loss' from the model, or "
    "pass `step_fn`."
)
WITH_LOSS_FN = "Use a loader whose batches have the form (inputs, target), which `loss_fn` requires, or pass `step_fn`."


@pytest.mark.parametrize(
    ("outputs", "loss_fn", "message"),
    [
        (
            {"output": TWO},
            None,
            f"loss: missing from the outputs of the model, got {{output: tensor of shape (2, 1)}}. {NO_LOSS_FN}",
        ),
        (
            {"logits": TWO, "names": ["a"]},
            len,
            "loss: missing from the outputs of the model, got {logits: tensor of shape (2, 1), names: list}. "
            f"{WITH_LOSS_FN}",
        ),
        ({"loss": 3.0}, None, f"loss: missing from the outputs of the model, got {{loss: float}}. {NO_LOSS_FN}"),
        ({"loss": TWO}, None, "loss: expected a single number, got shape (2, 1). Take its mean or sum."),
    ],
    ids=["no loss", "no target", "no tensor", "multiple elements"],
)
def test_invalid_loss_is_an_error_with_a_fix(outputs: dict[str, Any], loss_fn: Any, message: str) -> None:
    for extract in (extract_loss, extract_scalar_loss):
        with pytest.raises(LoopError) as raised:
            extract(outputs, loss_fn)

        assert str(raised.value) == message


def test_loss_without_a_graph_can_be_evaluated_but_not_trained_on() -> None:
    assert extract_loss({"loss": ONE}, None) is ONE
    with pytest.raises(LoopError, match="loss: does not depend on any parameter that requires a gradient"):
        extract_scalar_loss({"loss": ONE}, None)


def test_loss_with_one_element_may_have_any_shape() -> None:
    loss = torch.ones(1, 1, requires_grad=True)

    assert extract_scalar_loss({"loss": loss}, None).shape == ()
