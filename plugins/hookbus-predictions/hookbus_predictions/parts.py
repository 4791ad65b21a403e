"""Predictions of batches in temporary files, and their order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

INDEX = "index"
"""Name of the column with the positions of the samples in the data."""
PARTS = "parts.json"
"""Name of the list of the parts of a rank."""

Rows = dict[str, Any]
"""Values of samples by column: a tensor of shape (N, ...), or a list of N values; `index` is of type int64."""


@dataclass(frozen=True, slots=True)
class Part:
    """File with the rows of one batch.

    Attributes:
        path: Path of the file.
        count: Number of samples.
        first: Lowest index.
        last: Highest index.
        ascending: Whether the indices ascend.
        counted: Whether the indices were counted on this rank, so that other ranks have the same ones.
    """

    path: Path
    count: int
    first: int
    last: int
    ascending: bool
    counted: bool


def build_rows(indices: Sequence[int], columns: Mapping[tuple[str | int, ...], Any]) -> Rows:
    """Return the rows of a batch, with the parts of nested names joined by a point.

    Raises:
        ValueError: If an output has the name of the column of the indices, or two outputs have the same name.
    """
    rows = {".".join(map(str, path)): values for path, values in columns.items()}
    if len(rows) < len(columns):
        paths = ", ".join("/".join(map(str, path)) for path in columns)
        raise ValueError(
            f"two outputs have the same name of a column, in which points join nested names, got {paths}. Rename one "
            "of them."
        )
    if INDEX in rows:
        raise ValueError(f"an output has the name {INDEX!r} of the sample indices, got {', '.join(rows)}. Rename it.")
    return {INDEX: torch.tensor(list(indices), dtype=torch.int64), **rows}


def save(content: Mapping[str, Any], path: Path) -> None:
    """Write a file with `torch.save`.

    Raises:
        OSError: If the file could not be written completely.
    """
    try:
        with path.open("wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        # When finishing the file fails, torch raises a RuntimeError while handling the OSError that caused it.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from None


def save_part(path: Path, rows: Rows, *, counted: bool) -> Part:
    """Write the rows of a batch to a temporary file."""
    save(rows, path)
    indices = rows[INDEX].tolist()
    ascending = all(a < b for a, b in pairwise(indices))
    return Part(path, len(indices), min(indices, default=0), max(indices, default=-1), ascending, counted)


def save_parts(directory: Path, parts: Sequence[Part]) -> None:
    """Write the list of the parts of a rank, which are in a directory."""
    entries = [{**asdict(part), "path": part.path.name} for part in parts]
    (directory / PARTS).write_text(json.dumps(entries), encoding="utf-8")


def load_parts(directory: Path) -> list[Part]:
    """Return the parts that are listed in a directory."""
    entries = json.loads((directory / PARTS).read_text(encoding="utf-8"))
    return [Part(**{**entry, "path": directory / entry["path"]}) for entry in entries]


def iter_rows(ranks: Sequence[Sequence[Part]]) -> Iterator[Rows]:
    """Yield the rows of all parts in the order of the data; one batch at a time, unless the batches overlap.

    Samples that a sampler repeats on several ranks are yielded once. Counted indices of a rank follow those of the
    rank before. Without samples, an empty column of indices is yielded.

    Args:
        ranks: Parts of each rank, in the order in which they were predicted.
    """
    parts = [part for own in ranks for part in own if part.count]
    if any(part.counted for part in parts):
        yield from _iter_counted(ranks)
        return
    if not parts:  # a rank with fewer batches than the others has none: its file is read like theirs
        yield {INDEX: torch.empty(0, dtype=torch.int64)}
        return
    parts.sort(key=lambda part: part.first)
    if all(part.ascending for part in parts) and all(a.last < b.first for a, b in pairwise(parts)):
        yield from (_load(part) for part in parts)
    else:
        yield sort_rows([_load(part) for part in parts], unique=len(ranks) > 1)


def _iter_counted(ranks: Sequence[Sequence[Part]]) -> Iterator[Rows]:
    offset = 0
    for own in ranks:
        for part in own:
            rows = _load(part)
            yield {**rows, INDEX: rows[INDEX] + offset}
        offset += sum(part.count for part in own)


def sort_rows(parts: Sequence[Rows], *, unique: bool) -> Rows:
    """Return all rows sorted by index.

    Args:
        parts: Rows with the same columns.
        unique: Whether to keep only the first of the rows with the same index.
    """
    indices = torch.cat([rows[INDEX] for rows in parts]).tolist()
    order = sorted(range(len(indices)), key=indices.__getitem__)
    if unique:
        order = list({indices[row]: row for row in reversed(order)}.values())[::-1]
    return {name: _take([rows[name] for rows in parts], order) for name in parts[0]}


def _take(values: Sequence[Any], order: Sequence[int]) -> Any:
    regular = all(isinstance(part, Tensor) for part in values)
    if regular and len({(part.shape[1:], part.dtype) for part in values}) == 1:
        return torch.cat(list(values))[torch.tensor(order, dtype=torch.int64)]
    flat = [value for part in values for value in part]
    return [flat[row] for row in order]


def _load(part: Part) -> Rows:
    rows: Rows = torch.load(part.path, weights_only=True)
    return rows
