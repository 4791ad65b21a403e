"""A back end of one's own: a writer that knows the file, and a hook that says where it is."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hookbus import Run, Writer, WriterHook
from hookbus.records.appended_file import AppendedFile


class CsvWriter(Writer):
    """Writes one row for each number: name, step, value."""

    def __init__(self, path: Path) -> None:
        self.file = AppendedFile(path)

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        self.file.put(text_of([(name, step, value)]))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Nothing: this file is for numbers."""

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Nothing, likewise."""

    def resume(self, since: int, step: int) -> set[tuple[str, str, int]]:
        """Keep the rows up to this step, and say which they are."""
        rows = [row for row in csv.reader(self.file.lines()) if int(row[1]) <= step]
        self.file.replace(text_of(rows))
        return {("scalar", name, int(at)) for name, at, _ in rows if int(at) >= since}

    def flush(self) -> None:
        self.file.flush()

    def abandon(self) -> None:
        self.file.forget()
        self.close()

    def close(self) -> None:
        self.file.close()


class CsvHook(WriterHook):
    """Writes the numbers of a training into `logs/csv/numbers.csv` of the work directory."""

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        path = self.directory(run, None) / "numbers.csv"
        return lambda: CsvWriter(path)


def text_of(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
