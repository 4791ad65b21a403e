"""The terms of a loss: which numbers they are, whether they are finite, and how they are told to people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from hookbus.windows import to_host, wide

__all__ = ["describe", "loss_terms", "read"]


def loss_terms(outputs: Any, loss: Any = None) -> dict[str, Any]:
    """The numbers that belong to a loss, by name.

    Args:
        outputs: what a step returned: a mapping, nested or not, or the loss itself.
        loss: the loss, where it is given apart.

    Returns:
        Everything under a name with "loss" in it; where there is no such name, every single number. Values are numbers
        or floating-point tensors; `loss` comes first.
    """
    named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    given = (
        named if loss is None else {"loss": loss, **{name: value for name, value in named.items() if name != "loss"}}
    )
    numbers = dict(_numbers(given))
    terms = {name: value for name, value in numbers.items() if "loss" in name.lower()}
    terms = terms or {name: value for name, value in numbers.items() if _is_single(value)}
    return dict(sorted(terms.items(), key=lambda term: term[0] != "loss"))


def read(terms: Mapping[str, Any]) -> tuple[bool, float]:
    """Whether all terms are finite, and the first of them. One copy from the device for both.

    Args:
        terms: of `loss_terms`, at least one.
    """
    sums = [wide(value.detach()).sum() if isinstance(value, Tensor) else float(value) for value in terms.values()]
    together, first = to_host([sum(sums[1:], sums[0]), sums[0]])
    return math.isfinite(together), first


def describe(outputs: Any, loss: Any = None) -> str:
    """The single numbers of a step in words, those that are not finite first: "box is inf; cls is 0.3".

    Args:
        outputs, loss: as for `loss_terms`.
    """
    named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    numbers = dict(_numbers({**named} if loss is None else {**named, "loss": loss}))
    sums = {name: float(wide(v.detach()).sum()) if isinstance(v, Tensor) else float(v) for name, v in numbers.items()}
    shown = {name: value for name, value in sums.items() if _is_single(numbers[name]) or not math.isfinite(value)}
    order = sorted(shown.items(), key=lambda item: (math.isfinite(item[1]), item[0] == "loss"))
    return "; ".join(f"{name} is {value:.6g}" for name, value in order)


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and floating-point tensors with the names of their places: `losses.box`, `loss_cls.0`."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _numbers(each, f"{name}.{i}" if name else str(i))
    elif isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        yield name, value


def _is_single(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.numel() == 1
