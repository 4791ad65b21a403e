import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookbus import Hook
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus, fake_training
from hookbus_visualization import SampleHook
from hookbus_visualization.panel import Panel

from .toys import Pictures, trained

RED = np.full((8, 8, 3), (255, 0, 0), np.uint8)


class RedHook(SampleHook):
    """Draws something red, and remembers what it was given."""

    def __init__(self, config=None, **settings):
        super().__init__(config, **{"backend": "pillow", **settings})
        self.given = []

    def draw(self, run, stage, seen, batch, outputs):
        self.given.append((stage, run.steps_done, seen))
        self.deliver(run, stage, "red", [Panel(RED, "first"), Panel(RED, "second")], "all red")


class SanityHook(Hook):
    def before_train(self, run):
        run.validate(sanity=True)


def fitted(hook, *more, batches=6, size=4, loaders=None, **options):
    inputs = torch.arange(float(batches * size)).reshape(batches, size, 1)
    loader = [(x, 2 * x) for x in inputs]
    options = {"loss_fn": nn.functional.mse_loss, "val_loader": loaders, "test_loader": loader, **options}
    return trained(nn.Linear(1, 1), loader, hook, *more, lr=1e-6, **options)


def shapes_of(pictures):
    return [(tag, step, images.shape, caption) for tag, step, images, caption in pictures.records]


def places(hook):
    return [(stage, step) for stage, step, _ in hook.given]


class TestDue:
    def test_is_every_so_many_iterations(self):
        fitted(hook := RedHook(interval=2))
        assert places(hook) == [("train", 2), ("train", 4), ("train", 6)]

    def test_is_the_first_batch_of_each_loader_of_a_validation(self):
        loader = [(torch.zeros(2, 1), torch.zeros(2, 1))] * 3
        fitted(hook := RedHook(interval=99), loaders={"a": loader, "b": loader}, epochs=2)
        assert places(hook) == [("val/a", 6), ("val/b", 6), ("val/a", 12), ("val/b", 12)]

    def test_is_the_first_batch_of_a_test(self):
        trainer = fitted(hook := RedHook(interval=99))
        trainer.test()
        assert places(hook) == [("test", 6)]

    def test_is_not_the_validation_before_training(self):
        loader = [(torch.zeros(2, 1), torch.zeros(2, 1))]
        fitted(hook := RedHook(interval=99), SanityHook(), loaders=loader)
        assert places(hook) == [("val", 6)]

    def test_is_once_per_update(self):
        fitted(hook := RedHook(interval=1), accumulate=3)
        assert places(hook) == [("train", 0), ("train", 1), ("train", 2)]

    def test_asks_for_nothing_in_between(self, monkeypatch):
        looked = []
        monkeypatch.setattr("hookbus_visualization.base.seen_in", lambda *args: looked.append(args))
        fitted(RedHook(interval=99))
        assert looked == []


class TestSamples:
    def test_are_the_first_of_the_batch(self):
        fitted(hook := RedHook(interval=2, max_samples=3))
        seen = hook.given[0][2]
        assert seen.images.tolist() == seen.inputs.tolist() == [[4.0], [5.0], [6.0]]
        assert seen.targets.tolist() == [[8.0], [10.0], [12.0]]
        assert seen.predictions.shape == (3, 1)

    @pytest.mark.parametrize(("truth", "prediction"), [*itertools.product([True, False], repeat=2)])
    def test_have_truth_and_prediction_as_far_as_they_are_drawn(self, truth, prediction):
        fitted(hook := RedHook(interval=6, draw_gt=truth, draw_pred=prediction))
        seen = hook.given[0][2]
        assert (seen.targets is not None, seen.predictions is not None) == (truth, prediction)

    def test_are_what_parse_finds(self):
        def parse(batch, outputs):
            return {"images": batch[0] + 1, "predictions": outputs["output"] * 0}

        fitted(hook := RedHook(interval=6, max_samples=1, parse=parse))
        seen = hook.given[0][2]
        assert seen.images.tolist() == [[21.0]]
        assert seen.predictions.tolist() == [[0.0]]
        assert seen.targets.tolist() == [[40.0]]

    @pytest.mark.parametrize(
        ("found", "message"),
        [
            (None, "parse returns a NoneType, not a mapping with any of inputs, images, targets, predictions"),
            ({"image": 1}, "parse returns 'image', which is not drawn. Did you mean 'images'?"),
        ],
    )
    def test_that_parse_gives_in_another_form_are_told(self, found, message):
        with pytest.warns(UserWarning, match=message):
            fitted(RedHook(interval=6, parse=lambda batch, outputs: found))


