"""What holds a training back? A table of where the time goes, and one sentence.

Usable without hookbus.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hookbus_profiler.split import OTHER, PARTS, Times

__all__ = ["Report"]

WIDTH = 100
ENOUGH = 0.3
"""A part that is no arithmetic of the model, and takes this share of the time, is what holds the run back."""
LEAST = 0.0005
"""Shares below this are not shown."""
NAMES = {"data": "data loading", "step": "training step"}


@dataclass(frozen=True, slots=True)
class Report:
    """Where the time of a training goes.

    Attributes:
        times: sums over iterations; at least one.
        flops: operations of one iteration; None where they were not counted.
        peak: operations per second that the device can reach with 16 bits; None where that is not known.
        workers: processes that load data; None where that is not known.
    """

    times: Times
    flops: int | None = None
    peak: float | None = None
    workers: int | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The share of the whole by part, each hook by its name, `other` last; they sum to 1."""
        whole = self.times.seconds or 1.0
        return {name: seconds / whole for name, seconds in self._seconds()}

    @property
    def sentence(self) -> str:
        """What holds the run back, and what can be done about it."""
        shares = self.shares
        hooks = {name: share for name, share in shares.items() if name.startswith("hook ")}
        total = sum(hooks.values())
        if shares.get("data", 0) >= ENOUGH:
            return f"The run waits for data {_percent(shares['data'])} of the time: {self._about_data()}."
        if total >= ENOUGH:
            worst = max(hooks, key=lambda name: hooks[name])
            return (
                f"Hooks take {_percent(total)} of the time, the {worst} alone {_percent(hooks[worst])}: raise its "
                "interval, or leave it out."
            )
        if shares.get("optimizer", 0) >= ENOUGH:
            return (
                f"The optimizer takes {_percent(shares['optimizer'])} of the time: use its fused form (fused=True), or "
                "update less often (accumulate)."
            )
        if shares[OTHER] >= ENOUGH:
            return f"{_percent(shares[OTHER])} of the time lies outside of the parts that are known: look at the trace."
        model = 1 - total - shares.get("data", 0) - shares.get("optimizer", 0) - shares[OTHER]
        return (
            f"The model itself takes {_percent(model)} of the time: half precision (precision: bf16), larger batches "
            "or torch.compile may make it faster."
        )

    def text(self) -> str:
        """All of it as plain text."""
        out = io.StringIO()
        Console(file=out, width=WIDTH, no_color=True).print(self.__rich__())
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def __rich__(self) -> RenderableType:
        table = Table("part", "ms", "share", box=None, pad_edge=False, header_style="bold")
        for column in table.columns[1:]:
            column.justify = "right"
        shares = self.shares
        for name, seconds in self._seconds():
            if shares[name] >= LEAST:
                table.add_row(Text(NAMES.get(name, name)), f"{self._per(seconds) * 1e3:.3f}", _percent(shares[name]))
        lines = [self._head(), *self._arithmetic()]
        return Group(*map(Text, lines), "", table, "", Text(self.sentence, style="bold"))

    def _seconds(self) -> Iterator[tuple[str, float]]:
        """The parts in the order of an iteration, then hooks from the most expensive on, then what is left."""
        parts, hooks = self.times.parts, self.times.hooks
        yield from ((part, parts[part]) for part in PARTS if part in parts)
        yield from ((f"hook {name}", seconds) for name, seconds in sorted(hooks.items(), key=lambda each: -each[1]))
        yield OTHER, parts.get(OTHER, 0.0)

    def _per(self, seconds: float) -> float:
        return seconds / self.times.iterations

    def _head(self) -> str:
        times = self.times
        number = "1 iteration" if times.iterations == 1 else f"{times.iterations} iterations"
        note = f", {times.note}" if times.note else ""
        return f"Where the time goes: {number} of {self._per(times.seconds) * 1e3:.2f} ms{note}"

    def _arithmetic(self) -> Iterator[str]:
        """Operations per iteration and second, and the share of what the device could do."""
        if not self.flops:
            return
        rate = self.flops / self._per(self.times.seconds)
        line = f"{self.flops / 1e9:.4g} GFLOP per iteration, {rate / 1e9:.4g} GFLOP/s"
        if self.peak is not None:
            line += f", {_percent(rate / self.peak)} of the {self.peak / 1e12:.0f} TFLOP/s of the device with 16 bits"
        yield line

    def _about_data(self) -> str:
        if self.workers is None:
            return "make the loader faster"
        if self.workers == 0:
            return "let other processes load it (loader.num_workers is 0)"
        return f"raise loader.num_workers ({self.workers} now), or do less work per sample"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
