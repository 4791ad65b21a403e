"""One sample as a picture: what went in, what should come out, and what came out. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.grid import beside
from hookbus_visualization.images import as_array, is_image, to_pixels
from hookbus_visualization.located import are_regions, has_boxes, objects_panel, regions_panel
from hookbus_visualization.panel import Panel, Picture
from hookbus_visualization.tokens import token_picture
from hookbus_visualization.verdict import Verdict, judged

__all__ = ["input_picture", "sample_panel"]

AsPixels = Callable[[Any], Picture]


def sample_panel(
    image: Any,
    target: Any,
    prediction: Any,
    names: Sequence[str] = (),
    pixels: AsPixels = to_pixels,
    threshold: float = 0.0,
) -> Panel:
    """One sample, and what was made of it.

    Args:
        image: what went in: an image, tokens (whole numbers or words), or a vector of numbers.
        target: the truth: a class, numbers, an image, a label map, a mapping with boxes, or a class for each token;
            None for unknown.
        prediction: the like; of classes the scores of all as well. None for unknown.
        names: of the classes, in their order.
        pixels: makes pixels of an image, of those that go in and those that come out.
        threshold: detections with a score below it are left out.

    Returns:
        Classes and numbers stand below the picture, tokens below those that went in, boxes on it; images and label maps
        stand beside it: what went in, the truth, the prediction.

    Raises:
        ValueError: nothing of this fits.
    """
    picture = input_picture(image, pixels)
    there = [each for each in (target, prediction) if each is not None]
    if any(map(has_boxes, there)):
        return objects_panel(picture, target, prediction, names, threshold)
    if are_regions(target, prediction):
        return regions_panel(picture, target, prediction)
    classes = _token_classes(target), _token_classes(prediction)
    if _is_words(image) and any(each is not None for each in classes):
        return _token_panel(picture, *classes, names)
    if any(is_image(as_array(each)) for each in there):
        return _image_panel(picture, target, prediction, pixels)
    if not all(map(_are_numbers, there)):
        raise ValueError("truth and prediction are neither classes, numbers, tokens, boxes nor images")
    verdict = judged(target, prediction, names)
    return Panel(picture, verdict.text, verdict.frame)


def input_picture(value: Any, pixels: AsPixels = to_pixels) -> Picture:
    """What went in, as a picture.

    Raises:
        ValueError: it is neither an image, nor tokens, nor a vector of numbers.
    """
    if _is_words(value):
        return token_picture(value.split() if isinstance(value, str) else list(as_array(value)))
    array = as_array(value)
    if array.ndim == 1 and array.size and array.dtype.kind in "bf":
        return pixels(array[None])
    if not is_image(array):
        raise ValueError("the inputs are neither images, tokens nor vectors of numbers")
    return pixels(value)


def _is_words(value: Any) -> bool:
    if isinstance(value, str):
        return True
    array = as_array(value)
    return array.ndim == 1 and array.size > 0 and array.dtype.kind in "iuU"


def _are_numbers(value: Any) -> bool:
    return as_array(value).ndim < 2 and as_array(value).dtype.kind in "biuf"


def _token_classes(value: Any) -> NDArray[Any] | None:
    """A class per token, of classes (L,) or of scores (L, C)."""
    array = None if value is None else as_array(value)
    if array is None or array.ndim not in (1, 2) or not array.size:
        return None
    if array.ndim == 2:
        return np.asarray(array.argmax(1)) if array.dtype.kind == "f" else None
    return array if array.dtype.kind in "iu" and array.size > 1 else None


def _token_panel(
    picture: Picture, truth: NDArray[Any] | None, said: NDArray[Any] | None, names: Sequence[str]
) -> Panel:
    """What went in, then the truth, then what was said, right and wrong underlined."""
    if truth is None or said is None or len(truth) != len(said):
        rows = [_token_row(each, names) for each in (truth, said) if each is not None]
        return Panel(np.concatenate([picture, *rows]))
    counted = truth >= 0
    right = (truth == said) & counted
    marks = [bool(r) if c else None for r, c in zip(right, counted, strict=True)]
    rows = [_token_row(truth, names), _token_row(said, names, marks)]
    text = f"{right.sum()} of {counted.sum()} tokens are right"
    return Panel(np.concatenate([picture, *rows]), text, Verdict(text, bool((right == counted).all())).frame)


def _token_row(classes: NDArray[Any], names: Sequence[str], right: Sequence[bool | None] | None = None) -> Picture:
    return token_picture([names[each] if 0 <= each < len(names) else each for each in classes.tolist()], right)


def _image_panel(picture: Picture, target: Any, prediction: Any, pixels: AsPixels) -> Panel:
    """Images side by side."""
    named = {"truth": target, "prediction": prediction}
    there = {name: pixels(each) for name, each in named.items() if each is not None}
    return Panel(beside([picture, *there.values()]), " | ".join(["input", *there]))
