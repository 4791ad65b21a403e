"""Layout of a table in a number of terminal columns. Independent of the event bus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

GAP = 2
"""Number of spaces between two columns."""

MIN_TITLE = 10
"""Width in characters to which a title may be shortened."""

ELLIPSIS, ASCII_ELLIPSIS = "…", ".."


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Attributes:
        name: Full name of the value, such as `val/loss`.
        title: Text of the header.
        width: Width in characters of the widest value, or the width that is reserved for values.
        rank: Importance of the column; the column with the highest rank is omitted first.
    """

    name: str
    title: str
    width: int
    rank: int = 0


def fit_columns(
    columns: Sequence[Column], width: int, ellipsis: str = ELLIPSIS, *, titled: bool = True
) -> list[Column]:
    """Return the columns that fit a width, with shortened titles and their final widths.

    Values are never shortened: columns are omitted instead, the least important ones first. The most important column
    is never omitted.

    Args:
        columns: Columns in the order of the table.
        width: Available width in characters.
        ellipsis: Text that replaces the middle of a long title.
        titled: Whether displayed columns must have different titles.
    """
    by_importance = sorted(columns, key=lambda column: column.rank)
    while True:
        fitted = _fit(columns, by_importance, width, ellipsis)
        titles = Counter(column.title for column in fitted)
        equal = {column.name for column in fitted if titles[column.title] > 1}
        if not (titled and equal):
            return fitted
        # Two long titles may be shortened to the same text: more space is available without the less important column.
        last = max(i for i, column in enumerate(by_importance) if column.name in equal)
        by_importance = by_importance[:last]


def format_row(columns: Sequence[Column], texts: Mapping[str, str]) -> list[str]:
    """Return the cells of a row, aligned to the right; a column without a text is empty.

    Args:
        columns: Columns of `fit_columns`.
        texts: Texts by name of the column.
    """
    return [" " * (column.width - cell_len(text := texts.get(column.name, ""))) + text for column in columns]


def shorten_title(title: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """Return a title of at most `width` characters; the middle of a longer one is replaced by an ellipsis."""
    if cell_len(title) <= width:
        return title
    available = max(0, width - cell_len(ellipsis))
    # The end of a name is usually the most specific part.
    head, tail = title[: available // 3], title[len(title) - (available - available // 3) :]
    while cell_len(head) + cell_len(tail) > available:  # characters of double width
        head, tail = (head[:-1], tail) if len(head) > len(tail) else (head, tail[1:])
    return f"{head}{ellipsis}{tail}"


def _fit(columns: Sequence[Column], by_importance: Sequence[Column], width: int, ellipsis: str) -> list[Column]:
    """Return the most important columns, as many as fit, in the order of the table."""
    widths: dict[str, int] = {}
    available = width + GAP
    for column in by_importance:
        needed = max(column.width, min(cell_len(column.title), MIN_TITLE))
        if widths and needed + GAP > available:
            break
        widths[column.name] = needed
        available -= needed + GAP
    for column in by_importance[: len(widths)]:
        growth = min(max(0, available), max(0, cell_len(column.title) - widths[column.name]))
        widths[column.name] += growth
        available -= growth
    return [
        replace(column, title=shorten_title(column.title, widths[column.name], ellipsis), width=widths[column.name])
        for column in columns
        if column.name in widths
    ]
