"""Pictures of attention: over the image where the tokens are its patches, else as a matrix.

Usable without a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from hookbus_visualization.attention_weights import attention_weights
from hookbus_visualization.grid import fitted
from hookbus_visualization.heatmap import Floats, coloured, overlaid, scaled
from hookbus_visualization.panel import Picture

__all__ = ["Patches", "attention_pictures", "patches_of"]

SIDE = 256
"""Matrices with more rows or columns are averaged down to so many."""

EXTRA = (0, 1, 2, 5)
"""Tokens before the patches: none, a class token, one more for distillation, or four registers more."""


def attention_pictures(
    model: nn.Module, inputs: Any, images: Sequence[Picture] | None = None
) -> dict[str, list[Picture]]:
    """Draw what each sample attends to, layer by layer: the mean over the heads.

    Where the tokens are the patches of the image, the colours over it show what the class token attends to; without a
    class token, what all patches attend to on average. Otherwise the weights are drawn as a matrix, a row for each
    query.

    Args:
        model: the model.
        inputs: a batch, with which the model is called as the loop does.
        images: the same samples as pictures, (H, W, 3); None where they are no images.

    Returns:
        By path of the layer, a picture (H, W, 3) for each sample.

    Raises:
        HookError: no attention can be seen in the model.
    """
    found = attention_weights(model, inputs, heads=False)
    return {path: _drawn(weights[:, 0], images) for path, weights in found.items()}


class Patches(NamedTuple):
    """How tokens lie in an image.

    Attributes:
        extra: so many tokens come before the patches.
        rows: of patches.
        columns: of patches.
    """

    extra: int
    rows: int
    columns: int


def patches_of(tokens: int, height: int, width: int) -> Patches | None:
    """How tokens lie in an image, if they can be square patches of it, at least four, with up to five others before.

    Args:
        tokens: their number.
        height, width: of the image, in any unit.
    """
    for extra in EXTRA:
        columns = math.isqrt(max(tokens - extra, 0) * width // height)
        rows = columns * height // width
        if rows * columns == tokens - extra and rows * width == columns * height and min(rows, columns) > 1:
            return Patches(extra, rows, columns)
    return None


def _drawn(weights: Tensor, images: Sequence[Picture] | None) -> list[Picture]:
    """A picture for each sample, of its weights (L, S)."""
    patches = patches_of(weights.shape[-1], *images[0].shape[:2]) if images else None
    if images is None or patches is None or len(images) != len(weights):
        return [coloured(scaled(each)) for each in _small(weights).numpy()]
    return [
        overlaid(fitted(image), scaled(_over_patches(each, patches)))
        for image, each in zip(images, weights.numpy(), strict=True)
    ]


def _over_patches(weights: Floats, patches: Patches) -> Floats:
    """What the class token attends to, or all together, as (rows, columns)."""
    has_class = patches.extra > 0 and weights.shape[0] == weights.shape[1]
    row = weights[0] if has_class else weights.mean(0)
    return np.asarray(row[patches.extra :].reshape(patches.rows, patches.columns))


def _small(weights: Tensor) -> Tensor:
    """Matrices that can be looked at."""
    rows, columns = weights.shape[1:]
    return functional.adaptive_avg_pool2d(weights, (min(rows, SIDE), min(columns, SIDE)))
