from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hookbus_visualization.regions import draw_regions, read_regions

LABELS = np.array([[0, 1], [2, 1]])
ROWS, COLUMNS = np.mgrid[:60, :90]


def two(masks, labels, **others):
    return {"masks": np.array(masks, bool), "labels": np.array(labels), **others}


class TestReading:
    @pytest.mark.parametrize(
        "value",
        [
            LABELS,
            LABELS.tolist(),
            torch.tensor(LABELS),
            {"sem_seg": LABELS},
            {"out": np.moveaxis(np.eye(3)[LABELS] * 0.9, 2, 0), "aux": None},
            {"masks": LABELS},
            {"labels": LABELS},
            SimpleNamespace(data=torch.tensor(LABELS)[None]),
        ],
        ids=str,
    )
    def test_finds_the_classes_alone_or_under_a_name(self, value):
        assert read_regions(value, (2, 2)).classes.tolist() == LABELS.tolist()

    def test_finds_instances(self):
        value = two([[[1, 1, 0]], [[0, 1, 0]]], [5, 3])
        assert read_regions(value, (1, 3)).classes.tolist() == [[5, 3, -1]]

    def test_finds_instances_by_other_names(self):
        value = {"mask_labels": torch.ones(1, 1, 3), "class_labels": torch.tensor([4])}
        assert read_regions(value, (1, 3)).classes.tolist() == [[4, 4, 4]]

    def test_leaves_out_instances_that_are_not_sure_and_puts_the_surest_on_top(self):
        value = two([[[1, 1, 0, 0]], [[0, 1, 1, 0]], [[0, 0, 0, 1]]], [5, 3, 4], scores=[0.9, 0.5, 0.2])
        assert read_regions(value, (1, 4), threshold=0.3).classes.tolist() == [[5, 5, 3, -1]]

    def test_tells_instances_of_one_class_apart(self):
        found = read_regions(two([[[1, 1, 0, 0]], [[0, 0, 1, 1]]], [7, 7]), (1, 4))
        assert found.classes.tolist() == [[7, 7, 7, 7]]
        assert found.edges.tolist() == [[False, True, False, False]]

    def test_takes_a_label_of_nan_for_no_class(self):
        value = two([[[1, 0]], [[0, 1]]], [float("nan"), 3])
        assert read_regions(value, (1, 2)).classes.tolist() == [[-1, 3]]

    def test_finds_no_instances(self):
        found = read_regions({"masks": np.zeros((0, 2, 2)), "labels": []}, (2, 2))
        assert found.classes.tolist() == [[-1, -1], [-1, -1]]

    def test_takes_the_size_in_which_the_picture_is_drawn(self):
        channels_last = np.eye(3)[LABELS] * 0.9
        found = read_regions(channels_last, (2, 2), shown=(4, 2))
        assert found.classes.tolist() == [[0, 1], [0, 1], [2, 1], [2, 1]]
        assert found.edges.shape == (4, 2)
        assert read_regions(two([LABELS > 0], [3]), (2, 2), shown=(4, 2)).classes.shape == (4, 2)

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ({"boxes": 1}, "there is none of sem_seg, mask, masks"),
            (np.zeros(3), r"a segmentation has shape \(H, W\) or \(classes, H, W\), not \(3,\)"),
            (two([[[1, 1]]], [1, 2]), "1 masks with 2 labels"),
        ],
    )
    def test_tells_what_does_not_fit(self, value, why):
        with pytest.raises(ValueError, match=why):
            read_regions(value, (2, 2))

    def test_knows_its_classes(self):
        found = read_regions(np.array([[0, 255, -1, 3]]), (1, 4))
        assert found.known() == {0, 3, 255}
        assert found.known([255, 7]) == {0, 3}


class TestDrawing:
    ground = np.stack([COLUMNS * 255 / 90, ROWS * 255 / 60, (ROWS + COLUMNS) * 255 / 150], axis=-1).astype(np.uint8)

    def test_shows_colours_edges_and_what_is_ignored(self, golden):
        classes = np.where((COLUMNS - 30) ** 2 + (ROWS - 30) ** 2 < 400, 1, 0)
        classes[20:50, 40:70] = 4
        classes[:, 80:] = 255
        golden("regions", draw_regions(self.ground, read_regions(classes, (60, 90)), ignored=[255], edges=True))

    def test_shows_no_edges_unless_they_are_asked_for(self):
        regions = read_regions(LABELS, (2, 2))
        plain, edged = (draw_regions(np.zeros((2, 2, 3), np.uint8), regions, edges=each) for each in (False, True))
        assert plain[1, 1].tolist() == edged[1, 1].tolist() == [43, 90, 116]
        assert edged[0, 0].tolist() == [255, 255, 255]
        assert plain[0, 0].tolist() == [115, 80, 0]

    def test_uses_palette_and_opacity(self):
        regions = read_regions(np.zeros((1, 1), int), (1, 1))
        image = draw_regions(np.full((1, 1, 3), 100, np.uint8), regions, opacity=0.25, palette=[(200, 0, 100)])
        assert image.tolist() == [[[125, 75, 100]]]
