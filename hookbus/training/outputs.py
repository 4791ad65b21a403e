"""What a model returns, by name, and the loss in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hookbus.errors import LoopError

__all__ = ["loss_in", "named", "trainable_loss_in"]


def named(output: Any) -> dict[str, Any]:
    """What a model has returned, by name.

    Args:
        output: a mapping; a single number, which is the loss; (loss, output); or anything else.

    Returns:
        The items of a mapping; else "loss" and "output", as far as they are there.
    """
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, Tensor) and output.numel() == 1:
        return {"loss": output}
    if isinstance(output, (tuple, list)) and len(output) == 2 and isinstance(output[0], Tensor):
        first, second = output
        if first.numel() == 1:
            return {"loss": first, "output": second}
    return {"output": output}


def loss_in(outputs: Mapping[str, Any], loss_fn: object) -> Tensor:
    """The loss among the outputs.

    Args:
        outputs: by name.
        loss_fn: the loss function of the loop, for the message; None where it has none.

    Raises:
        LoopError: there is no loss, or it is not a single number.
    """
    loss = outputs.get("loss")
    if not isinstance(loss, Tensor):
        raise LoopError(_no_loss(outputs, loss_fn))
    if loss.numel() != 1:
        raise LoopError(
            f"The loss has shape {tuple(loss.shape)}; training needs a single number: take its mean or sum."
        )
    return loss


def trainable_loss_in(outputs: Mapping[str, Any], loss_fn: object) -> Tensor:
    """The loss among the outputs, without dimensions, for a backward pass.

    Args:
        outputs, loss_fn: as for `loss_in`.

    Raises:
        LoopError: as `loss_in`, or the loss depends on no parameter.
    """
    loss = loss_in(outputs, loss_fn)
    if not loss.requires_grad:
        raise LoopError(
            "The loss does not depend on any parameter that requires a gradient: was it detached, or is every "
            "parameter frozen?"
        )
    return loss.reshape(())


def _no_loss(outputs: Mapping[str, Any], loss_fn: object) -> str:
    shown = ", ".join(f"{name}: {_shape(value)}" for name, value in outputs.items())
    if loss_fn is None:
        how = (
            "Give loss_fn= (for example F.cross_entropy), let the model return a single number or a mapping with 'loss'"
        )
    else:
        how = "The loss_fn takes the target from batches of the form (inputs, target): let the loader give such batches"
    return f"There is no loss to train on; the model returned {{{shown}}}. {how}, or give step_fn=."


def _shape(value: Any) -> str:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
