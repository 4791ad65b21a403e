"""Learning rates of an optimizer, for logging."""

from __future__ import annotations

from typing import Any


def get_learning_rates(optimizer: Any) -> list[Any]:
    """Return the current learning rate of each parameter group: numbers, or copies of tensors.

    Args:
        optimizer: Object with `param_groups`, or None.
    """
    if optimizer is None:
        return []
    groups = optimizer.param_groups
    return [rate if type(rate) is float else _copy(rate) for group in groups if (rate := group.get("lr")) is not None]


def name_learning_rates(rates: list[Any], optimizer: str = "") -> dict[str, float]:
    """Return learning rates by name. Synchronizes with the device.

    Args:
        rates: Learning rate of each parameter group.
        optimizer: Name of the optimizer; "" if it has none.

    Returns:
        `lr`, or `lr/0`, `lr/1`, ... for multiple groups; for a named optimizer `lr/G`, or `lr/G/0`, `lr/G/1`, ...
    """
    tag = f"lr/{optimizer}" if optimizer else "lr"
    names = [tag] if len(rates) == 1 else [f"{tag}/{i}" for i in range(len(rates))]
    return {name: float(rate) for name, rate in zip(names, rates, strict=True)}


def _copy(rate: Any) -> Any:
    # Schedulers change tensor learning rates, as used by capturable optimizers, in place.
    return rate.clone() if hasattr(rate, "clone") else rate
