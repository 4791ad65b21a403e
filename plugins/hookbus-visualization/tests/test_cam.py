import gc
import sys
import weakref

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

from hookbus.errors import ConfigError
from hookbus_visualization.cam import cam_maps, cam_pictures


def classifier(**options):
    """Two channels, of which the first speaks for class 0 and the second for class 1."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1, bias=False), nn.ReLU(**options), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1))
        model[4].weight.copy_(torch.tensor([[4.0, 0.0], [0.0, 8.0]]))
        model[4].bias.zero_()
    return model


IMAGE = torch.tensor([[[[3.0, -1.0], [1.0, 0.0]]]])


class TestMaps:
    # Of the score 4 * mean(relu(x)) the gradient is 1 where x > 0: its mean over the four places is 1/2, and the map of
    # class 0 is relu(x / 2). Of 8 * mean(relu(-x)) the gradient is 2 at the one place: 1/2 again, and relu(-x / 2).
    def test_weigh_the_channels_by_their_mean_gradient(self):
        assert cam_maps(classifier(), IMAGE).tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    def test_are_those_of_the_targets_where_they_are_given(self):
        assert cam_maps(classifier(), IMAGE, torch.tensor([1])).tolist() == [[[0.0, 0.5], [0.0, 0.0]]]

    def test_are_not_changed_by_what_works_in_place_behind_the_layer(self):
        assert cam_maps(classifier(inplace=True), IMAGE).tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    @pytest.mark.parametrize("layer", ["0", "3"])
    @pytest.mark.parametrize("targets", [None, torch.tensor([4, 0, 2])])
    def test_are_those_of_captum_on_the_same_layer(self, layer, targets):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(96, 5),
        ).eval()  # fmt: skip
        images = torch.randn(3, 3, 8, 8)
        chosen = model(images).argmax(1) if targets is None else targets
        expected = captum.attr.LayerGradCam(model, model.get_submodule(layer)).attribute(
            images, target=chosen, relu_attributions=True
        )
        assert torch.equal(cam_maps(model, images, targets, layer), expected[:, 0].detach())

    def test_look_at_the_last_convolution_by_default(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(8, 2))
        assert cam_maps(model, torch.randn(1, 1, 4, 4)).shape == (1, 2, 2)

    @pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
    def test_can_be_had_in_a_validation(self, outside):
        model = classifier()
        with outside():
            maps = cam_maps(model, IMAGE.clone(), torch.tensor([0]))
        assert maps.tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    def test_can_be_had_of_a_compiled_model_under_autocast(self):
        model = torch.compile(classifier(), backend="eager")
        model(IMAGE)
        with torch.autocast("cpu", torch.bfloat16):
            maps = cam_maps(model, IMAGE)
        assert maps.tolist() == [[[1.5, 0.0], [0.5, 0.0]]]
        assert maps.dtype == torch.float32

    def test_can_be_had_of_a_model_that_is_frozen(self):
        assert cam_maps(classifier().requires_grad_(False), IMAGE).tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    def test_leave_no_hook_and_keep_no_graph(self):
        model, seen = classifier(), []
        model[0].register_forward_hook(lambda _, __, output: seen.append(weakref.ref(output)))
        before = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]
        for _ in range(3):
            cam_maps(model, IMAGE)
        gc.collect()
        assert [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()] == before
        assert len(seen) == 6
        assert all(each() is None for each in seen)

    def test_need_a_layer_of_the_model(self):
        with pytest.raises(ConfigError, match=r"has no layer '44'. Did you mean '4'\?"):
            cam_maps(classifier(), IMAGE, layer="44")

    def test_need_a_convolution_or_the_name_of_a_layer(self):
        with pytest.raises(ConfigError, match="the model has none: name a layer"):
            cam_maps(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), IMAGE)

    def test_need_a_layer_that_gives_maps(self):
        with pytest.raises(ValueError, match="name a convolution"):
            cam_maps(classifier(), IMAGE, layer="4")

    def test_without_captum_say_how_to_install_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "captum.attr", None)
        with pytest.raises(ConfigError, match=r"pip install 'hookbus-visualization\[cam\]'"):
            cam_maps(classifier(), IMAGE)


class TestPictures:
    def test_lie_over_the_images(self):
        picture = cam_pictures(classifier(), IMAGE, [np.zeros((120, 120, 3), np.uint8)])[0]
        assert picture[0, 0].tolist() == [128, 125, 95]  # half of the lightest colour
        assert picture[0, -1].tolist() == [4, 4, 20]  # half of the darkest

    def test_of_a_constant_activation_are_dark_and_not_broken(self):
        image = torch.ones(1, 1, 2, 2)
        picture = cam_pictures(classifier(), image, [np.zeros((120, 120, 3), np.uint8)])[0]
        assert (picture == [4, 4, 20]).all()

    def test_look_as_they_should(self, golden):
        y, x = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 16), indexing="ij")
        disc = 4 * torch.exp(-8 * ((x - 0.4) ** 2 + (y + 0.3) ** 2)) - 1
        pixels = np.asarray((disc + 1).clamp(0, 1)[..., None].expand(-1, -1, 3) * 255, np.uint8)
        golden("cam", cam_pictures(classifier(), disc[None, None], [pixels], torch.tensor([0]))[0])
