"""The course of a run as a picture: one panel per unit, over time.

Usable without hookbus. Needs matplotlib: `pip install 'hookbus-system-monitor[plots]'`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

__all__ = ["panels_of", "save_plots", "why_no_plots"]

UNITS = {
    "percent": "%",
    "gb": "GB",
    "mb_per_s": "MB/s",
    "celsius": "°C",
    "watts": "W",
    "mhz": "MHz",
    "joules": "J",
}
"""The ends of names, and what they mean."""

PANEL_INCHES = (10.0, 2.5)


def why_no_plots(directory: Path | None) -> str | None:
    """Why nothing can be drawn, and what to do about it; None where it can.

    Args:
        directory: where pictures go; None for nowhere.
    """
    if find_spec("matplotlib") is None:
        return "show_plots needs matplotlib: pip install 'hookbus-system-monitor[plots]'. Nothing is drawn."
    if directory is None:
        return "show_plots is on, and this run has no place for pictures: give it a work_dir. Nothing is drawn."
    return None


def panels_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Names by the unit in which they end, both in the order of `UNITS` and of `names`."""
    panels = {unit: [name for name in names if name.endswith(end)] for end, unit in UNITS.items()}
    return {unit: members for unit, members in panels.items() if members}


def save_plots(path: Path, seconds: Sequence[float], course: Mapping[str, Sequence[float | None]]) -> None:
    """Draw everything into one PNG file.

    Args:
        path: the file; its directory is there.
        seconds: when.
        course: by name, as many numbers; None breaks the line.
    """
    from matplotlib.figure import Figure

    panels = panels_of(list(course))
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (unit, names) in zip(axes, panels.items(), strict=True):
        for name in names:
            axis.plot(seconds, [float("nan") if value is None else value for value in course[name]], label=name)
        axis.set_ylabel(unit)
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    axes[-1].set_xlabel("seconds")
    figure.savefig(path)
