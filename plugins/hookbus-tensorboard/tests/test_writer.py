import math

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookbus_tensorboard.writer import TensorBoardWriter


@pytest.fixture
def writer(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.time = 1000.5
    yield writer
    writer.close()


def events(directory):
    sizes = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    return EventAccumulator(str(directory), size_guidance=sizes).Reload()


def text_of(found, name):
    return [each.tensor_proto.string_val[0].decode() for each in found.Tensors(f"{name}/text_summary")]


def test_numbers_keep_the_time_of_their_record(writer, tmp_path):
    for step, value in enumerate([0.5, math.inf, -math.inf]):
        writer.write_scalar("val/a b", value, step)
    writer.flush()
    found = [(each.step, each.value, each.wall_time) for each in events(tmp_path).Scalars("val/a b")]
    assert found == [(0, 0.5, 1000.5), (1, math.inf, 1000.5), (2, -math.inf, 1000.5)]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_pictures_keep_every_pixel(writer, tmp_path, channels, mode):
    from PIL import Image

    picture = torch.arange(4 * 5 * channels, dtype=torch.uint8).reshape(4, 5, channels) + 150
    writer.write_image("val/picture", picture, 2, "a cat")
    writer.flush()
    (found,) = events(tmp_path).Images("val/picture")
    (tmp_path / "shown.png").write_bytes(found.encoded_image_string)
    shown = np.asarray(Image.open(tmp_path / "shown.png").convert(mode)).reshape(4, 5, channels)
    assert shown.tolist() == picture.tolist()
    assert text_of(events(tmp_path), "val/picture/caption") == ["a cat"]


def test_a_distribution_is_of_the_finite_values(writer, tmp_path):
    writer.write_histogram("spread", torch.tensor([1.0, math.nan, 3.0, math.inf]), 1)
    with pytest.raises(ValueError, match="'nothing' holds no finite value"):
        writer.write_histogram("nothing", torch.tensor([math.nan]), 1)
    writer.flush()
    (found,) = events(tmp_path).Histograms("spread")
    told = found.histogram_value
    assert (told.min, told.max, told.num, told.sum) == (1.0, 3.0, 2.0, 4.0)


def test_hparams_are_the_flat_configuration_beside_the_results(writer, tmp_path):
    writer.write_hparams({"model": {"type": "mlp"}, "lr": 0.5, "none": None, "list": [1]}, {"val/accuracy": 0.5}, 3)
    writer.flush()
    start = events(tmp_path).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert [key in start for key in (b"model.type", b"mlp", b"lr", b"list.0", b"none")] == [True] * 4 + [False]
    assert b"val/accuracy" in events(tmp_path).SummaryMetadata("_hparams_/experiment").plugin_data.content


def test_later_steps_are_purged_and_what_stays_is_told(writer, tmp_path):
    for step in (1, 2, 3):
        writer.write_scalar("a", float(step), step)
    writer.write_text("note", "hello", 2)
    writer.close()
    again = TensorBoardWriter(tmp_path)
    assert again.resume(1, 2) == {("scalar", "a", 1), ("scalar", "a", 2), ("text", "note", 2)}
    again.write_scalar("a", 30.0, 3)
    again.close()
    assert [(each.step, each.value) for each in events(tmp_path).Scalars("a")] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_what_is_abandoned_is_not_written(writer, tmp_path):
    writer.write_scalar("a", 1.0, 1)
    writer.flush()
    writer.write_scalar("a", 2.0, 2)
    writer.abandon()
    writer.close()
    assert [each.step for each in events(tmp_path).Scalars("a")] == [1]
