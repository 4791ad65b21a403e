import numpy as np
import pytest
import torch

from hookbus_visualization.masks import (
    NO_CLASS,
    draw_edges,
    find_boundaries,
    merge_instances,
    overlay_classes,
    resize_labels,
    to_instance_masks,
    to_label_map,
)

NAN = float("nan")
SIZE = (2, 3)
LABELS = [[0, 1, 2], [2, 1, 0]]
ONE_HOT = np.moveaxis(np.eye(3)[LABELS], 2, 0)
SCORES = ONE_HOT * 3.5 - 1.25


class TestLabelMap:
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
    def test_labels_logits_and_one_hot_masks_are_converted(self, value):
        labels = to_label_map(value, SIZE)
        assert labels.dtype == np.int64
        assert labels.tolist() == LABELS

    def test_channels_last_is_used_if_it_matches_the_image_size(self):
        assert to_label_map(SCORES.transpose(1, 2, 0), SIZE).tolist() == LABELS

    def test_channels_first_is_used_if_both_orders_match(self):
        square = np.zeros((3, 3, 3))
        square[1, 0, 2] = 1
        assert to_label_map(square, (3, 3))[0, 2] == 1

    def test_binary_masks_may_be_probabilities_or_logits(self):
        assert to_label_map([[0.4, 0.5, 0.6]], (1, 3)).tolist() == [[0, 1, 1]]
        assert to_label_map([[-0.4, 0.4, 0.6]], (1, 3)).tolist() == [[0, 1, 1]]
        assert to_label_map([[0.4, 1.4, -3.0]], (1, 3)).tolist() == [[1, 1, 0]]
        assert to_label_map([[True, False, True]], (1, 3)).tolist() == [[1, 0, 1]]

    def test_pixels_with_nan_have_no_class(self):
        assert to_label_map([[NAN, 0.7, 0.2]], (1, 3)).tolist() == [[NO_CLASS, 1, 0]]
        logits = [[[NAN, 1.0, NAN]], [[0.0, 2.0, NAN]]]
        assert to_label_map(logits, (1, 3)).tolist() == [[NO_CLASS, 1, NO_CLASS]]

    def test_pixels_without_one_hot_class_have_no_class_but_zero_logits_have_the_first(self):
        assert to_label_map(np.zeros((3, 1, 1), int), (1, 1)).tolist() == [[NO_CLASS]]
        assert to_label_map(np.zeros((3, 1, 1), bool), (1, 1)).tolist() == [[NO_CLASS]]
        assert to_label_map(np.zeros((3, 1, 1)), (1, 1)).tolist() == [[0]]

    def test_logits_may_be_infinite(self):
        assert to_label_map([[[float("-inf")]], [[float("inf")]]], (1, 1)).tolist() == [[1]]

    def test_label_map_is_resized_to_the_image_size(self):
        assert to_label_map([[0, 1]], (2, 4)).tolist() == [[0, 0, 1, 1]] * 2

    def test_input_may_be_read_only(self):
        value = np.array(LABELS)
        value.flags.writeable = False
        assert to_label_map(value, SIZE).tolist() == LABELS

    @pytest.mark.parametrize("shape", [(3,), (2, 3, 4, 5), (), (0, 3), (0, 2, 3)])
    def test_other_shapes_raise_value_error(self, shape):
        with pytest.raises(ValueError, match=r"must have shape \(H, W\) or \(C, H, W\), got"):
            to_label_map(np.zeros(shape), SIZE)


class TestResized:
    def test_nearest_pixel_is_used(self):
        assert resize_labels(np.arange(6)[None], (1, 3)).tolist() == [[1, 3, 5]]  # centers at 1, 3 and 5 of six
        assert resize_labels(np.arange(3)[None], (1, 6)).tolist() == [[0, 0, 1, 1, 2, 2]]
        assert resize_labels(np.arange(2)[:, None], (5, 1)).ravel().tolist() == [0, 0, 1, 1, 1]

    def test_array_of_the_same_size_is_returned_unchanged(self):
        labels = np.array(LABELS)
        assert resize_labels(labels, SIZE) is labels


