"""A logging backend: a writer for the file, and a hook that defines its path."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hookbus import Run, Writer, WriterHook
from hookbus.writers import AppendOnlyFile


class TsvWriter(Writer):
    """Write one row per value: name, step, value."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.file = AppendOnlyFile(path, run_id)

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        self.file.append(format_rows([(name, step, value)]))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Ignore images."""

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Ignore the configuration."""

    def resume(self, since: int, step: int) -> set[tuple[str, str, int]]:
        """Remove the rows after this step and return the keys of the others from step `since` on."""
        rows = [row for row in csv.reader(self.file.read_lines(), "excel-tab") if int(row[1]) <= step]
        self.file.replace(format_rows(rows))
        return {("scalar", name, int(at)) for name, at, _ in rows if int(at) >= since}

    def flush(self) -> None:
        self.file.flush()

    def abandon(self) -> None:
        self.file.discard_pending()
        self.close()

    def close(self) -> None:
        self.file.close()


class TsvHook(WriterHook):
    """Write the scalars of a training to `logs/tsv/numbers.tsv` in the work directory."""

    requires_work_dir = True

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        path = self.directory(run, None, "scalars as tab-separated values") / "numbers.tsv"
        return lambda: TsvWriter(path, run.id)


def format_rows(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, "excel-tab", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
