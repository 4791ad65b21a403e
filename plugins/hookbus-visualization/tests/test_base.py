import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookbus import Hook
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus, fake_training
from hookbus_visualization import DetVisualizationHook, FeatureMapHook, SampleHook, VisualizationHook
from hookbus_visualization.panel import Panel

from .toys import ImageRecorder, train

RED = np.full((8, 8, 3), (255, 0, 0), np.uint8)


class RedHook(SampleHook):
    """Hook that publishes red images, and stores its calls."""

    def __init__(self, config=None, **settings):
        super().__init__(config, **{"backend": "pillow", **settings})
        self.calls = []

    def draw(self, run, stage, samples, batch, outputs):
        self.calls.append((stage, run.steps_done, samples))
        self.publish(run, stage, "red", [Panel(RED, "first"), Panel(RED, "second")], "all red")


class SanityHook(Hook):
    def before_train(self, run):
        run.validate(sanity=True)


def fit(hook, *more, batches=6, size=4, loaders=None, **options):
    inputs = torch.arange(float(batches * size)).reshape(batches, size, 1)
    loader = [(x, 2 * x) for x in inputs]
    options = {"loss_fn": nn.functional.mse_loss, "val_loader": loaders, "test_loader": loader, **options}
    return train(nn.Linear(1, 1), loader, hook, *more, lr=1e-6, **options)


def get_shapes(recorder):
    return [(tag, step, images.shape, caption) for tag, step, images, caption in recorder.records]


def get_stages_and_steps(hook):
    return [(stage, step) for stage, step, _ in hook.calls]


class TestSchedule:
    def test_samples_are_drawn_every_interval_iterations(self):
        fit(hook := RedHook(interval=2))
        assert get_stages_and_steps(hook) == [("train", 2), ("train", 4), ("train", 6)]

    def test_first_batch_of_each_validation_loader_is_drawn(self):
        loader = [(torch.zeros(2, 1), torch.zeros(2, 1))] * 3
        fit(hook := RedHook(interval=99), loaders={"a": loader, "b": loader}, epochs=2)
        assert get_stages_and_steps(hook) == [("val/a", 6), ("val/b", 6), ("val/a", 12), ("val/b", 12)]

    def test_first_batch_of_a_test_is_drawn(self):
        trainer = fit(hook := RedHook(interval=99))
        trainer.test()
        assert get_stages_and_steps(hook) == [("test", 6)]

    def test_sanity_check_validation_is_not_drawn(self):
        loader = [(torch.zeros(2, 1), torch.zeros(2, 1))]
        fit(hook := RedHook(interval=99), SanityHook(), loaders=loader)
        assert get_stages_and_steps(hook) == [("val", 6)]

    def test_samples_are_drawn_once_per_optimizer_step(self):
        fit(hook := RedHook(interval=1), accumulate=3)
        assert get_stages_and_steps(hook) == [("train", 0), ("train", 1), ("train", 2)]

    def test_hook_does_not_extract_samples_between_scheduled_iterations(self, monkeypatch):
        calls = []
        monkeypatch.setattr("hookbus_visualization.base.extract_samples", lambda *args: calls.append(args))
        fit(RedHook(interval=99))
        assert calls == []


class TestSamples:
    def test_first_samples_of_the_batch_are_drawn(self):
        fit(hook := RedHook(interval=2, max_samples=3))
        samples = hook.calls[0][2]
        assert samples.images.tolist() == samples.inputs.tolist() == [[4.0], [5.0], [6.0]]
        assert samples.targets.tolist() == [[8.0], [10.0], [12.0]]
        assert samples.predictions.shape == (3, 1)

    @pytest.mark.parametrize(("truth", "prediction"), [*itertools.product([True, False], repeat=2)])
    def test_targets_and_predictions_are_omitted_if_disabled(self, truth, prediction):
        fit(hook := RedHook(interval=6, draw_gt=truth, draw_pred=prediction))
        samples = hook.calls[0][2]
        assert (samples.targets is not None, samples.predictions is not None) == (truth, prediction)

    def test_values_returned_by_parse_take_precedence(self):
        def parse(batch, outputs):
            return {"images": batch[0] + 1, "predictions": outputs["output"] * 0}

        fit(hook := RedHook(interval=6, max_samples=1, parse=parse))
        samples = hook.calls[0][2]
        assert samples.images.tolist() == [[21.0]]
        assert samples.predictions.tolist() == [[0.0]]
        assert samples.targets.tolist() == [[40.0]]

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            (None, "`parse` must return a mapping with any of inputs, images, targets, predictions, got NoneType."),
            ({"image": 1}, "`parse` returned the unknown key 'image'. Did you mean 'images'?"),
        ],
    )
    def test_invalid_return_values_of_parse_are_reported(self, result, message):
        with pytest.warns(UserWarning, match=message):
            fit(RedHook(interval=6, parse=lambda batch, outputs: result))


