import json
import logging
import pickle
from types import SimpleNamespace

import psutil
import pytest
import torch

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.writers.output_files import OutputFiles
from hookbus_system_monitor import MemoryProfilerHook
from hookbus_system_monitor.memory_profiler import is_out_of_memory, save_snapshot

from .toys import Writer, accumulate, train

AcceleratorError = getattr(torch, "AcceleratorError", RuntimeError)  # older torch has no type for errors of CUDA
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
    """Return a function that returns the logged messages of a level."""
    caplog.set_level(logging.INFO, logger="hookbus")
    return lambda level: [record.getMessage() for record in caplog.records if record.levelname == level]


@pytest.fixture
def process(monkeypatch):
    """Return the fake memory of the process, set by the test."""
    memory = SimpleNamespace(rss=GB)
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: memory)
    return memory


class TestRecords:
    def test_memory_is_logged_every_interval(self, lines):
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=10), writer])
        with bus.run(epochs=5) as run:
            train(bus, run)

        assert writer.steps == [10, 20, 30]
        assert all(set(values) >= HOST_NAMES for _, values in writer.written)
        messages = [line for line in lines("INFO") if "emory" in line]
        assert [line[:15] for line in messages] == ["The system has ", "Memory informat"] * 3 + ["memory_profiler"]

    def test_short_training_logs_only_its_peak_memory(self, lines, process, monkeypatch):
        peak = SimpleNamespace(ru_maxrss=3 * 2**20)  # kilobytes
        monkeypatch.setattr("resource.getrusage", lambda who: peak)
        monkeypatch.setattr("sys.platform", "linux")
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)

        assert writer.steps == []
        assert lines("INFO") == ["memory_profiler: process memory peaked at 3.00 GB."]

    def test_host_memory_is_not_logged_without_log_cpu(self, lines):
        bus = HookBus([MemoryProfilerHook(interval=1, log_cpu=False)])
        with bus.run(epochs=1) as run:
            train(bus, run)

        assert [line for line in lines("INFO") if "process" in line] == []

    def test_record_contains_the_memory_of_the_process(self, process):
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

    def test_record_within_an_accumulation_is_deferred_to_the_next_step(self):
        writer = Writer()
        accumulate([MemoryProfilerHook(interval=3), writer], by=2)

        assert writer.steps == [2, 3]

    def test_each_optimizer_step_has_one_record(self):
        writer = Writer()
        accumulate([MemoryProfilerHook(interval=1), writer], by=2)

        assert writer.steps == [1, 2, 3]

    def test_nothing_is_logged_without_log_cpu_and_log_gpu(self, lines):
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=1, log_cpu=False, log_gpu=False), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)

        assert writer.written == []
        assert not [line for line in lines("INFO") if "emory" in line]


class TestUnavailableValues:
    @pytest.mark.parametrize("error", [psutil.AccessDenied(1), NotImplementedError("no"), OSError("no such file")])
    @pytest.mark.parametrize(
        ("function", "names"),
        [
            ("virtual_memory", {name for name in HOST_NAMES if "system" in name}),
            ("swap_memory", {name for name in HOST_NAMES if "swap" in name}),
            ("Process.memory_info", {name for name in HOST_NAMES if "process" in name}),
        ],
    )
    def test_failing_function_of_psutil_affects_only_its_values(self, lines, monkeypatch, function, names, error):
        def fail(*_):
            raise error

        owner, name = (psutil.Process, "memory_info") if "." in function else (psutil, function)
        monkeypatch.setattr(owner, name, fail)
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=1), writer])
        with bus.run(epochs=2) as run:
            train(bus, run)

        assert len(writer.written) == 12
        assert all(HOST_NAMES - set(values) == names for _, values in writer.written)
        assert len(lines("WARNING")) == 1

    def test_failing_device_affects_only_its_values(self, lines, monkeypatch):
        def fail():
            raise RuntimeError("device is lost")

        monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
        monkeypatch.setattr("torch.get_device_module", lambda: SimpleNamespace(memory_stats=fail))
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=1), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)

        assert all(set(values) == HOST_NAMES for _, values in writer.written)
        assert lines("WARNING") == [
            "memory_profiler: tensor memory on the device is unavailable: device is lost. "
            "Its values are omitted until it is available."
        ]

    def test_snapshot_contains_the_available_values(self, tmp_path, monkeypatch):
        monkeypatch.delattr(psutil, "swap_memory")
        fail_with(MemoryError(), work_dir=tmp_path)
        facts = json.loads((tmp_path / "logs" / "out_of_memory_rank0.json").read_text())

        assert facts["swap"] is None
        assert facts["system"]["total"] > 0


