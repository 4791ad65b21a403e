import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from hookbus_visualization import VisualizationConfig
from hookbus_visualization.attribution import compute_grad_cam, compute_saliency
from hookbus_visualization.features import compute_feature_maps, render_feature_maps
from hookbus_visualization.images import apply_colormap, normalize, overlay_maps
from hookbus_visualization.interpretability import ModelInspector, infer_patches, render_attention
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
    panels = render_feature_maps(compute_feature_maps(classifier, IMAGES, ["0.2"], 1))
    records = to_comparable(make_inspector(classifier, layers=["0.2"], max_features=1).feature_maps())
    assert records == {"feature_maps/0.2": [(panels["0.2"][0].image.tolist(), "channel 0", None)]}


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

    @pytest.mark.parametrize("targets", [[None, None], [1, -100], [0.5, 0.5]])
    def test_samples_without_a_class_raise_value_error(self, classifier, targets):
        with pytest.raises(ValueError, match="requires a class index for every sample"):
            make_inspector(classifier, targets=targets, target="true").cam()


DARKEST, LIGHTEST = [8, 8, 40], [255, 250, 190]


class FixedAttention(nn.Module):
    """Attention with two heads and fixed weights, (tokens, tokens), for every sample."""

    def __init__(self, weights):
        super().__init__()
        self.logits = torch.as_tensor(weights).log()

    def forward(self, x):
        length = len(self.logits)
        query = torch.stack([self.logits, self.logits])[None].expand(len(x), -1, -1, -1)
        unit = torch.eye(length).expand(len(x), 2, -1, -1)
        return scaled_dot_product_attention(query, unit, unit, scale=1.0)


def black_image(side=160):
    return np.zeros((side, side, 3), np.uint8)


class TestPatches:
    @pytest.mark.parametrize(
        ("tokens", "height", "width", "expected"),
        [
            (16, 8, 8, (0, 4, 4)),
            (17, 8, 8, (1, 4, 4)),
            (18, 8, 8, (2, 4, 4)),
            (21, 8, 8, (5, 4, 4)),
            (197, 224, 224, (1, 14, 14)),
            (12, 32, 64, None),
            (33, 32, 64, (1, 4, 8)),
            (32, 64, 32, (0, 8, 4)),
            (6, 20, 30, (0, 2, 3)),
            (19, 8, 8, None),
            (2, 8, 8, None),
            (1, 8, 8, None),
            (0, 8, 8, None),
        ],
    )
    def test_patches_are_inferred_from_the_number_of_tokens_and_the_image_shape(self, tokens, height, width, expected):
        assert infer_patches(tokens, height, width) == expected


class TestOverlay:
    def test_overlay_shows_the_weights_of_the_class_token(self):
        weights = torch.full((5, 5), 0.2)
        weights[0] = torch.tensor([0.5, 0.05, 0.25, 0.1, 0.1])  # the class token, and four patches
        images = render_attention(FixedAttention(weights), torch.ones(2, 1), [black_image(), black_image()])[""]
        assert len(images) == 2
        assert images[0][0, 0].tolist() == [4, 4, 20]  # half of the darkest
        assert images[0][0, -1].tolist() == [128, 125, 95]  # half of the lightest
        assert images[0][-1, 0].tolist() == images[0][-1, -1].tolist() == [41, 12, 60]  # half of that at 1/4

    def test_overlay_without_class_token_shows_the_mean_over_all_patches(self):
        weights = torch.tensor([[0.4, 0.2, 0.2, 0.2], [0.2, 0.4, 0.2, 0.2], [0.4, 0.2, 0.2, 0.2], [0.4, 0.2, 0.2, 0.2]])
        (image,) = render_attention(FixedAttention(weights), torch.ones(1, 1), [black_image()])[""]
        assert image[0, 0].tolist() == [128, 125, 95]
        assert image[-1, 0].tolist() == image[-1, -1].tolist() == [4, 4, 20]

    def test_small_images_are_enlarged(self):
        (image,) = render_attention(FixedAttention(torch.full((4, 4), 0.25)), torch.ones(1, 1), [black_image(8)])[""]
        assert image.shape == (120, 120, 3)

    def test_overlay_matches_the_golden_image(self, golden):
        y, x = np.mgrid[-1:1:8j, -1:1:8j]
        row = np.exp(-3 * np.hypot(x - 0.3, y + 0.3)).ravel()
        weights = torch.full((65, 65), 1 / 65)
        weights[0, 0], weights[0, 1:] = 0.1, torch.from_numpy(0.9 * row / row.sum())
        stripes = np.where(np.indices((32, 32))[1][..., None] // 4 % 2, 230, 40).repeat(3, 2).astype(np.uint8)
        golden("attention", render_attention(FixedAttention(weights), torch.ones(1, 1), [stripes])[""][0])


class TestMatrix:
    weights = torch.tensor([[0.75, 0.125, 0.125], [0.125, 0.125, 0.75], [0.25, 0.5, 0.25]])

    def test_sequences_are_rendered_as_a_matrix_with_one_row_per_query(self):
        (image,) = render_attention(FixedAttention(self.weights), torch.ones(1, 1))[""]
        assert image.tolist() == apply_colormap(normalize(self.weights)).tolist()
        assert image[0, 0].tolist() == image[1, 2].tolist() == LIGHTEST
        assert image[0, 1].tolist() == DARKEST

    def test_tokens_that_are_not_patches_are_rendered_as_a_matrix(self):
        (image,) = render_attention(FixedAttention(self.weights), torch.ones(1, 1), [black_image()])[""]
        assert image.shape == (3, 3, 3)

    def test_different_numbers_of_images_and_samples_are_rendered_as_a_matrix(self):
        assert (
            len(render_attention(FixedAttention(torch.full((4, 4), 0.25)), torch.ones(3, 1), [black_image()])[""]) == 3
        )

    def test_long_sequences_are_average_pooled(self):
        (image,) = render_attention(FixedAttention(torch.full((600, 600), 1 / 600)), torch.ones(1, 1))[""]
        assert image.shape == (256, 256, 3)


def test_every_layer_is_rendered_under_its_path():
    model = nn.Sequential(FixedAttention(torch.eye(4) * 0.6 + 0.1))
    assert list(render_attention(model, torch.ones(1, 1))) == ["0"]
