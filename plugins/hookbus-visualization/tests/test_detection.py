import logging

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.testing import check_hook
from hookbus_visualization import DetVisualizationHook

from .toys import recorded

ORANGE, BLUE = [230, 159, 0], [86, 180, 233]
GREY = torch.full((3, 320, 400), 90, dtype=torch.uint8)
TRUTH = {"boxes": torch.tensor([[40.0, 60, 200, 260]]), "labels": torch.tensor([0])}
FOUND = {
    "boxes": torch.tensor([[50.0, 70, 210, 250], [220.0, 60, 380, 200], [0.0, 0, 9, 9]]),
    "labels": torch.tensor([0, 1, 1]),
    "scores": torch.tensor([0.9, 0.3, 0.29]),
}
NONE = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)}


class Detector(nn.Module):
    """Gives its losses in training, and what it finds otherwise."""

    def __init__(self, found=FOUND):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.found = found

    def forward(self, images, targets=None):
        if self.training:
            return {"loss": self.weight**2, "loss_box": self.weight.detach()}
        return [self.found for _ in images]


def pictures_of(targets=(TRUTH, NONE), model=None, batches=1, work_dir=None, **settings):
    """The pictures of a training, by their names."""
    hook = DetVisualizationHook({"interval": 1, "backend": "pillow", **settings})
    loader = [((GREY,) * len(targets), targets)] * batches
    return recorded(model or Detector(), loader, hook, lr=0.1, work_dir=work_dir)


def panel(truth=None, found=None, image=GREY, **settings):
    hook = DetVisualizationHook(settings)
    [drawn] = hook.panels([hook.pixels(image)], [truth], [found])
    return drawn


def has(picture, colour):
    return bool((picture == np.array(colour)).all(axis=2).any())


def test_it_keeps_the_promises_of_hooks():
    check_hook(DetVisualizationHook, interval=1)


class TestInATraining:
    def test_it_asks_the_detector_for_what_it_finds(self):
        model = Detector()
        shown = pictures_of(model=model)
        assert list(shown) == ["train/det_visualization/detections"]
        assert has(shown["train/det_visualization/detections"], BLUE)
        assert model.training

    def test_it_shows_truth_and_prediction_on_one_sheet(self, golden):
        golden("detections", pictures_of(class_names=["cat", "dog"])["train/det_visualization/detections"])

    def test_it_writes_files_with_the_step_in_their_names(self, tmp_path):
        pictures_of(work_dir=tmp_path, batches=2, interval=2)
        folder = tmp_path / "visualization" / "det_visualization"
        assert [each.name for each in folder.iterdir()] == ["train-detections-step-00000002.png"]

    def test_it_keeps_red_red_in_a_file(self, tmp_path):
        red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 320, 320)
        hook = DetVisualizationHook(interval=1, backend="pillow")
        bus = HookBus([hook])
        with bus.run(model=nn.Linear(1, 1), epochs=1, work_dir=tmp_path) as run:
            for _ in run.epochs():
                bus.emit("before_train_iter", batch_idx=0)
                bus.emit("after_train_iter", batch_idx=0, batch=([red], [NONE]), outputs={"output": [NONE]})
        [file] = (tmp_path / "visualization").rglob("*.png")
        assert np.asarray(Image.open(file))[200, 200].tolist() == [255, 0, 0]

    def test_it_shows_the_truth_alone_where_the_model_cannot_be_asked(self, caplog):
        class Strict(Detector):
            def forward(self, images, targets):
                return {"loss": self.weight**2}

        shown = pictures_of(model=Strict(), batches=2)
        assert has(shown["train/det_visualization/detections"], ORANGE)
        assert caplog.text.count("no predictions are drawn: the outputs hold none, and the model, called with the") == 1

    @pytest.mark.parametrize(
        ("target", "why"),
        [
            (torch.zeros(3, 7), r"boxes have shape (N, 4), not (3, 7)."),
            ([{"bbox": [1, 2, 3, 4], "category_id": 5}], "not 'dict'."),
            ({"boxes": torch.zeros(1, 4), "labels": ["cat"]}, "could not convert string to float"),
        ],
    )
    def test_it_says_once_and_with_shapes_that_nothing_fits(self, caplog, target, why):
        assert pictures_of(targets=(target, target), batches=3) == {}
        [message] = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        assert "no detections can be drawn: " in message
        assert why in message
        assert "Tensor of shape (3, 320, 400)" in message
        assert "Give parse" in message

    def test_it_says_that_there_is_nothing_to_draw(self, caplog):
        class Silent(Detector):
            def forward(self, images, targets=None):
                return {"loss": self.weight**2}

        assert pictures_of(model=Silent(), draw_gt=False) == {}
        assert "there is neither a truth nor a prediction" in caplog.text


