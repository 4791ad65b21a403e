import numpy as np
import pytest
import torch
from torch import nn

from hookbus_visualization import VisualizationConfig
from hookbus_visualization.attention import render_attention
from hookbus_visualization.attribution import compute_grad_cam, compute_saliency
from hookbus_visualization.features import render_feature_maps
from hookbus_visualization.heatmap import overlay_maps
from hookbus_visualization.interpretability import ModelInspector
from hookbus_visualization.panel import CORRECT_COLOR, Panel

IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
PIXELS = [np.full((8, 8, 3), value, np.uint8) for value in (10, 200)]
PANELS = [Panel(PIXELS[0], "true 0", CORRECT_COLOR), Panel(PIXELS[1], "true 1")]


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.ReLU())
    return nn.Sequential(convolutions, nn.Flatten(), nn.Linear(32, 3))


class AttentionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 2, stride=2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.layer(self.embed(x).flatten(2).transpose(1, 2)).mean(1)


def make_inspector(model, images=PIXELS, targets=(2, 1), **settings):
    return ModelInspector(
        model,
        VisualizationConfig(content=["feature_maps", "cam", "gradients"], **settings),
        IMAGES,
        PANELS,
        images,
        targets,
    )


def to_comparable(records):
    return {
        name: [(panel.image.tolist(), panel.caption, panel.frame) for panel in panels]
        for name, panels in records.items()
    }


def replace_pixels(rendered_images):
    """Return the panels of the samples with other pixels, in comparable form."""
    return [(image.tolist(), panel.caption, panel.frame) for image, panel in zip(rendered_images, PANELS, strict=True)]


def test_feature_maps_are_those_of_the_selected_layers(classifier):
    maps = render_feature_maps(classifier, IMAGES, ["0.2"], 1)
    records = to_comparable(make_inspector(classifier, layers=["0.2"], max_features=1).feature_maps())
    assert records == {"feature_maps/0.2": [(maps["0.2"][0].tolist(), "channel 0", None)]}


@pytest.mark.parametrize("images", [PIXELS, None])
def test_attention_is_rendered_for_each_sample(images):
    model = AttentionModel()
    rendered_images = render_attention(model, IMAGES, images)
    records = to_comparable(make_inspector(model, images).attention())
    assert records == {
        f"attention/{path}": replace_pixels(images_of_layer) for path, images_of_layer in rendered_images.items()
    }
    assert records


@pytest.mark.parametrize(("target", "classes"), [("predicted", None), ("true", torch.tensor([2, 1]))])
class TestClassContent:
    def test_class_activation_is_overlaid_on_the_images(self, classifier, target, classes):
        rendered_images = overlay_maps(PIXELS, compute_grad_cam(classifier, IMAGES, classes, "0.0"))
        assert to_comparable(make_inspector(classifier, target=target, cam_layer="0.0").cam()) == {
            "cam": replace_pixels(rendered_images)
        }

    def test_gradients_are_overlaid_on_the_images(self, classifier, target, classes):
        rendered_images = overlay_maps(PIXELS, compute_saliency(classifier, IMAGES, classes))
        assert to_comparable(make_inspector(classifier, target=target).gradients()) == {
            "gradients": replace_pixels(rendered_images)
        }


def test_true_and_predicted_class_have_different_gradients(classifier):
    predicted, true = (
        to_comparable(make_inspector(classifier, target=target).gradients()) for target in ("predicted", "true")
    )
    assert predicted != true


class TestInvalidSamples:
    def test_samples_that_are_not_images_raise_value_error(self, classifier):
        for content in ("cam", "gradients"):
            with pytest.raises(ValueError, match="the samples must be images"):
                getattr(make_inspector(classifier, images=None), content)()

    @pytest.mark.parametrize("targets", [None, [1, -100], [0.5, 0.5]])
    def test_samples_without_a_class_raise_value_error(self, classifier, targets):
        with pytest.raises(ValueError, match="requires a class index for every sample"):
            make_inspector(classifier, targets=targets, target="true").cam()
