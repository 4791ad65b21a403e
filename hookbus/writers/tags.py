"""Names of records: the character set of a backend, keys of a configuration, and learning rates."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from hookbus._utils.values import iter_leaves


def sanitize_name(name: str, forbidden: re.Pattern[str], max_length: int) -> str:
    """Replace forbidden characters of a name by `_`, and shorten it if it is too long.

    A name that is changed gets a dash and the first 8 digits of its SHA-256 hash, so that different names remain
    different: `acc,top1` becomes `acc_top1-` and 8 digits. An empty name becomes `_` and the hash.

    Args:
        name: Name to convert.
        forbidden: Characters that the backend does not accept.
        max_length: Maximum number of characters.
    """
    safe = forbidden.sub("_", name)
    if safe == name and 0 < len(name) <= max_length:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe[: max_length - len(digest) - 1] or '_'}-{digest}"


def get_learning_rates(optimizer: Any) -> list[Any]:
    """Return the current learning rate of each parameter group: numbers, or copies of tensors.

    Args:
        optimizer: Object with `param_groups`, or None.
    """
    if optimizer is None:
        return []
    rates = [rate for group in optimizer.param_groups if (rate := group.get("lr")) is not None]
    # Copies: schedulers change tensor learning rates, as used by capturable optimizers, in place.
    return [rate.clone() if type(rate) is not float and hasattr(rate, "clone") else rate for rate in rates]


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


def flatten(value: Any, separator: str = ".") -> dict[str, Any]:
    """Flatten nested mappings and sequences: `{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c.0": 2}`.

    Empty mappings and sequences are omitted.

    Args:
        value: Nested mappings and sequences.
        separator: Separator between the components of a key. Default: ".".
    """
    return {separator.join(map(str, path)): leaf for path, leaf in iter_leaves(value)}
