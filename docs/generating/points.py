"""Points and priorities."""

from __future__ import annotations

from docs.generating.tables import table
from hookbus._cli.output import UNITS
from hookbus._events.points import POINT_ALIASES, Point
from hookbus.hook import Priority
from hookbus.lifecycle import POINTS

__all__ = ["points", "priorities"]

CHAPTERS = {
    "before_run": "Run",
    "before_train": "Training",
    "before_val": "Validation",
    "after_epoch": "End of training",
    "before_test": "Test",
    "before_predict": "Prediction",
    "before_save_checkpoint": "Checkpoints",
    "log_scalars": "Logging",
    "on_exception": "End of the run",
}
"""Headings of the points page, by the first point of each section."""

PAGE_WIDTH = 98
"""Maximum number of characters in a line of code, which docs/extra.css allows."""


def points() -> str:
    """Return a section per point: signature, description and unit."""
    parts = []
    for name, point in POINTS.items():
        if name in CHAPTERS:
            parts.append(f"## {CHAPTERS[name]}\n")
        parts.append(_point(point))
    return "\n".join(parts)


def _point(point: Point) -> str:
    arguments = ", ".join(("self", "run", *point.args))
    aliases = [alias for alias, name in POINT_ALIASES.items() if name == point.name]
    notes = [point.description]
    notes += [f"Schedules count {UNITS[point.unit]}."] if point.unit else []
    notes += [f"Alias: `{alias}`." for alias in aliases]
    signature = f"def {point.name}({arguments}): ..."
    if len(signature) > PAGE_WIDTH:
        signature = f"def {point.name}(\n    {arguments}\n): ..."
    code = f"```python\n{signature}\n```"
    return f"### {point.name}\n\n{code}\n\n{' '.join(notes)}\n"


def priorities() -> str:
    """Return the table of named priorities."""
    return table(("name", "priority"), ((f"`{priority.name}`", str(int(priority))) for priority in Priority))
