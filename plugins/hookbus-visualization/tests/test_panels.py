import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus_visualization.instances import DrawStyle, build_objects_panel
from hookbus_visualization.panel import CORRECT_COLOR, INCORRECT_COLOR, hstack_images, resize_to_fit
from hookbus_visualization.panels import build_sample_panel, render_input, render_tokens
from hookbus_visualization.regions import build_regions_panel, read_sample

from .toys import render_settings

IMAGE = np.full((8, 8, 3), (10, 20, 30), np.uint8)
TOKENS = torch.tensor([5, 6, 7])


def is_equal(panel, image, caption="", frame=None):
    return np.array_equal(panel.image, image) and (panel.caption, panel.frame) == (caption, frame)


class TestInputPicture:
    def test_image_is_converted_to_pixels(self):
        assert render_input(IMAGE).tolist() == IMAGE.tolist()

    def test_tokens_are_rendered(self):
        assert render_input(TOKENS).tolist() == render_tokens([5, 6, 7]).tolist()
        assert render_input("a few words").tolist() == render_tokens(["a", "few", "words"]).tolist()
        assert render_input(["a", "few"]).tolist() == render_tokens(["a", "few"]).tolist()

    def test_numbers_are_rendered_as_a_row(self):
        assert render_input(np.array([0.0, 0.2, 1.0]))[..., 0].tolist() == [[0, 51, 255]]

    @pytest.mark.parametrize("value", [1.0, np.zeros((2, 2, 2, 2)), np.zeros(0), {"a": 1}, None])
    def test_other_values_raise_value_error(self, value):
        with pytest.raises(ValueError, match="inputs must be images, tokens or vectors of numbers"):
            render_input(value)


class TestSamplePanel:
    def test_class_is_in_the_caption(self):
        panel = build_sample_panel(IMAGE, 1, [0.0, 1.0], ["cat", "dog"])
        assert is_equal(panel, IMAGE, "true dog\npredicted dog (100%), right", CORRECT_COLOR)

    def test_difference_of_numbers_is_in_the_caption(self):
        assert is_equal(build_sample_panel(IMAGE, 1.0, [3.0]), IMAGE, "true 1\npredicted 3, off by 2")

    def test_output_images_are_next_to_the_input(self):
        truth, prediction = torch.ones(1, 8, 8), torch.zeros(1, 8, 8)
        white, black = np.full((8, 8, 3), 255, np.uint8), np.zeros((8, 8, 3), np.uint8)
        assert is_equal(
            build_sample_panel(IMAGE, truth, prediction),
            hstack_images([IMAGE, white, black]),
            "input | truth | prediction",
        )
        assert is_equal(
            build_sample_panel(IMAGE, None, prediction), hstack_images([IMAGE, black]), "input | prediction"
        )

    def test_token_predictions_are_marked(self):
        scores = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        rows = [TOKENS.tolist(), ["a", "b", -100], ["b", "b", "a"]]
        marks = [None, None, [False, True, None]]
        image = np.concatenate([render_tokens(*row) for row in zip(rows, marks, strict=True)])
        panel = build_sample_panel(TOKENS, torch.tensor([0, 1, -100]), scores, ["a", "b"])
        assert is_equal(panel, image, "1 of 2 tokens are right", INCORRECT_COLOR)

    def test_only_tokens_with_a_class_are_counted(self):
        panel = build_sample_panel(TOKENS, torch.tensor([0, -1, -1]), torch.tensor([0, -1, 3]))
        assert (panel.caption, panel.frame) == ("1 of 1 tokens are right", CORRECT_COLOR)

    def test_correct_tokens_have_the_frame_of_a_correct_prediction(self):
        assert build_sample_panel(TOKENS, TOKENS, TOKENS).frame == CORRECT_COLOR

    def test_token_rows_of_different_lengths_are_not_compared(self):
        image = np.concatenate([render_tokens(tokens) for tokens in ([5, 6, 7], [5, 6])])
        assert is_equal(build_sample_panel(TOKENS, None, torch.tensor([5, 6])), image)

    def test_class_of_a_token_sequence_is_in_the_caption(self):
        assert build_sample_panel(TOKENS, 1, [0.0, 1.0]).caption == "true 1\npredicted 1 (100%), right"

    def test_boxes_are_drawn_as_objects(self):
        boxes = {"boxes": torch.tensor([[1.0, 1, 6, 6]]), "labels": torch.tensor([1]), "scores": torch.tensor([0.5])}
        for truth, prediction in ((boxes, None), (None, boxes), (boxes, boxes)):
            panel = build_objects_panel(IMAGE, truth, prediction, DrawStyle(["a", "b"]), threshold=0.3)
            assert is_equal(build_sample_panel(IMAGE, truth, prediction, ["a", "b"], threshold=0.3), panel.image)

    def test_label_maps_are_drawn_as_regions(self):
        labels = np.eye(8, dtype=np.int64)
        display = resize_to_fit(IMAGE)
        panel = build_regions_panel(display, read_sample(IMAGE, display, labels, np.stack([1.0 - labels, labels])))
        assert is_equal(build_sample_panel(IMAGE, labels, np.stack([1.0 - labels, labels])), panel.image, panel.caption)

    @pytest.mark.parametrize(("target", "prediction"), [({"a": []}, None), (1, {"a": []}), (1, np.zeros((2, 2, 2, 2)))])
    def test_unsupported_values_raise_value_error(self, target, prediction):
        with pytest.raises(ValueError, match="target and prediction must be classes, numbers, tokens, boxes or images"):
            build_sample_panel(IMAGE, target, prediction)

    def test_invalid_output_image_raises_value_error(self):
        with pytest.raises(ValueError, match="image must have shape"):
            build_sample_panel(IMAGE, np.zeros((1, 8, 8)), np.zeros((2, 8, 8, 8)))


def test_tokens_with_marks_match_the_golden_image(golden):
    words = [*"abcde", "some", "longer", "words", "and", "a word that is much longer than a line has place for" * 2]
    golden("tokens", render_tokens(words * 2, [True, False, None] * 5))


def test_number_of_omitted_tokens_matches_the_golden_image(golden):
    golden("many_tokens", render_tokens(range(10_000, 10_400)))


class TestTokenPicture:
    def test_correct_tokens_have_only_correct_marks(self):
        colors = {tuple(pixel) for pixel in render_tokens(["a", "b"], [True, True]).reshape(-1, 3).tolist()}
        assert CORRECT_COLOR in colors
        assert INCORRECT_COLOR not in colors

    @render_settings
    @given(st.lists(st.text(max_size=60), max_size=200))
    def test_image_size_is_bounded_for_any_tokens(self, words):
        image = render_tokens(words)
        assert image.dtype == np.uint8
        assert image.shape[1:] == (320, 3)
        assert image.shape[0] <= 320
