"""Files of predictions. Each format writes batch by batch, so that its memory does not depend on their number."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from hookbus_predictions.parts import INDEX, Rows, save

Write = Callable[[Path, Iterable[Rows], int], None]
"""Function that writes rows to a path, given an upper bound of their number."""


def write_pt(path: Path, parts: Iterable[Rows], count: int) -> None:
    """Write a mapping of column to tensor of shape (N, ...), or to a list of N values, with `torch.save`."""
    save(_collect(path, parts, count), path)


def write_npz(path: Path, parts: Iterable[Rows], count: int) -> None:
    """Write an array of shape (N, ...) for each column, bfloat16 and other types that NumPy lacks as float32.

    Raises:
        ValueError: If the samples of a column differ in shape, or are objects.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, values in _collect(path, parts, count).items():
            array = _to_array(name, values)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def write_csv(path: Path, parts: Iterable[Rows], _count: int) -> None:
    """Write a header and a row for each sample, with a column `output.0`, `output.1`, ... for each number of a tensor.

    Raises:
        ValueError: If the samples of a column differ in shape.
    """
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer, header = csv.writer(file), None
        for rows in parts:
            names = [name for column, values in rows.items() for name in _name_cells(column, values)]
            if header is None:
                writer.writerow(names)
            elif names != header:
                raise ValueError(_describe_irregular(".csv"))
            header = names
            writer.writerows(zip(*(cells for values in rows.values() for cells in _iter_cells(values)), strict=True))


def write_jsonl(path: Path, parts: Iterable[Rows], _count: int) -> None:
    """Write an object of nested lists for each sample; NaN and infinity are null."""
    with open(path, "w", encoding="utf-8") as file:
        for rows in parts:
            columns = [map(_to_json, values) for values in rows.values()]
            for row in zip(*columns, strict=True):
                file.write(_encode(dict(zip(rows, row, strict=True))) + "\n")


def write_parquet(path: Path, parts: Iterable[Rows], _count: int) -> None:
    """Write a column of numbers or nested lists for each output, and a row group for each batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for rows in parts:
            columns = {name: [_to_plain(value) for value in values] for name, values in rows.items()}
            # An empty list has no type.
            table = pa.table({**columns, INDEX: rows[INDEX].numpy()})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()


WRITERS: Mapping[str, Write] = {
    ".pt": write_pt,
    ".npz": write_npz,
    ".csv": write_csv,
    ".jsonl": write_jsonl,
    ".parquet": write_parquet,
}
"""Function of each format, by suffix."""


# -- columns of all samples --------------------------------------------------------------------------


def _collect(path: Path, parts: Iterable[Rows], count: int) -> dict[str, Any]:
    """Return the columns of all rows; tensors are in files next to `path`, and not in memory."""
    columns: dict[str, Any] = {}
    filled = 0
    for rows in parts:
        for number, (name, values) in enumerate(rows.items()):
            columns[name] = _extend(columns.get(name), values, filled, count, path.with_name(f"{number}.bin"))
        filled += len(rows["index"])
    return {name: values[:filled].clone() if _has_rest(values, filled) else values for name, values in columns.items()}


def _has_rest(values: Any, filled: int) -> bool:
    return isinstance(values, Tensor) and len(values) > filled


def _extend(column: Any, values: Any, filled: int, count: int, path: Path) -> Any:
    """Return a column with further values; a list if their shapes or types differ."""
    if column is None and isinstance(values, Tensor):
        column = _allocate(values, count, path)
    if isinstance(column, Tensor):
        if isinstance(values, Tensor) and (values.shape[1:], values.dtype) == (column.shape[1:], column.dtype):
            column[filled : filled + len(values)] = values
            return column
        column = [value.clone() for value in column[:filled]]
    return [*(column or []), *values]


def _allocate(values: Tensor, count: int, path: Path) -> Tensor:
    """Return an uninitialized tensor for the rows of a column, in a file."""
    size = count * values[:1].numel()
    if not size:
        return values.new_empty((count, *values.shape[1:]))
    stored = torch.from_file(str(path), shared=True, size=size, dtype=values.dtype)
    return stored.view(count, *values.shape[1:])


def _to_array(name: str, values: Any) -> np.ndarray[Any, Any]:
    if isinstance(values, Tensor):
        try:
            return values.numpy()
        except TypeError:  # a data type that NumPy lacks, such as bfloat16
            return values.float().numpy()
    if any(isinstance(value, Tensor) for value in values):
        raise ValueError(_describe_irregular(".npz"))
    array = np.asarray(values)
    if array.dtype == object:
        raise ValueError(f"{name}: objects cannot be written to .npz. Choose .pt or .jsonl.")
    return array


# -- cells -------------------------------------------------------------------------------------------


def _name_cells(column: str, values: Any) -> Iterator[str]:
    if not isinstance(values, Tensor) or values.dim() == 1:
        yield column
        return
    for position in np.ndindex(*values.shape[1:]):
        yield ".".join([column, *map(str, position)])


def _iter_cells(values: Any) -> Iterator[list[Any]]:
    """Yield the values of each column of a table."""
    if isinstance(values, Tensor):
        # Not `reshape(len(values), -1)`, which is ambiguous for a batch without samples.
        yield from (values[:, None] if values.dim() == 1 else values.flatten(1)).T.tolist()
    else:
        yield [value if isinstance(value, (str, int, float)) else json.dumps(_to_json(value)) for value in values]


def _to_plain(value: Any) -> Any:
    """Return a value with all tensors as numbers or nested lists."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _to_json(value: Any) -> Any:
    return _drop_nonfinite(_to_plain(value))


def _refuse(value: Any) -> NoReturn:
    raise ValueError(f"a value of the type {type(value).__name__} cannot be written to .jsonl. Choose .pt.")


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=_refuse).encode


def _drop_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_drop_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _describe_irregular(suffix: str) -> str:
    return f"the samples differ in shape, which {suffix} cannot contain. Choose .pt or .jsonl."
