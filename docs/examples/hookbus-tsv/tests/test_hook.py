import csv
from pathlib import Path

from hookbus.testing import WriterTestCase, check_hook, check_writer, fake_training
from hookbus_tsv import TsvHook


def read_numbers(work_dir: Path) -> list[tuple[str, int, float]]:
    """Return the rows of a run: (name, step, value)."""
    with open(work_dir / "logs" / "tsv" / "numbers.tsv", newline="") as file:
        return [(name, int(step), float(value)) for name, step, value in csv.reader(file, "excel-tab")]


def test_hook_passes_the_conformance_checks():
    check_hook(TsvHook, interval=1)


def test_writer_passes_the_conformance_checks():
    check_writer(WriterTestCase(TsvHook, read_numbers))


def test_hook_writes_the_mean_of_each_interval(tmp_path):
    fake_training([TsvHook(interval=2)], epochs=1, batches=4, losses=float, work_dir=tmp_path)

    # the losses are 1, 2, 3, 4
    assert [row for row in read_numbers(tmp_path) if row[0] != "lr"] == [("train/loss", 2, 1.5), ("train/loss", 4, 3.5)]
