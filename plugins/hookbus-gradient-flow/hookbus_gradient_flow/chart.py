"""Bar chart of gradient statistics, rendered with Pillow.

One row per parameter, in the order of the model, with the mean (dark) and the maximum (light) of the absolute values of
its gradient on a logarithmic axis. Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw, ImageFont

from hookbus_gradient_flow.statistics import Gradient

LABEL_WIDTH, BAR_WIDTH, MARGIN = 320, 560, 16
HEADER_HEIGHT, FOOTER_HEIGHT, FONT_SIZE = 28, 24, 12
MAX_ROW_HEIGHT, MIN_ROW_HEIGHT, MAX_HEIGHT = 16, 3, 2400
MAX_DECADES = 12
"""Maximum number of powers of ten on the axis, which ends at the largest gradient."""

BACKGROUND_COLOR, TEXT_COLOR, GRID_COLOR = (255, 255, 255), (40, 40, 40), (225, 225, 225)
MEAN_COLOR, MAX_COLOR, PROBLEM_COLOR = (0, 92, 150), (146, 197, 232), (200, 40, 30)


def render_chart(gradients: Sequence[Gradient], missing: Iterable[str] = (), title: str = "") -> Image.Image:
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
    row = min(MAX_ROW_HEIGHT, max(MIN_ROW_HEIGHT, MAX_HEIGHT // max(count, 1)))
    size = (2 * MARGIN + LABEL_WIDTH + BAR_WIDTH, HEADER_HEIGHT + row * count + FOOTER_HEIGHT)
    image = Image.new("RGB", size, BACKGROUND_COLOR)
    renderer = _ChartRenderer(image, row, *_get_decades(gradients))
    renderer.draw_text(MARGIN, MARGIN // 2, title)
    renderer.draw_axis(count)
    for i, gradient in enumerate(gradients):
        renderer.draw_bars(i, gradient)
    for i, name in enumerate(absent, start=len(gradients)):
        renderer.draw_note(i, name, "no gradient")
    return image


class _ChartRenderer:
    """Renderer of the axis and the rows of a chart."""

    def __init__(self, image: Image.Image, row: int, low: int, high: int) -> None:
        self._draw = ImageDraw.Draw(image)
        self._font = ImageFont.load_default(FONT_SIZE)
        self._row_height, self._low, self._high = row, low, high
        self._label_interval = math.ceil((FONT_SIZE + 2) / row)  # interval of labels, in rows

    def draw_text(
        self, x: float, y: float, text: str, color: tuple[int, int, int] = TEXT_COLOR, anchor: str = "la"
    ) -> None:
        self._draw.text((x, y), text, fill=color, font=self._font, anchor=anchor)

    def draw_axis(self, rows: int) -> None:
        """Draw a labeled line for each power of ten, or for every second one if the axis is long."""
        bottom = HEADER_HEIGHT + rows * self._row_height
        for decade in range(self._low, self._high + 1, 1 if self._high - self._low < 8 else 2):
            x = self._to_x(10.0**decade)
            self._draw.line((x, HEADER_HEIGHT, x, bottom), fill=GRID_COLOR)
            self.draw_text(x, bottom + 4, f"1e{decade}", anchor="ma")

    def draw_bars(self, row: int, gradient: Gradient) -> None:
        """Draw the two bars of a gradient, or a note if it is not finite."""
        # The maximum of a gradient with NaN or infinity is not finite either.
        if not math.isfinite(gradient.max):
            self.draw_note(row, gradient.name, "not finite")
            return
        self._draw_label(row, gradient.name, TEXT_COLOR)
        self._draw_bar(row, gradient.max, MAX_COLOR)
        self._draw_bar(row, gradient.mean, MEAN_COLOR)

    def draw_note(self, row: int, name: str, text: str) -> None:
        """Draw a row with a text instead of bars."""
        self._draw_label(row, name, PROBLEM_COLOR)
        if row % self._label_interval == 0:
            self.draw_text(MARGIN + LABEL_WIDTH + 4, self._get_row_center(row), text, PROBLEM_COLOR, "lm")

    def _draw_label(self, row: int, name: str, color: tuple[int, int, int]) -> None:
        """Draw the name of a row, truncated at its start if it is too long."""
        if row % self._label_interval:
            return
        # Truncated at the start, because the end identifies the parameter: `....layer4.1.conv2.weight`.
        while self._font.getlength(name) > LABEL_WIDTH - 8:
            name = "…" + name.lstrip("…")[1:]
        self.draw_text(MARGIN + LABEL_WIDTH - 8, self._get_row_center(row), name, color, "rm")

    def _draw_bar(self, row: int, value: float, color: tuple[int, int, int]) -> None:
        top, right = HEADER_HEIGHT + row * self._row_height, self._to_x(value)
        if right > MARGIN + LABEL_WIDTH:
            self._draw.rectangle(
                (MARGIN + LABEL_WIDTH, top + self._row_height // 8, right, top + self._row_height * 7 // 8 - 1), color
            )

    def _get_row_center(self, row: int) -> float:
        return HEADER_HEIGHT + (row + 0.5) * self._row_height

    def _to_x(self, value: float) -> float:
        if value <= 0:
            return MARGIN + LABEL_WIDTH
        position = (math.log10(value) - self._low) / (self._high - self._low)
        return MARGIN + LABEL_WIDTH + BAR_WIDTH * min(max(position, 0.0), 1.0)


def _get_decades(gradients: Iterable[Gradient]) -> tuple[int, int]:
    """Return the exponents of the first and the last power of ten on the axis."""
    peaks = [gradient.max for gradient in gradients if gradient.max > 0 and math.isfinite(gradient.max)]
    means = [gradient.mean for gradient in gradients if gradient.mean > 0 and math.isfinite(gradient.mean)]
    high = math.ceil(math.log10(max(peaks, default=1.0)))
    low = math.ceil(math.log10(min(means, default=1e-4))) - 1  # strictly below, so that every bar is visible
    return max(min(low, high - 1), high - MAX_DECADES), high
