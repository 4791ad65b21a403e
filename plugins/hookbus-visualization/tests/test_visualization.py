import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus.errors import ConfigError
from hookbus.loop import Trainer
from hookbus.testing import RecordingBus, check_hook, fake_training
from hookbus_visualization import VisualizationHook

from .toys import trained

IMAGES, CLASSES = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
CLASSIFIER = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


@pytest.fixture
def panels(monkeypatch):
    """By record, the panels that are drawn."""
    found = {}

    def deliver(self, run, stage, what, panels, title=""):
        found[f"{stage}/{what}"] = ([(each.picture.shape, each.caption) for each in panels], title)

    monkeypatch.setattr(VisualizationHook, "deliver", deliver)
    return found


def trained_with(hook, model=CLASSIFIER, batch=(IMAGES, CLASSES), loss=functional.cross_entropy):
    trained(model, [batch], hook, loss_fn=loss)


@pytest.mark.parametrize("settings", [{}, {"interval": 1}, {"interval": 1, "backend": "pillow"}], ids=str)
def test_it_keeps_the_promises_of_hooks(settings):
    check_hook(VisualizationHook, **settings)


class TestPredictions:
    def test_of_classes_are_named_and_counted(self, panels):
        class Says(nn.Module):
            """Sure of class 1, always."""

            def __init__(self):
                super().__init__()
                self.scores = nn.Parameter(torch.tensor([0.0, 100.0, 0.0]))

            def forward(self, x):
                return self.scores.expand(len(x), 3)

        trained_with(VisualizationHook(interval=1, max_samples=2, class_names=["cat", "dog"]), Says())
        shape = (8, 8, 3)
        assert panels["train/predictions"] == (
            [
                (shape, "true cat\npredicted dog (100%), wrong"),
                (shape, "true dog\npredicted dog (100%), right"),
            ],
            "1 of 2 are right",
        )

    def test_of_numbers_are_compared(self, panels):
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 1, bias=False))
        nn.init.zeros_(model[1].weight)
        trained_with(
            VisualizationHook(interval=1, max_samples=1), model, (IMAGES, torch.full((6, 1), 2.0)), nn.MSELoss()
        )
        assert panels["train/predictions"] == ([((8, 8, 3), "true 2\npredicted 0, off by 2")], "")

    def test_of_images_stand_beside_them(self, panels):
        trained_with(VisualizationHook(interval=1, max_samples=1), nn.Conv2d(3, 3, 1), (IMAGES, IMAGES), nn.MSELoss())
        assert panels["train/predictions"] == ([((120, 368, 3), "input | truth | prediction")], "")

    def test_of_tokens_are_marked(self, panels):
        model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2), nn.Flatten(0, 1), nn.Unflatten(0, (2, 3)))

        def loss(output, target):
            return functional.cross_entropy(output.flatten(0, 1), target.flatten())

        tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
        trained_with(VisualizationHook(interval=1), model, (tokens, torch.full((2, 3), -100)), loss)
        assert [caption for _, caption in panels["train/predictions"][0]] == ["0 of 0 tokens are right"] * 2

    def test_are_left_out_on_wish(self, panels):
        trained_with(VisualizationHook(interval=1, max_samples=1, draw_pred=False))
        assert panels["train/predictions"][0] == [((8, 8, 3), "true 0")]

    def test_are_asked_for_where_the_outputs_have_none(self, panels):
        trained_model = fake_training([VisualizationHook(interval=6, max_samples=1)]).model
        (_, caption), *_ = panels["train/predictions"][0]
        assert "predicted" in caption
        assert trained_model.training

    def test_are_asked_for_so_that_neither_batch_nor_training_is_another(self):
        class Greedy(nn.Module):
            """Changes what it is given."""

            def __init__(self):
                super().__init__()
                self.flatten, self.linear = nn.Flatten(), nn.Linear(192, 3)

            def forward(self, x):
                return self.linear(self.flatten(x.mul_(2)))

        bus, model, batch = (
            RecordingBus([VisualizationHook(interval=1)]),
            Greedy(),
            (torch.ones(2, 3, 8, 8), CLASSES[:2]),
        )
        with bus.run(model=model, iterations=2), torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):
                bus.emit("before_train_iter", batch=batch)
                model.zero_grad()
                functional.cross_entropy(model(batch[0].clone()), batch[1]).backward()
                bus.emit("after_train_iter", batch=batch, outputs={"loss": 1.0})
                assert model.linear.weight.grad is not None
        assert batch[0].unique().tolist() == [1.0]
        assert len(bus.arguments("log_images")) == 2

    def test_are_brought_back_from_what_they_were_normalized_by(self):
        bus = RecordingBus([VisualizationHook(interval=1, backend="tensorboard", mean=[0.5], std=[0.5], max_samples=2)])
        model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
        with bus.run(model=model, iterations=1):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter", batch=(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1), torch.zeros(2).long()))
        assert [each["images"].tolist() for each in bus.arguments("log_images")] == [[[[0] * 3]], [[[255] * 3]]]


