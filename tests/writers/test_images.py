"""Tests of the conversion of images and figures to uint8 tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hookbus.writers.images import figure_to_image, to_pil_image, to_uint8_image, unbind_images


@pytest.mark.parametrize(
    ("value", "pixel"),
    [
        (torch.tensor(200, dtype=torch.uint8), 200),
        (torch.tensor(0.5), 128),  # 127.5, rounded to even
        (torch.tensor(1.0, dtype=torch.bfloat16), 255),
        (torch.tensor(-3.0), 0),
        (torch.tensor(7.0), 255),
        (torch.tensor(float("nan")), 0),
        (torch.tensor(float("inf")), 255),
        (torch.tensor(300), 255),
        (torch.tensor(-1), 0),
        (torch.tensor(True), 255),
        (np.uint16(260), 255),
    ],
)
def test_values_are_converted_to_uint8(value: Any, pixel: int) -> None:
    image = torch.as_tensor(value).expand(2, 2) if isinstance(value, torch.Tensor) else np.full((2, 2), value)
    assert to_uint8_image(image).tolist() == [[[pixel], [pixel]], [[pixel], [pixel]]]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 5), (4, 5, 1)),
        ((5, 6, 3), (5, 6, 3)),
        ((3, 4, 5), (4, 5, 3)),
        ((1, 4, 5), (4, 5, 1)),
        ((3, 9, 4), (9, 4, 3)),
    ],
)
def test_shape_is_converted_to_height_width_channels(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert tuple(to_uint8_image(torch.zeros(shape)).shape) == expected


def test_every_image_type_preserves_the_color() -> None:
    red = np.zeros((2, 3, 3), dtype=np.uint8)
    red[..., 0] = 255
    images = [red, Image.fromarray(red), torch.from_numpy(red), red.transpose(2, 0, 1), red[:, ::-1]]
    assert {tuple(to_uint8_image(image)[0, 0].tolist()) for image in images} == {(255, 0, 0)}


@pytest.mark.parametrize(
    ("mode", "pixel"),
    [
        *(("1", [255]), ("L", [76]), ("LA", [76, 76, 76, 255]), ("P", [255, 0, 0]), ("RGB", [255, 0, 0])),
        *(("RGBA", [255, 0, 0, 255]), ("CMYK", [255, 0, 0]), ("I", [76])),
    ],
)
def test_pil_image_is_converted_according_to_its_mode(mode: str, pixel: list[int]) -> None:
    image = Image.new("RGB", (5, 4), "white" if mode == "1" else "red").convert(mode)
    assert to_uint8_image(image).tolist() == [[pixel] * 5] * 4  # the height is a valid number of channels


def test_transparent_palette_color_stays_transparent() -> None:
    image = Image.new("RGB", (1, 1), "red").convert("P")
    image.info["transparency"] = image.getpixel((0, 0))
    assert to_uint8_image(image).tolist() == [[[255, 0, 0, 0]]]


def test_16_bit_values_are_scaled_to_8_bits() -> None:
    assert to_uint8_image(Image.fromarray(np.array([[0, 40_000, 65_535]], np.uint16))).tolist() == [[[0], [156], [255]]]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_conversion_to_pil_preserves_the_pixels(channels: int) -> None:
    pixels = torch.arange(2 * channels, dtype=torch.uint8).reshape(2, 1, channels)
    assert to_uint8_image(to_pil_image(pixels)).tolist() == pixels.tolist()


@pytest.mark.parametrize("shape", [(5,), (2, 4, 5), (2, 3, 4, 5), (0, 4), (3, 0, 4)])
def test_tensor_of_invalid_shape_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="image: expected (at least one pixel|shape)"):
        to_uint8_image(torch.zeros(shape))


@pytest.mark.parametrize("value", ["cat.png", None, object(), [[1.0], [1.0, 2.0]]])
def test_object_that_is_not_an_image_raises(value: Any) -> None:
    with pytest.raises(ValueError, match=f"image: expected a tensor, .*, got {type(value).__name__}"):
        to_uint8_image(value)


def test_complex_image_raises() -> None:
    with pytest.raises(ValueError, match=r"image: expected real values, got torch.complex64. Use"):
        to_uint8_image(torch.ones(3, 2, 2, dtype=torch.complex64))


def test_batch_and_list_are_split_into_images() -> None:
    batch = torch.zeros(2, 3, 4, 4)
    assert [tuple(image.shape) for image in unbind_images(batch)] == [(3, 4, 4), (3, 4, 4)]
    assert len(unbind_images([batch[0]])) == 1
    image = batch[0]
    assert unbind_images(image)[0] is image


def test_figure_is_rendered_without_modifying_it() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=10, facecolor="red")
    canvas = figure.canvas
    assert figure_to_image(figure)[0, 0].tolist() == [255, 0, 0, 255]
    assert tuple(figure_to_image(figure).shape) == (10, 20, 4)
    assert figure.canvas is canvas
    with pytest.raises(TypeError, match="figure: expected a matplotlib figure, got str"):
        figure_to_image("figure")
