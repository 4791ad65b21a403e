"""HTML tables for notebooks and reports, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

# The colors are those of the page, or translucent gray, so that one style fits light and dark themes.
STYLE = (
    "<style>"
    ".hookbus{overflow-x:auto;font-size:13px;line-height:1.5}"
    ".hookbus table{color:inherit;font-size:inherit;font-variant-numeric:tabular-nums}"
    ".hookbus table{border-collapse:collapse;border:0;margin:.3em 0}"
    ".hookbus tr{background:none!important}"
    ".hookbus th,.hookbus td{text-align:right;padding:.15em .8em;border:0;white-space:nowrap}"
    ".hookbus th{font-weight:600;border-bottom:1px solid rgba(128,128,128,.6)}"
    ".hookbus td{border-bottom:1px solid rgba(128,128,128,.18)}"
    "</style>"
)
"""Style of everything inside an element of class `hookbus`."""


def wrap_html(content: str) -> str:
    """Return HTML in an element with the style of the tables, for the display of a notebook.

    Args:
        content: HTML; texts in it are escaped.
    """
    return f'{STYLE}<div class="hookbus">{content}</div>'


def build_html_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], best: Collection[tuple[int, int]] = ()
) -> str:
    """Build a table. All texts are escaped.

    Args:
        columns: Header of each column.
        rows: Texts of the cells, row by row.
        best: Row and column of each cell that contains a best value, which is bold with an asterisk.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(_build_cell(text, (y, x) in best) for x, text in enumerate(row))}</tr>"
        for y, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _build_cell(text: str, is_best: bool) -> str:
    return f'<td title="best so far"><b>*{escape(text)}</b></td>' if is_best else f"<td>{escape(text)}</td>"
