import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus, check_hook, fake_training
from hookbus.trainer.trainer import Trainer
from hookbus_visualization import VisualizationHook

from .toys import train

IMAGES, CLASSES = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
CLASSIFIER = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


@pytest.fixture
def panels(monkeypatch):
    """Return the published panels by record."""
    records = {}

    def deliver(self, run, stage, label, panels, title=""):
        records[f"{stage}/{label}"] = ([(panel.image.shape, panel.caption) for panel in panels], title)

    monkeypatch.setattr(VisualizationHook, "publish", deliver)
    return records


def train_with_hook(hook, model=CLASSIFIER, batch=(IMAGES, CLASSES), loss=functional.cross_entropy):
    train(model, [batch], hook, loss_fn=loss)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"interval": 1}, {"interval": 1, "backend": "pillow"}], ids=str)
def test_hook_passes_the_conformance_checks(settings):
    check_hook(VisualizationHook, **settings)


class TestPredictions:
    def test_class_predictions_are_named_and_counted(self, panels):
        class ConstantModel(nn.Module):
            """Model that always predicts class 1 with a probability of 100%."""

            def __init__(self):
                super().__init__()
                self.scores = nn.Parameter(torch.tensor([0.0, 100.0, 0.0]))

            def forward(self, x):
                return self.scores.expand(len(x), 3)

        train_with_hook(VisualizationHook(interval=1, max_samples=2, class_names=["cat", "dog"]), ConstantModel())
        shape = (8, 8, 3)
        assert panels["train/predictions"] == (
            [
                (shape, "true cat\npredicted dog (100%), wrong"),
                (shape, "true dog\npredicted dog (100%), right"),
            ],
            "1 of 2 are right",
        )

    def test_numeric_predictions_are_compared(self, panels):
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 1, bias=False))
        nn.init.zeros_(model[1].weight)
        train_with_hook(
            VisualizationHook(interval=1, max_samples=1), model, (IMAGES, torch.full((6, 1), 2.0)), nn.MSELoss()
        )
        assert panels["train/predictions"] == ([((8, 8, 3), "true 2\npredicted 0, off by 2")], "")

    def test_output_images_are_next_to_the_input(self, panels):
        train_with_hook(
            VisualizationHook(interval=1, max_samples=1), nn.Conv2d(3, 3, 1), (IMAGES, IMAGES), nn.MSELoss()
        )
        assert panels["train/predictions"] == ([((120, 368, 3), "input | truth | prediction")], "")

    def test_token_predictions_are_counted(self, panels):
        model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2), nn.Flatten(0, 1), nn.Unflatten(0, (2, 3)))

        def loss(output, target):
            return functional.cross_entropy(output.flatten(0, 1), target.flatten())

        tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
        train_with_hook(VisualizationHook(interval=1), model, (tokens, torch.full((2, 3), -100)), loss)
        assert [caption for _, caption in panels["train/predictions"][0]] == ["0 of 0 tokens are right"] * 2

    def test_predictions_are_omitted_if_disabled(self, panels):
        train_with_hook(VisualizationHook(interval=1, max_samples=1, draw_pred=False))
        assert panels["train/predictions"][0] == [((8, 8, 3), "true 0")]

    def test_model_is_called_if_the_outputs_contain_no_predictions(self, panels):
        trained_model = fake_training([VisualizationHook(interval=6, max_samples=1)]).model
        (_, caption), *_ = panels["train/predictions"][0]
        assert "predicted" in caption
        assert trained_model.training

    def test_additional_forward_pass_modifies_neither_batch_nor_gradients(self):
        class InPlaceModel(nn.Module):
            """Model that modifies its input in place."""

            def __init__(self):
                super().__init__()
                self.flatten, self.linear = nn.Flatten(), nn.Linear(192, 3)

            def forward(self, x):
                return self.linear(self.flatten(x.mul_(2)))

        bus, model, batch = (
            RecordingBus([VisualizationHook(interval=1)]),
            InPlaceModel(),
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
        assert len(bus.get_arguments("log_images")) == 2

    def test_normalized_inputs_are_denormalized(self):
        bus = RecordingBus([VisualizationHook(interval=1, backend="tensorboard", mean=[0.5], std=[0.5], max_samples=2)])
        model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
        with bus.run(model=model, iterations=1):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter", batch=(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1), torch.zeros(2).long()))
        assert [record["images"].tolist() for record in bus.get_arguments("log_images")] == [[[[0] * 3]], [[[255] * 3]]]


class TestInvalidSamples:
    def test_loop_without_batches_is_reported(self, caplog):
        bus = RecordingBus([VisualizationHook(interval=1)])
        with bus.run(model=nn.Linear(1, 1), iterations=2):
            for _ in range(2):
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")
        (message,) = [record.getMessage() for record in caplog.records if "visualization" in record.getMessage()]
        assert "the batch contains no inputs. Got the batch NoneType and the outputs NoneType. Set `parse`" in message

    def test_missing_inputs_are_logged_once_with_their_shapes(self, caplog):
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
        (message,) = [record.getMessage() for record in caplog.records if "visualization" in record.getMessage()]
        assert message == (
            "visualization: no samples can be drawn: the batch contains no inputs. Got the batch {points: Tensor of "
            "shape (2, 3)} and the outputs {loss: Tensor of shape (), boxes: Tensor of shape (2, 5, 4)}. Set `parse` "
            "to a function of (batch, outputs) that returns a mapping with inputs, images, targets or predictions."
        )


class TestContent:
    @pytest.fixture
    def records(self, monkeypatch):
        labels = []
        monkeypatch.setattr(VisualizationHook, "publish", lambda self, run, stage, label, *more: labels.append(label))
        return labels

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))

    def test_contents_are_rendered_in_the_configured_order(self, records):
        train_with_hook(
            VisualizationHook(interval=1, content=["cam", "predictions", "gradients", "feature_maps"]), self.model()
        )
        assert records == ["cam", "predictions", "gradients", "feature_maps/0"]

    def test_unsupported_content_is_logged_and_the_others_are_rendered(self, records, caplog):
        train_with_hook(VisualizationHook(interval=1, content=["attention", "predictions"]), self.model())
        assert records == ["predictions"]
        assert "visualization: no attention can be rendered: " in caplog.text

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"content": ["feature_maps"], "layers": ["conv"]}, "'conv'"),
            ({"content": ["cam"], "cam_layer": "9"}, "'9'"),
        ],
    )
    def test_unknown_layer_ends_the_run_before_it_starts(self, settings, message):
        with pytest.raises(ConfigError, match=message):
            train_with_hook(VisualizationHook(settings), self.model())

    def test_missing_captum_ends_the_run_before_it_starts(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "captum.attr", None)
        with pytest.raises(ConfigError, match=r"pip install 'hookbus-visualization\[cam\]'"):
            train_with_hook(VisualizationHook(content=["cam"]), self.model())