class TestAPanel:
    def test_shows_boxes_that_are_sure_enough(self):
        assert panel(found=FOUND).caption == "2 found (solid)"
        assert panel(found=FOUND, score_thr=0.0).caption == "3 found (solid)"
        assert panel(TRUTH, FOUND, score_thr=0.95).caption == "1 true (dashed), 0 found (solid)"

    def test_is_the_image_where_there_is_no_box(self):
        drawn = panel(NONE, NONE)
        assert np.array_equal(drawn.picture, np.full((320, 400, 3), 90, np.uint8))
        assert drawn.caption == "0 true (dashed), 0 found (solid)"

    @pytest.mark.parametrize(
        ("settings", "box"),
        [
            ({}, [40.0, 60, 200, 260]),
            ({"box_format": "xywh"}, [40.0, 60, 160, 200]),
            ({"box_format": "cxcywh"}, [120.0, 160, 160, 200]),
            ({"normalized": True}, [0.1, 0.1875, 0.5, 0.8125]),
            ({"box_format": "cxcywh", "normalized": True}, [0.3, 0.5, 0.4, 0.625]),
        ],
    )
    def test_shows_boxes_in_every_form_at_the_same_place(self, settings, box):
        drawn = panel({**TRUTH, "boxes": torch.tensor([box])}, **settings)
        assert np.array_equal(drawn.picture, panel(TRUTH).picture)

    def test_has_the_colours_and_the_thickness_that_are_asked_for(self):
        picture = panel(found=FOUND, palette=["red", [0, 255, 0]], thickness=3, class_names=["cat"]).picture
        assert picture[100, 50:54].tolist() == [[255, 0, 0]] * 3 + [[90, 90, 90]]
        assert picture[100, 220].tolist() == [0, 255, 0]
        assert panel(found=FOUND, bbox_color="blue").picture[100, 220].tolist() == [0, 0, 255]
        text = panel(found=FOUND, text_color="#0000fe").picture.astype(int)
        assert (abs(text - [0, 0, 254]).max(axis=2) < 60).any()  # lines of letters are too thin to have it pure

    def test_enlarges_small_images_and_their_boxes(self):
        small = torch.full((3, 32, 40), 90, dtype=torch.uint8)
        drawn = panel(found={"boxes": [[4, 6, 20, 26]]}, image=small)
        assert drawn.picture.shape == (256, 320, 3)
        assert np.flatnonzero((drawn.picture[100] != 90).any(axis=1)).tolist() == [32, 33, 158, 159]

    def test_makes_large_images_and_their_boxes_smaller(self):
        large = torch.full((3, 1600, 3200), 90, dtype=torch.uint8)
        drawn = panel(found={"boxes": [[400, 600, 2000, 1500]]}, image=large)
        assert drawn.picture.shape == (800, 1600, 3)
        assert np.flatnonzero((drawn.picture[400] != 90).any(axis=1)).tolist() == [200, 201, 998, 999]

    def test_may_be_of_a_crowd(self):
        boxes = np.random.default_rng(0).uniform(-50, 400, (10_000, 4))
        assert panel(found={"boxes": boxes, "scores": np.ones(10_000)}).caption == "10000 found (solid)"


class TestSettings:
    def test_take_colours_as_people_write_them(self):
        config = DetVisualizationHook(
            palette=["red", "#00f", (1, 2, 3)], bbox_color=[9, 8, 7], text_color="white"
        ).config
        assert config.palette == ((255, 0, 0), (0, 0, 255), (1, 2, 3))
        assert (config.bbox_color, config.text_color) == ((9, 8, 7), (255, 255, 255))

    def test_take_lists_beside_a_function(self):
        config = DetVisualizationHook(class_names=["cat"], palette=["red"], parse=lambda batch, outputs: {}).config
        assert (config.class_names, config.palette) == (("cat",), ((255, 0, 0),))

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({"palette": ["reddish"]}, "palette.0: 'reddish' is no colour. Write a name like red"),
            ({"bbox_color": [1, 2]}, "bbox_color: .* is no colour"),
            ({"thickness": 0}, "thickness: .* greater than or equal to 1"),
            ({"box_format": "xyhw"}, "box_format: .*'xyxy', 'xywh' or 'cxcywh'"),
        ],
    )
    def test_are_told_where_they_are_wrong(self, settings, why):
        with pytest.raises(ConfigError, match=why):
            DetVisualizationHook(**settings)
