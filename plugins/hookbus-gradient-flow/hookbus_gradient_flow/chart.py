"""A bar chart of gradients, drawn with Pillow.

One row per parameter, in the order of the model: how large the gradient is on a logarithmic axis, the mean of its
absolute values in dark, the largest in light. Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw, ImageFont

from hookbus_gradient_flow.flow import Gradient

__all__ = ["draw"]

LABELS, BARS, MARGIN = 320, 560, 16
HEAD, FOOT, TEXT = 28, 24, 12
ROW, LEAST_ROW, TALLEST = 16, 3, 2400
DECADES = 12
"""The axis ends at the largest gradient and goes down at most so many powers of ten."""

WHITE, INK, GRID = (255, 255, 255), (40, 40, 40), (225, 225, 225)
MEAN, LARGEST, BAD = (0, 92, 150), (146, 197, 232), (200, 40, 30)


def draw(gradients: Sequence[Gradient], missing: Iterable[str] = (), title: str = "") -> Image.Image:
    """Draw the chart.

    Args:
        gradients: those that are there.
        missing: the names of parameters without one; they come last.
        title: stands above.

    Returns:
        An RGB picture; rows become thinner, and labels fewer, where there are many of them.
    """
    absent = list(missing)
    count = len(gradients) + len(absent)
    row = min(ROW, max(LEAST_ROW, TALLEST // max(count, 1)))
    size = (2 * MARGIN + LABELS + BARS, HEAD + row * count + FOOT)
    image = Image.new("RGB", size, WHITE)
    pen = _Pen(image, row, *_decades(gradients))
    pen.text(MARGIN, MARGIN // 2, title)
    pen.axis(count)
    for i, each in enumerate(gradients):
        pen.bar(i, each)
    for i, name in enumerate(absent, start=len(gradients)):
        pen.note(i, name, "no gradient")
    return image


class _Pen:
    """Draws rows; knows where they are."""

    def __init__(self, image: Image.Image, row: int, low: int, high: int) -> None:
        self._draw = ImageDraw.Draw(image)
        self._font = ImageFont.load_default(TEXT)
        self._row, self._low, self._high = row, low, high
        self._every = math.ceil((TEXT + 2) / row)  # rows from one label to the next

    def text(self, x: float, y: float, text: str, colour: tuple[int, int, int] = INK, anchor: str = "la") -> None:
        self._draw.text((x, y), text, fill=colour, font=self._font, anchor=anchor)

    def axis(self, rows: int) -> None:
        """A line and its number for each power of ten, or for every second where there are many."""
        bottom = HEAD + rows * self._row
        for decade in range(self._low, self._high + 1, 1 if self._high - self._low < 8 else 2):
            x = self._x(10.0**decade)
            self._draw.line((x, HEAD, x, bottom), fill=GRID)
            self.text(x, bottom + 4, f"1e{decade}", anchor="ma")

    def bar(self, row: int, gradient: Gradient) -> None:
        """The two bars of one gradient, or what is wrong with it."""
        if not math.isfinite(gradient.max):
            self.note(row, gradient.name, "not finite")
            return
        self._label(row, gradient.name, INK)
        self._fill(row, gradient.max, LARGEST)
        self._fill(row, gradient.mean, MEAN)

    def note(self, row: int, name: str, what: str) -> None:
        """A row without bars."""
        self._label(row, name, BAD)
        if row % self._every == 0:
            self.text(MARGIN + LABELS + 4, self._middle(row), what, BAD, "lm")

    def _label(self, row: int, name: str, colour: tuple[int, int, int]) -> None:
        """The name, its end if it is too long for the place."""
        if row % self._every:
            return
        while self._font.getlength(name) > LABELS - 8:
            name = "…" + name.lstrip("…")[1:]
        self.text(MARGIN + LABELS - 8, self._middle(row), name, colour, "rm")

    def _fill(self, row: int, value: float, colour: tuple[int, int, int]) -> None:
        top, right = HEAD + row * self._row, self._x(value)
        if right > MARGIN + LABELS:
            self._draw.rectangle((MARGIN + LABELS, top + self._row // 8, right, top + self._row * 7 // 8 - 1), colour)

    def _middle(self, row: int) -> float:
        return HEAD + (row + 0.5) * self._row

    def _x(self, value: float) -> float:
        if value <= 0:
            return MARGIN + LABELS
        place = (math.log10(value) - self._low) / (self._high - self._low)
        return MARGIN + LABELS + BARS * min(max(place, 0.0), 1.0)


def _decades(gradients: Iterable[Gradient]) -> tuple[int, int]:
    """The powers of ten between which all of them lie, as far as the axis goes."""
    peaks = [each.max for each in gradients if each.max > 0 and math.isfinite(each.max)]
    means = [each.mean for each in gradients if each.mean > 0 and math.isfinite(each.mean)]
    high = math.ceil(math.log10(max(peaks, default=1.0)))
    low = math.ceil(math.log10(min(means, default=1e-4))) - 1  # strictly below, so that every bar can be seen
    return max(min(low, high - 1), high - DECADES), high
