import pytest
import torch

from hookbus_system_monitor.allocator import Allocation, allocation, allocation_of


class TestStatistics:
    def test_are_read_by_their_names(self):
        stats = {
            "allocated_bytes.all.current": 300,
            "allocated_bytes.all.peak": 700,
            "reserved_bytes.all.current": 800,
            "inactive_split_bytes.all.current": 200,
        }
        assert allocation_of(stats) == Allocation(current=300, peak=700, reserved=800, fragmentation=25.0)

    def test_of_a_device_that_was_not_used_are_none(self):
        assert allocation_of({}) is None

    def test_of_a_device_that_holds_nothing_have_no_fragmentation(self):
        assert allocation_of({"reserved_bytes.all.current": 0}) == Allocation(0, 0, 0, 0.0)


@pytest.mark.gpu
def test_the_allocator_of_the_device_counts_a_tensor():
    kept = torch.zeros(2**20, dtype=torch.uint8, device="cuda")
    before = allocation()
    more = torch.zeros(2**25, dtype=torch.uint8, device="cuda")
    after = allocation()

    assert after.current - before.current == 2**25
    assert after.peak >= after.current
    assert after.reserved >= after.current
    assert kept.numel() + more.numel() == 2**20 + 2**25


def test_an_accelerator_whose_allocator_counts_nothing_has_none(monkeypatch):
    def fail():
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.memory_stats", fail)
    assert allocation() is None
