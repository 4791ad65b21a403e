"""Colors, names and legend of classes. Independent of hookbus.

A color depends only on the class index, so it is constant over a run. The default colors are the seven chromatic colors
of Okabe and Ito ("Color Universal Design", 2008), which are distinguishable with all forms of color blindness. Classes
from the eighth on have darker and lighter shades of these colors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from hookbus_visualization.anomalies import report_anomaly
from hookbus_visualization.panel import BACKGROUND_COLOR, TEXT_COLOR, Color, RGBImage, ellipsize, get_font, wrap

BASE_COLORS: tuple[Color, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
NO_CLASS_COLOR: Color = (128, 128, 128)
LINE_HEIGHT_PIXELS, SWATCH_PIXELS, GAP_PIXELS = 18, 12, 8
MAX_CLASSES = 40
"""Maximum number of classes; the last entry shows the number of omitted classes."""

BLACK: Color = (0, 0, 0)
WHITE: Color = (255, 255, 255)
LUMINANCE_WEIGHTS = (0.2126, 0.7152, 0.0722)
EQUAL_CONTRAST_LUMINANCE = 0.179
"""Luminance L with equal contrast to black and white: 1.05 / (L + 0.05) == (L + 0.05) / 0.05."""


def class_color(class_id: int, palette: Sequence[Color] = ()) -> Color:
    """Return the color of a class.

    Args:
        class_id: Class index, from 0. A negative index denotes no class and is gray.
        palette: Colors of the first classes. Other classes have the default colors.
    """
    if class_id < 0:
        return NO_CLASS_COLOR
    if class_id < len(palette):
        return palette[class_id]
    level, hue = divmod(class_id, len(BASE_COLORS))
    return _apply_shade(BASE_COLORS[hue], _get_shade(level))


def class_colors(class_ids: NDArray[np.integer], palette: Sequence[Color] = ()) -> NDArray[np.uint8]:
    """Return the colors, (N, 3), uint8, of class indices, (N,), as in `class_color`."""
    return np.array([class_color(int(class_id), palette) for class_id in class_ids], dtype=np.uint8).reshape(-1, 3)


def report_unknown_classes(labels: NDArray[np.int64] | None, count: int) -> None:
    """Report class indices that are not below the number of classes.

    Args:
        labels: Class indices of any shape; None if unknown. A negative index denotes no class.
        count: Number of classes; 0 if unknown.
    """
    if labels is not None and count:
        problem, consequence = f"labels are outside of the {count} classes", "They have default colors and no names."
        report_anomaly(problem, consequence, labels >= count, labels)


@lru_cache
def contrast_color(color: Color) -> Color:
    """Return black or white, whichever has the higher contrast to a color.

    The contrast is computed from the relative luminance of the Web Content Accessibility Guidelines 2.2.
    """
    channels = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in np.divide(color, 255)
    ]
    return BLACK if np.dot(LUMINANCE_WEIGHTS, channels) > EQUAL_CONTRAST_LUMINANCE else WHITE


def class_name(class_id: int, names: Sequence[str] = ()) -> str:
    """Return the name of a class, or its index if it has no name."""
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)


def parse_color(value: str | Sequence[int]) -> Color:
    """Parse a color.

    Args:
        value: A name ("red"), a hexadecimal code ("#ff0000"), or red, green and blue, each from 0 to 255.

    Raises:
        ValueError: If the value is not a color.
    """
    try:
        red, green, blue = ImageColor.getrgb(value) if isinstance(value, str) else value
        if all(isinstance(channel, int) and 0 <= channel <= 255 for channel in (red, green, blue)):
            return red, green, blue
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"invalid color, got {value!r}. Use a name such as red, a code such as '#ff0000', or three integers from 0 to "
        "255."
    )


def _get_shade(level: int) -> float:
    """Return the shade of a level: 0 for level 0, then the van der Corput sequence.

    Returns:
        The shade, from -0.5 (half as bright) to 0.5 (halfway to white).
    """
    # Consecutive values of the sequence are far apart, so the first few shades are the most distinct ones.
    digits = f"{level:b}"[::-1]
    return (int(digits, 2) / (1 << len(digits)) + 0.5) % 1 - 0.5


def _apply_shade(color: Color, amount: float) -> Color:
    goal = 255 if amount > 0 else 0
    red, green, blue = (round(value + (goal - value) * abs(amount)) for value in color)
    return red, green, blue


def draw_legend(
    classes: Iterable[int], width: int, names: Sequence[str] = (), palette: Sequence[Color] = ()
) -> RGBImage:
    """Draw a color swatch and the name of each class, in lines of a given width.

    Args:
        classes: Class indices; each distinct class has one entry, in ascending order.
        width: Width of the image in pixels; longer names are truncated.
        names: Names of the classes, by class index. A class without a name is shown as its index.
        palette: Colors of the first classes. Other classes have the default colors.

    Returns:
        The pixels, (H, `width`, 3), uint8. H is 0 if there are no classes.
    """
    ids = sorted(set(classes))
    entries = [(class_name(class_id, names), class_color(class_id, palette)) for class_id in ids[:MAX_CLASSES]]
    if len(ids) > MAX_CLASSES:
        # A swatch in the color of the background is invisible.
        entries.append((f"and {len(ids) - MAX_CLASSES} more", BACKGROUND_COLOR))
    font, text_width = get_font(), width - SWATCH_PIXELS - 2 * GAP_PIXELS
    texts = [ellipsize(name, text_width) for name, _ in entries]
    widths = [SWATCH_PIXELS + 2 * GAP_PIXELS + round(font.getlength(text)) for text in texts]
    positions = list(wrap(widths, width))
    height = (positions[-1][1] + 1) * LINE_HEIGHT_PIXELS if positions else 0
    sheet = Image.new("RGB", (width, height), BACKGROUND_COLOR)
    draw = ImageDraw.Draw(sheet)
    for (x, line), text, (_, color) in zip(positions, texts, entries, strict=True):
        top = line * LINE_HEIGHT_PIXELS + (LINE_HEIGHT_PIXELS - SWATCH_PIXELS) // 2
        draw.rectangle((x, top, x + SWATCH_PIXELS - 1, top + SWATCH_PIXELS - 1), color)
        position = x + SWATCH_PIXELS + GAP_PIXELS // 2, line * LINE_HEIGHT_PIXELS + LINE_HEIGHT_PIXELS // 2
        draw.text(position, text, TEXT_COLOR, font, anchor="lm")
    return np.array(sheet)
