"""Plot a profiler trace: `python docs/examples/draw_trace.py TRACE.pt.trace.json.gz IMAGE.png`.

The upper panel shows two steps, the lower panel the part of the first step after its data is loaded. As in a trace
viewer, time runs from left to right, and a callee is shown below its caller.
"""

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = {"ProfilerStep": "#c8ccd4", "enumerate": "#d1495b", "Optimizer": "#2e7d5b", "autograd": "#7b5ea7"}
OPERATOR = "#3a78b5"
CHARACTER_WIDTH = 0.0065
"""Width of a character, relative to the figure."""


class Bar(NamedTuple):
    """A timed event with times in milliseconds; `depth` is the number of its callers."""

    name: str
    begin: float
    end: float
    depth: int


def load_bars(events: Iterable[dict[str, Any]]) -> Iterator[Bar]:
    """Yield the events of the training thread, callers before callees."""
    timed = [event for event in events if event.get("cat") in ("user_annotation", "cpu_op")]
    (thread,) = {event["tid"] for event in timed if event["name"].startswith("ProfilerStep")}
    callers: list[float] = []
    for event in sorted((e for e in timed if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000
        callers = [until for until in callers if until > begin]
        yield Bar(event["name"], begin, end, len(callers))
        callers.append(end)


def plot_bars(axis: Axes, bars: list[Bar], begin: float, end: float) -> None:
    """Plot the bars between two times, with their names if they fit."""
    for bar in bars:
        left, right = max(bar.begin, begin) - begin, min(bar.end, end) - begin
        if right <= left:
            continue
        color = next((color for start, color in COLORS.items() if bar.name.startswith(start)), OPERATOR)
        axis.barh(bar.depth, right - left, 0.9, left, color=color, edgecolor="white", linewidth=0.2)
        characters = int((right - left) / (end - begin) / CHARACTER_WIDTH)
        if characters > 5:
            light = color == COLORS["ProfilerStep"]
            text = bar.name if len(bar.name) <= characters else bar.name[: characters - 1] + "…"
            axis.text(left, bar.depth, f" {text}", va="center", size=7, color="black" if light else "white")
    axis.set_xlim(0, end - begin)
    axis.invert_yaxis()
    axis.set_yticks([])
    axis.spines[["left", "right", "top"]].set_visible(False)
    axis.set_xlabel("milliseconds", size=8)
    axis.tick_params(labelsize=8)


def plot_trace(trace: Path, image: Path) -> None:
    """Plot both panels and save the figure."""
    bars = list(load_bars(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]))
    first, second = [bar for bar in bars if bar.name.startswith("ProfilerStep")][:2]
    loaded = next(bar.end for bar in bars if bar.name.startswith("enumerate(DataLoader)"))
    figure = Figure(figsize=(11, 5), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2, 5])
    plot_bars(above, [bar for bar in bars if bar.depth < 3], first.begin, second.end)
    plot_bars(below, bars, loaded, first.end)
    above.set_title("Two steps", loc="left", size=9)
    below.set_title("First step, after its data is loaded", loc="left", size=9)
    figure.savefig(image)


if __name__ == "__main__":
    plot_trace(Path(sys.argv[1]), Path(sys.argv[2]))
