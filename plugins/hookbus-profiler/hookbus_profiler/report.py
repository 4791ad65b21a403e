"""Report of the profiler: a time breakdown and the bottleneck of the training.

Usable without hookbus.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hookbus_profiler.time_breakdown import OTHER, PARTS, Times

WIDTH = 100
MIN_BOTTLENECK_SHARE = 0.3
"""Minimum share of the time at which a part other than the model is reported as the bottleneck."""
MIN_TABLE_SHARE = 0.0005
"""Minimum share of a part in the table."""
PART_LABELS = {"data": "data loading", "step": "training step"}


@dataclass(frozen=True, slots=True)
class Report:
    """Time breakdown of a training.

    Attributes:
        times: Times summed over at least one iteration.
        flops: Floating-point operations of one iteration; None if not counted.
        peak: Peak FLOP/s of the device with 16-bit types; None if unknown.
        workers: Number of worker processes of the loader; None if unknown.
    """

    times: Times
    flops: int | None = None
    peak: float | None = None
    workers: int | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Share of the total time by part, including each hook, `other` last; the shares sum to 1."""
        total = self.times.seconds or 1.0
        return {name: seconds / total for name, seconds in self._iter_parts()}

    @property
    def recommendation(self) -> str:
        """Bottleneck of the training and the recommended action."""
        shares = self.shares
        hooks = {name: share for name, share in shares.items() if name.startswith("hook ")}
        total = sum(hooks.values())
        if shares.get("data", 0) >= MIN_BOTTLENECK_SHARE:
            return f"Data loading takes {_format_percent(shares['data'])} of the time. {self._loader_advice()}."
        if total >= MIN_BOTTLENECK_SHARE:
            worst = max(hooks, key=lambda name: hooks[name])
            return (
                f"Hooks take {_format_percent(total)} of the time, the {worst} alone {_format_percent(hooks[worst])}. "
                "Increase its interval or remove it."
            )
        if shares.get("optimizer", 0) >= MIN_BOTTLENECK_SHARE:
            return (
                f"The optimizer takes {_format_percent(shares['optimizer'])} of the time. Use its fused "
                "implementation (fused=True) or accumulate gradients (accumulate)."
            )
        if shares[OTHER] >= MIN_BOTTLENECK_SHARE:
            return (
                f"{_format_percent(shares[OTHER])} of the time is spent outside of the measured parts. "
                "Inspect the trace."
            )
        model = 1 - total - shares.get("data", 0) - shares.get("optimizer", 0) - shares[OTHER]
        return (
            f"The model itself takes {_format_percent(model)} of the time. Use reduced precision (precision: bf16), "
            "larger batches or torch.compile to speed it up."
        )

    def to_text(self) -> str:
        """Format the report as plain text of at most 100 columns."""
        out = io.StringIO()
        Console(file=out, width=WIDTH, no_color=True).print(self.__rich__())
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def __rich__(self) -> RenderableType:
        # Hook names are wrapped in Text: rich would parse brackets in a plain string as markup.
        table = Table("part", "ms", "share", box=None, pad_edge=False, header_style="bold")
        for column in table.columns[1:]:
            column.justify = "right"
        shares = self.shares
        for name, seconds in self._iter_parts():
            if shares[name] >= MIN_TABLE_SHARE:
                table.add_row(
                    Text(PART_LABELS.get(name, name)),
                    f"{self._per_iteration(seconds) * 1e3:.3f}",
                    _format_percent(shares[name]),
                )
        lines = [self._format_head(), *self._iter_flops()]
        return Group(*map(Text, lines), "", table, "", Text(self.recommendation, style="bold"))

    def _iter_parts(self) -> Iterator[tuple[str, float]]:
        """Yield the parts in the order of an iteration, then hooks by descending time, then `other`."""
        parts, hooks = self.times.parts, self.times.hooks
        yield from ((part, parts[part]) for part in PARTS if part in parts)
        yield from ((f"hook {name}", seconds) for name, seconds in sorted(hooks.items(), key=lambda item: -item[1]))
        yield OTHER, parts.get(OTHER, 0.0)

    def _per_iteration(self, seconds: float) -> float:
        return seconds / self.times.iterations

    def _format_head(self) -> str:
        times = self.times
        number = "1 iteration" if times.iterations == 1 else f"{times.iterations} iterations"
        note = f", {times.note}" if times.note else ""
        return f"Time breakdown: {number} of {self._per_iteration(times.seconds) * 1e3:.2f} ms{note}"

    def _iter_flops(self) -> Iterator[str]:
        """Yield a line with the FLOPs per iteration and second, and the share of the device's peak."""
        if not self.flops:
            return
        rate = self.flops / self._per_iteration(self.times.seconds)
        line = f"{self.flops / 1e9:.4g} GFLOP per iteration, {rate / 1e9:.4g} GFLOP/s"
        if self.peak is not None:
            line += (
                f", {_format_percent(rate / self.peak)} of the device's 16-bit peak of {self.peak / 1e12:.0f} TFLOP/s"
            )
        yield line

    def _loader_advice(self) -> str:
        if self.workers is None:
            return "Speed up the loader"
        if self.workers == 0:
            return "Set `loader.num_workers` above 0 to load data in worker processes"
        return f"Increase `loader.num_workers`, now {self.workers}, or reduce the work per sample"


def _format_percent(share: float) -> str:
    return f"{share * 100:.1f} %"
