import pynvml
import pytest
import torch

from hookbus_system_monitor.devices import AcceleratorProvider, NullProvider, cuda_uuids
from hookbus_system_monitor.nvml import NvmlProvider
from hookbus_system_monitor.readings import Reader

GB = 2**30


def test_no_devices_have_no_values():
    provider = NullProvider()
    provider.close()

    assert provider.read() == {}


def test_a_machine_without_accelerator_has_no_values():
    expected = {
        f"gpu{i}/{what}_gb" for i in range(torch.accelerator.device_count()) for what in ("allocated", "reserved")
    }

    assert set(AcceleratorProvider().read()) == expected


def test_torch_names_no_devices_before_it_uses_them():
    if not torch.cuda.is_initialized():
        assert cuda_uuids() is None


@pytest.mark.gpu
class TestARealGpu:
    def test_is_the_one_that_torch_uses(self):
        torch.zeros(1, device="cuda")
        lines = []
        provider = NvmlProvider(cuda_uuids(), reader=Reader(lines.append), tell=lines.append, warn=lines.append)
        before = provider.read()
        kept = torch.zeros(GB, dtype=torch.uint8, device="cuda")
        after = provider.read()
        provider.close()

        assert after["gpu0/memory_used_gb"] - before["gpu0/memory_used_gb"] == pytest.approx(1, abs=0.2)
        assert after["gpu0/memory_percent"] == pytest.approx(
            100 * after["gpu0/memory_used_gb"] * GB / torch.cuda.get_device_properties(0).total_memory, rel=0.05
        )
        assert kept.numel() == GB

    def test_has_the_numbers_that_its_driver_gives(self):
        torch.zeros(1, device="cuda")
        lines = []
        provider = NvmlProvider(cuda_uuids(), reader=Reader(lines.append), tell=lines.append, warn=lines.append)
        provider.read()
        for _ in range(20):
            torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda")
        torch.cuda.synchronize()
        found = provider.read()
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{cuda_uuids()[0]}")
        celsius = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        fastest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        pynvml.nvmlShutdown()
        provider.close()

        assert found["gpu0/celsius"] == pytest.approx(celsius, abs=10)
        assert 0 < found["gpu0/watts"] < 1.5 * limit
        assert 0 < found["gpu0/sm_mhz"] <= fastest
        assert 0 <= found["gpu0/percent"] <= 100
        assert found["gpu0/joules"] > 0
        assert lines == []

    def test_holds_what_torch_says_it_holds(self):
        kept = torch.zeros(GB, dtype=torch.uint8, device="cuda")
        found = AcceleratorProvider().read()

        assert found["gpu0/allocated_gb"] == torch.cuda.memory_allocated(0) / GB
        assert found["gpu0/allocated_gb"] * GB >= kept.numel()
