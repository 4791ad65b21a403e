import os
import struct
import time

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from hookbus_tensorboard.events import EventFile, contains_events, iter_records, move_events
from hookbus_tensorboard.writer import TensorBoardWriter


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
