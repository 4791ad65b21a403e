"""Outputs of a model by name, and the loss among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hookbus.errors import LoopError


def outputs_to_dict(output: Any) -> dict[str, Any]:
    """Convert the return value of a model to a dictionary.

    Args:
        output: A mapping, a tensor with one element (the loss), a pair (loss, output), or any other value.

    Returns:
        A copy of a mapping; otherwise a dictionary with "loss", "output" or both.
    """
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, Tensor) and output.numel() == 1:
        return {"loss": output}
    if isinstance(output, (tuple, list)) and len(output) == 2 and isinstance(output[0], Tensor):
        first, second = output
        # A pair without a single number in front, such as two heads or (output, hidden state), contains no loss.
        if first.numel() == 1:
            return {"loss": first, "output": second}
    return {"output": output}


def extract_loss(outputs: Mapping[str, Any], loss_fn: object) -> Tensor:
    """Return the loss among the outputs.

    Raises:
        LoopError: If the loss is missing or has more than one element.
    """
    loss = outputs.get("loss")
    if not isinstance(loss, Tensor):
        raise LoopError(_missing_loss_message(outputs, loss_fn))
    if loss.numel() != 1:
        raise LoopError(f"loss: expected a single number, got shape {tuple(loss.shape)}. Take its mean or sum.")
    return loss


def extract_scalar_loss(outputs: Mapping[str, Any], loss_fn: object) -> Tensor:
    """Return the loss among the outputs for a backward pass.

    Raises:
        LoopError: If the loss is missing, has more than one element, or depends on no trainable parameter.
    """
    loss = extract_loss(outputs, loss_fn)
    if not loss.requires_grad:
        raise LoopError(
            "loss: does not depend on any parameter that requires a gradient. Remove detach() or no_grad() from the "
            "computation of the loss, and make sure that not every parameter is frozen."
        )
    return loss.reshape(())


def _missing_loss_message(outputs: Mapping[str, Any], loss_fn: object) -> str:
    items = ", ".join(f"{name}: {_describe_value(value)}" for name, value in outputs.items())
    # `Steps.forward` calls loss_fn for tuples and lists only, so the usual cause is another type of batch.
    if loss_fn is None:
        fix = (
            "Pass `loss_fn` (for example F.cross_entropy), return a single number or a mapping with 'loss' from the "
            "model, or pass `step_fn`."
        )
    else:
        fix = "Use a loader whose batches have the form (inputs, target), which `loss_fn` requires, or pass `step_fn`."
    return f"loss: missing from the outputs of the model, got {{{items}}}. {fix}"


def _describe_value(value: Any) -> str:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
