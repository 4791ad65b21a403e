import numpy as np
import pytest
import torch
from torch import nn

from hookbus_visualization import VisualizationConfig
from hookbus_visualization.attention import attention_pictures
from hookbus_visualization.cam import cam_pictures
from hookbus_visualization.features import feature_pictures
from hookbus_visualization.inside import Inside
from hookbus_visualization.panel import RIGHT, Panel
from hookbus_visualization.saliency import saliency_pictures

IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
PIXELS = [np.full((8, 8, 3), value, np.uint8) for value in (10, 200)]
PANELS = [Panel(PIXELS[0], "true 0", RIGHT), Panel(PIXELS[1], "true 1")]


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.ReLU())
    return nn.Sequential(convolutions, nn.Flatten(), nn.Linear(32, 3))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 2, stride=2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.layer(self.embed(x).flatten(2).transpose(1, 2)).mean(1)


def inside(model, images=PIXELS, targets=(2, 1), **settings):
    return Inside(model, VisualizationConfig(**settings), IMAGES, PANELS, images, targets)


def drawn(records):
    return {
        name: [(panel.picture.tolist(), panel.caption, panel.frame) for panel in panels]
        for name, panels in records.items()
    }


def under(pictures):
    """Pictures in the place of the samples, below which the same is said."""
    return [(each.tolist(), panel.caption, panel.frame) for each, panel in zip(pictures, PANELS, strict=True)]


def test_feature_maps_are_those_of_the_chosen_layers(classifier):
    maps = feature_pictures(classifier, IMAGES, ["0.2"], 1)
    found = drawn(inside(classifier, layers=["0.2"], max_features=1).feature_maps())
    assert found == {"feature_maps/0.2": [(maps["0.2"][0].tolist(), "channel 0", None)]}


@pytest.mark.parametrize("images", [PIXELS, None])
def test_attention_is_drawn_for_each_sample(images):
    model = Attending()
    pictures = attention_pictures(model, IMAGES, images)
    found = drawn(inside(model, images).attention())
    assert found == {f"attention/{path}": under(each) for path, each in pictures.items()}
    assert found


@pytest.mark.parametrize(("target", "classes"), [("predicted", None), ("true", torch.tensor([2, 1]))])
class TestOfAClass:
    def test_activation_is_drawn_over_the_images(self, classifier, target, classes):
        pictures = cam_pictures(classifier, IMAGES, PIXELS, classes, "0.0")
        assert drawn(inside(classifier, target=target, cam_layer="0.0").cam()) == {"cam": under(pictures)}

    def test_gradients_are_drawn_over_the_images(self, classifier, target, classes):
        pictures = saliency_pictures(classifier, IMAGES, PIXELS, classes)
        assert drawn(inside(classifier, target=target).gradients()) == {"gradients": under(pictures)}


def test_true_and_predicted_class_make_a_difference(classifier):
    predicted, true = (drawn(inside(classifier, target=each).gradients()) for each in ("predicted", "true"))
    assert predicted != true


class TestRefused:
    def test_are_samples_that_are_no_images(self, classifier):
        for content in ("cam", "gradients"):
            with pytest.raises(ValueError, match="it is drawn over images, and these samples are none"):
                getattr(inside(classifier, images=None), content)()

    @pytest.mark.parametrize("targets", [None, [1, -100], [0.5, 0.5]])
    def test_are_samples_without_a_class(self, classifier, targets):
        with pytest.raises(ValueError, match="needs the class of every sample"):
            inside(classifier, targets=targets, target="true").cam()
