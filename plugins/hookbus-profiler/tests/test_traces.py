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
    assert Traces(tmp_path / "p", ".json.gz", 1e9).write(finished, "rank0-cycle1") is None
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        "rank0-cycle1.json.gz",
        "rank0-cycle1.operators.txt",
    ]
    events = json.loads(gzip.decompress((tmp_path / "p/rank0-cycle1.json.gz").read_bytes()))["traceEvents"]
    assert "aten::mm" in {event.get("name") for event in events}
    assert "aten::mm" in (tmp_path / "p/rank0-cycle1.operators.txt").read_text()


def test_one_that_would_be_too_much_is_left_out_and_said(tmp_path):
    Traces(tmp_path, ".json.gz", 1e9).write(recorded(), "a")
    size = (tmp_path / "a.json.gz").stat().st_size
    traces = Traces(tmp_path, ".json.gz", size * 1.5)
    assert traces.write(recorded(), "b") is None
    assert "The trace c.json.gz is left out" in traces.write(recorded(), "c")
    assert {path.name for path in tmp_path.iterdir() if "trace" not in path.name and path.suffix == ".gz"} == {
        "a.json.gz",
        "b.json.gz",
    }


def test_without_a_suffix_there_is_only_the_table(tmp_path, finished):
    Traces(tmp_path, None, 1e9).write(finished, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.operators.txt"]


def test_the_table_names_operators(finished):
    assert "aten::mm" in operators(finished)
