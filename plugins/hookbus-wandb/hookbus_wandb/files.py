"""What W&B holds of a run on this machine: the `.wandb` files, one for each process that wrote, online or offline.

Such a file is a header of 7 bytes and a log in the format of LevelDB: blocks of 32 KiB of parts, each with a checksum
of 4 bytes, a length of 2 and a kind of 1. The parts of a record make up a `Record` of W&B's protocol.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from wandb.proto.wandb_internal_pb2 import Record

from hookbus.writers import Place
from hookbus_wandb.names import STEP

__all__ = ["Log", "held", "numbers_from", "rows_in", "run_files"]

HEADER, BLOCK = 7, 32768
PART = struct.Struct("<IHB")
WHOLE, LAST = 1, 4
"""Kinds of the parts that end a record."""
KINDS = {"image-file": "image", "histogram": "histogram", "html-file": "text"}
"""What W&B calls things that are no numbers, and what hookbus calls them."""


def run_files(directory: Path, run_id: str) -> list[Path]:
    """The files of a run, in the order in which they were begun.

    Args:
        directory: what `wandb.init` was given.
        run_id: the id of the run.
    """
    found = directory.glob(f"wandb/*run-*/run-{run_id}.wandb")
    return sorted(found, key=lambda path: path.parent.name.removeprefix("offline-"))


class Log:
    """A `.wandb` file, which may be growing.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._begin = path, HEADER

    def records(self) -> Iterator[Any]:
        """The records that are whole since the last call. One that is damaged is left out.

        Raises:
            OSError: the file cannot be read.
        """
        with open(self.path, "rb") as file:
            file.seek(self._begin)
            data, base = file.read(), self._begin
        at, parts = base, b""
        while at + PART.size <= base + len(data):
            left = BLOCK - at % BLOCK
            if left < PART.size:  # too little for a part: the rest of the block is empty
                at += left
                continue
            _, length, kind = PART.unpack_from(data, at - base)
            begin, at = at + PART.size, at + PART.size + length
            if at > base + len(data):
                return
            parts += data[begin - base : at - base]
            if kind in (WHOLE, LAST):
                self._begin = at
                yield from _decoded(parts)
                parts = b""

    def rows(self) -> Iterator[dict[str, Any]]:
        """What was logged together, by name: a number as it is, anything else as what W&B calls it."""
        for record in self.records():
            if record.HasField("history"):
                yield {
                    item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                    if list(item.nested_key[1:]) in ([], ["_type"])
                }


def held(files: Iterable[Path], before: float = math.inf) -> tuple[set[Place], int]:
    """Where records of a run stand, and how many rows W&B counts.

    Args:
        files: what `run_files` returns.
        before: only records in rows of lower numbers are looked for.
    """
    there: set[Place] = set()
    count = 0
    for row in rows_in(files):
        count = max(count, row["_step"] + 1)
        if row["_step"] < before and STEP in row:
            there.update((KINDS.get(value, "scalar"), name, row[STEP]) for name, value in _own(row).items())
    return there, count


def numbers_from(files: Iterable[Path], first: int) -> Iterator[tuple[dict[str, float], int]]:
    """The numbers of each row, and their step, from the row with the number `first` on."""
    for row in rows_in(files):
        if row["_step"] >= first and STEP in row:
            yield {name: value for name, value in _own(row).items() if isinstance(value, (int, float))}, row[STEP]


def rows_in(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The rows of several files, one file after the other."""
    for path in files:
        yield from Log(path).rows()


def _own(row: dict[str, Any]) -> dict[str, Any]:
    """What is not W&B's, nor the step."""
    return {name: value for name, value in row.items() if name != STEP and not name.startswith("_")}


def _decoded(data: bytes) -> Iterator[Any]:
    with suppress(DecodeError):
        yield Record.FromString(data)
