import gzip
import json

import pytest
import torch

from hookbus import HookBus
from hookbus.writers.output_files import MARKER, OutputFiles
from hookbus_profiler.output import TraceWriter, format_operators
from hookbus_profiler.profiling_window import Cycle


@pytest.fixture
def finished():
    return record_cycle()


def record_cycle():
    cycle = Cycle(0, 1)
    torch.ones(2, 2) @ torch.ones(2, 2)
    cycle.profile.step()
    cycle.stop()
    return cycle.profile


def test_write_creates_a_valid_trace_and_an_operator_table(tmp_path, finished):
    assert TraceWriter(open_files(tmp_path / "p"), "rank0", ".json.gz", 1e9).write(finished, "cycle1") is None
    assert sorted(path.name for path in (tmp_path / "p").iterdir() if path.name != MARKER) == [
        "rank0-cycle1.json.gz",
        "rank0-cycle1.operators.txt",
    ]
    events = json.loads(gzip.decompress((tmp_path / "p/rank0-cycle1.json.gz").read_bytes()))["traceEvents"]
    assert "aten::mm" in {event.get("name") for event in events}
    assert "aten::mm" in (tmp_path / "p/rank0-cycle1.operators.txt").read_text()


def open_files(directory):
    return OutputFiles(HookBus().current, directory)


def get_sizes(directory):
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.name != MARKER}


def test_size_limit_omits_files_and_is_reported_once(tmp_path):
    (tmp_path / "rank1-x.json.gz").write_bytes(bytes(10**6))  # the limit applies per process
    TraceWriter(open_files(tmp_path), "rank0", ".json.gz", 1e9).write(record_cycle(), "a")
    one_cycle = sum(size for name, size in get_sizes(tmp_path).items() if name.startswith("rank0"))
    table = get_sizes(tmp_path)["rank0-a.operators.txt"]
    traces = TraceWriter(open_files(tmp_path), "rank0", ".json.gz", 2 * one_cycle + table * 1.5)

    assert traces.write(record_cycle(), "b") is None
    assert traces.write(record_cycle(), "c").startswith("rank0-c.json.gz: the files would exceed their limit of ")
    assert traces.write(record_cycle(), "d") is None
    assert set(get_sizes(tmp_path)) == {
        "rank0-a.json.gz", "rank0-a.operators.txt", "rank0-b.json.gz", "rank0-b.operators.txt", "rank0-c.operators.txt",
        "rank1-x.json.gz",
    }  # fmt: skip


def test_size_limit_includes_operator_tables(tmp_path):
    traces = TraceWriter(open_files(tmp_path), "rank0", None, 10)
    assert traces.write(record_cycle(), "a").startswith("rank0-a.operators.txt: the files would exceed their limit")
    assert get_sizes(tmp_path) == {}


def test_size_limit_does_not_count_a_replaced_file(tmp_path):
    files = open_files(tmp_path / "p")
    TraceWriter(files, "rank0", None, 1e9).write(record_cycle(), "a")
    traces = TraceWriter(files, "rank0", None, 1.5 * get_sizes(tmp_path / "p")["rank0-a.operators.txt"])
    assert traces.write(record_cycle(), "a") is None
    assert set(get_sizes(tmp_path / "p")) == {"rank0-a.operators.txt"}


def test_foreign_trace_and_leftovers_are_not_replaced(tmp_path):
    (tmp_path / "target").write_text("mine")
    (tmp_path / "rank0-a.operators.txt").symlink_to(tmp_path / "target")
    (tmp_path / ".tmp-rank0-a.operators.txt").symlink_to(tmp_path / "target")
    TraceWriter(open_files(tmp_path), "rank0", None, 1e9).write(record_cycle(), "a")
    assert (tmp_path / "target").read_text() == "mine"
    assert "aten::mm" in (tmp_path / "rank0-a.operators-2.txt").read_text()


def test_write_creates_only_the_table_without_a_suffix(tmp_path, finished):
    TraceWriter(open_files(tmp_path), "rank0", None, 1e9).write(finished, "a")
    assert list(get_sizes(tmp_path)) == ["rank0-a.operators.txt"]


def test_operator_table_contains_operators(finished):
    assert "aten::mm" in format_operators(finished)
