"""Terms of a loss: extraction, finiteness check, and text for messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_finite", "extract_loss_terms", "format_terms"]


def extract_loss_terms(outputs: Any, loss: Any = None) -> dict[str, Any]:
    """Return the terms of a loss by name.

    Args:
        outputs: Output of a step: a mapping, possibly nested, or the loss itself.
        loss: Loss, if it is passed separately; it replaces "loss" of `outputs`.

    Returns:
        Numbers and floating-point tensors whose name contains "loss"; if there is no such name, all scalars. The
        total `loss` is first.
    """
    named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    values = (
        named if loss is None else {"loss": loss, **{name: value for name, value in named.items() if name != "loss"}}
    )
    numbers = dict(_iter_numbers(values))
    terms = {name: value for name, value in numbers.items() if "loss" in name.lower()}
    terms = terms or {name: value for name, value in numbers.items() if _is_scalar(value)}
    return dict(sorted(terms.items(), key=lambda term: term[0] != "loss"))


def check_finite(terms: Mapping[str, Any]) -> tuple[bool, float]:
    """Return whether all terms are finite, and the value of the first term.

    Args:
        terms: Non-empty result of `extract_loss_terms`.
    """
    # NaN and infinities survive a sum, and the two values share one copy from the device.
    sums = [_sum(value) for value in terms.values()]
    values = [sum(sums[1:], sums[0]), sums[0]]
    tensor = next((value for value in values if isinstance(value, Tensor)), None)
    if tensor is not None:
        options: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
        values = torch.stack([torch.as_tensor(value, **options) for value in values]).tolist()
    total, first = values
    return math.isfinite(total), first


def format_terms(outputs: Any, loss: Any = None) -> str:
    """Return the scalars of a step as text, such as "box is inf; cls is 0.3". Values that are not finite are first.

    Args:
        outputs: Output of a step, see `extract_loss_terms`.
        loss: Loss, see `extract_loss_terms`.
    """
    named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    numbers = dict(_iter_numbers({**named} if loss is None else {**named, "loss": loss}))
    sums = {name: float(_sum(value)) for name, value in numbers.items()}
    shown = {name: value for name, value in sums.items() if _is_scalar(numbers[name]) or not math.isfinite(value)}
    order = sorted(shown.items(), key=lambda item: (math.isfinite(item[1]), item[0] == "loss"))
    return "; ".join(f"{name} is {value:.6g}" for name, value in order)


def _sum(value: Any) -> Any:
    """Return the sum of a term as a tensor without dimensions, or a number as a float."""
    if not isinstance(value, Tensor):
        return float(value)
    # In the widest type, so that finite terms do not overflow. MPS does not support float64.
    return value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64).sum()


def _iter_numbers(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield numbers and floating-point tensors with their path, such as `losses.box` or `loss_cls.0`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iter_numbers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _iter_numbers(item, f"{name}.{i}" if name else str(i))
    elif isinstance(value, Tensor):
        # Integer tensors are counts or labels and always finite.
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        yield name, value


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.numel() == 1
