import numpy as np
import pytest
import torch

from hookbus_visualization.grid import beside
from hookbus_visualization.located import objects_panel, regions_panel
from hookbus_visualization.panel import RIGHT, WRONG
from hookbus_visualization.samples import input_picture, sample_panel
from hookbus_visualization.tokens import token_picture

IMAGE = np.full((8, 8, 3), (10, 20, 30), np.uint8)
TOKENS = torch.tensor([5, 6, 7])


def same(panel, picture, caption="", frame=None):
    return np.array_equal(panel.picture, picture) and (panel.caption, panel.frame) == (caption, frame)


class TestInputPicture:
    def test_of_an_image_has_its_pixels(self):
        assert input_picture(IMAGE).tolist() == IMAGE.tolist()

    def test_of_tokens_shows_them(self):
        assert input_picture(TOKENS).tolist() == token_picture([5, 6, 7]).tolist()
        assert input_picture("a few words").tolist() == token_picture(["a", "few", "words"]).tolist()
        assert input_picture(["a", "few"]).tolist() == token_picture(["a", "few"]).tolist()

    def test_of_numbers_is_a_row(self):
        assert input_picture(np.array([0.0, 0.2, 1.0]))[..., 0].tolist() == [[0, 51, 255]]

    @pytest.mark.parametrize("value", [1.0, np.zeros((2, 2, 2, 2)), np.zeros(0), {"a": 1}, None])
    def test_of_anything_else_there_is_none(self, value):
        with pytest.raises(ValueError, match="the inputs are neither images, tokens nor vectors of numbers"):
            input_picture(value)


class TestSamplePanel:
    def test_of_a_class_says_it(self):
        found = sample_panel(IMAGE, 1, [0.0, 1.0], ["cat", "dog"])
        assert same(found, IMAGE, "true dog\npredicted dog (100%), right", RIGHT)

    def test_of_a_number_says_how_far_it_is_off(self):
        assert same(sample_panel(IMAGE, 1.0, [3.0]), IMAGE, "true 1\npredicted 3, off by 2")

    def test_of_an_image_made_of_an_image_shows_all_three(self):
        truth, said = torch.ones(1, 8, 8), torch.zeros(1, 8, 8)
        white, black = np.full((8, 8, 3), 255, np.uint8), np.zeros((8, 8, 3), np.uint8)
        assert same(sample_panel(IMAGE, truth, said), beside([IMAGE, white, black]), "input | truth | prediction")
        assert same(sample_panel(IMAGE, None, said), beside([IMAGE, black]), "input | prediction")

    def test_of_tokens_marks_each(self):
        scores = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        rows = [TOKENS.tolist(), ["a", "b", -100], ["b", "b", "a"]]
        marks = [None, None, [False, True, None]]
        picture = np.concatenate([token_picture(*each) for each in zip(rows, marks, strict=True)])
        found = sample_panel(TOKENS, torch.tensor([0, 1, -100]), scores, ["a", "b"])
        assert same(found, picture, "1 of 2 tokens are right", WRONG)

    def test_of_tokens_counts_those_that_have_a_class(self):
        found = sample_panel(TOKENS, torch.tensor([0, -1, -1]), torch.tensor([0, -1, 3]))
        assert (found.caption, found.frame) == ("1 of 1 tokens are right", RIGHT)

    def test_of_tokens_that_are_all_right_is_right(self):
        assert sample_panel(TOKENS, TOKENS, TOKENS).frame == RIGHT

    def test_of_tokens_of_another_count_judges_nothing(self):
        picture = np.concatenate([token_picture(each) for each in ([5, 6, 7], [5, 6])])
        assert same(sample_panel(TOKENS, None, torch.tensor([5, 6])), picture)

    def test_of_tokens_that_have_one_class_together_says_it(self):
        assert sample_panel(TOKENS, 1, [0.0, 1.0]).caption == "true 1\npredicted 1 (100%), right"

    def test_of_boxes_shows_them(self):
        boxes = {"boxes": torch.tensor([[1.0, 1, 6, 6]]), "labels": torch.tensor([1]), "scores": torch.tensor([0.5])}
        for truth, said in ((boxes, None), (None, boxes), (boxes, boxes)):
            panel = objects_panel(IMAGE, truth, said, ["a", "b"], 0.3)
            assert same(sample_panel(IMAGE, truth, said, ["a", "b"], threshold=0.3), panel.picture)

    def test_of_a_label_map_shows_its_colours(self):
        labels = np.eye(8, dtype=np.int64)
        panel = regions_panel(IMAGE, labels, np.stack([1.0 - labels, labels]))
        assert same(sample_panel(IMAGE, labels, np.stack([1.0 - labels, labels])), panel.picture, panel.caption)

    @pytest.mark.parametrize(("target", "prediction"), [({"a": []}, None), (1, {"a": []}), (1, np.zeros((2, 2, 2, 2)))])
    def test_of_what_fits_nothing_there_is_none(self, target, prediction):
        with pytest.raises(ValueError, match="truth and prediction are neither classes, numbers, tokens, boxes nor"):
            sample_panel(IMAGE, target, prediction)

    def test_of_images_one_of_which_is_none_there_is_none(self):
        with pytest.raises(ValueError, match="an image has shape"):
            sample_panel(IMAGE, np.zeros((1, 8, 8)), np.zeros((2, 8, 8, 8)))