class TestFiles:
    def test_have_the_step_in_their_name(self, tmp_path):
        fitted(RedHook(interval=3), work_dir=tmp_path / "run")
        folder = tmp_path / "run" / "visualization" / "red"
        assert sorted(each.name for each in folder.iterdir()) == [
            "train-red-step-00000003.png",
            "train-red-step-00000006.png",
        ]

    def test_hold_the_colours_that_were_drawn(self, tmp_path):
        fitted(RedHook(interval=6), work_dir=tmp_path / "run")
        image = Image.open(tmp_path / "run/visualization/red/train-red-step-00000006.png")
        assert image.getpixel((image.width // 4, 60)) == (255, 0, 0)

    def test_go_where_out_dir_says(self, tmp_path):
        fitted(RedHook(interval=6, out_dir="here"), work_dir=tmp_path / "run")
        fitted(RedHook(interval=6, out_dir=str(tmp_path / "there")), work_dir=tmp_path / "other")
        assert (tmp_path / "run/visualization/here/train-red-step-00000006.png").is_file()
        assert (tmp_path / "there/train-red-step-00000006.png").is_file()

    def test_never_leave_their_folder_by_a_name(self, tmp_path):
        loader = [(torch.zeros(2, 1), torch.zeros(2, 1))]
        names = ["../../up", "..", "a" * 300, ".hidden"]
        fitted(RedHook(interval=99, name="../up"), work_dir=tmp_path / "run", loaders=dict.fromkeys(names, loader))
        (folder,) = (tmp_path / "run" / "visualization").iterdir()
        assert len([each for each in folder.iterdir() if each.is_file()]) == len(names)
        assert [each.name for each in tmp_path.iterdir()] == ["run"]

    def test_are_none_unless_they_are_saved(self, tmp_path):
        fitted(RedHook(interval=6, save=False), pictures := Pictures(), work_dir=tmp_path / "run")
        assert not list(tmp_path.rglob("*.png"))
        assert len(pictures.records) == 1

    def test_are_none_in_a_run_that_writes_none(self):
        fitted(RedHook(interval=6), pictures := Pictures())
        assert len(pictures.records) == 1

    def test_cannot_go_into_a_folder_below_nothing(self):
        with pytest.raises(ConfigError, match="no place for out_dir: here. Give work_dir to the run, or an absolute"):
            fitted(RedHook(out_dir="here"))

    def test_are_removed_with_the_run_that_is_written_over(self, tmp_path):
        for interval in (2, 3):
            fitted(RedHook(interval=interval), work_dir=tmp_path / "run", overwrite=True)
        files = (tmp_path / "run/visualization/red").iterdir()
        assert sorted(each.name[-7:] for each in files) == ["003.png", "006.png"]

    def test_that_cannot_be_written_are_a_warning(self, tmp_path):
        (tmp_path / "visualization").mkdir()
        (tmp_path / "visualization" / "red").write_text("a file in the place of the folder")
        with pytest.warns(UserWarning, match="hook 'red' .* failed at after_train_iter"):
            done = fake_training([RedHook(interval=6)], work_dir=tmp_path)
        assert done.run.outcome == "finished"


class TestRecords:
    def test_are_one_sheet(self):
        fitted(RedHook(interval=6), pictures := Pictures())
        assert shapes_of(pictures) == [("train/red/red", 6, (188, 276, 3), "step 6: all red")]

    def test_are_one_per_picture_for_a_board(self):
        fitted(RedHook(interval=6, backend="tensorboard"), pictures := Pictures())
        assert shapes_of(pictures) == [
            ("train/red/red/0", 6, (8, 8, 3), "first"),
            ("train/red/red/1", 6, (8, 8, 3), "second"),
        ]

    def test_of_two_hooks_have_two_names(self):
        fitted(RedHook(interval=6, name="one"), RedHook(interval=6, name="two"), pictures := Pictures())
        assert {each[0] for each in pictures.records} == {"train/one/red", "train/two/red"}


class TestWindow:
    def test_shows_each_sheet_where_there_is_a_display(self, monkeypatch):
        shown = []
        monkeypatch.setenv("DISPLAY", ":0")
        monkeypatch.setattr(Image.Image, "show", lambda self, title=None: shown.append(title))
        fitted(RedHook(interval=3, show=True))
        assert shown == ["step 3: all red", "step 6: all red"]

    def test_is_said_to_be_missing_where_there_is_none(self, monkeypatch, caplog):
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("sys.platform", "linux")
        fitted(RedHook(interval=3, show=True))
        assert [each.getMessage() for each in caplog.records if "display" in each.getMessage()] == [
            "red: there is no display, so no window shows the pictures (show: true)."
        ]


def test_a_hook_that_does_not_say_what_it_draws_is_told_so():
    with pytest.warns(UserWarning, match="SampleHook must say what it draws"):
        fitted(SampleHook(interval=6))


def test_it_works_in_a_loop_of_ones_own():
    bus = RecordingBus([hook := RedHook(interval=2)])
    fake_training(bus=bus, epochs=1, batches=4)
    assert places(hook) == [("train", 2), ("train", 4)]
