"""Predictions of the Trainer: the call of the model without targets, and the outputs of batches by sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookbus.data.batches import TARGET_KEYS
from hookbus.errors import LoopError


class Position(int):
    """Index of an item of a tuple or list in a path, in contrast to an integer key of a mapping."""


SampleColumns = dict[tuple[str | int, ...], Any]
"""Values of samples by path: a tensor of shape (N, ...), or a list of N values."""


def predict_batch(
    model: nn.Module, batch: Any, *, step_fn: Callable[[nn.Module, Any], Any] | None, has_loss_fn: bool
) -> dict[str, Any]:
    """Call the model as training does, without the targets that training passes to the loss function.

    Args:
        model: The model.
        batch: A batch on the device of the model. With a loss function, the last element of a tuple or list is the
            target, unless the model takes all elements. Targets that the model does not take are not passed to it.
        step_fn: Function of model and batch that replaces the call of the model; its loss is not used.
        has_loss_fn: Whether training computes the loss outside of the model.

    Returns:
        Outputs by name without the loss: the items of a mapping, or "output" for a single output.

    Raises:
        LoopError: If there is nothing but a loss.
    """
    returned = step_fn(model, batch) if step_fn is not None else _call_model(model, batch, has_loss_fn)
    outputs = _without_loss(returned)
    if not outputs:
        source = "step_fn" if step_fn is not None else type(model).__name__
        raise LoopError(
            f"predict: expected outputs, got only a loss from {source}. Return a mapping with the outputs in addition "
            "to the loss, or register a hook with a `predict_step(run, batch)` that returns the outputs."
        )
    return outputs


def _call_model(model: nn.Module, batch: Any, has_loss_fn: bool) -> Any:
    if isinstance(batch, Mapping):
        inputs = {key: value for key, value in batch.items() if key not in TARGET_KEYS}
        return model(**_choose(model, [batch, inputs]))
    if not isinstance(batch, (tuple, list)):
        return model(batch)
    shorter = batch[:-1] if len(batch) > 1 else batch
    return model(*_choose(model, [shorter, batch] if has_loss_fn else [batch, shorter]))


def _choose(model: nn.Module, candidates: list[Any]) -> Any:
    """Return the first arguments that the model accepts; the first ones if it accepts none or all."""
    return next((arguments for arguments in candidates if matches_signature(model, arguments)), candidates[0])


def matches_signature(model: nn.Module, arguments: Sequence[Any] | Mapping[str, Any]) -> bool:
    """Whether a model may be called with positional or keyword arguments, as far as its signature is known."""
    try:
        signature = inspect.signature(model.forward)
        signature.bind(**arguments) if isinstance(arguments, Mapping) else signature.bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return True
    return True


def _without_loss(returned: Any) -> dict[str, Any]:
    """Return the outputs by name; in contrast to training, a tensor with one element and dimensions is an output."""
    if isinstance(returned, Mapping):
        return {name: value for name, value in returned.items() if name != "loss"}
    if isinstance(returned, (tuple, list)) and len(returned) == 2 and _is_loss(returned[0]):
        return {"output": returned[1]}
    return {} if _is_loss(returned) else {"output": returned}


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dim()


# -- samples -----------------------------------------------------------------------------------------


def count_samples(outputs: Any) -> int:
    """Return the number of samples of the outputs of a batch, the length of the first tensor; 0 without one.

    Args:
        outputs: Outputs of a batch, as in `split_samples`.
    """
    if isinstance(outputs, Tensor):
        return outputs.shape[0] if outputs.dim() else 0
    items = outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, (tuple, list)) else ()
    return next((count for item in items if (count := count_samples(item))), 0)


def split_samples(outputs: Any, count: int) -> tuple[SampleColumns, list[str]]:
    """Return the values of samples among the outputs of a batch.

    Args:
        outputs: Outputs of a batch: tensors of shape (N, ...) or lists of N values, in mappings, tuples and lists.
        count: Number of samples N.

    Returns:
        The values by path, on the CPU, and descriptions of the outputs that have no value for each sample, such as a
        mean over the batch. The loss and None are omitted.
    """
    columns: SampleColumns = {}
    omitted: list[str] = []
    for path, value in _iter_leaves(outputs, count, ()):
        if _is_column(value, count):
            columns[path] = _to_dense(value) if isinstance(value, Tensor) else list(value)
        elif value is not None and path != ("loss",):
            omitted.append(f"{'.'.join(map(str, path)) or 'output'}: {_describe(value)}")
    return columns, omitted


def _iter_leaves(value: Any, count: int, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, (tuple, list)) and not _is_list_of_samples(value, count):
        items = ((Position(index), item) for index, item in enumerate(value))
    else:
        yield path, value
        return
    for key, item in items:
        yield from _iter_leaves(item, count, (*path, key if isinstance(key, int) else str(key)))


def _to_dense(value: Tensor) -> Tensor:
    value = value.detach()
    return (value if value.layout is torch.strided else value.to_dense()).cpu()


def _is_list_of_samples(value: Sequence[Any], count: int) -> bool:
    """Return whether a list contains the samples, and not as many outputs, such as two heads and two samples."""
    if len(value) != count:
        return False
    # A tuple is rarely a list of samples, so that tensors in its lists count as well.
    items = [*_iter_items(value)] if isinstance(value, tuple) else value
    tensors = [item for item in items if isinstance(item, Tensor)]
    return not tensors or not all(_is_column(tensor, count) for tensor in tensors)


def _iter_items(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _iter_items(item)
    else:
        yield value


def _is_column(value: Any, count: int) -> bool:
    if isinstance(value, Tensor):
        return bool(value.dim()) and value.shape[0] == count
    return isinstance(value, (tuple, list)) and len(value) == count


def _describe(value: Any) -> str:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
