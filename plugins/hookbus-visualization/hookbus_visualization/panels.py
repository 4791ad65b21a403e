"""Panels of single samples: input, tokens, targets and predictions. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hookbus_visualization.classification import ClassificationResult, compare_classes
from hookbus_visualization.images import is_image, to_array, to_pixels
from hookbus_visualization.instances import DrawStyle, build_objects_panel, has_boxes
from hookbus_visualization.palette import class_name
from hookbus_visualization.panel import (
    BACKGROUND_COLOR,
    CORRECT_COLOR,
    INCORRECT_COLOR,
    LINE_HEIGHT_PIXELS,
    MAX_SIDE_PIXELS,
    TEXT_COLOR,
    Color,
    Panel,
    RGBImage,
    ellipsize,
    get_font,
    hstack_images,
    resize_to_fit,
    wrap,
)
from hookbus_visualization.regions import build_regions_panel, is_segmentation, read_sample

PixelConverter = Callable[[Any], RGBImage]
PADDING_PIXELS = 4
OVERFLOW_WIDTH_PIXELS = 100
"""Width in pixels that is reserved for `… <count> more`."""
MAX_LINES = (MAX_SIDE_PIXELS - PADDING_PIXELS) // (LINE_HEIGHT_PIXELS + PADDING_PIXELS)
CELL_COLOR: Color = (235, 235, 235)


def build_sample_panel(
    image: Any,
    target: Any,
    prediction: Any,
    names: Sequence[str] = (),
    pixels: PixelConverter = to_pixels,
    threshold: float = 0.0,
) -> Panel:
    """Return the panel of one sample.

    Args:
        image: The input: an image, tokens (integers or words), or a vector of numbers.
        target: The ground truth: a class, numbers, an image, a label map, a mapping with boxes, or a class per token;
            None if unknown.
        prediction: The prediction, in the same form as `target`; class predictions may be scores of all classes. None
            if unknown.
        names: Names of the classes, by class index.
        pixels: Function that converts input and output images to pixels.
        threshold: Minimum score of a detection.

    Returns:
        The panel. Classes and numbers are in the caption, tokens are below the input, boxes are on the input; images
        and label maps are next to the input, in the order input, target, prediction.

    Raises:
        ValueError: If the values have no supported form.
    """
    input_image = render_input(image, pixels)
    values = [value for value in (target, prediction) if value is not None]
    # From the most to the least specific form: a label map is also an image, and a row of token classes also numbers.
    if any(map(has_boxes, values)):
        style = DrawStyle(names)
        return build_objects_panel(input_image, target, prediction, style, threshold=threshold)._replace(caption="")
    if is_segmentation(target, prediction):
        display = resize_to_fit(input_image)
        return build_regions_panel(display, read_sample(input_image, display, target, prediction))
    classes = _get_token_classes(target), _get_token_classes(prediction)
    if _is_tokens(image) and any(row is not None for row in classes):
        return _build_token_panel(input_image, *classes, names)
    if any(is_image(to_array(value)) for value in values):
        return _build_image_panel(input_image, target, prediction, pixels)
    if any(to_array(value).ndim > 1 or to_array(value).dtype.kind not in "biuf" for value in values):
        raise ValueError("target and prediction must be classes, numbers, tokens, boxes or images")
    result = compare_classes(target, prediction, names)
    return Panel(input_image, result.text, result.frame)


def render_input(value: Any, pixels: PixelConverter = to_pixels) -> RGBImage:
    """Render a model input: an image, tokens (a text, words or integers), or a vector of numbers.

    Raises:
        ValueError: If the value is none of these.
    """
    if _is_tokens(value):
        return render_tokens(value.split() if isinstance(value, str) else list(to_array(value)))
    array = to_array(value)
    if array.ndim == 1 and array.size and array.dtype.kind in "bf":
        return pixels(array[None])
    if not is_image(array):
        raise ValueError("inputs must be images, tokens or vectors of numbers")
    return pixels(value)


def _is_tokens(value: Any) -> bool:
    if isinstance(value, str):
        return True
    array = to_array(value)
    return array.ndim == 1 and array.size > 0 and array.dtype.kind in "iuU"


def _get_token_classes(value: Any) -> NDArray[Any] | None:
    """Return the class of each token, (L,), from classes (L,) or scores (L, C); None for any other value."""
    array = None if value is None else to_array(value)
    if array is None or array.ndim not in (1, 2) or not array.size:
        return None
    if array.ndim == 2:
        return np.asarray(array.argmax(1)) if array.dtype.kind == "f" else None
    # A single integer is the class of the whole sequence.
    return array if array.dtype.kind in "iu" and array.size > 1 else None


def _build_token_panel(
    image: RGBImage, targets: NDArray[Any] | None, predictions: NDArray[Any] | None, names: Sequence[str]
) -> Panel:
    """Return the input tokens, the targets and the predictions below each other, with marked predictions."""
    if targets is None or predictions is None or len(targets) != len(predictions):
        rows = [_render_token_row(classes, names) for classes in (targets, predictions) if classes is not None]
        return Panel(np.concatenate([image, *rows]))
    # Negative targets are padding: the usual `ignore_index` of a loss is -100.
    counted = targets >= 0
    correct = (targets == predictions) & counted
    marks = [bool(is_correct) if is_counted else None for is_correct, is_counted in zip(correct, counted, strict=True)]
    rows = [_render_token_row(targets, names), _render_token_row(predictions, names, marks)]
    text = f"{correct.sum()} of {counted.sum()} tokens are right"
    return Panel(
        np.concatenate([image, *rows]), text, ClassificationResult(text, bool((correct == counted).all())).frame
    )


def _render_token_row(
    classes: NDArray[Any], names: Sequence[str], correct: Sequence[bool | None] | None = None
) -> RGBImage:
    return render_tokens([class_name(index, names) for index in classes.tolist()], correct)


def _build_image_panel(image: RGBImage, target: Any, prediction: Any, pixels: PixelConverter) -> Panel:
    """Return input, target and prediction side by side."""
    values = {"truth": target, "prediction": prediction}
    images = {name: pixels(value) for name, value in values.items() if value is not None}
    return Panel(hstack_images([image, *images.values()]), " | ".join(["input", *images]))


def render_tokens(tokens: Sequence[object], correct: Sequence[bool | None] | None = None) -> RGBImage:
    """Render tokens; tokens that do not fit are replaced by their number.

    Args:
        tokens: Words, or token IDs.
        correct: Mark of each token: True underlines the token, False also crosses it out, None adds no mark.

    Returns:
        The pixels, (H, 320, 3), uint8, with H at most 320.
    """
    texts = [str(token) for token in tokens]
    corners = _place_cells(texts)
    height = (corners[-1][1] if corners else 0) + LINE_HEIGHT_PIXELS + PADDING_PIXELS
    image = Image.new("RGB", (MAX_SIDE_PIXELS, height), BACKGROUND_COLOR)
    draw = ImageDraw.Draw(image)
    for i, corner in enumerate(corners):
        remaining = len(texts) - i
        if i == len(corners) - 1 and remaining > 1:
            draw.text(corner, f"… {remaining} more", TEXT_COLOR, get_font())
        else:
            _draw_cell(draw, corner, texts[i], correct[i] if correct is not None and i < len(correct) else None)
    return np.array(image)


def _place_cells(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the left and top corners of the cells; `… <count> more` fits at the last one."""
    widths = (_get_cell_width(text) + PADDING_PIXELS for text in texts)
    positions = wrap(widths, MAX_SIDE_PIXELS - PADDING_PIXELS)
    corners = [
        (PADDING_PIXELS + left, PADDING_PIXELS + line * (LINE_HEIGHT_PIXELS + PADDING_PIXELS))
        for left, line in takewhile(lambda position: position[1] < MAX_LINES, positions)
    ]
    # The last cell is replaced by `… <count> more`: cells are removed until the text fits.
    while len(corners) < len(texts) and corners[-1][0] > MAX_SIDE_PIXELS - OVERFLOW_WIDTH_PIXELS:
        corners.pop()
    return corners


def _get_cell_width(text: str) -> int:
    # No character is narrower than a pixel, so the first `MAX_SIDE_PIXELS` characters are enough to measure the width.
    width = round(get_font().getlength(text[:MAX_SIDE_PIXELS]))
    return min(width, MAX_SIDE_PIXELS - 4 * PADDING_PIXELS) + 2 * PADDING_PIXELS


def _draw_cell(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, correct: bool | None) -> None:
    left, top = corner
    width = _get_cell_width(text)
    right, bottom, middle = left + width - 1, top + LINE_HEIGHT_PIXELS - 1, top + LINE_HEIGHT_PIXELS // 2
    draw.rectangle((left, top, right, bottom), CELL_COLOR)
    draw.text((left + PADDING_PIXELS, top + 1), ellipsize(text, width - 2 * PADDING_PIXELS + 1), TEXT_COLOR, get_font())
    if correct is not None:
        draw.line((left, bottom, right, bottom), CORRECT_COLOR if correct else INCORRECT_COLOR, 2)
    # An incorrect token is also crossed out, so that marks are distinguishable without colors.
    if correct is False:
        draw.line((left, middle, right, middle), INCORRECT_COLOR)
