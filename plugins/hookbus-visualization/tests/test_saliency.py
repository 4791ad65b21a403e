import numpy as np
import pytest
import torch
from torch import nn

from hookbus.testing import fingerprint
from hookbus_visualization.saliency import saliency_maps, saliency_pictures


class Weighted(nn.Module):
    """Two classes: the score of one is the sum of the squared pixels, that of the other of their weighted values."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -4.0], [0.0, 2.0]]))

    def forward(self, x):
        return torch.stack([x.square().sum((1, 2, 3)), (x * self.weight).sum((1, 2, 3))], 1)


IMAGE = torch.tensor([[[[3.0, 0.0], [0.0, -1.0]]]])


class TestMaps:
    def test_are_the_sizes_of_the_gradients_of_the_predicted_class(self):
        assert saliency_maps(Weighted(), IMAGE).tolist() == [[[6.0, 0.0], [0.0, 2.0]]]

    def test_are_those_of_the_targets_where_they_are_given(self):
        assert saliency_maps(Weighted(), IMAGE, torch.tensor([1])).tolist() == [[[1.0, 4.0], [0.0, 2.0]]]

    def test_have_the_largest_over_the_channels(self):
        image = torch.tensor([[[[1.0, -5.0]], [[2.0, 0.0]]]])
        model = nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.Flatten(), nn.Linear(2, 1, bias=False))
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([3.0, -7.0]).reshape(1, 2, 1, 1))
            model[2].weight.copy_(torch.tensor([[1.0, 2.0]]))
        assert saliency_maps(model, image).tolist() == [[[7.0, 14.0]]]

    def test_do_not_depend_on_the_other_samples(self):
        batch = torch.cat([IMAGE, 2 * IMAGE, -IMAGE])
        expected = torch.cat([saliency_maps(Weighted(), each[None]) for each in batch])
        assert torch.equal(saliency_maps(Weighted(), batch), expected)

    def test_are_what_captum_makes_of_it(self):
        import captum.attr

        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        images, targets = torch.randn(2, 3, 6, 6), torch.tensor([4, 0])
        expected = captum.attr.Saliency(model).attribute(images.clone().requires_grad_(), target=targets).amax(1)
        assert torch.equal(saliency_maps(model, images, targets), expected)

    @pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
    def test_can_be_had_in_a_validation(self, outside):
        model = Weighted()
        with outside():
            maps = saliency_maps(model, IMAGE.clone(), torch.tensor([1]))
        assert maps.tolist() == [[[1.0, 4.0], [0.0, 2.0]]]

    def test_can_be_had_of_a_compiled_model_under_autocast(self):
        model = torch.compile(Weighted(), backend="eager")
        model(IMAGE)
        with torch.autocast("cpu", torch.bfloat16):
            assert saliency_maps(model, IMAGE).tolist() == [[[6.0, 0.0], [0.0, 2.0]]]

    def test_can_be_had_of_a_model_that_is_frozen(self):
        assert saliency_maps(Weighted().requires_grad_(False), IMAGE).tolist() == [[[6.0, 0.0], [0.0, 2.0]]]

    def test_leave_gradients_and_everything_else_as_it_was(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 2))
        model(torch.randn(3, 1, 2, 2)).sum().backward()
        gradients = [each.grad for each in model.parameters()]
        before = fingerprint([model.state_dict(), gradients, torch.get_rng_state()])
        saliency_maps(model, torch.randn(3, 1, 2, 2, generator=torch.Generator()))
        assert all(each.grad is kept for each, kept in zip(model.parameters(), gradients, strict=True))
        assert fingerprint([model.state_dict(), gradients, torch.get_rng_state()]) == before
        assert all(each.training for each in model.modules())

    def test_are_for_images(self):
        with pytest.raises(ValueError, match=r"\(N, C, H, W\), not for shape \(3, 4\)"):
            saliency_maps(nn.Linear(4, 2), torch.ones(3, 4))


class TestPictures:
    def test_lie_over_the_images(self):
        images = [np.zeros((120, 120, 3), np.uint8)]
        picture = saliency_pictures(Weighted(), IMAGE, images)[0]
        assert picture.shape == (120, 120, 3)
        assert picture[0, 0].tolist() == [128, 125, 95]  # half of the lightest colour
        assert picture[0, -1].tolist() == [4, 4, 20]  # half of the darkest

    def test_of_an_input_without_influence_are_dark(self):
        images = [np.zeros((120, 120, 3), np.uint8)]
        picture = saliency_pictures(Weighted(), torch.zeros(1, 1, 2, 2), images, torch.tensor([0]))[0]
        assert (picture == [4, 4, 20]).all()

    def test_enlarge_small_images(self):
        assert saliency_pictures(Weighted(), IMAGE, [np.zeros((2, 2, 3), np.uint8)])[0].shape == (120, 120, 3)
