import pytest
import torch

from hookbus_wandb.files import TransactionLog, find_run_files, read_record_keys, read_scalars
from hookbus_wandb.writer import Target, WandbWriter

ROWS = 800


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    """Return the directory of a run with 800 rows of a scalar, an image, a histogram and a text."""
    target = Target(tmp_path_factory.mktemp("run"), "1a2b")
    writer = WandbWriter(target)
    for step in range(ROWS):
        writer.write_scalar("a", step / 2, step)
    writer.write_image("val/image", torch.zeros(2, 2, 3, dtype=torch.uint8), 7)
    writer.write_histogram("val/histogram", torch.tensor([1.0, 2.0]), 8)
    writer.write_text("val/note", "hello", 9)
    writer.close()
    return target.directory


@pytest.fixture
def log(run_directory):
    (path,) = find_run_files(run_directory, "1a2b")
    return path


def truncate(path, size, tmp_path):
    truncated = tmp_path / "truncated.wandb"
    truncated.write_bytes(path.read_bytes()[:size])
    return truncated


def test_rows_are_read_across_block_boundaries(log):
    assert log.stat().st_size > 3 * 32768
    rows = list(TransactionLog(log).read_rows())
    assert [(row["a"], row["trainer/step"]) for row in rows[:ROWS]] == [(step / 2, step) for step in range(ROWS)]
    assert [row["_step"] for row in rows] == list(range(ROWS + 3))


def test_record_keys_and_the_number_of_rows_are_returned(run_directory):
    keys, count = read_record_keys(find_run_files(run_directory, "1a2b"))
    others = {key for key in keys if key[:2] != ("scalar", "a")}
    assert others == {("image", "val/image", 7), ("histogram", "val/histogram", 8), ("text", "val/note", 9)}
    assert (len(keys), count) == (ROWS + 3, ROWS + 3)


def test_records_before_a_row_and_scalars_from_it_on_are_returned(run_directory):
    files = find_run_files(run_directory, "1a2b")
    keys, count = read_record_keys(files, before=2)
    assert (keys, count) == ({("scalar", "a", 0), ("scalar", "a", 1)}, ROWS + 3)
    assert list(read_scalars(files, ROWS - 1)) == [({"a": (ROWS - 1) / 2}, ROWS - 1), ({}, 7), ({}, 8), ({}, 9)]


def test_missing_run_has_no_records(tmp_path):
    assert read_record_keys(find_run_files(tmp_path, "1a2b")) == (set(), 0)


@pytest.mark.parametrize("size", [32768 + 100, 32768 + 3, 32768, 32767, 3, 0])
def test_truncated_record_is_skipped(log, size, tmp_path):
    complete = list(TransactionLog(log).read_rows())
    rows = list(TransactionLog(truncate(log, size, tmp_path)).read_rows())
    assert rows == complete[: len(rows)]
    assert len(rows) > 0 or size < 10


@pytest.mark.parametrize("size", range(40_000, 40_400, 25))  # across a record of each type
def test_growing_file_is_read_incrementally(log, size, tmp_path):
    path = truncate(log, size, tmp_path)
    growing = TransactionLog(path)
    begin = list(growing.read_rows())
    assert list(growing.read_rows()) == []
    path.write_bytes(log.read_bytes())
    assert begin + list(growing.read_rows()) == list(TransactionLog(log).read_rows())


def test_corrupted_record_is_skipped(log, tmp_path):
    data = bytearray(log.read_bytes())
    begin = data.index(b"val/note")
    data[begin - 40 : begin] = b"\xff" * 40
    path = tmp_path / "corrupted.wandb"
    path.write_bytes(data)
    assert 0 < len(list(TransactionLog(path).read_rows())) < ROWS + 3


def test_files_are_sorted_by_time_of_creation(tmp_path):
    names = ["run-20260102_000000-x", "offline-run-20260101_000000-x", "offline-run-20260103_000000-x-1"]
    for name in names:
        (tmp_path / "wandb" / name).mkdir(parents=True)
        (tmp_path / "wandb" / name / "run-x.wandb").touch()
    (tmp_path / "wandb" / names[0] / "run-y.wandb").touch()
    assert [path.parent.name for path in find_run_files(tmp_path, "x")] == [names[1], names[0], names[2]]
