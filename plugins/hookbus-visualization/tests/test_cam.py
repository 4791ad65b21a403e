import gc
import sys
import weakref

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

from hookbus.errors import ConfigError
from hookbus_visualization.attribution import compute_grad_cam
from hookbus_visualization.images import overlay_maps


def render_cam(model, inputs, images, targets=None):
    return overlay_maps(images, compute_grad_cam(model, inputs, targets))


def classifier(**options):
    """Return a model with two channels: the first contributes to class 0, the second to class 1."""
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
    # The gradient of the score 4 * mean(relu(x)) is 1 for x > 0. Its mean over the four pixels is 1/2, so the map of
    # class 0 is relu(x / 2). The gradient of 8 * mean(relu(-x)) is 2 at one pixel. Its mean is also 1/2: relu(-x / 2).
    def test_channels_are_weighted_by_their_mean_gradient(self):
        assert compute_grad_cam(classifier(), IMAGE).tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    def test_targets_select_the_explained_class(self):
        assert compute_grad_cam(classifier(), IMAGE, torch.tensor([1])).tolist() == [[[0.0, 0.5], [0.0, 0.0]]]

    def test_in_place_operations_after_the_layer_do_not_change_the_maps(self):
        assert compute_grad_cam(classifier(inplace=True), IMAGE).tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    @pytest.mark.parametrize("layer", ["0", "3"])
    @pytest.mark.parametrize("targets", [None, torch.tensor([4, 0, 2])])
    def test_maps_equal_those_of_captum(self, layer, targets):
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
        assert torch.equal(compute_grad_cam(model, images, targets, layer), expected[:, 0].detach())

    def test_last_convolution_is_the_default_layer(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(8, 2))
        assert compute_grad_cam(model, torch.randn(1, 1, 4, 4)).shape == (1, 2, 2)

    @pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
    def test_maps_can_be_computed_without_gradient_mode(self, outside):
        model = classifier()
        with outside():
            maps = compute_grad_cam(model, IMAGE.clone(), torch.tensor([0]))
        assert maps.tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    def test_maps_can_be_computed_for_a_compiled_model_under_autocast(self):
        model = torch.compile(classifier(), backend="eager")
        model(IMAGE)
        with torch.autocast("cpu", torch.bfloat16):
            maps = compute_grad_cam(model, IMAGE)
        assert maps.tolist() == [[[1.5, 0.0], [0.5, 0.0]]]
        assert maps.dtype == torch.float32

    def test_maps_can_be_computed_for_a_frozen_model(self):
        assert compute_grad_cam(classifier().requires_grad_(False), IMAGE).tolist() == [[[1.5, 0.0], [0.5, 0.0]]]

    def test_no_hook_and_no_graph_remains(self):
        model, activations = classifier(), []
        model[0].register_forward_hook(lambda _, __, output: activations.append(weakref.ref(output)))
        before = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
        for _ in range(3):
            compute_grad_cam(model, IMAGE)
        gc.collect()
        assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()] == before
        assert len(activations) == 6
        assert all(reference() is None for reference in activations)

    def test_unknown_layer_raises_config_error(self):
        with pytest.raises(ConfigError, match=r"has no layer '44'. Did you mean '4'\?"):
            compute_grad_cam(classifier(), IMAGE, layer="44")

    def test_model_without_convolutions_raises_config_error(self):
        with pytest.raises(ConfigError, match="the model has none. Set the path of a layer"):
            compute_grad_cam(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), IMAGE)

    def test_layer_without_maps_raises_value_error(self):
        with pytest.raises(ValueError, match="Set the layer to the path of a convolution"):
            compute_grad_cam(classifier(), IMAGE, layer="4")

    def test_missing_captum_raises_config_error_with_install_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "captum.attr", None)
        with pytest.raises(ConfigError, match=r'pip install "hookbus-visualization\[cam\]"'):
            compute_grad_cam(classifier(), IMAGE)


class TestRendering:
    def test_maps_are_overlaid_on_the_images(self):
        image = render_cam(classifier(), IMAGE, [np.zeros((120, 120, 3), np.uint8)])[0]
        assert image[0, 0].tolist() == [128, 125, 95]  # half of the lightest color
        assert image[0, -1].tolist() == [4, 4, 20]  # half of the darkest

    def test_constant_activation_is_rendered_dark(self):
        image = torch.ones(1, 1, 2, 2)
        image = render_cam(classifier(), image, [np.zeros((120, 120, 3), np.uint8)])[0]
        assert (image == [4, 4, 20]).all()

    def test_overlay_matches_the_golden_image(self, golden):
        y, x = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 16), indexing="ij")
        disc = 4 * torch.exp(-8 * ((x - 0.4) ** 2 + (y + 0.3) ** 2)) - 1
        pixels = np.asarray((disc + 1).clamp(0, 1)[..., None].expand(-1, -1, 3) * 255, np.uint8)
        golden("cam", render_cam(classifier(), disc[None, None], [pixels], torch.tensor([0]))[0])
