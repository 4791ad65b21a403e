"""Bar chart of gradient statistics, rendered with Pillow.

One row per parameter, in the order of the model, with the mean (dark) and the maximum (light) of the absolute values of
its gradient on a logarithmic axis. Usable without hookbus.
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
"""Maximum number of powers of ten on the axis, which ends at the largest gradient."""

WHITE, INK, GRID = (255, 255, 255), (40, 40, 40), (225, 225, 225)
MEAN, LARGEST, BAD = (0, 92, 150), (146, 197, 232), (200, 40, 30)


def draw(gradients: Sequence[Gradient], missing: Iterable[str] = (), title: str = "") -> Image.Image:
    """Render the chart.

    Args:
        gradients: Statistics of the gradients.
        missing: Names of the parameters without a gradient, which are the last rows.
        title: Title above the chart.

    Returns:
        An RGB image; with many parameters the rows are thinner, and not every row has a label.
    """
    absent = list(missing)
    count = len(gradients) + len(absent)
    row = min(ROW, max(LEAST_ROW, TALLEST // max(count, 1)))
    size = (2 * MARGIN + LABELS + BARS, HEAD + row * count + FOOT)
    image = Image.new("RGB", size, WHITE)
    pen = _Pen(image, row, *_decades(gradients))
    pen.text(MARGIN, MARGIN // 2, title)
    pen.axis(count)
    for i, gradient in enumerate(gradients):
        pen.bar(i, gradient)
    for i, name in enumerate(absent, start=len(gradients)):
        pen.note(i, name, "no gradient")
    return image


class _Pen:
    """Renderer of the axis and the rows of a chart."""

    def __init__(self, image: Image.Image, row: int, low: int, high: int) -> None:
        self._draw = ImageDraw.Draw(image)
        self._font = ImageFont.load_default(TEXT)
        self._row, self._low, self._high = row, low, high
        self._every = math.ceil((TEXT + 2) / row)  # interval of labels, in rows

    def text(self, x: float, y: float, text: str, color: tuple[int, int, int] = INK, anchor: str = "la") -> None:
        self._draw.text((x, y), text, fill=color, font=self._font, anchor=anchor)

    def axis(self, rows: int) -> None:
        """Draw a labeled line for each power of ten, or for every second one if the axis is long."""
        bottom = HEAD + rows * self._row
        for decade in range(self._low, self._high + 1, 1 if self._high - self._low < 8 else 2):
            x = self._x(10.0**decade)
            self._draw.line((x, HEAD, x, bottom), fill=GRID)
            self.text(x, bottom + 4, f"1e{decade}", anchor="ma")

    def bar(self, row: int, gradient: Gradient) -> None:
        """Draw the two bars of a gradient, or a note if it is not finite."""
        # The maximum of a gradient with NaN or infinity is not finite either.
        if not math.isfinite(gradient.max):
            self.note(row, gradient.name, "not finite")
            return
        self._label(row, gradient.name, INK)
        self._fill(row, gradient.max, LARGEST)
        self._fill(row, gradient.mean, MEAN)

    def note(self, row: int, name: str, text: str) -> None:
        """Draw a row with a text instead of bars."""
        self._label(row, name, BAD)
        if row % self._every == 0:
            self.text(MARGIN + LABELS + 4, self._middle(row), text, BAD, "lm")

    def _label(self, row: int, name: str, color: tuple[int, int, int]) -> None:
        """Draw the name of a row, truncated at its start if it is too long."""
        if row % self._every:
            return
        # Truncated at the start, because the end identifies the parameter: `....layer4.1.conv2.weight`.
        while self._font.getlength(name) > LABELS - 8:
            name = "…" + name.lstrip("…")[1:]
        self.text(MARGIN + LABELS - 8, self._middle(row), name, color, "rm")

    def _fill(self, row: int, value: float, color: tuple[int, int, int]) -> None:
        top, right = HEAD + row * self._row, self._x(value)
        if right > MARGIN + LABELS:
            self._draw.rectangle((MARGIN + LABELS, top + self._row // 8, right, top + self._row * 7 // 8 - 1), color)

    def _middle(self, row: int) -> float:
        return HEAD + (row + 0.5) * self._row

    def _x(self, value: float) -> float:
        if value <= 0:
            return MARGIN + LABELS
        position = (math.log10(value) - self._low) / (self._high - self._low)
        return MARGIN + LABELS + BARS * min(max(position, 0.0), 1.0)


def _decades(gradients: Iterable[Gradient]) -> tuple[int, int]:
    """Return the exponents of the first and the last power of ten on the axis."""
    peaks = [gradient.max for gradient in gradients if gradient.max > 0 and math.isfinite(gradient.max)]
    means = [gradient.mean for gradient in gradients if gradient.mean > 0 and math.isfinite(gradient.mean)]
    high = math.ceil(math.log10(max(peaks, default=1.0)))
    low = math.ceil(math.log10(min(means, default=1e-4))) - 1  # strictly below, so that every bar is visible
    return max(min(low, high - 1), high - DECADES), high
