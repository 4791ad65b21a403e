import json
import pickle

import pytest
import torch

from hookbus_system_monitor.snapshot import is_out_of_memory, save_snapshot


class TestOutOfMemory:
    @pytest.mark.parametrize(
        ("error", "is_it"),
        [
            (torch.OutOfMemoryError("CUDA out of memory."), True),
            (MemoryError(), True),
            (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), True),
            (torch.AcceleratorError("CUDA error: out of memory"), True),
            (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
            (RuntimeError("shapes cannot be multiplied"), False),
            (KeyboardInterrupt(), False),
            (ValueError("can't allocate memory"), False),
            (None, False),
        ],
        ids=str,
    )
    def test_is_told_from_other_errors(self, error, is_it):
        assert is_out_of_memory(error) is is_it

    def test_is_what_torch_says_on_the_cpu(self):
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**60, dtype=torch.uint8)

        assert is_out_of_memory(caught.value)


class TestTheFiles:
    def test_are_one_with_the_facts(self, tmp_path):
        (path,) = save_snapshot(tmp_path, 3, {"error": "it was full", "process": 5})

        assert path == tmp_path / "out_of_memory_rank3.json"
        assert json.loads(path.read_text()) == {"error": "it was full", "process": 5}

    @pytest.mark.gpu
    def test_are_the_blocks_of_the_device_as_well(self, tmp_path):
        kept = torch.zeros(2**25, dtype=torch.uint8, device="cuda")
        facts, blocks = save_snapshot(tmp_path, 0, {})
        snapshot = pickle.loads(blocks.read_bytes())

        assert json.loads(facts.read_text()) == {}
        addresses = [block["address"] for segment in snapshot["segments"] for block in segment["blocks"]]
        assert kept.data_ptr() in addresses
