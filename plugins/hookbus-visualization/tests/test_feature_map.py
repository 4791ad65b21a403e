import logging

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookbus.errors import ConfigError
from hookbus.loop import Trainer
from hookbus.testing import RecordingBus, check_hook, fingerprint
from hookbus_visualization import FeatureMapHook
from hookbus_visualization.grid import grid
from hookbus_visualization.heatmap import coloured, scaled
from hookbus_visualization.panel import Panel


class Doubling(nn.Module):
    """Two channels, the image doubled and negated; and a score for each sample."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 2, 1, bias=False)
        self.spare = nn.Linear(1, 1)
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor([2.0, -1.0]).reshape(2, 1, 1, 1))

    def forward(self, x):
        return self.body(x).mean((2, 3))


class Showing(Doubling):
    """It says by itself what is drawn."""

    def visualize_features(self, x):
        return {"twice": self.body(x)[:, :1], "same": [x]}


IMAGES = torch.arange(12.0).reshape(3, 1, 2, 2).square()
BATCH = (IMAGES, torch.tensor([0, 1, 0]))


def drawn(hook, model=None, batch=BATCH, iterations=1, **emitted):
    """The pictures by tag, with the step, and the bus that recorded them."""
    model = Doubling() if model is None else model
    bus = RecordingBus([hook])
    with bus.run(model=model, iterations=iterations):
        for _ in range(iterations):
            bus.emit("before_train_iter", batch=batch)
            bus.emit("after_train_iter", batch=batch, **emitted)
    return {each["tag"]: (each["step"], np.asarray(each["images"])) for each in bus.arguments("log_images")}


def expected(*maps, title):
    panels = [Panel(coloured(scaled(each)), f"channel {i}") for i, each in enumerate(maps)]
    return grid(panels, title).tolist()


def hook_of(**settings):
    return FeatureMapHook(**{"frequency": 1, "backend": "pillow", **settings})


def test_it_keeps_the_promises_of_hooks():
    check_hook(FeatureMapHook, frequency=1)


class TestDrawing:
    def test_shows_the_channels_of_each_layer_for_the_first_sample(self):
        found = drawn(hook_of())
        assert list(found) == ["train/feature_map/body"]
        step, picture = found["train/feature_map/body"]
        assert step == 1
        assert picture.tolist() == expected(2 * IMAGES[0, 0], -IMAGES[0, 0], title="step 1: body")

    def test_shows_as_many_channels_as_are_asked_for(self):
        _, picture = drawn(hook_of(max_features=1))["train/feature_map/body"]
        assert picture.tolist() == expected(2 * IMAGES[0, 0], title="step 1: body")

    @pytest.mark.parametrize(("index", "sample"), [(1, 1), (2, 2), (7, 2)])
    def test_shows_another_sample_or_the_last_of_a_small_batch(self, index, sample):
        _, picture = drawn(hook_of(sample_batch_idx=index))["train/feature_map/body"]
        assert picture.tolist() == expected(2 * IMAGES[sample, 0], -IMAGES[sample, 0], title="step 1: body")

    def test_takes_samples_in_the_shape_that_the_model_wants(self):
        flat = (IMAGES.flatten(1), BATCH[1])
        _, picture = drawn(hook_of(input_shape=[1, 2, 2]), batch=flat)["train/feature_map/body"]
        assert picture.tolist() == expected(2 * IMAGES[0, 0], -IMAGES[0, 0], title="step 1: body")

    @pytest.mark.parametrize("batch", [BATCH, {"x": IMAGES}])
    def test_of_a_shape_that_does_not_fit_warns(self, batch):
        with pytest.warns(UserWarning, match=r"input_shape: \[3, 2, 2\] is no shape of a sample of these inputs"):
            assert drawn(hook_of(input_shape=[3, 2, 2]), batch=batch) == {}

    def test_takes_the_samples_of_a_mapping_and_those_that_parse_finds(self):
        usual = drawn(hook_of())["train/feature_map/body"][1]
        by_name = drawn(hook_of(), batch={"x": IMAGES})["train/feature_map/body"][1]
        parsed = drawn(hook_of(parse=lambda batch, outputs: {"inputs": batch.here}), batch=Holder(IMAGES))
        assert by_name.tolist() == usual.tolist() == parsed["train/feature_map/body"][1].tolist()

    def test_becomes_a_file_with_the_step_in_its_name(self, tmp_path):
        _, picture = drawn(hook_of(out_dir=str(tmp_path)), iterations=2)["train/feature_map/body"]
        assert sorted(each.name for each in tmp_path.iterdir()) == [
            "train-body-step-00000001.png",
            "train-body-step-00000002.png",
        ]
        assert np.asarray(Image.open(tmp_path / "train-body-step-00000002.png")).tolist() == picture.tolist()

    def test_looks_as_it_should(self, golden):
        y, x = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")
        ring = torch.exp(-20 * (x.hypot(y) - 0.6).square())
        found = drawn(hook_of(), Edges(), (ring[None, None], torch.tensor([0])))
        golden("feature_map", found["train/feature_map/edges"][1])


class Holder:
    def __init__(self, images):
        self.here = images


class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.edges = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        right = torch.tensor([[-1.0, 0.0, 1.0]] * 3)
        with torch.no_grad():
            self.edges.weight.copy_(torch.stack([right, right.T, right + right.T, torch.ones(3, 3)])[:, None])

    def forward(self, x):
        return self.edges(x)


class TestWhen:
    def test_is_every_so_many_iterations(self):
        bus = RecordingBus([hook_of(frequency=2)])
        with bus.run(model=Doubling(), iterations=5):
            for _ in range(5):
                bus.emit("before_train_iter", batch=BATCH)
                bus.emit("after_train_iter", batch=BATCH)
        assert [each["step"] for each in bus.arguments("log_images")] == [2, 4]

    def test_is_every_hundred_by_default(self):
        bus = RecordingBus([FeatureMapHook(backend="pillow")])
        with bus.run(model=Doubling(), iterations=250):
            for _ in range(250):
                bus.emit("before_train_iter", batch=BATCH)
                bus.emit("after_train_iter", batch=BATCH)
        assert [each["step"] for each in bus.arguments("log_images")] == [100, 200]

    def test_is_as_the_common_key_says(self):
        bus = RecordingBus([FeatureMapHook(backend="pillow", when="once(3)")])
        with bus.run(model=Doubling(), iterations=5):
            for _ in range(5):
                bus.emit("before_train_iter", batch=BATCH)
                bus.emit("after_train_iter", batch=BATCH)
        assert [each["step"] for each in bus.arguments("log_images")] == [3]

    def test_is_once_for_the_iterations_of_one_update(self):
        bus, model = RecordingBus([hook_of(frequency=1)]), Doubling()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with bus.run(model=model, optimizer=optimizer, iterations=6):
            for i in range(6):
                bus.emit("before_train_iter", batch=BATCH)
                model(IMAGES).sum().backward()
                if i % 2:
                    optimizer.step()
                bus.emit("after_train_iter", batch=BATCH)
        assert [each["step"] for each in bus.arguments("log_images")] == [0, 1, 2, 3]

    def test_it_is_not_the_model_is_not_called(self):
        model, calls = Doubling(), []
        model.register_forward_hook(lambda *_: calls.append(1))
        drawn(hook_of(frequency=2), model, iterations=1)
        assert calls == []


class TestLayers:
    def test_that_are_named_are_drawn_and_those_that_are_not_used_are_told(self, caplog):
        with caplog.at_level(logging.WARNING):
            found = drawn(hook_of(layers=["body", "sp*"]), iterations=3)
        assert list(found) == ["train/feature_map/body"]
        assert [each.getMessage() for each in caplog.records] == [
            "feature_map: nothing is drawn of layers ['spare']: not used by the model, or without samples."
        ]

    def test_that_are_not_there_end_the_run_before_it_begins(self):
        with pytest.raises(ConfigError, match=r"no layer 'boby'. Did you mean 'body'\?"):
            drawn(hook_of(layers=["boby"]))

    def test_are_the_innermost_ones_where_there_is_no_convolution(self):
        found = drawn(hook_of(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
        assert list(found) == ["train/feature_map/0", "train/feature_map/1"]

    def test_of_which_none_is_used_are_told(self):
        with pytest.warns(UserWarning, match=r"Nothing is drawn of layers \['spare'\]: not used"):
            assert drawn(hook_of(layers=["spare"])) == {}

    def test_need_a_model(self, caplog):
        bus = RecordingBus([hook_of()])
        with bus.run(iterations=1):
            bus.emit("before_train_iter", batch=BATCH)
            bus.emit("after_train_iter", batch=BATCH)
        assert bus.arguments("log_images") == []


class TestWhatAModelShowsByItself:
    def test_is_drawn(self):
        found = drawn(hook_of(sample_batch_idx=1), Showing())
        assert list(found) == ["train/feature_map/twice", "train/feature_map/same"]
        assert found["train/feature_map/twice"][1].tolist() == expected(2 * IMAGES[1, 0], title="step 1: twice")
        assert found["train/feature_map/same"][1].tolist() == expected(IMAGES[1, 0], title="step 1: same")

    def test_may_have_names_that_lead_nowhere_else(self, tmp_path):
        model = Doubling()
        model.visualize_features = lambda x: {"../../up": x, "/root": x}
        drawn(hook_of(out_dir=str(tmp_path / "here")), model)
        assert [each.name for each in tmp_path.iterdir()] == ["here"]
        assert len(list((tmp_path / "here").iterdir())) == 2

    def test_is_left_out_where_layers_are_named(self):
        assert list(drawn(hook_of(layers=["body"]), Showing())) == ["train/feature_map/body"]

    @pytest.mark.parametrize(("shown", "names"), [(IMAGES, ["0"]), ([IMAGES, IMAGES], ["0", "1"])])
    def test_may_have_no_names(self, shown, names):
        model = Doubling()
        model.visualize_features = lambda _: shown
        assert list(drawn(hook_of(), model)) == [f"train/feature_map/{name}" for name in names]

    def test_is_had_from_inside_a_compiled_model_without_convolutions(self):
        model = nn.Linear(4, 2)
        model.visualize_features = lambda x: x
        assert list(drawn(hook_of(), torch.compile(model, backend="eager"))) == ["train/feature_map/0"]

    def test_has_to_be_something_that_can_be_drawn(self):
        model = Doubling()
        model.visualize_features = lambda _: None
        with pytest.warns(
            UserWarning, match=r"visualize_features of the model returned NoneType. Let it return tensors"
        ):
            drawn(hook_of(), model)


class TestTraining:
    def trained(self, *hooks, compiled=False, **options):
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
        hooks_left = sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())
        state = [model.state_dict(), [each.grad for each in model.parameters()], torch.get_rng_state()]
        return fingerprint(state), hooks_left, [each.training for each in model.modules()]

    @pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"accumulate": 2}, {"compiled": True}])
    def test_is_the_same_with_and_without_it(self, options):
        assert self.trained(hook_of(layers=["*"]), **options) == self.trained(**options)
