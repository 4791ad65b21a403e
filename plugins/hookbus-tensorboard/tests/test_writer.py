import math
import os
import struct
import time

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.backend_context import Context

from hookbus_tensorboard.writer import EventFile, TensorBoardWriter, contains_events, iter_records, move_events


@pytest.fixture
def writer(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.time = 1000.5
    yield writer
    writer.close()


def load_events(directory):
    sizes = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    return EventAccumulator(str(directory), size_guidance=sizes).Reload()


def get_texts(events, name):
    return [event.tensor_proto.string_val[0].decode() for event in events.Tensors(f"{name}/text_summary")]


def test_scalars_have_the_time_of_their_record(writer, tmp_path):
    for step, value in enumerate([0.5, math.inf, -math.inf]):
        writer.write_scalar("val/a b", value, step)
    writer.flush()
    scalars = [(event.step, event.value, event.wall_time) for event in load_events(tmp_path).Scalars("val/a b")]
    assert scalars == [(0, 0.5, 1000.5), (1, math.inf, 1000.5), (2, -math.inf, 1000.5)]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_images_are_stored_losslessly(writer, tmp_path, channels, mode):
    from PIL import Image

    image = torch.arange(4 * 5 * channels, dtype=torch.uint8).reshape(4, 5, channels) + 150
    writer.write_image("val/image", image, 2, "a cat")
    writer.flush()
    (event,) = load_events(tmp_path).Images("val/image")
    (tmp_path / "logged.png").write_bytes(event.encoded_image_string)
    logged = np.asarray(Image.open(tmp_path / "logged.png").convert(mode)).reshape(4, 5, channels)
    assert logged.tolist() == image.tolist()
    assert get_texts(load_events(tmp_path), "val/image/caption") == ["a cat"]


def test_histogram_contains_the_finite_values(writer, tmp_path):
    writer.write_histogram("weights", torch.tensor([1.0, math.nan, 3.0, math.inf]), 1)
    with pytest.raises(ValueError, match="'nothing' contains no finite value"):
        writer.write_histogram("nothing", torch.tensor([math.nan]), 1)
    writer.flush()
    (event,) = load_events(tmp_path).Histograms("weights")
    histogram = event.histogram_value
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (1.0, 3.0, 2.0, 4.0)


def test_configuration_is_a_text_with_an_indented_code_block(writer, tmp_path):
    writer.write_config({"lr": 0.5})
    writer.write_config({"lr": 0.25}, 3)
    writer.flush()
    events = load_events(tmp_path)
    assert [event.step for event in events.Tensors("config/text_summary")] == [0, 3]
    assert get_texts(events, "config") == ['    {\n      "lr": 0.5\n    }', '    {\n      "lr": 0.25\n    }']


def test_hparams_contain_the_flat_configuration_and_the_results(writer, tmp_path):
    writer.write_hparams({"model": {"type": "mlp"}, "lr": 0.5, "none": None, "list": [1]}, {"val/accuracy": 0.5}, 3)
    writer.flush()
    start = load_events(tmp_path).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert [key in start for key in (b"model.type", b"mlp", b"lr", b"list.0", b"none")] == [True] * 4 + [False]


def test_hparams_that_differ_between_runs_are_shown_first_and_results_are_metrics(tmp_path):
    for name, lr in (("a", 0.5), ("b", 0.25)):
        writer = TensorBoardWriter(tmp_path / name)
        writer.write_scalar("val/accuracy", lr, 3)
        writer.write_hparams({"batch": 8, "epochs": 2, "lr": lr}, {"val/accuracy": lr}, 3)
        writer.close()
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    board = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(tmp_path))))
    request = RequestContext()
    metadata = board.hparams_metadata(request, "")
    experiment = board.experiment_from_metadata(request, "", True, metadata, None)
    assert [info.name for info in experiment.hparam_infos] == ["lr", "batch", "epochs"]
    assert [info.name.tag for info in experiment.metric_infos] == ["val/accuracy"]


def test_resume_purges_later_steps_and_returns_the_remaining_records(writer, tmp_path):
    for step in (1, 2, 3):
        writer.write_scalar("a", float(step), step)
    writer.write_text("note", "hello", 2)
    writer.close()
    resumed = TensorBoardWriter(tmp_path)
    assert resumed.resume(1, 2) == {("scalar", "a", 1), ("scalar", "a", 2), ("text", "note", 2)}
    resumed.write_scalar("a", 30.0, 3)
    resumed.close()
    assert [(event.step, event.value) for event in load_events(tmp_path).Scalars("a")] == [
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
    ]


def test_abandoned_records_are_not_written(writer, tmp_path):
    writer.write_scalar("a", 1.0, 1)
    writer.flush()
    writer.write_scalar("a", 2.0, 2)
    writer.abandon()
    writer.close()
    assert [event.step for event in load_events(tmp_path).Scalars("a")] == [1]


def test_file_contains_only_flushed_events(tmp_path):
    file = EventFile(tmp_path)
    file.add_event(Event(step=3))
    file.flush()
    file.add_event(Event(step=4))
    file.discard_pending()
    file.close()
    (path,) = tmp_path.iterdir()
    assert [event.step for event in EventFileLoader(str(path)).Load()] == [0, 3]


def test_later_file_sorts_after_existing_files_within_one_second(tmp_path):
    future = tmp_path / f"events.out.tfevents.{int(time.time()) + 100}.host.1.0"
    future.touch()
    EventFile(tmp_path).close()
    EventFile(tmp_path).close()
    assert sorted(tmp_path.iterdir())[0] == future
    assert len(list(tmp_path.iterdir())) == 3


def test_records_are_listed_and_a_truncated_event_is_skipped(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write_scalar("loss", 1.0, 4)
    writer.write_scalar("loss", 1.0, 5)
    writer.write_text("note", "hello", 5)
    writer.write_scalar("loss", 1.0, 6)
    writer.close()
    writer.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert list(iter_records(tmp_path, 5, 9)) == [("simple_value", "loss", 5), ("text", "note/text_summary", 5)]
    resumed = TensorBoardWriter(tmp_path)
    assert resumed.resume(5, 5) == {("scalar", "loss", 5), ("text", "note", 5)}
    resumed.abandon()


def test_invalid_files_in_the_directory_contain_no_records(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write_scalar("loss", 1.0, 4)
    writer.close()
    huge, invalid = struct.pack("<QI", 1 << 62, 0), struct.pack("<QI", 3, 0) + b"xxx" + bytes(4)
    for number, content in enumerate((huge, invalid, b"\xff" * 100, b"")):
        (tmp_path / f"events.out.tfevents.{number}").write_bytes(content)
    os.mkfifo(tmp_path / "events.out.tfevents.4")
    (tmp_path / "events.out.tfevents.5").mkdir()
    (tmp_path / "events.out.tfevents.6").symlink_to(next(tmp_path.glob("*.0")))

    assert list(iter_records(tmp_path, 0, 9)) == [("simple_value", "loss", 4)]


def test_events_are_moved_to_a_new_directory(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert move_events(tmp_path) is None
    for name in ("old", "old-2"):
        EventFile(tmp_path).close()
        assert contains_events(tmp_path)
        assert move_events(tmp_path) == tmp_path / name
        assert contains_events(tmp_path / name)
    assert not contains_events(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
