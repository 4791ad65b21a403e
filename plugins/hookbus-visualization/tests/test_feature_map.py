import logging

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus, check_hook, fingerprint
from hookbus.trainer.trainer import Trainer
from hookbus_visualization import FeatureMapHook
from hookbus_visualization.images import apply_colormap, normalize
from hookbus_visualization.panel import Panel, render_grid


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


IMAGES = torch.arange(12.0).reshape(3, 1, 2, 2).square()
BATCH = (IMAGES, torch.tensor([0, 1, 0]))


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
def test_hook_passes_the_conformance_checks():
    check_hook(FeatureMapHook, frequency=1)


class TestRendering:
    def test_channels_of_each_layer_are_rendered_for_the_first_sample(self):
        images = record_images(make_hook())
        assert list(images) == ["train/feature_map/body"]
        step, image = images["train/feature_map/body"]
        assert step == 1
        assert image.tolist() == render_expected(2 * IMAGES[0, 0], -IMAGES[0, 0], title="step 1: body")

    def test_number_of_channels_is_limited(self):
        _, image = record_images(make_hook(max_features=1))["train/feature_map/body"]
        assert image.tolist() == render_expected(2 * IMAGES[0, 0], title="step 1: body")

    @pytest.mark.parametrize(("index", "sample"), [(1, 1), (2, 2), (7, 2)])
    def test_another_sample_or_the_last_of_a_small_batch_can_be_selected(self, index, sample):
        _, image = record_images(make_hook(sample_batch_idx=index))["train/feature_map/body"]
        assert image.tolist() == render_expected(2 * IMAGES[sample, 0], -IMAGES[sample, 0], title="step 1: body")

    def test_samples_are_reshaped_to_the_shape_of_model_inputs(self):
        flat = (IMAGES.flatten(1), BATCH[1])
        _, image = record_images(make_hook(input_shape=[1, 2, 2]), batch=flat)["train/feature_map/body"]
        assert image.tolist() == render_expected(2 * IMAGES[0, 0], -IMAGES[0, 0], title="step 1: body")

    @pytest.mark.parametrize("batch", [BATCH, {"x": IMAGES}])
    def test_mismatched_input_shape_is_a_warning(self, batch):
        with pytest.warns(
            UserWarning, match=r"`input_shape` must have the number of elements of a sample, got \[3, 2, 2\]"
        ):
            assert record_images(make_hook(input_shape=[3, 2, 2]), batch=batch) == {}

    def test_samples_are_extracted_from_mappings_and_by_parse(self):
        usual = record_images(make_hook())["train/feature_map/body"][1]
        by_name = record_images(make_hook(), batch={"x": IMAGES})["train/feature_map/body"][1]
        parsed = record_images(
            make_hook(parse=lambda batch, outputs: {"inputs": batch.images}), batch=CustomBatch(IMAGES)
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
                model(IMAGES).sum().backward()
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
    def test_returned_tensors_are_rendered(self):
        images = record_images(make_hook(sample_batch_idx=1), VisualizingModel())
        assert list(images) == ["train/feature_map/twice", "train/feature_map/same"]
        assert images["train/feature_map/twice"][1].tolist() == render_expected(2 * IMAGES[1, 0], title="step 1: twice")
        assert images["train/feature_map/same"][1].tolist() == render_expected(IMAGES[1, 0], title="step 1: same")

    def test_returned_names_cannot_escape_the_output_directory(self, tmp_path):
        model = DoublingModel()
        model.visualize_features = lambda x: {"../../up": x, "/root": x}
        record_images(make_hook(out_dir=str(tmp_path / "here")), model)
        assert [path.name for path in tmp_path.iterdir()] == ["here"]
        assert len(list((tmp_path / "here").glob("*.png"))) == 2

    def test_method_is_not_called_if_layers_are_configured(self):
        assert list(record_images(make_hook(layers=["body"]), VisualizingModel())) == ["train/feature_map/body"]

    @pytest.mark.parametrize(("tensors", "names"), [(IMAGES, ["0"]), ([IMAGES, IMAGES], ["0", "1"])])
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


class TestTraining:
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
