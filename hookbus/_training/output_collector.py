"""Outputs of an evaluation by sample, gathered from all ranks in the order of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookbus._training.predictions import Position, SampleColumns, count_samples, split_samples
from hookbus.errors import LoopError

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives


@dataclass(slots=True)
class _LoaderOutputs:
    """Outputs of the batches of one loader on one rank.

    Attributes:
        batches: Values by path, of each batch.
        indices: Positions of all samples in the data; counted on this rank if the loader does not provide them.
        counted: Whether positions were counted.
    """

    batches: list[SampleColumns] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    counted: bool = False


class OutputCollector:
    """Collect the outputs of each batch on the CPU.

    Args:
        warn: Function that logs a format string and its arguments as a warning, once per run.
    """

    def __init__(self, warn: Callable[..., object]) -> None:
        self._warn = warn
        self._loaders: dict[str | None, _LoaderOutputs] = {}

    def begin(self, loader: str | None) -> None:
        """Begin a loader, which may have no batches on this rank."""
        self._loaders[loader] = _LoaderOutputs()

    def add(self, loader: str | None, outputs: Any, indices: Sequence[int] | None, samples: int | None) -> None:
        """Add the outputs of one batch.

        Args:
            loader: Name of the loader if there are multiple loaders.
            outputs: Outputs by name.
            indices: Positions of the samples in the data; None if they are unknown.
            samples: Number of samples; None if it is unknown.

        Raises:
            LoopError: If no output has a value for each sample.
        """
        part = self._loaders[loader]
        count = len(indices) if indices is not None else samples or count_samples(outputs)
        columns, omitted = split_samples(outputs, count)
        if not columns:
            raise LoopError(
                f"outputs: expected a value for each of the {count} samples of a batch, got "
                f"{', '.join(omitted) or 'none'}. Return tensors whose first dimension is that of the samples."
            )
        if omitted:
            self._warn("Outputs without a value for each sample are not returned: %s.", ", ".join(omitted))
        part.batches.append(columns)
        part.counted = part.counted or indices is None
        part.indices += range(len(part.indices), len(part.indices) + count) if indices is None else indices

    def gather(self, ranks: Collectives) -> Any:
        """Return the outputs of all ranks on every rank, in the order of the data. A collective call.

        Returns:
            Tree of tensors of shape (N, ...), or lists of N values, as the model returns it; its only output itself if
            that has no name. With named loaders, a mapping of their names to such trees.
        """
        results = {name: _gather_loader(part, ranks) for name, part in self._loaders.items()}
        return results.get(None, results)


def _gather_loader(own: _LoaderOutputs, ranks: Collectives) -> Any:
    merged = _merge(own.batches)
    gathered = ranks.all_gather("outputs", (merged, own.indices, own.counted))
    columns = _merge([part for part, _, _ in gathered if part])
    order = _get_order([(indices, counted) for _, indices, counted in gathered])
    return _build_tree({path: _reorder(values, order) for path, values in columns.items()})


def _merge(batches: Sequence[SampleColumns]) -> SampleColumns:
    """Concatenate the values of batches.

    Raises:
        LoopError: If the batches have different outputs.
    """
    if len({frozenset(columns) for columns in batches}) > 1:
        names = sorted({".".join(map(str, path)) for columns in batches for path in columns})
        raise LoopError(
            f"outputs: expected the same outputs for every batch, got {', '.join(names)} for some of them only. Return "
            "the same outputs for every batch."
        )
    return {path: _concatenate([columns[path] for columns in batches]) for path in (batches[0] if batches else ())}


def _concatenate(parts: Sequence[Any]) -> Any:
    """Return one tensor, or a list of samples if the shapes or types of the parts differ."""
    is_regular = all(isinstance(part, Tensor) for part in parts)
    if is_regular and len({(part.shape[1:], part.dtype) for part in parts}) == 1:
        return torch.cat(list(parts))
    return [value for part in parts for value in part]


def _get_order(ranks: Sequence[tuple[Sequence[int], bool]]) -> list[int] | None:
    """Return the rows in the order of the data, without repetitions of other ranks; None for the order of the rows."""
    if any(counted for _, counted in ranks):
        return None  # positions of one rank do not denote samples of the data
    indices = [index for own, _ in ranks for index in own]
    rows = sorted(range(len(indices)), key=indices.__getitem__)
    if len(ranks) > 1:  # a sampler that divides the data among ranks repeats samples, so that all ranks have as many
        rows = list({indices[row]: row for row in reversed(rows)}.values())[::-1]
    return None if rows == list(range(len(indices))) else rows


def _reorder(values: Any, order: Sequence[int] | None) -> Any:
    if order is None:
        return values
    return values[torch.tensor(order)] if isinstance(values, Tensor) else [values[row] for row in order]


def _build_tree(columns: Mapping[tuple[str | int, ...], Any]) -> Any:
    """Return the values as nested mappings and tuples."""
    if () in columns:
        return columns[()]
    keys = dict.fromkeys(path[0] for path in columns)
    items = {key: _build_tree({path[1:]: columns[path] for path in columns if path[0] == key}) for key in keys}
    if all(isinstance(key, Position) for key in keys) and keys:
        return tuple(items.values())
    return items["output"] if list(items) == ["output"] else items
