import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Priority
from hookbus.errors import HookWarning
from hookbus.testing import RecordingBus, check_hook, fake_training
from hookbus_render import FrameHook, RenderHook, render_weight
from hookbus_render.points import RenderPoints


class Stamp(Hook):
    """A hook of another package that listens at `after_render` and runs outside of the frame hook."""

    priority = Priority.HIGH

    def after_render(self, image):
        image[0, 0] = 7


@pytest.mark.parametrize("cls", [RenderHook, FrameHook])
def test_hook_passes_the_conformance_checks(cls):
    check_hook(cls)


def test_hook_logs_one_image_per_epoch_that_other_hooks_have_modified():
    bus = RecordingBus([Stamp(), RenderHook(tag="first"), FrameHook()])

    fake_training(bus=bus, epochs=3)

    logged = bus.get_arguments("log_images")
    assert [event["tag"] for event in logged] == ["first"] * 3
    assert {tuple(event["images"].shape) for event in logged} == {(4, 3, 1)}  # a layer from 3 to 4
    assert {int(event["images"][0, 0, 0]) for event in logged} == {7}


def test_frame_does_not_modify_the_interior():
    bus, image = HookBus([FrameHook(width=1, value=9)]), torch.zeros(3, 4, dtype=torch.uint8)

    bus.declare(RenderPoints.after_render)(image)

    assert image.tolist() == [[9, 9, 9, 9], [9, 0, 0, 9], [9, 9, 9, 9]]


def test_error_for_a_missing_layer_lists_the_available_layers():
    with pytest.warns(HookWarning, match="no layer 'head' with a weight to render. Available: 0, 2"):
        fake_training([RenderHook(layer="head")], epochs=1)


def test_smallest_weight_is_black_and_largest_weight_is_white():
    weight = nn.Parameter(torch.tensor([[[-1.0, 0.0]], [[1.0, 3.0]]]))

    assert render_weight(weight).tolist() == [[0, 64], [128, 255]]  # 255 / 4 = 63.75, 255 / 2 = 127.5


def test_constant_weight_is_black():
    assert render_weight(torch.ones(2, 2)).tolist() == [[0, 0], [0, 0]]
