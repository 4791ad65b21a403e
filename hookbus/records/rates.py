"""The learning rates of an optimizer, as they are recorded."""

from __future__ import annotations

from typing import Any

__all__ = ["named_rates", "rates_of"]


def rates_of(optimizer: Any) -> list[Any]:
    """The learning rate of each parameter group as it is now: numbers, or copies of tensors, which change in place.

    Args:
        optimizer: anything with `param_groups`, or None.
    """
    if optimizer is None:
        return []
    groups = optimizer.param_groups
    return [rate if type(rate) is float else _fixed(rate) for each in groups if (rate := each.get("lr")) is not None]


def named_rates(rates: list[Any]) -> dict[str, float]:
    """What `rates_of` gave, by name: `lr`, or `lr/0`, `lr/1`, ... where there are several. Reads the device."""
    names = ["lr"] if len(rates) == 1 else [f"lr/{i}" for i in range(len(rates))]
    return {name: float(rate) for name, rate in zip(names, rates, strict=True)}


def _fixed(rate: Any) -> Any:
    return rate.clone() if hasattr(rate, "clone") else rate
