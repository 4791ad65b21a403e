"""Pictures in one form, whatever form they come in: pixels of 8 bits, height by width by channels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["figure_pixels", "pictures_directory", "pil_image", "pixels_of", "separate"]

CHANNELS = (1, 3, 4)
PLAIN_MODES = {"1", "L", "RGB", "RGBA", "I", "F"}
"""Modes of PIL whose numbers are colours as they are."""


def pixels_of(image: Any) -> Tensor:
    """The pixels of a picture.

    Args:
        image: a tensor, a NumPy array or a PIL image of shape (H, W), (H, W, C) or (C, H, W) with C 1, 3 or 4; where
            both ends could be channels, the first is taken. Whole numbers go from 0 to 255, floats from 0 to 1; what is
            outside is cut, NaN is black, and truth values are black and white. Of a PIL image the mode says what its
            numbers are: colours of a palette are looked up, and 16 bits become 8.

    Returns:
        (H, W, C), uint8, on the CPU.

    Raises:
        ValueError: it has no such shape, no pixels, or nothing that is a colour.
    """
    tensor = _tensor_of(image)
    pixels = tensor if hasattr(image, "getbands") else _arranged(tensor)
    if not pixels.numel():
        raise ValueError(f"a picture of shape {tuple(tensor.shape)} has no pixels")
    return _in_bytes(pixels).contiguous()


def pil_image(pixels: Tensor) -> Any:
    """A PIL image.

    Args:
        pixels: (H, W, C), uint8, on the CPU, as `pixels_of` returns them.
    """
    from PIL import Image

    return Image.fromarray(pixels.squeeze(2).numpy() if pixels.shape[2] == 1 else pixels.numpy())


def separate(images: Any) -> list[Any]:
    """The pictures of a list, of a batch (N, C, H, W) or (N, H, W, C), or the one that is given."""
    if isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4:
        return list(images)
    return [images]


def pictures_directory(run: Run, hook: str, setting: str, given: str | None, default: str) -> Path | None:
    """Where the pictures of a hook go; what is inside the work directory is the run's own.

    Args:
        run: the run.
        hook: the instance name.
        setting: what the setting of the directory is called.
        given: its value: a directory, relative to that of the run's pictures or absolute; None for nothing.
        default: the directory where nothing was given.

    Returns:
        The directory; None in a run that writes no files.

    Raises:
        ConfigError: a relative directory was given, and the run writes no files.
    """
    folder, directory = Path(given or default), run.get("visualization_dir")
    if directory is None and given is not None and not folder.is_absolute():
        raise ConfigError(
            [
                f"hook {hook!r}: this run has no place for {setting}: {given}. Give work_dir to the run, or an "
                f"absolute {setting}."
            ]
        )
    if directory is None:
        return None if given is None else folder
    run.own(Path(directory) / folder)
    return Path(directory) / folder


def figure_pixels(figure: Any) -> Tensor:
    """A matplotlib figure, drawn as it is now.

    Args:
        figure: the figure, of any canvas; it is not changed.

    Returns:
        (H, W, 4), uint8.

    Raises:
        TypeError: it is no matplotlib figure.
    """
    if not hasattr(figure, "savefig"):
        raise TypeError(f"a {type(figure).__name__} is no matplotlib figure")
    import numpy
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kept = figure.canvas
    try:
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        return torch.from_numpy(numpy.array(canvas.buffer_rgba()))
    finally:
        figure.set_canvas(kept)


def _tensor_of(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        return image.detach().cpu()
    import numpy

    try:
        return torch.from_numpy(_pil_array(image) if hasattr(image, "getbands") else numpy.array(image))
    except (TypeError, ValueError):  # texts, objects, rows of different lengths
        kind = type(image).__name__
        raise ValueError(f"a picture is a tensor, a NumPy array or a PIL image, not a {kind} like this") from None


def _pil_array(image: Any) -> Any:
    """Height by width by channels, of a PIL image."""
    import numpy

    if image.mode.startswith("I;16"):
        return (numpy.array(image) >> 8).astype(numpy.uint8)[..., None]
    plain = image if image.mode in PLAIN_MODES else image.convert("RGBA" if image.has_transparency_data else "RGB")
    array = numpy.array(plain)
    return array[..., None] if array.ndim == 2 else array


def _arranged(tensor: Tensor) -> Tensor:
    """Height by width by channels."""
    shape = tuple(tensor.shape)
    if len(shape) == 2:
        return tensor[..., None]
    if len(shape) == 3 and shape[0] in CHANNELS:
        return tensor.permute(1, 2, 0)
    if len(shape) == 3 and shape[2] in CHANNELS:
        return tensor
    raise ValueError(f"a picture has shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, not {shape}")


def _in_bytes(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.uint8:
        return tensor
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8) * 255
    if tensor.is_complex():
        raise ValueError("a picture has real numbers, not complex ones: take .abs(), .real or .imag")
    if tensor.is_floating_point():
        return (tensor.float().nan_to_num(0.0, 1.0, 0.0).clamp(0, 1) * 255).round().to(torch.uint8)
    return tensor.to(torch.int64).clamp(0, 255).to(torch.uint8)
