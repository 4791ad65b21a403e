import json
import pickle

import pytest
import torch

from hookbus import HookBus
from hookbus.writers.output_files import OutputFiles
from hookbus_system_monitor.snapshot import is_out_of_memory, save_snapshot


class TestOutOfMemory:
    @pytest.mark.parametrize(
        ("error", "expected"),
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
    def test_out_of_memory_errors_are_recognized(self, error, expected):
        assert is_out_of_memory(error) is expected

    def test_out_of_memory_error_of_torch_on_the_cpu_is_recognized(self):
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**60, dtype=torch.uint8)

        assert is_out_of_memory(caught.value)


class TestFiles:
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
