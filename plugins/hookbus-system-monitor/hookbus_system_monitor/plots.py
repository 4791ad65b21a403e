"""Plots of the samples over time, with one panel per unit.

Usable without hookbus. Requires matplotlib: `pip install 'hookbus-system-monitor[plots]'`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

UNIT_LABELS = {
    "percent": "%",
    "gb": "GB",
    "mb_per_s": "MB/s",
    "celsius": "°C",
    "watts": "W",
    "mhz": "MHz",
    "joules": "J",
}
"""Suffixes of names and the labels of their units, in the order of the panels."""

PANEL_SIZE_INCHES = (10.0, 2.5)


def plot_error(directory: Path | None) -> str | None:
    """Return why plots cannot be saved, otherwise None."""
    if find_spec("matplotlib") is None:
        return "show_plots: requires matplotlib, got none. Run: pip install 'hookbus-system-monitor[plots]'"
    if directory is None:
        return "show_plots: requires a work directory, got none. Set `work_dir`, or `show_plots: false`."
    return None


def group_by_unit(names: Sequence[str]) -> dict[str, list[str]]:
    """Group names by unit, in the order of `UNIT_LABELS`."""
    panels = {unit: [name for name in names if name.endswith(end)] for end, unit in UNIT_LABELS.items()}
    return {unit: members for unit, members in panels.items() if members}


def save_plots(path: Path, seconds: Sequence[float], history: Mapping[str, Sequence[float | None]]) -> None:
    """Save the plots of all values to one PNG file.

    Args:
        path: Path of the file; its directory must exist.
        seconds: Times of the samples, in seconds.
        history: Values by name, one per time; None interrupts the line.
    """
    # Not pyplot, whose global state and backend belong to the user's script.
    from matplotlib.figure import Figure

    panels = group_by_unit(list(history))
    width, height = PANEL_SIZE_INCHES
    figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (unit, names) in zip(axes, panels.items(), strict=True):
        for name in names:
            axis.plot(seconds, [float("nan") if value is None else value for value in history[name]], label=name)
        axis.set_ylabel(unit)
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    axes[-1].set_xlabel("seconds")
    figure.savefig(path)
