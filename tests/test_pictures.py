"""Pictures in one form, whatever form they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.pictures import figure_pixels, pictures_directory, pil_image, pixels_of, separate


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
def test_a_pixel_is_what_is_meant(value: Any, pixel: int) -> None:
    picture = torch.as_tensor(value).expand(2, 2) if isinstance(value, torch.Tensor) else np.full((2, 2), value)
    assert pixels_of(picture).tolist() == [[[pixel], [pixel]], [[pixel], [pixel]]]


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
def test_pixels_are_height_by_width_by_channels(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert tuple(pixels_of(torch.zeros(shape)).shape) == expected


def test_red_stays_red_in_every_form() -> None:
    red = np.zeros((2, 3, 3), dtype=np.uint8)
    red[..., 0] = 255
    forms = [red, Image.fromarray(red), torch.from_numpy(red), red.transpose(2, 0, 1), red[:, ::-1]]
    assert {tuple(pixels_of(form)[0, 0].tolist()) for form in forms} == {(255, 0, 0)}


@pytest.mark.parametrize(
    ("mode", "pixel"),
    [
        *(("1", [255]), ("L", [76]), ("LA", [76, 76, 76, 255]), ("P", [255, 0, 0]), ("RGB", [255, 0, 0])),
        *(("RGBA", [255, 0, 0, 255]), ("CMYK", [255, 0, 0]), ("I", [76])),
    ],
)
def test_the_mode_of_a_pil_image_says_what_its_numbers_are(mode: str, pixel: list[int]) -> None:
    image = Image.new("RGB", (5, 4), "white" if mode == "1" else "red").convert(mode)
    assert pixels_of(image).tolist() == [[pixel] * 5] * 4  # as high as there may be channels


def test_a_transparent_colour_of_a_palette_stays_transparent() -> None:
    image = Image.new("RGB", (1, 1), "red").convert("P")
    image.info["transparency"] = image.getpixel((0, 0))
    assert pixels_of(image).tolist() == [[[255, 0, 0, 0]]]


def test_sixteen_bits_become_eight() -> None:
    assert pixels_of(Image.fromarray(np.array([[0, 40_000, 65_535]], np.uint16))).tolist() == [[[0], [156], [255]]]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_pil_image_has_every_pixel(channels: int) -> None:
    pixels = torch.arange(2 * channels, dtype=torch.uint8).reshape(2, 1, channels)
    assert pixels_of(pil_image(pixels)).tolist() == pixels.tolist()


@pytest.mark.parametrize("shape", [(5,), (2, 4, 5), (2, 3, 4, 5), (0, 4), (3, 0, 4)])
def test_what_is_no_picture_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a picture"):
        pixels_of(torch.zeros(shape))


@pytest.mark.parametrize("value", ["cat.png", None, object(), [[1.0], [1.0, 2.0]]])
def test_what_holds_no_colours_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=f"a picture is a tensor, .*, not a {type(value).__name__} like this"):
        pixels_of(value)


def test_complex_numbers_are_no_colours() -> None:
    with pytest.raises(ValueError, match="a picture has real numbers"):
        pixels_of(torch.ones(3, 2, 2, dtype=torch.complex64))


def test_a_batch_and_a_list_are_pictures_apart() -> None:
    batch = torch.zeros(2, 3, 4, 4)
    assert [tuple(each.shape) for each in separate(batch)] == [(3, 4, 4), (3, 4, 4)]
    assert len(separate([batch[0]])) == 1
    one = batch[0]
    assert separate(one)[0] is one


def test_a_figure_is_drawn_and_not_changed() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=10, facecolor="red")
    canvas = figure.canvas
    assert figure_pixels(figure)[0, 0].tolist() == [255, 0, 0, 255]
    assert tuple(figure_pixels(figure).shape) == (10, 20, 4)
    assert figure.canvas is canvas
    with pytest.raises(TypeError, match="a str is no matplotlib figure"):
        figure_pixels("figure")


class TestTheDirectoryOfPictures:
    @pytest.mark.parametrize(("given", "folder"), [(None, "own"), ("mine", "mine")])
    def test_is_in_that_of_the_run_and_belongs_to_it(self, given: str | None, folder: str, tmp_path: Path) -> None:
        with HookBus().run(work_dir=tmp_path) as run:
            found = pictures_directory(run, "maps", "out_dir", given, "own")
            assert found == tmp_path / "visualization" / folder
            found.mkdir(parents=True)
            assert run.own(found)

    def test_is_none_in_a_run_that_writes_no_files_unless_it_is_absolute(self, tmp_path: Path) -> None:
        with HookBus().run() as run:
            assert pictures_directory(run, "maps", "out_dir", None, "own") is None
            assert pictures_directory(run, "maps", "out_dir", str(tmp_path), "own") == tmp_path
            with pytest.raises(ConfigError, match="^hook 'maps': this run has no place for out_dir: here. "):
                pictures_directory(run, "maps", "out_dir", "here", "own")
