"""Rendering of attention weights: an overlay if the tokens are image patches, otherwise a matrix. Requires no run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from hookbus_visualization.attention_weights import capture_attention_weights
from hookbus_visualization.heatmap import apply_colormap, normalize, overlay_maps
from hookbus_visualization.panel import RGBImage

MAX_SIDE = 256
"""Maximum number of rows and columns of a rendered matrix; larger matrices are average-pooled."""

EXTRA_TOKENS = (0, 1, 2, 5)
"""Numbers of tokens before the patches: none; a class token; also a distillation token; or four register tokens."""


def render_attention(
    model: nn.Module, inputs: Any, images: Sequence[RGBImage] | None = None
) -> dict[str, list[RGBImage]]:
    """Render the attention weights of each sample and layer, averaged over the heads.

    If the tokens are patches of the image, the weights of the class token are rendered as an overlay; without a class
    token, the mean over all patches. Otherwise the weights are rendered as a matrix with one row per query.

    Args:
        model: The model.
        inputs: A batch, passed to the model as in the training loop.
        images: Pixels of the same samples, (H, W, 3) each; None if the samples are not images.

    Returns:
        One image, (H, W, 3), uint8, per sample, by the path of the layer.

    Raises:
        HookError: If the model contains no supported attention.
    """
    layers = capture_attention_weights(model, inputs, heads=False)
    return {path: _render_layer(weights[:, 0], images) for path, weights in layers.items()}


class Patches(NamedTuple):
    """Layout of the patch tokens of an image.

    Attributes:
        extra: Number of tokens before the patches.
        rows: Number of rows of patches.
        columns: Number of columns of patches.
    """

    extra: int
    rows: int
    columns: int


def infer_patches(tokens: int, height: int, width: int) -> Patches | None:
    """Infer the layout of square patches from the number of tokens.

    Args:
        tokens: Number of tokens.
        height: Height of the image, in any unit.
        width: Width of the image, in the same unit.

    Returns:
        The layout with at least two rows and two columns; None if the tokens cannot be patches of the image.
    """
    for extra in EXTRA_TOKENS:
        columns = math.isqrt(max(tokens - extra, 0) * width // height)
        rows = columns * height // width
        if rows * columns == tokens - extra and rows * width == columns * height and min(rows, columns) > 1:
            return Patches(extra, rows, columns)
    return None


def _render_layer(weights: Tensor, images: Sequence[RGBImage] | None) -> list[RGBImage]:
    """Return one image per sample, from weights of shape (N, L, S)."""
    patches = infer_patches(weights.shape[-1], *images[0].shape[:2]) if images else None
    # Windowed attention folds windows into the batch dimension: the weights are then not per image.
    if images is None or patches is None or len(images) != len(weights):
        return [apply_colormap(normalize(matrix)) for matrix in _downsample(weights).numpy()]
    return overlay_maps(images, _get_patch_weights(weights, patches))


def _get_patch_weights(weights: Tensor, patches: Patches) -> Tensor:
    """Return the weights of the class token, or the mean over all queries, as (N, rows, columns)."""
    # A matrix that is not square is cross-attention, whose first query is not a class token.
    has_class = patches.extra > 0 and weights.shape[1] == weights.shape[2]
    row = weights[:, 0] if has_class else weights.mean(1)
    return row[:, patches.extra :].reshape(-1, patches.rows, patches.columns)


def _downsample(weights: Tensor) -> Tensor:
    """Average-pool matrices to a readable size."""
    rows, columns = weights.shape[1:]
    return functional.adaptive_avg_pool2d(weights, (min(rows, MAX_SIDE), min(columns, MAX_SIDE)))