class TestFiles:
    def test_file_names_contain_the_step(self, tmp_path):
        fit(RedHook(interval=3), work_dir=tmp_path / "run")
        folder = tmp_path / "run" / "visualization" / "red"
        assert sorted(path.name for path in folder.iterdir()) == [
            "train-red-step-00000003.png",
            "train-red-step-00000006.png",
        ]

    def test_files_contain_the_drawn_colors(self, tmp_path):
        fit(RedHook(interval=6), work_dir=tmp_path / "run")
        image = Image.open(tmp_path / "run/visualization/red/train-red-step-00000006.png")
        assert image.getpixel((image.width // 4, 60)) == (255, 0, 0)

    def test_files_are_written_to_out_dir(self, tmp_path):
        fit(RedHook(interval=6, out_dir="here"), work_dir=tmp_path / "run")
        fit(RedHook(interval=6, out_dir=str(tmp_path / "there")), work_dir=tmp_path / "other")
        assert (tmp_path / "run/visualization/here/train-red-step-00000006.png").is_file()
        assert (tmp_path / "there/train-red-step-00000006.png").is_file()

    def test_names_cannot_escape_the_output_directory(self, tmp_path):
        loader = [(torch.zeros(2, 1), torch.zeros(2, 1))]
        names = ["../../up", "..", "a" * 300, ".hidden"]
        fit(RedHook(interval=99, name="../up"), work_dir=tmp_path / "run", loaders=dict.fromkeys(names, loader))
        (folder,) = (tmp_path / "run" / "visualization").iterdir()
        assert len([path for path in folder.iterdir() if path.is_file()]) == len(names)
        assert [path.name for path in tmp_path.iterdir()] == ["run"]

    def test_no_files_are_written_if_save_is_false(self, tmp_path):
        fit(RedHook(interval=6, save=False), recorder := ImageRecorder(), work_dir=tmp_path / "run")
        assert not list(tmp_path.rglob("*.png"))
        assert len(recorder.records) == 1

    def test_no_files_are_written_without_a_work_dir(self):
        fit(RedHook(interval=6), recorder := ImageRecorder())
        assert len(recorder.records) == 1

    def test_relative_out_dir_without_work_dir_raises_config_error(self):
        with pytest.raises(ConfigError, match="out_dir: expected an absolute path .*, got here. Set `work_dir`, or"):
            fit(RedHook(out_dir="here"))

    def test_files_are_removed_when_the_run_is_overwritten(self, tmp_path):
        for interval in (2, 3):
            fit(RedHook(interval=interval), work_dir=tmp_path / "run", overwrite=True)
        files = (tmp_path / "run/visualization/red").iterdir()
        assert sorted(path.name[-7:] for path in files) == ["003.png", "006.png"]

    def test_write_errors_are_logged_as_warnings(self, tmp_path):
        (tmp_path / "visualization").mkdir()
        (tmp_path / "visualization" / "red").write_text("a file at the path of the directory")
        with pytest.warns(UserWarning, match="hook 'red' .* failed at after_train_iter"):
            training = fake_training([RedHook(interval=6)], work_dir=tmp_path)
        assert training.run.outcome == "finished"


class TestRecords:
    def test_record_contains_one_composed_image(self):
        fit(RedHook(interval=6), recorder := ImageRecorder())
        assert get_shapes(recorder) == [("train/red/red", 6, (188, 276, 3), "step 6: all red")]

    def test_tensorboard_backend_records_each_panel_separately(self):
        fit(RedHook(interval=6, backend="tensorboard"), recorder := ImageRecorder())
        assert get_shapes(recorder) == [
            ("train/red/red/0", 6, (8, 8, 3), "first"),
            ("train/red/red/1", 6, (8, 8, 3), "second"),
        ]

    def test_records_of_two_hooks_have_different_tags(self):
        fit(RedHook(interval=6, name="one"), RedHook(interval=6, name="two"), recorder := ImageRecorder())
        assert {record[0] for record in recorder.records} == {"train/one/red", "train/two/red"}


class TestWindow:
    def test_window_shows_each_image_if_a_display_is_available(self, monkeypatch):
        titles = []
        monkeypatch.setenv("DISPLAY", ":0")
        monkeypatch.setattr(Image.Image, "show", lambda self, title=None: titles.append(title))
        fit(RedHook(interval=3, show=True))
        assert titles == ["step 3: all red", "step 6: all red"]

    def test_missing_display_is_logged_once(self, monkeypatch, caplog):
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("sys.platform", "linux")
        fit(RedHook(interval=3, show=True))
        assert [record.getMessage() for record in caplog.records if "display" in record.getMessage()] == [
            "red: `show: true` is ignored because no display is available. Set `show: false`."
        ]


def test_sample_hook_without_draw_raises_not_implemented_error():
    with pytest.warns(UserWarning, match="SampleHook must implement `draw`"):
        fit(SampleHook(interval=6))


def test_hook_works_in_a_custom_loop():
    bus = RecordingBus([hook := RedHook(interval=2)])
    fake_training(bus=bus, epochs=1, batches=4)
    assert get_stages_and_steps(hook) == [("train", 2), ("train", 4)]


@pytest.mark.parametrize("cls", [DetVisualizationHook, VisualizationHook, FeatureMapHook])
def test_two_hooks_with_one_out_dir_are_rejected_at_the_start(tmp_path, cls):
    hooks = [cls(out_dir="images", name=name) for name in ("first", "second")]
    with pytest.raises(ConfigError, match="out_dir: hook 'second' also saves images in images. Set another `out_dir`."):
        fake_training(hooks, work_dir=tmp_path)
