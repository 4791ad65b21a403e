"""Conversion of images and matplotlib figures to uint8 tensors of shape (H, W, C)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHANNEL_COUNTS = (1, 3, 4)
INTENSITY_MODES = {"1", "L", "RGB", "RGBA", "I", "F"}
"""PIL modes whose values are intensities, not palette indices or values of another color space."""


def to_uint8_image(image: Any) -> Tensor:
    """Convert an image to a uint8 tensor.

    Args:
        image: Tensor, NumPy array or PIL image of shape (H, W), (H, W, C) or (C, H, W) with C = 1, 3 or 4. If both the
            first and the last dimension can be channels, the first is used. Integers are in [0, 255] and floats in
            [0, 1]; other values are clamped, and NaN becomes 0. Booleans become 0 and 255. PIL images are converted
            according to their mode: palettes are applied, and 16 bits are reduced to 8.

    Returns:
        uint8 tensor of shape (H, W, C) on the CPU.

    Raises:
        ValueError: If the shape is invalid, the image has no pixels, or its values are not real numbers.
    """
    tensor = _to_tensor(image)
    # PIL images already have the shape (H, W, C).
    pixels = tensor if hasattr(image, "getbands") else _to_hwc(tensor)
    if not pixels.numel():
        raise ValueError(f"image: expected at least one pixel, got shape {tuple(tensor.shape)}")
    return _to_uint8(pixels).contiguous()


def to_pil_image(pixels: Tensor) -> Any:
    """Convert a uint8 tensor to a PIL image.

    Args:
        pixels: uint8 tensor of shape (H, W, C) on the CPU, as returned by `to_uint8_image`.
    """
    from PIL import Image

    return Image.fromarray(pixels.squeeze(2).numpy() if pixels.shape[2] == 1 else pixels.numpy())


def unbind_images(images: Any) -> list[Any]:
    """Split a list or a batch of shape (N, C, H, W) or (N, H, W, C) into images; wrap a single image in a list."""
    if isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4:
        return list(images)
    return [images]


def figure_to_image(figure: Any) -> Tensor:
    """Render a matplotlib figure.

    Args:
        figure: Figure with any canvas; it is not modified.

    Returns:
        uint8 tensor of shape (H, W, 4).

    Raises:
        TypeError: If the object is not a matplotlib figure.
    """
    if not hasattr(figure, "savefig"):
        raise TypeError(f"figure: expected a matplotlib figure, got {type(figure).__name__}")
    import numpy
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # An Agg canvas renders without a display. Creating it attaches it to the figure, so the original is restored.
    original = figure.canvas
    try:
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        return torch.from_numpy(numpy.array(canvas.buffer_rgba()))
    finally:
        figure.set_canvas(original)


def _to_tensor(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        return image.detach().cpu()
    import numpy

    try:
        # A copy, since `from_numpy` shares memory with an array that the caller may modify.
        return torch.from_numpy(_pil_to_array(image) if hasattr(image, "getbands") else numpy.array(image))
    except (TypeError, ValueError):  # strings, objects, rows of different lengths
        type_name = type(image).__name__
        raise ValueError(f"image: expected a tensor, a NumPy array or a PIL image, got {type_name}") from None


def _pil_to_array(image: Any) -> Any:
    """Convert a PIL image to an array of shape (H, W, C)."""
    import numpy

    # PIL clips 16-bit values to 255 when it converts them to 8 bits, so they are scaled here.
    if image.mode.startswith("I;16"):
        return (numpy.array(image) >> 8).astype(numpy.uint8)[..., None]
    converted = (
        image if image.mode in INTENSITY_MODES else image.convert("RGBA" if image.has_transparency_data else "RGB")
    )
    array = numpy.array(converted)
    return array[..., None] if array.ndim == 2 else array


def _to_hwc(tensor: Tensor) -> Tensor:
    """Permute the dimensions to (H, W, C)."""
    shape = tuple(tensor.shape)
    if len(shape) == 2:
        return tensor[..., None]
    if len(shape) == 3 and shape[0] in CHANNEL_COUNTS:
        return tensor.permute(1, 2, 0)
    if len(shape) == 3 and shape[2] in CHANNEL_COUNTS:
        return tensor
    raise ValueError(f"image: expected shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, got {shape}")


def _to_uint8(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.uint8:
        return tensor
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8) * 255
    if tensor.is_complex():
        raise ValueError(f"image: expected real values, got {tensor.dtype}. Use .abs(), .real or .imag.")
    if tensor.is_floating_point():
        return (tensor.float().nan_to_num(0.0, 1.0, 0.0).clamp(0, 1) * 255).round().to(torch.uint8)
    # Integers are clamped in int64, which all other integer types fit into.
    return tensor.to(torch.int64).clamp(0, 255).to(torch.uint8)
