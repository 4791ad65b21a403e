import numpy as np
import pytest
import torch

from hookbus_visualization.masks import (
    NOTHING,
    draw_edges,
    edges_of,
    instance_masks,
    label_map,
    overlay,
    resized,
    stacked,
)

NAN = float("nan")
SIZE = (2, 3)
LABELS = [[0, 1, 2], [2, 1, 0]]
ONE_HOT = np.moveaxis(np.eye(3)[LABELS], 2, 0)
SCORES = ONE_HOT * 3.5 - 1.25


class TestALabelMap:
    @pytest.mark.parametrize(
        "value",
        [
            LABELS,
            [LABELS],
            np.array(LABELS, np.uint8),
            np.array(LABELS, np.uint16),
            torch.tensor(LABELS),
            torch.tensor(LABELS, dtype=torch.float32),
            np.array(LABELS)[..., None],
            ONE_HOT.astype(int),
            ONE_HOT.astype(bool),
            torch.from_numpy(ONE_HOT).bool(),
            SCORES,
            torch.from_numpy(SCORES).requires_grad_(),
            torch.from_numpy(SCORES).bfloat16(),
        ],
        ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')} {np.shape(value)}",
    )
    def test_is_made_of_labels_logits_and_one_hot(self, value):
        found = label_map(value, SIZE)
        assert found.dtype == np.int64
        assert found.tolist() == LABELS

    def test_is_made_of_classes_last_where_that_fits_the_picture(self):
        assert label_map(SCORES.transpose(1, 2, 0), SIZE).tolist() == LABELS

    def test_takes_classes_first_where_both_fit(self):
        square = np.zeros((3, 3, 3))
        square[1, 0, 2] = 1
        assert label_map(square, (3, 3))[0, 2] == 1

    def test_of_a_mask_tells_probabilities_from_logits(self):
        assert label_map([[0.4, 0.5, 0.6]], (1, 3)).tolist() == [[0, 1, 1]]
        assert label_map([[-0.4, 0.4, 0.6]], (1, 3)).tolist() == [[0, 1, 1]]
        assert label_map([[0.4, 1.4, -3.0]], (1, 3)).tolist() == [[1, 1, 0]]
        assert label_map([[True, False, True]], (1, 3)).tolist() == [[1, 0, 1]]

    def test_has_nothing_where_a_value_is_nan(self):
        assert label_map([[NAN, 0.7, 0.2]], (1, 3)).tolist() == [[NOTHING, 1, 0]]
        logits = [[[NAN, 1.0, NAN]], [[0.0, 2.0, NAN]]]
        assert label_map(logits, (1, 3)).tolist() == [[NOTHING, 1, NOTHING]]

    def test_has_nothing_where_one_hot_is_all_zero_and_the_first_class_where_logits_are(self):
        assert label_map(np.zeros((3, 1, 1), int), (1, 1)).tolist() == [[NOTHING]]
        assert label_map(np.zeros((3, 1, 1), bool), (1, 1)).tolist() == [[NOTHING]]
        assert label_map(np.zeros((3, 1, 1)), (1, 1)).tolist() == [[0]]

    def test_may_have_infinite_logits(self):
        assert label_map([[[float("-inf")]], [[float("inf")]]], (1, 1)).tolist() == [[1]]

    def test_is_brought_to_the_size_of_the_picture(self):
        assert label_map([[0, 1]], (2, 4)).tolist() == [[0, 0, 1, 1]] * 2

    def test_may_be_read_only(self):
        value = np.array(LABELS)
        value.flags.writeable = False
        assert label_map(value, SIZE).tolist() == LABELS

    @pytest.mark.parametrize("shape", [(3,), (2, 3, 4, 5), (), (0, 3), (0, 2, 3)])
    def test_has_no_other_shape(self, shape):
        with pytest.raises(ValueError, match=r"has shape \(H, W\) or \(classes, H, W\), not"):
            label_map(np.zeros(shape), SIZE)


class TestResizing:
    def test_takes_the_nearest_pixel(self):
        assert resized(np.arange(6)[None], (1, 3)).tolist() == [[1, 3, 5]]  # centres at 1, 3 and 5 of six
        assert resized(np.arange(3)[None], (1, 6)).tolist() == [[0, 0, 1, 1, 2, 2]]
        assert resized(np.arange(2)[:, None], (5, 1)).ravel().tolist() == [0, 0, 1, 1, 1]

    def test_leaves_what_fits(self):
        labels = np.array(LABELS)
        assert resized(labels, SIZE) is labels


