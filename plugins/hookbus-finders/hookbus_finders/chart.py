"""Plot of a range test, rendered with Pillow: smoothed loss over learning rate. Usable without hookbus."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from hookbus_finders.lr_range import Mode, RangeTest

WIDTH, HEIGHT, MARGIN, FONT_SIZE = 800, 480, 64, 12
MARKER_RADIUS = 5
TICKS = 5
"""Number of intervals on a linear axis."""
BACKGROUND_COLOR, TEXT_COLOR, GRID_COLOR = (255, 255, 255), (40, 40, 40), (225, 225, 225)
LINE_COLOR, MARKER_COLOR = (0, 92, 150), (200, 40, 30)


def render_range_test(result: RangeTest, mode: Mode) -> Image.Image:
    """Render the plot, with a marker at the suggestion.

    Args:
        result: Result of the test. Losses that are not finite are omitted.
        mode: "exponential" for a logarithmic axis of the learning rates, "linear" for a linear one.

    Returns:
        An RGB image of 800 x 480 pixels.
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND_COLOR)
    finite = [(rate, loss) for rate, loss in zip(result.rates, result.losses, strict=True) if math.isfinite(loss)]
    renderer = _Renderer(image, [rate for rate, _ in finite] or [1.0], [loss for _, loss in finite] or [0.0], mode)
    renderer.draw_axes()
    renderer.draw_line(finite)
    if result.suggestion is not None:
        renderer.draw_marker(result.suggestion, result.losses[result.rates.index(result.suggestion)])
    return image


class _Renderer:
    """Renderer of the axes, the line and the marker."""

    def __init__(self, image: Image.Image, rates: Sequence[float], losses: Sequence[float], mode: Mode) -> None:
        self._draw, self._font = ImageDraw.Draw(image), ImageFont.load_default(FONT_SIZE)
        self._is_log = mode == "exponential"
        self._x_range = _widen(self._transform(min(rates)), self._transform(max(rates)))
        self._y_range = _widen(min(losses), max(losses))

    def draw_axes(self) -> None:
        """Draw labeled grid lines, and the titles of the axes."""
        low, high = self._x_range
        ticks = [low + i * (high - low) / TICKS for i in range(TICKS + 1)]
        if self._is_log and math.ceil(low) < high:
            ticks = list(map(float, range(math.ceil(low), math.floor(high) + 1)))
        for tick in ticks:
            x = self._scale(tick, self._x_range, MARGIN, WIDTH - MARGIN)
            self._draw.line((x, MARGIN, x, HEIGHT - MARGIN), fill=GRID_COLOR)
            self._write(x, HEIGHT - MARGIN + 6, f"{10**tick if self._is_log else tick:.3g}", "ma")
        low, high = self._y_range
        for i in range(TICKS + 1):
            loss = low + i * (high - low) / TICKS
            y = self._to_y(loss)
            self._draw.line((MARGIN, y, WIDTH - MARGIN, y), fill=GRID_COLOR)
            self._write(MARGIN - 6, y, f"{loss:.3g}", "rm")
        self._write(WIDTH / 2, HEIGHT - MARGIN / 2, "learning rate", "ma")
        self._write(MARGIN, MARGIN / 2, "smoothed loss", "la")

    def draw_line(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw the losses as a line."""
        self._draw.line([(self._to_x(rate), self._to_y(loss)) for rate, loss in points], fill=LINE_COLOR, width=2)

    def draw_marker(self, rate: float, loss: float) -> None:
        """Draw a labeled point."""
        x, y = self._to_x(rate), self._to_y(loss)
        self._draw.ellipse((x - MARKER_RADIUS, y - MARKER_RADIUS, x + MARKER_RADIUS, y + MARKER_RADIUS), MARKER_COLOR)
        self._write(x + 2 * MARKER_RADIUS, y - MARKER_RADIUS, f"suggestion: {rate:.3g}", "lb", MARKER_COLOR)

    def _write(self, x: float, y: float, text: str, anchor: str, color: tuple[int, int, int] = TEXT_COLOR) -> None:
        self._draw.text((x, y), text, fill=color, font=self._font, anchor=anchor)

    def _transform(self, rate: float) -> float:
        return math.log10(rate) if self._is_log else rate

    def _to_x(self, rate: float) -> float:
        return self._scale(self._transform(rate), self._x_range, MARGIN, WIDTH - MARGIN)

    def _to_y(self, loss: float) -> float:
        return self._scale(loss, self._y_range, HEIGHT - MARGIN, MARGIN)

    def _scale(self, value: float, limits: tuple[float, float], first: float, final: float) -> float:
        return first + (value - limits[0]) / (limits[1] - limits[0]) * (final - first)


def _widen(low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis; an interval of length 0 is widened."""
    return (low, high) if high > low else (low - 0.5, low + 0.5)
