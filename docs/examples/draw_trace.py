"""A trace of the profiler as a picture: `python docs/examples/draw_trace.py TRACE.pt.trace.json.gz PICTURE.png`.

Above two steps, below what is left of the first one when its data is there. Like in a trace viewer, time goes from left
to right, and what is called lies below what calls it.
"""

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"ProfilerStep": "#c8ccd4", "enumerate": "#d1495b", "Optimizer": "#2e7d5b", "autograd": "#7b5ea7"}
OPERATOR = "#3a78b5"
SIGN = 0.0065
"""How wide a letter is, as a share of the picture."""


class Bar(NamedTuple):
    """Something that took time, in milliseconds; `depth` is how many others it was called by."""

    name: str
    begin: float
    end: float
    depth: int


def bars_of(events: Iterable[dict[str, Any]]) -> Iterator[Bar]:
    """What the thread of the training did, the caller before what it calls."""
    timed = [event for event in events if event.get("cat") in ("user_annotation", "cpu_op")]
    (thread,) = {event["tid"] for event in timed if event["name"].startswith("ProfilerStep")}
    callers: list[float] = []
    for event in sorted((e for e in timed if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000
        callers = [until for until in callers if until > begin]
        yield Bar(event["name"], begin, end, len(callers))
        callers.append(end)


def draw(axis: Axes, bars: list[Bar], begin: float, end: float) -> None:
    """The bars between two moments, with their names where there is room."""
    for bar in bars:
        left, right = max(bar.begin, begin) - begin, min(bar.end, end) - begin
        if right <= left:
            continue
        colour = next((colour for start, colour in COLOURS.items() if bar.name.startswith(start)), OPERATOR)
        axis.barh(bar.depth, right - left, 0.9, left, color=colour, edgecolor="white", linewidth=0.2)
        letters = int((right - left) / (end - begin) / SIGN)
        if letters > 5:
            dark = colour == COLOURS["ProfilerStep"]
            text = bar.name if len(bar.name) <= letters else bar.name[: letters - 1] + "…"
            axis.text(left, bar.depth, f" {text}", va="center", size=7, color="black" if dark else "white")
    axis.set_xlim(0, end - begin)
    axis.invert_yaxis()
    axis.set_yticks([])
    axis.spines[["left", "right", "top"]].set_visible(False)
    axis.set_xlabel("milliseconds", size=8)
    axis.tick_params(labelsize=8)


def draw_trace(trace: Path, picture: Path) -> None:
    """Draw both panels into a file."""
    bars = list(bars_of(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]))
    first, second = [bar for bar in bars if bar.name.startswith("ProfilerStep")][:2]
    loaded = next(bar.end for bar in bars if bar.name.startswith("enumerate(DataLoader)"))
    figure = Figure(figsize=(11, 5), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2, 5])
    draw(above, [bar for bar in bars if bar.depth < 3], first.begin, second.end)
    draw(below, bars, loaded, first.end)
    above.set_title("Two steps", loc="left", size=9)
    below.set_title("The first one from where its data is there", loc="left", size=9)
    figure.savefig(picture)


if __name__ == "__main__":
    draw_trace(Path(sys.argv[1]), Path(sys.argv[2]))