class TestMasksOfInstances:
    def test_are_probabilities_logits_or_truth_values(self):
        wanted = [[[True, False]], [[False, True]]]
        assert instance_masks(np.array(wanted), (1, 2)).tolist() == wanted
        assert instance_masks(np.array(wanted, np.uint8) * 255, (1, 2)).tolist() == wanted
        assert instance_masks(np.array(wanted) * 0.8, (1, 2)).tolist() == wanted
        assert instance_masks(np.array(wanted) * 5.5 - 2.25, (1, 2)).tolist() == wanted

    def test_may_have_a_channel(self):
        assert instance_masks(torch.ones(2, 1, 3, 4), (3, 4)).shape == (2, 3, 4)

    def test_are_brought_to_the_size_of_the_picture(self):
        assert instance_masks([[[True, False]]], (2, 4)).tolist() == [[[True, True, False, False]] * 2]

    def test_may_be_none(self):
        assert instance_masks(np.zeros((0, 3, 4)), (6, 8)).shape == (0, 6, 8)

    def test_have_no_other_shape(self):
        for shape in ((3, 4), (2, 0, 4)):
            with pytest.raises(ValueError, match=r"masks have shape \(N, H, W\), not"):
                instance_masks(np.zeros(shape), (3, 4))

    def test_are_stacked_with_the_last_on_top(self):
        masks = np.array([[[1, 1, 0]], [[0, 1, 0]]], bool)
        assert stacked(masks, np.array([5, 3])).tolist() == [[5, 3, NOTHING]]
        assert stacked(np.zeros((0, 1, 2), bool), np.array([], int)).tolist() == [[NOTHING, NOTHING]]


class TestAnOverlay:
    image = np.full((2, 2, 3), 100, np.uint8)
    labels = np.array([[0, 1], [1, 0]])
    palette = ((200, 0, 0), (0, 200, 0))

    def test_mixes_the_colour_of_each_class_into_its_pixels(self):
        assert overlay(self.image, self.labels, opacity=0.5, palette=self.palette).tolist() == [
            [[150, 50, 50], [50, 150, 50]],
            [[50, 150, 50], [150, 50, 50]],
        ]

    def test_is_the_picture_without_opacity_and_the_colours_with_all_of_it(self):
        assert np.array_equal(overlay(self.image, self.labels, opacity=0.0), self.image)
        assert overlay(self.image, self.labels, opacity=1.0)[0].tolist() == [[230, 159, 0], [86, 180, 233]]

    def test_leaves_pixels_of_no_class_and_of_ignored_ones(self):
        labels = np.array([[NOTHING, 255], [0, 1]])
        shown = overlay(self.image, labels, palette=self.palette, ignored=[255, 1])
        assert shown.tolist() == [[[100, 100, 100]] * 2, [[150, 50, 50], [100, 100, 100]]]

    def test_gives_a_class_the_same_colour_whatever_others_there_are(self):
        alone = overlay(self.image, np.array([[3, 3], [3, 3]]))
        among = overlay(self.image, np.array([[3, 0], [1, 70000]]))
        assert alone[0, 0].tolist() == among[0, 0].tolist() == [170, 164, 83]  # half of (240, 228, 66)

    def test_is_a_copy(self):
        overlay(self.image, self.labels)
        assert (self.image == 100).all()


class TestEdges:
    def test_are_where_the_next_pixel_belongs_to_something_else(self):
        labels = np.array([[0, 0, 1], [0, 0, 1], [2, 2, 2]])
        assert edges_of(labels).tolist() == [[False, True, False], [True, True, True], [False, False, False]]

    def test_are_not_at_the_border_of_the_picture(self):
        assert not edges_of(np.ones((3, 4), bool)).any()

    def test_are_white(self):
        image = draw_edges(np.full((1, 2, 3), 100, np.uint8), np.array([[True, False]]))
        assert image.dtype == np.uint8
        assert image.tolist() == [[[255] * 3, [100] * 3]]
