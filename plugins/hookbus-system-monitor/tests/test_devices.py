from types import SimpleNamespace

import pynvml
import pytest
import torch

from hookbus_system_monitor.devices import (
    AcceleratorProvider,
    Allocation,
    get_allocation,
    get_cuda_uuids,
    parse_allocation,
)
from hookbus_system_monitor.nvml import NvmlProvider
from hookbus_system_monitor.readings import Reader

GB = 2**30


def test_accelerator_provider_reads_the_memory_of_each_device():
    expected = {
        f"gpu{i}/{kind}_gb" for i in range(torch.accelerator.device_count()) for kind in ("allocated", "reserved")
    }

    assert set(AcceleratorProvider().read()) == expected


def test_memory_of_an_apple_gpu_is_that_of_metal(monkeypatch):
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
    monkeypatch.setattr("torch.get_device_module", lambda: torch.mps)
    monkeypatch.setattr("torch.mps.current_allocated_memory", lambda: GB)
    monkeypatch.setattr("torch.mps.driver_allocated_memory", lambda: 3 * GB)

    assert AcceleratorProvider().read() == {"gpu0/allocated_gb": 1, "gpu0/reserved_gb": 3}


def test_failing_device_does_not_affect_other_devices(monkeypatch):
    def read(index):
        if index == 0:
            raise RuntimeError("device is lost")
        return GB

    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    device = SimpleNamespace(memory_allocated=read, memory_reserved=read)
    monkeypatch.setattr("torch.get_device_module", lambda: device)
    lines = []
    provider = AcceleratorProvider(Reader(lines.append))
    expected = {"gpu0/allocated_gb": None, "gpu0/reserved_gb": None, "gpu1/allocated_gb": 1, "gpu1/reserved_gb": 1}

    assert [provider.read() for _ in range(2)] == [expected] * 2
    assert len(lines) == 1


def test_cuda_uuids_are_none_before_cuda_is_initialized():
    if not torch.cuda.is_initialized():
        assert get_cuda_uuids() is None


@pytest.mark.gpu
class TestGpu:
    def test_gpu_0_is_the_current_device_of_torch(self):
        torch.zeros(1, device="cuda")
        lines = []
        provider = NvmlProvider(get_cuda_uuids(), reader=Reader(lines.append), info=lines.append, warn=lines.append)
        before = provider.read()
        tensor = torch.zeros(GB, dtype=torch.uint8, device="cuda")
        after = provider.read()
        provider.close()

        assert after["gpu0/memory_used_gb"] - before["gpu0/memory_used_gb"] == pytest.approx(1, abs=0.2)
        assert after["gpu0/memory_percent"] == pytest.approx(
            100 * after["gpu0/memory_used_gb"] * GB / torch.cuda.get_device_properties(0).total_memory, rel=0.05
        )
        assert tensor.numel() == GB

    def test_values_agree_with_the_driver(self):
        torch.zeros(1, device="cuda")
        lines = []
        provider = NvmlProvider(get_cuda_uuids(), reader=Reader(lines.append), info=lines.append, warn=lines.append)
        provider.read()
        for _ in range(20):
            torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda")
        torch.cuda.synchronize()
        values = provider.read()
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{get_cuda_uuids()[0]}")
        celsius = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        fastest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        pynvml.nvmlShutdown()
        provider.close()

        assert values["gpu0/celsius"] == pytest.approx(celsius, abs=10)
        assert 0 < values["gpu0/watts"] < 1.5 * limit
        assert 0 < values["gpu0/sm_mhz"] <= fastest
        assert 0 <= values["gpu0/percent"] <= 100
        assert values["gpu0/joules"] > 0
        assert lines == []

    def test_allocated_memory_agrees_with_torch(self):
        tensor = torch.zeros(GB, dtype=torch.uint8, device="cuda")
        values = AcceleratorProvider().read()

        assert values["gpu0/allocated_gb"] == torch.cuda.memory_allocated(0) / GB
        assert values["gpu0/allocated_gb"] * GB >= tensor.numel()


class TestStatistics:
    def test_allocation_is_read_from_the_statistics(self):
        stats = {
            "allocated_bytes.all.current": 300,
            "allocated_bytes.all.peak": 700,
            "reserved_bytes.all.current": 800,
            "inactive_split_bytes.all.current": 200,
        }
        assert parse_allocation(stats) == Allocation(current=300, peak=700, reserved=800, fragmentation=25.0)

    def test_allocation_of_an_unused_device_is_none(self):
        assert parse_allocation({}) is None

    def test_device_without_reserved_memory_has_no_fragmentation(self):
        assert parse_allocation({"reserved_bytes.all.current": 0}) == Allocation(0, 0, 0, 0.0)


@pytest.mark.gpu
def test_allocation_includes_a_tensor_on_the_gpu():
    first = torch.zeros(2**20, dtype=torch.uint8, device="cuda")
    before = get_allocation()
    second = torch.zeros(2**25, dtype=torch.uint8, device="cuda")
    after = get_allocation()

    assert after.current - before.current == 2**25
    assert after.peak >= after.current
    assert after.reserved >= after.current
    assert first.numel() + second.numel() == 2**20 + 2**25


def test_allocation_is_none_without_allocator_statistics(monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.get_device_module", lambda: torch.mps)
    assert get_allocation() is None
