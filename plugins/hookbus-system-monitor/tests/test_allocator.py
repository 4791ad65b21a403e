import pytest
import torch

from hookbus_system_monitor.allocator import Allocation, get_allocation, parse_allocation


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
    def fail():
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.memory_stats", fail)
    assert get_allocation() is None
