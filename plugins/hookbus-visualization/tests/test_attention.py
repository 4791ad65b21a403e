import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from hookbus_visualization.attention import Patches, attention_pictures, patches_of
from hookbus_visualization.heatmap import coloured, scaled

DARKEST, LIGHTEST = [8, 8, 40], [255, 250, 190]


class Looking(nn.Module):
    """Attention with given weights, the same for each sample: (tokens, tokens), of two heads that differ."""

    def __init__(self, weights):
        super().__init__()
        self.logits = torch.as_tensor(weights).log()

    def forward(self, x):
        length = len(self.logits)
        query = torch.stack([self.logits, self.logits])[None].expand(len(x), -1, -1, -1)
        unit = torch.eye(length).expand(len(x), 2, -1, -1)
        return scaled_dot_product_attention(query, unit, unit, scale=1.0)


def picture(side=160):
    return np.zeros((side, side, 3), np.uint8)


class TestPatches:
    @pytest.mark.parametrize(
        ("tokens", "height", "width", "expected"),
        [
            (16, 8, 8, Patches(0, 4, 4)),
            (17, 8, 8, Patches(1, 4, 4)),
            (18, 8, 8, Patches(2, 4, 4)),
            (21, 8, 8, Patches(5, 4, 4)),
            (197, 224, 224, Patches(1, 14, 14)),
            (12, 32, 64, None),
            (33, 32, 64, Patches(1, 4, 8)),
            (32, 64, 32, Patches(0, 8, 4)),
            (6, 20, 30, Patches(0, 2, 3)),
            (19, 8, 8, None),
            (2, 8, 8, None),
            (1, 8, 8, None),
            (0, 8, 8, None),
        ],
    )
    def test_are_found_from_the_number_of_tokens_and_the_shape_of_the_image(self, tokens, height, width, expected):
        assert patches_of(tokens, height, width) == expected


class TestOverAnImage:
    def test_is_what_the_class_token_attends_to(self):
        weights = torch.full((5, 5), 0.2)
        weights[0] = torch.tensor([0.5, 0.05, 0.25, 0.1, 0.1])  # itself, and four patches
        drawn = attention_pictures(Looking(weights), torch.ones(2, 1), [picture(), picture()])[""]
        assert len(drawn) == 2
        assert drawn[0][0, 0].tolist() == [4, 4, 20]  # half of the darkest
        assert drawn[0][0, -1].tolist() == [128, 125, 95]  # half of the lightest
        assert drawn[0][-1, 0].tolist() == drawn[0][-1, -1].tolist() == [41, 12, 60]  # half of that at 1/4

    def test_without_a_class_token_is_what_all_patches_attend_to(self):
        weights = torch.tensor([[0.4, 0.2, 0.2, 0.2], [0.2, 0.4, 0.2, 0.2], [0.4, 0.2, 0.2, 0.2], [0.4, 0.2, 0.2, 0.2]])
        (drawn,) = attention_pictures(Looking(weights), torch.ones(1, 1), [picture()])[""]
        assert drawn[0, 0].tolist() == [128, 125, 95]
        assert drawn[-1, 0].tolist() == drawn[-1, -1].tolist() == [4, 4, 20]

    def test_enlarges_small_images(self):
        (drawn,) = attention_pictures(Looking(torch.full((4, 4), 0.25)), torch.ones(1, 1), [picture(8)])[""]
        assert drawn.shape == (120, 120, 3)

    def test_looks_as_it_should(self, golden):
        y, x = np.mgrid[-1:1:8j, -1:1:8j]
        row = np.exp(-3 * np.hypot(x - 0.3, y + 0.3)).ravel()
        weights = torch.full((65, 65), 1 / 65)
        weights[0, 0], weights[0, 1:] = 0.1, torch.from_numpy(0.9 * row / row.sum())
        stripes = np.where(np.indices((32, 32))[1][..., None] // 4 % 2, 230, 40).repeat(3, 2).astype(np.uint8)
        golden("attention", attention_pictures(Looking(weights), torch.ones(1, 1), [stripes])[""][0])


class TestMatrix:
    weights = torch.tensor([[0.75, 0.125, 0.125], [0.125, 0.125, 0.75], [0.25, 0.5, 0.25]])

    def test_is_drawn_of_sequences_with_a_row_for_each_query(self):
        (drawn,) = attention_pictures(Looking(self.weights), torch.ones(1, 1))[""]
        assert drawn.tolist() == coloured(scaled(self.weights)).tolist()
        assert drawn[0, 0].tolist() == drawn[1, 2].tolist() == LIGHTEST
        assert drawn[0, 1].tolist() == DARKEST

    def test_is_drawn_where_tokens_are_no_patches_of_the_image(self):
        (drawn,) = attention_pictures(Looking(self.weights), torch.ones(1, 1), [picture()])[""]
        assert drawn.shape == (3, 3, 3)

    def test_is_drawn_where_there_are_not_as_many_images_as_samples(self):
        assert len(attention_pictures(Looking(torch.full((4, 4), 0.25)), torch.ones(3, 1), [picture()])[""]) == 3

    def test_of_a_long_sequence_is_averaged_down(self):
        (drawn,) = attention_pictures(Looking(torch.full((600, 600), 1 / 600)), torch.ones(1, 1))[""]
        assert drawn.shape == (256, 256, 3)


def test_every_layer_is_drawn_under_its_path():
    model = nn.Sequential(Looking(torch.eye(4) * 0.6 + 0.1))
    assert list(attention_pictures(model, torch.ones(1, 1))) == ["0"]
