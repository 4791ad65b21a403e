"""What a model returns, by name, and what is said of a loss that cannot be trained on."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from hookbus.errors import LoopError
from hookbus.training.outputs import loss_in, named, trainable_loss_in

ONE, TWO = torch.tensor(3.0), torch.tensor([[2.0], [4.0]])


@pytest.mark.parametrize(
    ("output", "found"),
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
    ids=["loss", "mapping", "mapping of its own", "loss and output", "list", "three", "several numbers", "text"],
)
def test_outputs_have_names(output: Any, found: dict[str, Any]) -> None:
    assert named(output) == found


NO_LOSS_FN = (
    "Give loss_fn= (for example F.cross_entropy), let the model return a single number or a mapping with 'loss', or "
    "give step_fn=."
)
WITH_LOSS_FN = (
    "The loss_fn takes the target from batches of the form (inputs, target): let the loader give such batches, or give "
    "step_fn=."
)


@pytest.mark.parametrize(
    ("outputs", "loss_fn", "message"),
    [
        (
            {"output": TWO},
            None,
            f"There is no loss to train on; the model returned {{output: tensor of shape (2, 1)}}. {NO_LOSS_FN}",
        ),
        (
            {"logits": TWO, "names": ["a"]},
            len,
            "There is no loss to train on; the model returned {logits: tensor of shape (2, 1), names: list}. "
            f"{WITH_LOSS_FN}",
        ),
        ({"loss": 3.0}, None, f"There is no loss to train on; the model returned {{loss: float}}. {NO_LOSS_FN}"),
        ({"loss": TWO}, None, "The loss has shape (2, 1); training needs a single number: take its mean or sum."),
    ],
    ids=["no loss", "no target", "no tensor", "several numbers"],
)
def test_a_loss_that_is_none_says_what_to_do(outputs: dict[str, Any], loss_fn: Any, message: str) -> None:
    for find in (loss_in, trainable_loss_in):
        with pytest.raises(LoopError) as raised:
            find(outputs, loss_fn)

        assert str(raised.value) == message


def test_one_that_depends_on_no_parameter_can_be_judged_and_not_trained_on() -> None:
    assert loss_in({"loss": ONE}, None) is ONE
    with pytest.raises(LoopError, match="The loss does not depend on any parameter that requires a gradient"):
        trainable_loss_in({"loss": ONE}, None)


def test_a_single_number_in_any_shape_will_do() -> None:
    loss = torch.ones(1, 1, requires_grad=True)

    assert trainable_loss_in({"loss": loss}, None).shape == ()