class TestWarnings:
    def test_memory_above_the_threshold_is_one_warning_until_it_falls(self, process, lines):
        bus = HookBus([MemoryProfilerHook(interval=1, warn_threshold=2)])
        sizes = [1, 3, 4, 1, 5, 6]
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: setattr(process, "rss", sizes[number - 1] * GB))

        assert lines("WARNING") == [
            f"memory_profiler: process memory is {size}.00 GB, which exceeds the `warn_threshold` of 2 GB."
            for size in (3, 5)
        ]

    def test_steady_growth_is_one_warning_with_its_rate(self, process, lines):
        bus = HookBus([MemoryProfilerHook(interval=2)])
        with bus.run(epochs=10) as run:
            train(bus, run, lambda number: setattr(process, "rss", GB + number * GB // 64))

        (line,) = lines("WARNING")
        assert line.startswith(
            "memory_profiler: process memory grows steadily, by 15.6 GB per 1000 iterations, and is now 1.62"
        )

    def test_constant_memory_causes_no_warning(self, process, lines):
        bus = HookBus([MemoryProfilerHook(interval=1)])
        with bus.run(epochs=10) as run:
            train(bus, run)

        assert lines("WARNING") == []


def fail_with(error, **options):
    """Run a training that raises an error at iteration 2."""
    bus = HookBus([MemoryProfilerHook()])

    def fail(number):
        if number == 2:
            raise error

    with pytest.raises(type(error)), bus.run(epochs=1, **options) as run:
        train(bus, run, fail)


class TestOutOfMemory:
    def test_out_of_memory_error_saves_a_snapshot(self, tmp_path, lines):
        fail_with(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GB."), work_dir=tmp_path)
        path = tmp_path / "logs" / "out_of_memory_rank0.json"
        facts = json.loads(path.read_text())

        assert f"memory_profiler: out of memory. Snapshot saved to {path}" in "".join(lines("WARNING"))
        assert facts["error"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GB."
        assert (facts["iteration"], facts["step"]) == (1, 1)
        assert facts["process"] > 0
        assert set(facts["system"]) == {"total", "available", "used", "percent"}

    def test_out_of_memory_error_without_a_work_dir_is_a_warning(self, lines):
        fail_with(MemoryError())

        assert lines("WARNING") == [
            "memory_profiler: out of memory, and the run has no work directory for a snapshot. Set `work_dir`."
        ]

    def test_other_error_saves_no_snapshot(self, tmp_path, lines):
        fail_with(ValueError("broken"), work_dir=tmp_path)

        assert lines("WARNING") == []
        assert not list(tmp_path.rglob("out_of_memory*"))


@pytest.mark.gpu
class TestGpu:
    def test_record_contains_the_memory_of_the_gpu(self):
        tensor = torch.zeros(GB, dtype=torch.uint8, device="cuda")
        writer = Writer()
        bus = HookBus([MemoryProfilerHook(interval=6), writer])
        with bus.run(epochs=1) as run:
            train(bus, run)
        ((_, values),) = writer.written

        assert values["memory/gpu_allocated_gb"] == torch.cuda.memory_allocated() / GB
        assert values["memory/gpu_reserved_gb"] == torch.cuda.memory_reserved() / GB
        assert values["memory/gpu_peak_gb"] == torch.cuda.max_memory_allocated() / GB
        assert 0 <= values["memory/gpu_fragmentation_percent"] <= 100
        assert tensor.numel() == GB

    def test_full_gpu_saves_a_snapshot_with_its_blocks(self, tmp_path, lines):
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


class TestTwoInstances:
    def test_instances_with_the_same_values_are_rejected_at_the_start(self):
        bus = HookBus([MemoryProfilerHook(name="a", log_gpu=False), MemoryProfilerHook(name="b")])
        with pytest.raises(ConfigError, match="log_cpu: hook 'b' also logs these values"), bus.run(epochs=1):
            pass

    def test_instances_with_different_values_work_side_by_side(self):
        writer = Writer()
        hooks = [MemoryProfilerHook(name="a", interval=2, log_gpu=False), MemoryProfilerHook(name="b", log_cpu=False)]
        bus = HookBus([*hooks, writer])
        with bus.run(epochs=1) as run:
            train(bus, run)
        assert [set(values) >= HOST_NAMES for _, values in writer.written] == [True] * 3


class TestIsOutOfMemory:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (torch.OutOfMemoryError("CUDA out of memory."), True),
            (MemoryError(), True),
            (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), True),
            (AcceleratorError("CUDA error: out of memory"), True),
            (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
            (RuntimeError("shapes cannot be multiplied"), False),
            (KeyboardInterrupt(), False),
            (ValueError("can't allocate memory"), False),
            (None, False),
        ],
        ids=str,
    )
    def test_out_of_memory_errors_are_recognized(self, error, expected):
        assert is_out_of_memory(error) is expected

    def test_out_of_memory_error_of_torch_on_the_cpu_is_recognized(self):
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**60, dtype=torch.uint8)

        assert is_out_of_memory(caught.value)


class TestSnapshotFiles:
    def test_snapshot_is_a_json_file_with_the_contents(self, tmp_path):
        (path,) = save_snapshot(OutputFiles(HookBus().current, tmp_path), 3, {"error": "out of memory", "process": 5})

        assert path == tmp_path / "out_of_memory_rank3.json"
        assert json.loads(path.read_text()) == {"error": "out of memory", "process": 5}

    @pytest.mark.gpu
    def test_snapshot_on_cuda_includes_the_blocks_of_the_device(self, tmp_path):
        tensor = torch.zeros(2**25, dtype=torch.uint8, device="cuda")
        path, blocks = save_snapshot(OutputFiles(HookBus().current, tmp_path), 0, {})
        snapshot = pickle.loads(blocks.read_bytes())

        assert json.loads(path.read_text()) == {}
        addresses = [block["address"] for segment in snapshot["segments"] for block in segment["blocks"]]
        assert tensor.data_ptr() in addresses
