import gzip
import json

import pytest
import torch

from hookbus_profiler.session import Cycle
from hookbus_profiler.traces import Traces, operators


@pytest.fixture
def finished():
    return recorded()


def recorded():
    cycle = Cycle(0, 1)
    torch.ones(2, 2) @ torch.ones(2, 2)
    cycle.step()
    cycle.stop()
    return cycle.profile


def test_a_trace_is_valid_and_a_table_lies_beside_it(tmp_path, finished):
    assert Traces(tmp_path / "p", "rank0", ".json.gz", 1e9).write(finished, "cycle1") is None
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        "rank0-cycle1.json.gz",
        "rank0-cycle1.operators.txt",
    ]
    events = json.loads(gzip.decompress((tmp_path / "p/rank0-cycle1.json.gz").read_bytes()))["traceEvents"]
    assert "aten::mm" in {event.get("name") for event in events}
    assert "aten::mm" in (tmp_path / "p/rank0-cycle1.operators.txt").read_text()


def sizes(directory):
    return {path.name: path.stat().st_size for path in directory.iterdir()}


def test_what_there_is_no_room_for_is_left_out_and_said_once(tmp_path):
    (tmp_path / "rank1-x.json.gz").write_bytes(bytes(10**6))  # another process has room of its own
    Traces(tmp_path, "rank0", ".json.gz", 1e9).write(recorded(), "a")
    one_cycle = sum(size for name, size in sizes(tmp_path).items() if name.startswith("rank0"))
    table = sizes(tmp_path)["rank0-a.operators.txt"]
    traces = Traces(tmp_path, "rank0", ".json.gz", 2 * one_cycle + table * 1.5)

    assert traces.write(recorded(), "b") is None
    assert traces.write(recorded(), "c").startswith("rank0-c.json.gz is left out, and what follows as well: with its ")
    assert traces.write(recorded(), "d") is None
    assert set(sizes(tmp_path)) == {
        "rank0-a.json.gz", "rank0-a.operators.txt", "rank0-b.json.gz", "rank0-b.operators.txt", "rank0-c.operators.txt",
        "rank1-x.json.gz",
    }  # fmt: skip


def test_tables_take_room_as_well(tmp_path):
    traces = Traces(tmp_path, "rank0", None, 10)
    assert traces.write(recorded(), "a").startswith("rank0-a.operators.txt is left out")
    assert sizes(tmp_path) == {}


def test_what_is_written_again_takes_the_room_that_it_had(tmp_path):
    Traces(tmp_path, "rank0", None, 1e9).write(recorded(), "a")
    traces = Traces(tmp_path, "rank0", None, 1.5 * sizes(tmp_path)["rank0-a.operators.txt"])
    assert traces.write(recorded(), "a") is None


def test_without_a_suffix_there_is_only_the_table(tmp_path, finished):
    Traces(tmp_path, "rank0", None, 1e9).write(finished, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["rank0-a.operators.txt"]


def test_the_table_names_operators(finished):
    assert "aten::mm" in operators(finished)
