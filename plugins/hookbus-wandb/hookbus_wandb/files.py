"""Reader of the local `.wandb` files of a W&B run: one file for each process that wrote, online or offline.

A file consists of a header of 7 bytes and a log in LevelDB format: blocks of 32 KiB that contain chunks, each with a
checksum (4 bytes), a length (2 bytes) and a type (1 byte). The joined chunks of a record are a `Record` message of
W&B's protocol. Reference: `doc/log_format.md` of LevelDB.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from wandb.proto.wandb_internal_pb2 import Record

from hookbus.writers import RecordKey
from hookbus_wandb.config import STEP

FILE_HEADER_BYTES, BLOCK_BYTES = 7, 32768
CHUNK_HEADER = struct.Struct("<IHB")
FULL, LAST = 1, 4
"""Types of the chunk that ends a record (FULL and LAST in LevelDB)."""
RECORD_TYPES = {"image-file": "image", "histogram": "histogram", "html-file": "text"}
"""Types of values other than scalars in W&B, and the corresponding record types of hookbus."""


def find_run_files(directory: Path, run_id: str) -> list[Path]:
    """Return the files of a run, in order of creation."""
    paths = directory.glob(f"wandb/*run-*/run-{run_id}.wandb")
    # The name of the directory contains the time of creation: run-20260101_000000-id or offline-run-20260101_000000-id.
    return sorted(paths, key=lambda path: path.parent.name.removeprefix("offline-"))


class TransactionLog:
    """A `.wandb` file, which the process of W&B can still be appending to.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, FILE_HEADER_BYTES

    def read_records(self) -> Iterator[Any]:
        """Yield the records that were completed since the last call; corrupted records are skipped.

        Raises:
            OSError: If the file cannot be read.
        """
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data, base = file.read(), self._offset
        position, record = base, b""
        while position + CHUNK_HEADER.size <= base + len(data):
            remaining = BLOCK_BYTES - position % BLOCK_BYTES
            if remaining < CHUNK_HEADER.size:  # a chunk header never crosses a block boundary: the block is zero-padded
                position += remaining
                continue
            _, length, chunk_type = CHUNK_HEADER.unpack_from(data, position - base)
            begin, position = position + CHUNK_HEADER.size, position + CHUNK_HEADER.size + length
            if position > base + len(data):  # not written completely yet, or truncated by a kill
                return
            record += data[begin - base : position - base]
            if chunk_type in (FULL, LAST):
                # Advanced only at the end of a record, so that the next call reads an incomplete record from its start.
                self._offset = position
                with suppress(DecodeError):
                    yield Record.FromString(record)
                record = b""

    def read_rows(self) -> Iterator[dict[str, Any]]:
        """Yield each logged row by name: a scalar as its value, any other record as its W&B type."""
        for record in self.read_records():
            if record.HasField("history"):
                yield {
                    item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                    if list(item.nested_key[1:]) in ([], ["_type"])
                }


def read_record_keys(files: Iterable[Path], before: float = math.inf) -> tuple[set[RecordKey], int]:
    """Return the keys of the logged records, and the number of rows.

    Args:
        files: Files as returned by `find_run_files`.
        before: Number of the row at which the search for records ends; default all rows.
    """
    keys: set[RecordKey] = set()
    count = 0
    for number, step, values in _read_values(files):
        count = max(count, number + 1)
        if number < before and step is not None:
            keys.update((RECORD_TYPES.get(value, "scalar"), name, step) for name, value in values.items())
    return keys, count


def read_scalars(files: Iterable[Path], first: int) -> Iterator[tuple[dict[str, float], int]]:
    """Yield the scalars of each row and their step, from row number `first` on."""
    for number, step, values in _read_values(files):
        if number >= first and step is not None:
            yield {name: value for name, value in values.items() if isinstance(value, (int, float))}, step


def _read_values(files: Iterable[Path]) -> Iterator[tuple[int, int | None, dict[str, Any]]]:
    """Yield number, step and values of each row; the step is None if another program logged the row."""
    for row in chain.from_iterable(TransactionLog(path).read_rows() for path in files):
        # W&B adds internal values: `_step`, `_runtime`, ...
        values = {name: value for name, value in row.items() if name != STEP and not name.startswith("_")}
        yield row["_step"], row.get(STEP), values
