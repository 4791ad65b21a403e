"""Names of validation loaders, and the results of a validation by loader."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

SUFFIX = re.compile(r"(?P<name>.+)/dataloader_idx_(?P<index>\d+)")
"""Name of a result of one of several loaders."""

Results = dict[str, Any]


def name_loaders(loaders: Any) -> list[str]:
    """Return the names of the loaders of a validation: the keys of a mapping, otherwise their indices.

    Args:
        loaders: `trainer.val_dataloaders` or `trainer.test_dataloaders`.

    Returns:
        [] for a single loader, which needs no name.
    """
    if not isinstance(loaders, (Mapping, Sequence)) or len(loaders) == 1:
        return []
    return [str(name) for name in (loaders if isinstance(loaders, Mapping) else range(len(loaders)))]


def by_name(loaders: Any, names: Sequence[str]) -> Any:
    """Return several loaders as a mapping by name, and a single loader itself."""
    if not isinstance(loaders, (Mapping, Sequence)):
        return loaders
    values = list(loaders.values() if isinstance(loaders, Mapping) else loaders)
    return dict(zip(names, values, strict=True)) if names else values[0]


def split_results(results: Mapping[str, Any], names: Sequence[str]) -> tuple[Results, dict[str, Results]]:
    """Separate the results of the validation as a whole from those of its loaders.

    Args:
        results: Results as Lightning names them: `loss/dataloader_idx_1` for the second loader.
        names: Names of the loaders; empty for a single one.

    Returns:
        Results of the whole, and of each loader by its name.
    """
    whole: Results = {}
    loaders: dict[str, Results] = {name: {} for name in names}
    for name, value in results.items():
        match = SUFFIX.fullmatch(name)
        if match and int(match["index"]) < len(names):
            loaders[names[int(match["index"])]][match["name"]] = value
        else:
            whole[name] = value
    return whole, loaders


def to_outputs(returned: Any) -> Results | None:
    """Return what a step of the module has returned as a mapping, with the loss under "loss"."""
    if isinstance(returned, Mapping):
        return dict(returned)
    return None if returned is None else {"loss" if isinstance(returned, Tensor) else "output": returned}
