import pytest
import torch

from hookbus_wandb.files import Log, held, numbers_from, run_files
from hookbus_wandb.writer import Target, WandbWriter

ROWS = 800


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The directory of a run: 800 rows of a number, and a picture, a distribution and a text."""
    target = Target(tmp_path_factory.mktemp("run"), "1a2b")
    writer = WandbWriter(target)
    for step in range(ROWS):
        writer.write_scalar("a", step / 2, step)
    writer.write_image("val/picture", torch.zeros(2, 2, 3, dtype=torch.uint8), 7)
    writer.write_histogram("val/spread", torch.tensor([1.0, 2.0]), 8)
    writer.write_text("val/note", "hello", 9)
    writer.close()
    return target.directory


@pytest.fixture
def log(written):
    (path,) = run_files(written, "1a2b")
    return path


def cut(path, size, tmp_path):
    shorter = tmp_path / "cut.wandb"
    shorter.write_bytes(path.read_bytes()[:size])
    return shorter


def test_rows_are_read_over_the_borders_of_blocks(log):
    assert log.stat().st_size > 3 * 32768
    found = list(Log(log).rows())
    assert [(row["a"], row["trainer/step"]) for row in found[:ROWS]] == [(step / 2, step) for step in range(ROWS)]
    assert [row["_step"] for row in found] == list(range(ROWS + 3))


def test_places_and_the_number_of_rows_are_known(written):
    there, count = held(run_files(written, "1a2b"))
    others = {place for place in there if place[:2] != ("scalar", "a")}
    assert others == {("image", "val/picture", 7), ("histogram", "val/spread", 8), ("text", "val/note", 9)}
    assert (len(there), count) == (ROWS + 3, ROWS + 3)


def test_places_before_a_row_and_numbers_from_it_on_are_told(written):
    files = run_files(written, "1a2b")
    there, count = held(files, before=2)
    assert (there, count) == ({("scalar", "a", 0), ("scalar", "a", 1)}, ROWS + 3)
    assert list(numbers_from(files, ROWS - 1)) == [({"a": (ROWS - 1) / 2}, ROWS - 1), ({}, 7), ({}, 8), ({}, 9)]


def test_of_a_run_that_is_not_there_nothing_is_held(tmp_path):
    assert held(run_files(tmp_path, "1a2b")) == (set(), 0)


@pytest.mark.parametrize("size", [32768 + 100, 32768 + 3, 32768, 32767, 3, 0])
def test_what_a_kill_has_cut_is_left_out(log, size, tmp_path):
    whole = list(Log(log).rows())
    found = list(Log(cut(log, size, tmp_path)).rows())
    assert found == whole[: len(found)]
    assert len(found) > 0 or size < 10


@pytest.mark.parametrize("size", range(40_000, 40_400, 25))  # over a record of each kind
def test_a_file_that_grows_is_read_on(log, size, tmp_path):
    path = cut(log, size, tmp_path)
    growing = Log(path)
    begin = list(growing.rows())
    assert list(growing.rows()) == []
    path.write_bytes(log.read_bytes())
    assert begin + list(growing.rows()) == list(Log(log).rows())


def test_a_damaged_record_is_left_out(log, tmp_path):
    data = bytearray(log.read_bytes())
    begin = data.index(b"val/note")
    data[begin - 40 : begin] = b"\xff" * 40
    path = tmp_path / "damaged.wandb"
    path.write_bytes(data)
    assert 0 < len(list(Log(path).rows())) < ROWS + 3


def test_files_come_in_the_order_in_which_they_were_begun(tmp_path):
    names = ["run-20260102_000000-x", "offline-run-20260101_000000-x", "offline-run-20260103_000000-x-1"]
    for name in names:
        (tmp_path / "wandb" / name).mkdir(parents=True)
        (tmp_path / "wandb" / name / "run-x.wandb").touch()
    (tmp_path / "wandb" / names[0] / "run-y.wandb").touch()
    assert [path.parent.name for path in run_files(tmp_path, "x")] == [names[1], names[0], names[2]]
