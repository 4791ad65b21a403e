"""Self-contained HTML pages: inline style and SVG, no scripts, no request to the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from hookbus._utils.curves import draw_curves

CHART_WIDTH, CHART_HEIGHT = 420, 250

STYLE = """
:root { color-scheme: light dark; --line: rgba(128,128,128,.28); --soft: rgba(128,128,128,.1); --quiet: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --quiet: #9aa3af; } body { background: #15181d; color: #e5e7eb; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 28px 20px 60px;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 10px; }
p { margin: 6px 0; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.state { display: inline-block; border-radius: 999px; padding: 1px 12px; margin-left: 8px; font-size: 14px;
  font-weight: 600; vertical-align: 4px; color: #fff; background: #52606d; }
.state.finished { background: #15803d; } .state.failed, .state.aborted { background: #b91c1c; }
.state.stopped, .state.interrupted, .state.preempted { background: #b45309; }
.error { border-left: 4px solid #b91c1c; background: var(--soft); padding: 10px 14px; margin: 14px 0;
  font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: 13px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(420px, 100%), 1fr)); gap: 14px; }
.chart { border: 1px solid var(--line); border-radius: 8px; padding: 10px; }
.chart svg { display: block; width: 100%; height: auto; }
.table { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: left; padding: 6px 14px; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; background: var(--soft); white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
td { overflow-wrap: anywhere; } td:first-child { white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
ul { margin: 6px 0; padding-left: 20px; } li { overflow-wrap: anywhere; }
footer { margin-top: 40px; font-size: 13px; }
@media (max-width: 560px) { body { padding: 18px 12px 40px; } h1 { font-size: 21px; } th, td { padding: 6px 9px; }
  td:first-child { white-space: normal; } }
"""


def build_page(title: str, parts: Iterable[str]) -> str:
    """Build a page.

    Args:
        title: Title of the window; escaped.
        parts: Elements of the body, as HTML.
    """
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def build_section(title: str, content: str) -> str:
    """Build a section with a heading; "" without content.

    Args:
        title: Heading; escaped.
        content: HTML below the heading.
    """
    if not content:
        return ""
    name = escape(title.lower().replace(" ", "-"))
    return f'<section id="{name}">\n<h2>{escape(title)}</h2>\n{content}\n</section>'


def build_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Build a table; "" without rows. All texts are escaped.

    Args:
        columns: Header of each column.
        rows: Texts of the cells, row by row.
        numbers: Indices of the columns of numbers, which are aligned to the right.
    """
    right = set(numbers)

    def build_row(tag: str, texts: Sequence[str]) -> str:
        styles = [' class="number"' if index in right else "" for index in range(len(texts))]
        cells = [f"<{tag}{style}>{escape(text)}</{tag}>" for style, text in zip(styles, texts, strict=True)]
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(build_row("td", row) for row in rows)
    head = build_row("th", columns)
    return f'<div class="table"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>' if body else ""


def build_list(texts: Iterable[str]) -> str:
    """Build a list of texts, which are escaped; "" without any."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def build_charts(charts: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], x_label: str) -> str:
    """Build a grid of line charts; "" without any.

    Args:
        charts: Points by title of the chart and name of the curve.
        x_label: Label of the horizontal axes.
    """
    drawn = "".join(
        f'<div class="chart">{draw_curves(curves, title=t, x_label=x_label, width=CHART_WIDTH, height=CHART_HEIGHT)}'
        "</div>"
        for t, curves in charts.items()
    )
    return f'<div class="charts">{drawn}</div>' if drawn else ""
