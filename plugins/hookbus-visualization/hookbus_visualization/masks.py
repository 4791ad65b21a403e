"""Segmentation masks: conversion to label maps, and drawing. Independent of hookbus.

A label map is an array (H, W) with the class index of each pixel, and `NO_CLASS` for pixels without a class.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookbus_visualization.anomalies import report_anomaly
from hookbus_visualization.palette import class_colors
from hookbus_visualization.panel import Color, RGBImage

NO_CLASS = -1
NAN_ANOMALY = ("pixels of segmentation maps are NaN", "They are drawn without a class.")


def to_label_map(value: Any, size: tuple[int, int]) -> NDArray[np.int64]:
    """Convert a segmentation to a label map.

    Args:
        value: Tensor or array, of any image size:

            * (H, W) or (1, H, W), integer, or float with integers and NaN only: a label map;
            * (H, W) or (1, H, W), float or boolean: a binary mask of class 1. Floats are probabilities with the
              threshold 0.5 if all are in [0, 1], otherwise logits with the threshold 0;
            * (C, H, W), float: logits or probabilities; the class is the argmax;
            * (C, H, W), integer or boolean: one-hot masks.

            The last two may be (H, W, C) if only that order matches `size`.
        size: Height and width of the image in pixels. A map of another size is resized with nearest-neighbor
            interpolation.

    Returns:
        The label map, (H, W) of `size`. `NO_CLASS` for pixels with a NaN logit or without a one-hot class.

    Raises:
        ValueError: If the value has another shape, or no pixels.
    """
    tensor = _to_tensor(value)
    if tensor.dim() not in (2, 3) or not tensor.numel():
        raise ValueError(f"segmentation must have shape (H, W) or (C, H, W), got {tuple(tensor.shape)}")
    planes = tensor if tensor.dim() == 3 else tensor[None]
    if _is_classes_last(tuple(planes.shape), size):
        planes = planes.permute(2, 0, 1)
    return resize_labels(_to_class_ids(planes[0]) if len(planes) == 1 else _argmax_classes(planes), size)


def get_class_count(value: Any, size: tuple[int, int]) -> int:
    """Return the number of classes of logits or one-hot masks, as in `to_label_map`; 0 for other values."""
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) != 3:
        return 0
    count = shape[2] if _is_classes_last(shape, size) else shape[0]
    return count if count > 1 else 0


def to_instance_masks(value: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Convert instance masks to boolean masks.

    Args:
        value: Masks, (N, H, W) or (N, 1, H, W): booleans, integers, probabilities or logits, as in `to_label_map`.
        size: Height and width of the image in pixels.

    Returns:
        The masks, (N, H, W) of `size`.

    Raises:
        ValueError: If the value has another shape, or no pixels.
    """
    tensor = _to_tensor(value)
    if tensor.dim() == 4 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if tensor.dim() != 3 or not all(tensor.shape[1:]):
        raise ValueError(f"masks must have shape (N, H, W), got {tuple(tensor.shape)}")
    # Mask by mask: whether floats are probabilities or logits is determined per mask. reshape: N may be 0.
    return np.array([resize_labels(_to_class_ids(mask), size) > 0 for mask in tensor], bool).reshape(-1, *size)


def merge_instances(masks: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge boolean masks, (N, H, W), with class indices, (N,), into a label map, (H, W).

    A later instance covers an earlier one; pixels without an instance are `NO_CLASS`.
    """
    merged = np.full(masks.shape[1:], NO_CLASS, np.int64)
    for mask, label in zip(masks, labels, strict=True):
        merged[mask] = label
    return merged


def overlay_classes(
    image: RGBImage,
    labels: NDArray[np.int64],
    *,
    opacity: float = 0.5,
    palette: Sequence[Color] = (),
    ignored: Collection[int] = (),
) -> RGBImage:
    """Overlay an image with the class colors of a label map.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        labels: Label map, (H, W).
        opacity: Opacity of the colors: 0 returns the image, 1 returns the colors.
        palette: Colors of the first classes. Other classes have the default colors.
        ignored: Class indices without a color. Negative indices have no color either.

    Returns:
        A new image, (H, W, 3), uint8.
    """
    # One color per distinct class instead of a table by class index: indices may be as large as 70,000.
    classes = np.unique(labels)
    colors = class_colors(classes, palette).astype(np.float32)[np.searchsorted(classes, labels)]
    is_colored = (labels >= 0) & ~np.isin(labels, list(ignored))
    return np.where(is_colored[..., None], (image * (1 - opacity) + colors * opacity).round(), image).astype(np.uint8)


def find_boundaries(regions: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask, (H, W), of the pixels whose right or lower neighbor belongs to another region.

    Values are equal within a region.
    """
    edges = np.zeros(regions.shape, bool)
    edges[:, :-1] |= regions[:, :-1] != regions[:, 1:]
    edges[:-1] |= regions[:-1] != regions[1:]
    return edges


def draw_edges(image: RGBImage, edges: NDArray[np.bool_]) -> RGBImage:
    """Return a copy of an image, (H, W, 3), with boundaries, (H, W), in white, which is not a class color."""
    return np.where(edges[..., None], np.uint8(255), image)


def resize_labels(labels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Resize a label map, (h, w), with nearest-neighbor interpolation to a height and width.

    The same array is returned if the size is unchanged.
    """
    if labels.shape == tuple(size):
        return labels
    # The half pixel aligns the centers of the old and the new pixels.
    rows, columns = ((np.arange(new) + 0.5) * old // new for new, old in zip(size, labels.shape, strict=True))
    nearest: NDArray[Any] = labels[rows.astype(int)[:, None], columns.astype(int)]
    return nearest


def _to_tensor(value: Any) -> Tensor:
    # torch.tensor copies: torch.from_numpy warns if an array is read-only.
    return value.detach() if isinstance(value, Tensor) else torch.tensor(np.asarray(value))


def _is_classes_last(shape: tuple[int, ...], size: tuple[int, int]) -> bool:
    return shape[:2] == tuple(size) and shape[1:] != tuple(size)


def _argmax_classes(tensor: Tensor) -> NDArray[np.int64]:
    """Return the argmax over the classes, (H, W)."""
    # On the device of the tensor: copying the class indices to the host is cheaper than copying all logits.
    values, classes = tensor.max(dim=0)
    is_empty = values.isnan() if tensor.is_floating_point() else values == 0
    if tensor.is_floating_point():
        report_anomaly(*NAN_ANOMALY, is_empty)
    return classes.masked_fill(is_empty, NO_CLASS).cpu().numpy().astype(np.int64)


def _to_class_ids(tensor: Tensor) -> NDArray[np.int64]:
    """Return label maps unchanged, and binary masks as 0 and 1."""
    if not tensor.is_floating_point():
        return tensor.cpu().numpy().astype(np.int64)
    # Through float32: NumPy has no bfloat16.
    values = tensor.float().cpu().numpy()
    is_nan = np.isnan(values)
    report_anomaly(*NAN_ANOMALY, is_nan)
    # Label maps are often loaded as floats, with NaN for pixels without a label.
    numbers = values[~is_nan]
    if np.isfinite(numbers).all() and (numbers == numbers.round()).all():
        return np.where(is_nan, NO_CLASS, values).astype(np.int64)
    are_probabilities = not ((values < 0) | (values > 1)).any()
    return np.where(is_nan, NO_CLASS, values >= (0.5 if are_probabilities else 0.0)).astype(np.int64)