class TestWhatFitsNothing:
    def test_is_a_loop_that_tells_nothing(self, caplog):
        bus = RecordingBus([VisualizationHook(interval=1)])
        with bus.run(model=nn.Linear(1, 1), iterations=2):
            for _ in range(2):
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")
        (said,) = [each.getMessage() for each in caplog.records if "visualization" in each.getMessage()]
        assert "there are no inputs. The batch is NoneType, the outputs are NoneType. Give parse" in said

    def test_is_told_once_with_its_shapes(self, caplog):
        data = [{"points": torch.zeros(2, 3)}] * 3
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Trainer(
            model,
            optimizer,
            step_fn=lambda model, batch: {"loss": model(batch["points"]).sum(), "boxes": torch.zeros(2, 5, 4)},
            train_loader=data,
            epochs=1,
            hooks=[VisualizationHook(interval=1)],
            default_hooks=False,
            device="cpu",
            work_dir=None,
        ).fit()
        (said,) = [each.getMessage() for each in caplog.records if "visualization" in each.getMessage()]
        assert said == (
            "visualization: nothing can be drawn: there are no inputs. The batch is {points: Tensor of shape (2, 3)}, "
            "the outputs are {loss: Tensor of shape (), boxes: Tensor of shape (2, 5, 4)}. Give parse, a function of "
            "(batch, outputs) that returns a mapping with inputs, images, targets or predictions."
        )


class TestContent:
    @pytest.fixture
    def records(self, monkeypatch):
        found = []
        monkeypatch.setattr(VisualizationHook, "deliver", lambda self, run, stage, what, *more: found.append(what))
        return found

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))

    def test_is_drawn_as_it_is_chosen(self, records):
        trained_with(
            VisualizationHook(interval=1, content=["cam", "predictions", "gradients", "feature_maps"]), self.model()
        )
        assert records == ["cam", "predictions", "gradients", "feature_maps/0"]

    def test_that_the_model_has_not_is_told_and_the_rest_is_drawn(self, records, caplog):
        trained_with(VisualizationHook(interval=1, content=["attention", "predictions"]), self.model())
        assert records == ["predictions"]
        assert "visualization: no attention can be drawn: " in caplog.text

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"content": ["feature_maps"], "layers": ["conv"]}, "'conv'"),
            ({"content": ["cam"], "cam_layer": "9"}, "'9'"),
        ],
    )
    def test_of_a_layer_that_is_not_there_ends_the_run_before_it_begins(self, settings, message):
        with pytest.raises(ConfigError, match=message):
            trained_with(VisualizationHook(settings), self.model())

    def test_without_captum_ends_the_run_before_it_begins(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "captum.attr", None)
        with pytest.raises(ConfigError, match=r"pip install 'hookbus-visualization\[cam\]'"):
            trained_with(VisualizationHook(content=["cam"]), self.model())
