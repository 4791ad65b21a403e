import numpy as np
import pytest
import torch
from torch import nn

from hookbus.testing import fingerprint
from hookbus_visualization.attribution import compute_saliency
from hookbus_visualization.images import overlay_maps


def render_saliency(model, inputs, images, targets=None):
    return overlay_maps(images, compute_saliency(model, inputs, targets))


class Weighted(nn.Module):
    """Model with two classes, whose scores are the sum of the squared pixels and the sum of the weighted pixels."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -4.0], [0.0, 2.0]]))

    def forward(self, x):
        return torch.stack([x.square().sum((1, 2, 3)), (x * self.weight).sum((1, 2, 3))], 1)


IMAGE = torch.tensor([[[[3.0, 0.0], [0.0, -1.0]]]])


class TestMaps:
    def test_maps_are_absolute_gradients_of_the_predicted_class(self):
        assert compute_saliency(Weighted(), IMAGE).tolist() == [[[6.0, 0.0], [0.0, 2.0]]]

    def test_targets_select_the_explained_class(self):
        assert compute_saliency(Weighted(), IMAGE, torch.tensor([1])).tolist() == [[[1.0, 4.0], [0.0, 2.0]]]

    def test_maximum_over_the_channels_is_used(self):
        image = torch.tensor([[[[1.0, -5.0]], [[2.0, 0.0]]]])
        model = nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.Flatten(), nn.Linear(2, 1, bias=False))
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([3.0, -7.0]).reshape(1, 2, 1, 1))
            model[2].weight.copy_(torch.tensor([[1.0, 2.0]]))
        assert compute_saliency(model, image).tolist() == [[[7.0, 14.0]]]

    def test_maps_do_not_depend_on_other_samples(self):
        batch = torch.cat([IMAGE, 2 * IMAGE, -IMAGE])
        expected = torch.cat([compute_saliency(Weighted(), image[None]) for image in batch])
        assert torch.equal(compute_saliency(Weighted(), batch), expected)

    def test_maps_equal_those_of_captum(self):
        import captum.attr

        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        images, targets = torch.randn(2, 3, 6, 6), torch.tensor([4, 0])
        expected = captum.attr.Saliency(model).attribute(images.clone().requires_grad_(), target=targets).amax(1)
        assert torch.equal(compute_saliency(model, images, targets), expected)

    @pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
    def test_maps_can_be_computed_without_gradient_mode(self, outside):
        model = Weighted()
        with outside():
            maps = compute_saliency(model, IMAGE.clone(), torch.tensor([1]))
        assert maps.tolist() == [[[1.0, 4.0], [0.0, 2.0]]]

    def test_maps_can_be_computed_for_a_compiled_model_under_autocast(self):
        model = torch.compile(Weighted(), backend="eager")
        model(IMAGE)
        with torch.autocast("cpu", torch.bfloat16):
            assert compute_saliency(model, IMAGE).tolist() == [[[6.0, 0.0], [0.0, 2.0]]]

    def test_maps_can_be_computed_for_a_frozen_model(self):
        assert compute_saliency(Weighted().requires_grad_(False), IMAGE).tolist() == [[[6.0, 0.0], [0.0, 2.0]]]

    def test_gradients_and_model_state_are_not_modified(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 2))
        model(torch.randn(3, 1, 2, 2)).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        before = fingerprint([model.state_dict(), gradients, torch.get_rng_state()])
        compute_saliency(model, torch.randn(3, 1, 2, 2, generator=torch.Generator()))
        assert all(
            parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True)
        )
        assert fingerprint([model.state_dict(), gradients, torch.get_rng_state()]) == before
        assert all(module.training for module in model.modules())

    def test_inputs_must_be_images(self):
        with pytest.raises(ValueError, match=r"\(N, C, H, W\), got shape \(3, 4\)"):
            compute_saliency(nn.Linear(4, 2), torch.ones(3, 4))


class TestRendering:
    def test_maps_are_overlaid_on_the_images(self):
        images = [np.zeros((120, 120, 3), np.uint8)]
        image = render_saliency(Weighted(), IMAGE, images)[0]
        assert image.shape == (120, 120, 3)
        assert image[0, 0].tolist() == [128, 125, 95]  # half of the lightest color
        assert image[0, -1].tolist() == [4, 4, 20]  # half of the darkest

    def test_zero_gradients_are_rendered_dark(self):
        images = [np.zeros((120, 120, 3), np.uint8)]
        image = render_saliency(Weighted(), torch.zeros(1, 1, 2, 2), images, torch.tensor([0]))[0]
        assert (image == [4, 4, 20]).all()

    def test_small_images_are_enlarged(self):
        assert render_saliency(Weighted(), IMAGE, [np.zeros((2, 2, 3), np.uint8)])[0].shape == (120, 120, 3)