class TestInstanceMasks:
    def test_masks_may_be_probabilities_logits_or_booleans(self):
        expected = [[[True, False]], [[False, True]]]
        assert to_instance_masks(np.array(expected), (1, 2)).tolist() == expected
        assert to_instance_masks(np.array(expected, np.uint8) * 255, (1, 2)).tolist() == expected
        assert to_instance_masks(np.array(expected) * 0.8, (1, 2)).tolist() == expected
        assert to_instance_masks(np.array(expected) * 5.5 - 2.25, (1, 2)).tolist() == expected

    def test_masks_may_have_a_channel_dimension(self):
        assert to_instance_masks(torch.ones(2, 1, 3, 4), (3, 4)).shape == (2, 3, 4)

    def test_masks_are_resized_to_the_image_size(self):
        assert to_instance_masks([[[True, False]]], (2, 4)).tolist() == [[[True, True, False, False]] * 2]

    def test_input_may_contain_no_masks(self):
        assert to_instance_masks(np.zeros((0, 3, 4)), (6, 8)).shape == (0, 6, 8)

    def test_other_shapes_raise_value_error(self):
        for shape in ((3, 4), (2, 0, 4)):
            with pytest.raises(ValueError, match=r"masks must have shape \(N, H, W\), got"):
                to_instance_masks(np.zeros(shape), (3, 4))

    def test_later_instances_cover_earlier_ones(self):
        masks = np.array([[[1, 1, 0]], [[0, 1, 0]]], bool)
        assert merge_instances(masks, np.array([5, 3])).tolist() == [[5, 3, NO_CLASS]]
        assert merge_instances(np.zeros((0, 1, 2), bool), np.array([], int)).tolist() == [[NO_CLASS, NO_CLASS]]


class TestOverlay:
    image = np.full((2, 2, 3), 100, np.uint8)
    labels = np.array([[0, 1], [1, 0]])
    palette = ((200, 0, 0), (0, 200, 0))

    def test_class_colors_are_blended_with_the_image(self):
        assert overlay_classes(self.image, self.labels, opacity=0.5, palette=self.palette).tolist() == [
            [[150, 50, 50], [50, 150, 50]],
            [[50, 150, 50], [150, 50, 50]],
        ]

    def test_extreme_opacities_show_only_the_image_or_only_the_colors(self):
        assert np.array_equal(overlay_classes(self.image, self.labels, opacity=0.0), self.image)
        assert overlay_classes(self.image, self.labels, opacity=1.0)[0].tolist() == [[230, 159, 0], [86, 180, 233]]

    def test_unlabeled_and_ignored_pixels_are_unchanged(self):
        labels = np.array([[NO_CLASS, 255], [0, 1]])
        result = overlay_classes(self.image, labels, palette=self.palette, ignored=[255, 1])
        assert result.tolist() == [[[100, 100, 100]] * 2, [[150, 50, 50], [100, 100, 100]]]

    def test_color_of_a_class_does_not_depend_on_other_classes(self):
        alone = overlay_classes(self.image, np.array([[3, 3], [3, 3]]))
        among = overlay_classes(self.image, np.array([[3, 0], [1, 70000]]))
        assert alone[0, 0].tolist() == among[0, 0].tolist() == [170, 164, 83]  # half of (240, 228, 66)

    def test_input_image_is_not_modified(self):
        overlay_classes(self.image, self.labels)
        assert (self.image == 100).all()


class TestEdges:
    def test_edges_are_pixels_with_a_different_right_or_lower_neighbor(self):
        labels = np.array([[0, 0, 1], [0, 0, 1], [2, 2, 2]])
        assert find_boundaries(labels).tolist() == [[False, True, False], [True, True, True], [False, False, False]]

    def test_image_border_is_not_an_edge(self):
        assert not find_boundaries(np.ones((3, 4), bool)).any()

    def test_edges_are_drawn_in_white(self):
        image = draw_edges(np.full((1, 2, 3), 100, np.uint8), np.array([[True, False]]))
        assert image.dtype == np.uint8
        assert image.tolist() == [[[255] * 3, [100] * 3]]
