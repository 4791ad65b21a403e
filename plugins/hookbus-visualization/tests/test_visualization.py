import logging
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus, check_hook, fake_training, fingerprint
from hookbus.trainer.trainer import Trainer
from hookbus_visualization import FeatureMapHook, VisualizationHook
from hookbus_visualization.images import apply_colormap, normalize
from hookbus_visualization.panel import Panel, render_grid

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
        with pytest.raises(ConfigError, match=r'pip install "hookbus-visualization\[cam\]"'):
            train_with_hook(VisualizationHook(content=["cam"]), self.model())


class DoublingModel(nn.Module):
    """Model whose two channels are the doubled and the negated image, and whose outputs are two scores per sample."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 2, 1, bias=False)
        self.spare = nn.Linear(1, 1)
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor([2.0, -1.0]).reshape(2, 1, 1, 1))

    def forward(self, x):
        return self.body(x).mean((2, 3))


class VisualizingModel(DoublingModel):
    """Model with a method `visualize_features`."""

    def visualize_features(self, x):
        return {"twice": self.body(x)[:, :1], "same": [x]}


SQUARES = torch.arange(12.0).reshape(3, 1, 2, 2).square()
BATCH = (SQUARES, torch.tensor([0, 1, 0]))


def record_images(hook, model=None, batch=BATCH, iterations=1, **arguments):
    """Run iterations, and return the step and pixels of the logged images by tag."""
    model = DoublingModel() if model is None else model
    bus = RecordingBus([hook])
    with bus.run(model=model, iterations=iterations):
        for _ in range(iterations):
            bus.emit("before_train_iter", batch=batch)
            bus.emit("after_train_iter", batch=batch, **arguments)
    return {record["tag"]: (record["step"], np.asarray(record["images"])) for record in bus.get_arguments("log_images")}


def render_expected(*maps, title):
    panels = [Panel(apply_colormap(normalize(channel)), f"channel {i}") for i, channel in enumerate(maps)]
    return render_grid(panels, title).tolist()


def make_hook(**settings):
    return FeatureMapHook(**{"frequency": 1, "backend": "pillow", **settings})


@pytest.mark.slow
def test_feature_map_hook_passes_the_conformance_checks():
    check_hook(FeatureMapHook, frequency=1)


class TestRendering:
    def test_channels_of_each_layer_are_rendered_for_the_first_sample(self):
        images = record_images(make_hook())
        assert list(images) == ["train/feature_map/body"]
        step, image = images["train/feature_map/body"]
        assert step == 1
        assert image.tolist() == render_expected(2 * SQUARES[0, 0], -SQUARES[0, 0], title="step 1: body")

    def test_number_of_channels_is_limited(self):
        _, image = record_images(make_hook(max_features=1))["train/feature_map/body"]
        assert image.tolist() == render_expected(2 * SQUARES[0, 0], title="step 1: body")

    @pytest.mark.parametrize(("index", "sample"), [(1, 1), (2, 2), (7, 2)])
    def test_another_sample_or_the_last_of_a_small_batch_can_be_selected(self, index, sample):
        _, image = record_images(make_hook(sample_batch_idx=index))["train/feature_map/body"]
        assert image.tolist() == render_expected(2 * SQUARES[sample, 0], -SQUARES[sample, 0], title="step 1: body")

    def test_samples_are_reshaped_to_the_shape_of_model_inputs(self):
        flat = (SQUARES.flatten(1), BATCH[1])
        _, image = record_images(make_hook(input_shape=[1, 2, 2]), batch=flat)["train/feature_map/body"]
        assert image.tolist() == render_expected(2 * SQUARES[0, 0], -SQUARES[0, 0], title="step 1: body")

    @pytest.mark.parametrize("batch", [BATCH, {"x": SQUARES}])
    def test_mismatched_input_shape_is_a_warning(self, batch):
        with pytest.warns(
            UserWarning, match=r"`input_shape` must have the number of elements of a sample, got \[3, 2, 2\]"
        ):
            assert record_images(make_hook(input_shape=[3, 2, 2]), batch=batch) == {}

    def test_samples_are_extracted_from_mappings_and_by_parse(self):
        usual = record_images(make_hook())["train/feature_map/body"][1]
        by_name = record_images(make_hook(), batch={"x": SQUARES})["train/feature_map/body"][1]
        parsed = record_images(
            make_hook(parse=lambda batch, outputs: {"inputs": batch.images}), batch=CustomBatch(SQUARES)
        )
        assert by_name.tolist() == usual.tolist() == parsed["train/feature_map/body"][1].tolist()

    def test_file_names_contain_the_step(self, tmp_path):
        _, image = record_images(make_hook(out_dir=str(tmp_path)), iterations=2)["train/feature_map/body"]
        assert sorted(path.name for path in tmp_path.glob("*.png")) == [
            "train-body-step-00000001.png",
            "train-body-step-00000002.png",
        ]
        assert np.asarray(Image.open(tmp_path / "train-body-step-00000002.png")).tolist() == image.tolist()

    def test_feature_maps_match_the_golden_image(self, golden):
        y, x = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")
        ring = torch.exp(-20 * (x.hypot(y) - 0.6).square())
        images = record_images(make_hook(), Edges(), (ring[None, None], torch.tensor([0])))
        golden("feature_map", images["train/feature_map/edges"][1])


class CustomBatch:
    def __init__(self, images):
        self.images = images


class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.edges = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        right = torch.tensor([[-1.0, 0.0, 1.0]] * 3)
        with torch.no_grad():
            self.edges.weight.copy_(torch.stack([right, right.T, right + right.T, torch.ones(3, 3)])[:, None])

    def forward(self, x):
        return self.edges(x)


class TestSchedule:
    def test_feature_maps_are_rendered_every_frequency_iterations(self):
        bus = RecordingBus([make_hook(frequency=2)])
        with bus.run(model=DoublingModel(), iterations=5):
            for _ in range(5):
                bus.emit("before_train_iter", batch=BATCH)
                bus.emit("after_train_iter", batch=BATCH)
        assert [record["step"] for record in bus.get_arguments("log_images")] == [2, 4]

    def test_default_frequency_is_100_iterations(self):
        bus = RecordingBus([FeatureMapHook(backend="pillow")])
        with bus.run(model=DoublingModel(), iterations=250):
            for _ in range(250):
                bus.emit("before_train_iter", batch=BATCH)
                bus.emit("after_train_iter", batch=BATCH)
        assert [record["step"] for record in bus.get_arguments("log_images")] == [100, 200]

    def test_when_key_overrides_the_frequency(self):
        bus = RecordingBus([FeatureMapHook(backend="pillow", when="once(3)")])
        with bus.run(model=DoublingModel(), iterations=5):
            for _ in range(5):
                bus.emit("before_train_iter", batch=BATCH)
                bus.emit("after_train_iter", batch=BATCH)
        assert [record["step"] for record in bus.get_arguments("log_images")] == [3]

    def test_feature_maps_are_rendered_once_per_optimizer_step(self):
        bus, model = RecordingBus([make_hook(frequency=1)]), DoublingModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with bus.run(model=model, optimizer=optimizer, iterations=6):
            for i in range(6):
                bus.emit("before_train_iter", batch=BATCH)
                model(SQUARES).sum().backward()
                if i % 2:
                    optimizer.step()
                bus.emit("after_train_iter", batch=BATCH)
        assert [record["step"] for record in bus.get_arguments("log_images")] == [0, 1, 2, 3]

    def test_model_is_not_called_between_scheduled_iterations(self):
        model, calls = DoublingModel(), []
        model.register_forward_hook(lambda *_: calls.append(1))
        record_images(make_hook(frequency=2), model, iterations=1)
        assert calls == []


class TestLayers:
    def test_unused_layers_are_reported_and_the_others_are_rendered(self, caplog):
        with caplog.at_level(logging.WARNING):
            images = record_images(make_hook(layers=["body", "sp*"]), iterations=3)
        assert list(images) == ["train/feature_map/body"]
        assert [record.getMessage() for record in caplog.records] == [
            "feature_map: no feature maps of the layers ['spare']: the model does not use them, or they return no "
            "samples."
        ]

    def test_unknown_layers_end_the_run_before_it_starts(self):
        with pytest.raises(ConfigError, match=r"no layer 'boby'. Did you mean 'body'\?"):
            record_images(make_hook(layers=["boby"]))

    def test_innermost_layers_are_rendered_if_there_is_no_convolution(self):
        images = record_images(make_hook(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
        assert list(images) == ["train/feature_map/0", "train/feature_map/1"]

    def test_only_unused_layers_are_a_warning(self):
        with pytest.warns(UserWarning, match=r"no feature maps of the layers \['spare'\]: the model does not use them"):
            assert record_images(make_hook(layers=["spare"])) == {}

    def test_run_without_a_model_renders_nothing(self, caplog):
        bus = RecordingBus([make_hook()])
        with bus.run(iterations=1):
            bus.emit("before_train_iter", batch=BATCH)
            bus.emit("after_train_iter", batch=BATCH)
        assert bus.get_arguments("log_images") == []


class TestVisualizeFeatures:
    @pytest.mark.slow
    def test_returned_tensors_are_rendered(self):
        images = record_images(make_hook(sample_batch_idx=1), VisualizingModel())
        assert list(images) == ["train/feature_map/twice", "train/feature_map/same"]
        assert images["train/feature_map/twice"][1].tolist() == render_expected(
            2 * SQUARES[1, 0], title="step 1: twice"
        )
        assert images["train/feature_map/same"][1].tolist() == render_expected(SQUARES[1, 0], title="step 1: same")

    def test_returned_names_cannot_escape_the_output_directory(self, tmp_path):
        model = DoublingModel()
        model.visualize_features = lambda x: {"../../up": x, "/root": x}
        record_images(make_hook(out_dir=str(tmp_path / "here")), model)
        assert [path.name for path in tmp_path.iterdir()] == ["here"]
        assert len(list((tmp_path / "here").glob("*.png"))) == 2

    def test_method_is_not_called_if_layers_are_configured(self):
        assert list(record_images(make_hook(layers=["body"]), VisualizingModel())) == ["train/feature_map/body"]

    @pytest.mark.parametrize(("tensors", "names"), [(SQUARES, ["0"]), ([SQUARES, SQUARES], ["0", "1"])])
    def test_returned_tensors_may_have_no_names(self, tensors, names):
        model = DoublingModel()
        model.visualize_features = lambda _: tensors
        assert list(record_images(make_hook(), model)) == [f"train/feature_map/{name}" for name in names]

    def test_method_of_a_compiled_model_without_convolutions_is_called(self):
        model = nn.Linear(4, 2)
        model.visualize_features = lambda x: x
        assert list(record_images(make_hook(), torch.compile(model, backend="eager"))) == ["train/feature_map/0"]

    def test_invalid_return_value_is_a_warning(self):
        model = DoublingModel()
        model.visualize_features = lambda _: None
        with pytest.warns(
            UserWarning, match=r"`visualize_features` of the model must return tensors of shape .*, got NoneType"
        ):
            record_images(make_hook(), model)


class TestFeatureMapTraining:
    def train(self, *hooks, compiled=False, **options):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 1),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(12, 2),
        )
        trainer = Trainer(
            torch.compile(model, backend="eager") if compiled else model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            loss_fn=nn.functional.cross_entropy,
            train_loader=[(torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 1, 0])) for _ in range(4)],
            epochs=1,
            hooks=hooks,
            default_hooks=False,
            work_dir=None,
            device="cpu",
            **options,
        )
        trainer.fit()
        hooks_left = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
        state = [model.state_dict(), [parameter.grad for parameter in model.parameters()], torch.get_rng_state()]
        return fingerprint(state), hooks_left, [module.training for module in model.modules()]

    @pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"accumulate": 2}, {"compiled": True}])
    def test_training_is_identical_with_and_without_the_hook(self, options):
        assert self.train(make_hook(layers=["*"]), **options) == self.train(**options)
