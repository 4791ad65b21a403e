"""History of a run: one row per epoch and per validation, with the metrics and the learning rate."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from hookbus._run.history_file import FIRST_COLUMNS, HISTORY, Row, read_rows, spell_values
from hookbus._run.html import build_history_html
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.errors import HookbusError, MetricError
from hookbus.metrics.results import resolve_metric_name

if TYPE_CHECKING:
    from pandas import DataFrame


RESULTS = ("val/", "test/")


class History(Sequence[Row]):
    """Rows of a training run: one per epoch, and one per validation within an epoch.

    A row is a dict with these keys; a key without a value is missing:

    - `kind`: "epoch" for a complete epoch with its validation; "validation" for a validation, or "test" for a test,
      within an epoch or between two epochs; "end" for the iterations after the last row if the training ends within an
      epoch, or has no epochs;
    - `epoch`, `iteration`, `step`: number of the epoch, from 1, and numbers of completed iterations and steps;
    - `seconds`: training time in seconds, including the time before a resume;
    - `tokens`: number of tokens of all ranks, if the run counts them;
    - `lr`, or `lr/<group>`: learning rates of the last step;
    - the metrics by full name: `train/loss` is the mean over the epoch, in a row within an epoch the mean since the row
      before; `val/accuracy`, `val/<loader>/accuracy` and `val/<hook>/accuracy` are results of the validation.

    Args:
        rows: Rows, in the order of the training.

    Example:
        ```py
        run = trainer.fit()
        run.history["val/loss"]   # one value per row, None if the row has none
        run.history.to_pandas()
        ```
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = [dict(row) for row in rows]

    @classmethod
    def read(cls, path: str | Path) -> History:
        """Read the history of a run. Damaged lines are skipped with a warning.

        Args:
            path: Work directory of the run, or its file `history.jsonl`.

        Raises:
            HookbusError: If the file does not exist or cannot be read.
        """
        rows, problems = read_rows(resolve_path(path))
        for problem in problems:
            logging.getLogger("hookbus").warning("%s", problem)
        return cls(rows)

    @property
    def columns(self) -> list[str]:
        """Names of all values: first those of the position in the training, then learning rates and metrics."""
        names = dict.fromkeys(name for row in self._rows for name in row)
        return [*FIRST_COLUMNS, *(name for name in names if name not in FIRST_COLUMNS)]

    @property
    def rows(self) -> list[Row]:
        """Copies of the rows."""
        return [dict(row) for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> list[Row]: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        """Return a row, several rows, or the values of a column in all rows, None for a row that has none.

        Args:
            key: Index, slice, or name of a column; a metric is found by the same names as by `monitor`.

        Raises:
            MetricError: If no row has a value of this name.
        """
        if isinstance(key, slice):
            return [dict(row) for row in self._rows[key]]
        if not isinstance(key, str):
            return dict(self._rows[key])
        if not self._rows and key not in FIRST_COLUMNS:
            raise MetricError(
                f"history: no row has {key!r}, because there are no rows yet. The first one is recorded at the end of "
                "an epoch or validation."
            )
        name = key if key in FIRST_COLUMNS else resolve_metric_name(key, self.columns)
        return [row.get(name) for row in self._rows]

    def __contains__(self, key: object) -> bool:
        """Return whether a column of this name has values, or whether an equal row exists."""
        if not isinstance(key, str):
            return key in self._rows
        try:
            return bool(self[key])
        except MetricError:
            return False

    def __eq__(self, other: object) -> bool:
        # NaN differs from itself, but the rows of a diverged run equal those of its file.
        return isinstance(other, History) and [*map(spell_values, self)] == [*map(spell_values, other)]

    __hash__ = None  # type: ignore[assignment]  # rows are added

    def __repr__(self) -> str:
        metrics = [name for name in self.columns if name not in FIRST_COLUMNS]
        return f"History({len(self)} rows: {', '.join(metrics)})" if metrics else f"History({len(self)} rows)"

    def _repr_html_(self) -> str:
        """Return the rows as a table with learning curves, for notebooks."""
        return build_history_html(self._rows)

    def to_pandas(self) -> DataFrame:
        """Return a `pandas.DataFrame` with one row per row and one column per value; missing values are NaN.

        Raises:
            HookbusError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise HookbusError(
                f"history.to_pandas: the module pandas cannot be imported: {error}. Run: pip install pandas"
            ) from error
        return pandas.DataFrame(self.rows, columns=self.columns)

    def to_csv(self, path: str | Path) -> None:
        """Write the rows to a CSV file with a header; a missing value is an empty cell.

        Args:
            path: Path of the file, which is replaced.

        Raises:
            OSError: If the file cannot be written.
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        content = text.getvalue().encode("utf-8", "backslashreplace")
        atomic_write(Path(path), lambda file: file.write(content))

    # -- used by the recorder ------------------------------------------------------------------

    def _replace(self, rows: Iterable[Row]) -> None:
        """Replace all rows."""
        self._rows = [dict(row) for row in rows]

    def _put(self, row: Row) -> None:
        """Add a row, or add its values to the last one if that has the same iteration."""
        if self._rows and self._rows[-1]["iteration"] == row["iteration"]:
            row = {**self._rows.pop(), **row}
        # Values of the training first, in whatever order they were recorded.
        self._rows.append(dict(sorted(row.items(), key=lambda item: item[0].startswith(RESULTS))))


def resolve_path(path: str | Path) -> Path:
    """Return the path of the history of a run.

    Args:
        path: Work directory of the run, or the file itself.
    """
    path = Path(path)
    return path / HISTORY if path.is_dir() else path


def cut_rows(rows: Iterable[Mapping[str, Any]], iterations: int, epochs: int) -> list[Row]:
    """Return the rows up to a checkpoint.

    Args:
        rows: Rows of the history.
        iterations: Number of completed iterations.
        epochs: Number of completed epochs.
    """
    kept = [dict(row) for row in rows if row["iteration"] <= iterations and row["kind"] != "end"]
    # The epoch of a checkpoint at its last iteration is still open: the resumed run records its row again, but does not
    # repeat a validation before the checkpoint. It also continues the iterations of a row at the end.
    reopened = [_reopen(row) if row["epoch"] > epochs else row for row in kept]
    return [row for row in reopened if row]


def _reopen(row: Row) -> Row:
    """Return the row of an epoch without its means of the training; {} without results."""
    if row["kind"] != "epoch":
        return row
    results = {name: value for name, value in row.items() if not name.startswith("train/")}
    return {**results, "kind": "validation"} if any(name.startswith(RESULTS) for name in results) else {}
