import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Priority
from hookbus.errors import HookWarning
from hookbus.testing import RecordingBus, check_hook, fake_training
from hookbus_render import FrameHook, RenderHook, picture_of
from hookbus_render.points import RenderPoints


class Stamp(Hook):
    """Somebody else's hook, which listens at the point of this package, outside of the frame's."""

    priority = Priority.HIGH

    def after_render(self, image):
        image[0, 0] = 7


@pytest.mark.parametrize("cls", [RenderHook, FrameHook])
def test_keeps_the_promises_that_users_rely_on(cls):
    check_hook(cls)


def test_records_one_picture_per_epoch_into_which_others_have_drawn():
    bus = RecordingBus([Stamp(), RenderHook(tag="first"), FrameHook()])

    fake_training(bus=bus, epochs=3)

    recorded = bus.arguments("log_images")
    assert [each["tag"] for each in recorded] == ["first"] * 3
    assert {tuple(each["images"].shape) for each in recorded} == {(4, 3, 1)}  # a layer from 3 to 4
    assert {int(each["images"][0, 0, 0]) for each in recorded} == {7}


def test_a_frame_leaves_the_inside_as_it_is():
    bus, image = HookBus([FrameHook(width=1, value=9)]), torch.zeros(3, 4, dtype=torch.uint8)

    bus.declare(RenderPoints.after_render)(image)

    assert image.tolist() == [[9, 9, 9, 9], [9, 0, 0, 9], [9, 9, 9, 9]]


def test_a_layer_that_is_not_there_is_named_with_those_that_are():
    with pytest.warns(HookWarning, match="no layer 'head' with a weight to render. Available: 0, 2"):
        fake_training([RenderHook(layer="head")], epochs=1)


def test_the_smallest_weight_is_black_and_the_largest_white():
    weight = nn.Parameter(torch.tensor([[[-1.0, 0.0]], [[1.0, 3.0]]]))

    assert picture_of(weight).tolist() == [[0, 64], [128, 255]]  # 255 / 4 = 63.75, 255 / 2 = 127.5


def test_a_weight_without_contrast_is_black():
    assert picture_of(torch.ones(2, 2)).tolist() == [[0, 0], [0, 0]]
