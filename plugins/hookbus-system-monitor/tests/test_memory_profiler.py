import json
import logging
import pickle
from types import SimpleNamespace

import psutil
import pytest
import torch

from hookbus import HookBus
from hookbus_system_monitor import MemoryProfilerHook

from .toys import Writer, accumulate, train

GB = 2**30
HOST_NAMES = {
    "memory/process_gb",
    "memory/process_peak_gb",
    "memory/system_used_gb",
    "memory/system_available_gb",
    "memory/system_percent",
    "memory/swap_used_gb",
    "memory/swap_percent",
}


@pytest.fixture
def lines(caplog):
    """What was logged, as a function of a level."""
    caplog.set_level(logging.INFO, logger="hookbus")
    return lambda level: [record.getMessage() for record in caplog.records if record.levelname == level]


@pytest.fixture
def process(monkeypatch):
    """A process whose resident memory is what the test says."""
    memory = SimpleNamespace(rss=GB)
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: memory)
    return memory


class TestRecords:
    def test_are_made_every_interval(self, lines):
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=10), writer])
        with bus.run(epochs=5) as run:
            train(bus, run)

        assert writer.steps == [10, 20, 30]
        assert all(set(values) >= HOST_NAMES for _, values in writer.written)
        said = [line for line in lines("INFO") if "emory" in line]
        assert [line[:15] for line in said] == ["The system has ", "Memory informat"] * 3 + ["memory_profiler"]

    def test_are_not_made_of_a_short_training_but_its_most_is_said(self, lines, process, monkeypatch):
        most = SimpleNamespace(ru_maxrss=3 * 2**20)  # kilobytes
        monkeypatch.setattr("resource.getrusage", lambda who: most)
        monkeypatch.setattr("sys.platform", "linux")
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)

        assert writer.steps == []
        assert lines("INFO") == ["memory_profiler: the memory of this process was at most 3.00 GB."]

    def test_say_nothing_of_the_host_where_that_is_not_wanted(self, lines):
        bus = HookBus([MemoryProfilerHook(interval=1, log_cpu=False)])
        with bus.run(epochs=1) as run:
            train(bus, run)

        assert [line for line in lines("INFO") if "process" in line] == []

    def test_hold_what_the_process_has(self, process):
        process.rss = 3 * GB
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=6), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)
        ((_, values),) = writer.written

        assert values["memory/process_gb"] == 3
        assert values["memory/process_peak_gb"] >= 3
        assert values["memory/system_percent"] == pytest.approx(
            100
            * values["memory/system_used_gb"]
            / (values["memory/system_used_gb"] + values["memory/system_available_gb"]),
            abs=0.1,
        )

    def test_wait_for_an_update_in_the_middle_of_an_accumulation(self):
        writer = Writer()
        accumulate([MemoryProfilerHook(interval=3), writer], by=2)

        assert writer.steps == [2, 3]

    def test_stand_once_on_an_update(self):
        writer = Writer()
        accumulate([MemoryProfilerHook(interval=1), writer], by=2)

        assert writer.steps == [1, 2, 3]

    def test_are_left_out_where_they_are_not_wanted(self, lines):
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=1, log_cpu=False, log_gpu=False), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)

        assert writer.written == []
        assert not [line for line in lines("INFO") if "emory" in line]


class TestWarnings:
    def test_are_of_too_much_once_until_there_was_less(self, process, lines):
        bus = HookBus([MemoryProfilerHook(interval=1, warn_threshold=2)])
        sizes = [1, 3, 4, 1, 5, 6]
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: setattr(process, "rss", sizes[number - 1] * GB))

        assert lines("WARNING") == [
            f"memory_profiler: the memory of this process is {size}.00 GB, more than the warn_threshold of 2 GB."
            for size in (3, 5)
        ]

    def test_are_of_steady_growth_once_with_its_rate(self, process, lines):
        bus = HookBus([MemoryProfilerHook(interval=2)])
        with bus.run(epochs=10) as run:
            train(bus, run, lambda number: setattr(process, "rss", GB + number * GB // 64))

        (line,) = lines("WARNING")
        assert line.startswith(
            "memory_profiler: the memory of this process grows steadily, by 15.6 GB per 1000 iterations, and is 1.62"
        )

    def test_are_none_where_memory_stays(self, process, lines):
        bus = HookBus([MemoryProfilerHook(interval=1)])
        with bus.run(epochs=10) as run:
            train(bus, run)

        assert lines("WARNING") == []


def fail_with(error, **options):
    """A run that ends so at iteration 2."""
    bus = HookBus([MemoryProfilerHook()])

    def fail(number):
        if number == 2:
            raise error

    with pytest.raises(type(error)), bus.run(epochs=1, **options) as run:
        train(bus, run, fail)


class TestOutOfMemory:
    def test_leaves_a_snapshot_and_names_it(self, tmp_path, lines):
        fail_with(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GB."), work_dir=tmp_path)
        path = tmp_path / "logs" / "out_of_memory_rank0.json"
        facts = json.loads(path.read_text())

        assert f"memory_profiler: out of memory; a snapshot is in {path}" in "".join(lines("WARNING"))
        assert facts["error"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GB."
        assert (facts["iteration"], facts["step"]) == (1, 1)
        assert facts["process"] > 0
        assert set(facts["system"]) == {"total", "available", "used", "percent"}

    def test_without_a_place_for_files_says_what_would_be_right(self, lines):
        fail_with(MemoryError())

        assert lines("WARNING") == ["memory_profiler: out of memory; give work_dir to the run for a snapshot of it."]

    def test_is_not_taken_for_another_error(self, tmp_path, lines):
        fail_with(ValueError("broken"), work_dir=tmp_path)

        assert lines("WARNING") == []
        assert not list(tmp_path.rglob("out_of_memory*"))


@pytest.mark.gpu
class TestARealDevice:
    def test_has_its_memory_in_the_records(self):
        kept = torch.zeros(GB, dtype=torch.uint8, device="cuda")
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=6), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)
        ((_, values),) = writer.written

        assert values["memory/gpu_allocated_gb"] == torch.cuda.memory_allocated() / GB
        assert values["memory/gpu_reserved_gb"] == torch.cuda.memory_reserved() / GB
        assert values["memory/gpu_peak_gb"] == torch.cuda.max_memory_allocated() / GB
        assert 0 <= values["memory/gpu_fragmentation_percent"] <= 100
        assert kept.numel() == GB

    def test_that_is_full_leaves_a_snapshot_with_its_blocks(self, tmp_path, lines):
        total = torch.cuda.get_device_properties(0).total_memory
        bus = HookBus([MemoryProfilerHook()])

        def fill(number):
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")

        with pytest.raises(torch.OutOfMemoryError), bus.run(epochs=1, work_dir=tmp_path) as run:
            train(bus, run, fill)
        blocks = tmp_path / "logs" / "out_of_memory_rank0.pickle"

        assert f"out_of_memory_rank0.json and {blocks}" in "".join(lines("WARNING"))
        assert set(pickle.loads(blocks.read_bytes())) >= {"segments"}
        facts = json.loads((tmp_path / "logs" / "out_of_memory_rank0.json").read_text())
        assert facts["device"]["current"] == torch.cuda.memory_allocated()
