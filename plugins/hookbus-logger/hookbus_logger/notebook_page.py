"""Content of the display of a run in a notebook, as HTML and as plain text. Independent of notebook and event bus."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from hookbus.writers import build_html_table, wrap_html
from hookbus_logger.columns import Column, fit_columns, format_row
from hookbus_logger.epoch_table import Cell, EpochTable, Row

MAX_ROWS = 50
"""Number of rows of the table, the latest ones: the size of a notebook is independent of the length of a training."""
TEXT_WIDTH = 100
"""Width of the plain text in characters."""


# A translucent track, which fits light and dark themes; `<progress>` has different colors in each browser.
_BAR = (
    '<span style="flex:none;width:16em;height:.55em;border-radius:.3em;overflow:hidden;'
    'background:rgba(128,128,128,.3)">'
    '<span style="display:block;height:100%;background:#3b82f6;width:{percent}"></span></span>'
)


@dataclass(frozen=True, slots=True)
class Bar:
    """Progress of a run.

    Attributes:
        label: Current activity, such as "epoch 3/20".
        share: Completed share, from 0 to 1; None if the total is unknown.
        details: Count, loss, throughput and remaining time.
    """

    label: str
    share: float | None = None
    details: Sequence[str] = ()

    def to_html(self) -> str:
        """Return one line with a bar; without a bar if the share is unknown."""
        bar = "" if self.share is None else _BAR.format(percent=f"{min(1.0, max(0.0, self.share)):.1%}")
        texts = f"<span>{escape(self.label)}</span>{bar}" + "".join(f"<span>{escape(t)}</span>" for t in self.details)
        return f'<div style="display:flex;flex-wrap:wrap;align-items:center;gap:0 1em">{texts}</div>'

    def to_text(self) -> str:
        """Return one line of text."""
        return "  ".join([self.label, *self.details])


@dataclass
class NotebookPage:
    """Content of the display of one run.

    Attributes:
        title: First line; "" for none.
        progress: Progress of the run; None if no hook reports it, and after the run.
        closing: Lines below the table, such as the outcome.
    """

    title: str = ""
    progress: Bar | None = None
    closing: Sequence[str] = ()
    _rows: deque[Row] = field(default_factory=lambda: deque(maxlen=MAX_ROWS), init=False)
    _count: int = field(default=0, init=False)

    def add_row(self, row: Row) -> None:
        """Add a row to the table; the first one of more than `MAX_ROWS` rows is removed."""
        self._rows.append(row)
        self._count += 1

    @property
    def is_empty(self) -> bool:
        """Whether the page contains nothing but the progress."""
        return not (self.title or self._rows or self.closing)

    @property
    def note(self) -> str:
        """Sentence about the rows that were removed; "" if there are none."""
        if len(self._rows) == self._count:
            return ""
        return f"the last {len(self._rows)} of {self._count} rows; run.history contains every epoch"

    def to_html(self) -> str:
        """Return the content as HTML. All names and values are escaped."""
        table = self._build_table() if self._rows else ""
        progress = self.progress.to_html() if self.progress is not None else ""
        return wrap_html(_build_lines([self.title, self.note]) + table + progress + _build_lines(self.closing))

    def to_text(self) -> str:
        """Return the content as plain text, for programs that do not display HTML."""
        progress = [self.progress.to_text()] if self.progress is not None else []
        table = self._format_table() if self._rows else []
        return "\n".join(line for line in (self.title, self.note, *table, *progress, *self.closing) if line)

    def _fill(self) -> tuple[list[Column], list[dict[str, Cell]]]:
        """Return the columns of the rows, and the cells of each row by name of the column."""
        rows = list(self._rows)
        table = EpochTable()
        cells = [table.add(row) for row in rows]
        return table.columns, cells

    def _build_table(self) -> str:
        columns, cells = self._fill()
        rows = [[row.get(column.name, Cell("")) for column in columns] for row in cells]
        best = {(y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell.is_best}
        texts = [[cell.text.removeprefix("*") if cell.is_best else cell.text for cell in row] for row in rows]
        return build_html_table([column.title for column in columns], texts, best)

    def _format_table(self) -> list[str]:
        columns, cells = self._fill()
        columns = fit_columns(columns, TEXT_WIDTH)
        titles = {column.name: column.title for column in columns}
        texts = [titles, *({name: cell.text for name, cell in row.items()} for row in cells)]
        return ["  ".join(format_row(columns, row)) for row in texts]


def _build_lines(lines: Sequence[str]) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in lines if line)
