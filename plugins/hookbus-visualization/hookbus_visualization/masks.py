"""Masks: the ways to write which pixel belongs to what, and their colours on a picture.

Everything becomes a label map: an array (H, W) with the class id of each pixel, `NOTHING` where there is none.
Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookbus_visualization.palette import colours_of
from hookbus_visualization.panel import Colour, Picture

__all__ = ["NOTHING", "draw_edges", "edges_of", "instance_masks", "label_map", "overlay", "resized", "stacked"]

NOTHING = -1


def label_map(value: Any, size: tuple[int, int]) -> NDArray[np.int64]:
    """The class of each pixel.

    Args:
        value: a tensor or an array, of a size of its own:
            (H, W) or (1, H, W) of whole numbers: a label map;
            (H, W) or (1, H, W) of fractions or truth values: a mask, class 1 against class 0. Fractions are
            probabilities (from 0.5 on it is class 1) as long as all lie from 0 to 1, else logits (from 0 on);
            (C, H, W) of fractions: logits or probabilities, the class is the one with the largest;
            (C, H, W) of whole numbers or truth values: one hot. The last two may be (H, W, C) where that fits `size`
            and the other does not.
        size: height and width of the picture; a map of another size is brought to it, each pixel to the nearest.

    Returns:
        (H, W) of `size`. `NOTHING` where a logit is NaN and where one-hot is all zero.

    Raises:
        ValueError: the shape is another one, or there are no pixels.
    """
    tensor = _tensor(value)
    if tensor.dim() not in (2, 3) or not tensor.numel():
        raise ValueError(f"a segmentation has shape (H, W) or (classes, H, W), not {tuple(tensor.shape)}")
    planes = _classes_first(tensor, size) if tensor.dim() == 3 else tensor[None]
    return resized(_numbers(planes[0]) if len(planes) == 1 else _strongest(planes), size)


def instance_masks(value: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Masks of instances as truth values.

    Args:
        value: (N, H, W) or (N, 1, H, W); truth values, whole numbers, probabilities or logits, told as in `label_map`.
        size: height and width of the picture.

    Returns:
        (N, H, W) of `size`.

    Raises:
        ValueError: the shape is another one, or there are no pixels.
    """
    tensor = _tensor(value)
    if tensor.dim() == 4 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if tensor.dim() != 3 or not all(tensor.shape[1:]):
        raise ValueError(f"masks have shape (N, H, W), not {tuple(tensor.shape)}")
    return np.array([resized(_numbers(each), size) > 0 for each in tensor], bool).reshape(-1, *size)


def stacked(masks: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """One label map of many instances; of two that cover a pixel, the later one has it.

    Args:
        masks: (N, H, W).
        labels: (N,), class ids.

    Returns:
        (H, W); `NOTHING` where there is no instance.
    """
    found = np.full(masks.shape[1:], NOTHING, np.int64)
    for mask, label in zip(masks, labels, strict=True):
        found[mask] = label
    return found


def overlay(
    image: Picture,
    labels: NDArray[np.int64],
    *,
    opacity: float = 0.5,
    palette: Sequence[Colour] = (),
    ignored: Collection[int] = (),
) -> Picture:
    """Lay the colours of the classes over a picture.

    Args:
        image: (H, W, 3); it is not changed.
        labels: (H, W).
        opacity: from 0, the picture alone, to 1, the colours alone.
        palette: colours of the first classes; default the fixed ones.
        ignored: classes without a colour. What is below 0 has none either.

    Returns:
        A new picture.
    """
    classes = np.unique(labels)
    colours = colours_of(classes, palette).astype(np.float32)[np.searchsorted(classes, labels)]
    coloured = _coloured(labels, ignored)[..., None]
    return np.where(coloured, (image * (1 - opacity) + colours * opacity).round(), image).astype(np.uint8)


def edges_of(regions: NDArray[Any]) -> NDArray[np.bool_]:
    """The pixels whose neighbour, to the right or below, belongs to something else.

    Args:
        regions: (H, W), equal within a region.

    Returns:
        (H, W).
    """
    found = np.zeros(regions.shape, bool)
    found[:, :-1] |= regions[:, :-1] != regions[:, 1:]
    found[:-1] |= regions[:-1] != regions[1:]
    return found


def draw_edges(image: Picture, edges: NDArray[np.bool_]) -> Picture:
    """Draw edges in white, which no class has.

    Args:
        image: (H, W, 3); it is not changed.
        edges: (H, W).

    Returns:
        A new picture.
    """
    return np.where(edges[..., None], np.uint8(255), image)


def resized(labels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """A label map of another size, each pixel from the nearest one.

    Args:
        labels: (h, w), not empty.
        size: height and width to come to.

    Returns:
        (H, W) of `size`; the same array where nothing changes.
    """
    if labels.shape == tuple(size):
        return labels
    rows, columns = ((np.arange(new) + 0.5) * old // new for new, old in zip(size, labels.shape, strict=True))
    picked: NDArray[Any] = labels[rows.astype(int)[:, None], columns.astype(int)]
    return picked


def _tensor(value: Any) -> Tensor:
    """A tensor where it is, anything else as a new one: arrays that must not be written to warn otherwise."""
    return value.detach() if isinstance(value, Tensor) else torch.tensor(np.asarray(value))


def _coloured(labels: NDArray[np.int64], ignored: Collection[int]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (labels >= 0) & ~np.isin(labels, list(ignored))
    return found


def _classes_first(tensor: Tensor, size: tuple[int, int]) -> Tensor:
    is_last = tensor.shape[:2] == size and tensor.shape[1:] != size
    return tensor.permute(2, 0, 1) if is_last else tensor


def _strongest(tensor: Tensor) -> NDArray[np.int64]:
    """The class with the largest value, found where the values are: a class id is much less to copy than they are."""
    values, classes = tensor.max(dim=0)
    nothing = values.isnan() if tensor.is_floating_point() else values == 0
    return classes.masked_fill(nothing, NOTHING).cpu().numpy().astype(np.int64)


def _numbers(tensor: Tensor) -> NDArray[np.int64]:
    """Labels as they are; masks as 0 and 1."""
    if not tensor.is_floating_point():
        return tensor.cpu().numpy().astype(np.int64)
    values = tensor.float().cpu().numpy()
    if (np.isfinite(values) & (values == values.round())).all():
        return values.astype(np.int64)
    are_probabilities = not ((values < 0) | (values > 1)).any()
    return np.where(np.isnan(values), NOTHING, values >= (0.5 if are_probabilities else 0.0)).astype(np.int64)
