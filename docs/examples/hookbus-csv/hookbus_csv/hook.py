"""A back end of one's own: a writer that knows the file, and a hook that says where it is."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookbus import Run, Writer, WriterHook
from hookbus.checkpoints.files import commit
from hookbus.records.appending import AppendedFile

__all__ = ["CsvHook", "CsvWriter"]


class CsvWriter(Writer):
    """Writes one row for each number: name, step, value."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = AppendedFile(path)

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """One row."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([name, step, value])
        self.file.put(text.getvalue().encode())

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Nothing: this file is for numbers."""

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Nothing, likewise."""

    def resume(self, since: int, step: int) -> set[tuple[str, str, int]]:
        """Keep the whole rows up to this step, and say which they are."""
        whole = self.path.read_bytes().rpartition(b"\n")[0].decode()
        rows = [row for row in csv.reader(io.StringIO(whole)) if int(row[1]) <= step]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.file.close()
        commit(self.path, lambda file: file.write(text.getvalue().encode()))
        self.file = AppendedFile(self.path)
        return {("scalar", name, int(at)) for name, at, _ in rows if int(at) >= since}

    def flush(self) -> None:
        """What was put is in the file now."""
        self.file.flush()

    def abandon(self) -> None:
        """What was put comes again."""
        self.file.forget()
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class CsvHook(WriterHook):
    """Writes the numbers of a training into `logs/csv/numbers.csv` of the work directory."""

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """Say how a writer is made for this run."""
        path = self.directory(run, None) / "numbers.csv"
        return lambda: CsvWriter(path)
