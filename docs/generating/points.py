"""The points and their order."""

from __future__ import annotations

from docs.generating.tables import table
from hookbus.hook import Priority
from hookbus.lifecycle import ALIASES, POINTS, Point

__all__ = ["points", "priorities"]

UNITS = {"iter": "iterations", "batch": "batches", "step": "updates", "epoch": "epochs"}
CHAPTERS = {
    "before_run": "Around everything",
    "before_train": "Training",
    "before_val": "Validation",
    "after_epoch": "End of training",
    "before_test": "Test",
    "before_save_checkpoint": "Checkpoints",
    "log_scalars": "Records",
    "on_exception": "End of the run",
}
"""The headings of the page of points, by the first point below each."""


def points() -> str:
    """Every point: how it is listened at, what it means, what is counted there."""
    parts = []
    for name, point in POINTS.items():
        if name in CHAPTERS:
            parts.append(f"## {CHAPTERS[name]}\n")
        parts.append(_point(point))
    return "\n".join(parts)


def _point(point: Point) -> str:
    arguments = ", ".join(("self", "run", *point.args))
    aliases = [alias for alias, name in ALIASES.items() if name == point.name]
    notes = [point.doc]
    notes += [f"Counted in {UNITS[point.unit]}."] if point.unit else []
    notes += [f"Also spelt `{alias}`." for alias in aliases]
    code = f"```python\ndef {point.name}({arguments}): ...\n```"
    return f"### {point.name}\n\n{code}\n\n{' '.join(notes)}\n"


def priorities() -> str:
    """The named priorities."""
    return table(("name", "number"), ((f"`{each.name}`", str(int(each))) for each in Priority))
