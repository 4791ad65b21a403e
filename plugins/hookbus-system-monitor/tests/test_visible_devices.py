import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus_system_monitor.visible_devices import Gpu, get_process_devices, parse_visible_devices, select_gpus

FULL = Gpu("GPU-11-22", "full")
OTHER = Gpu("GPU-11-33", "other")
DIVIDED = Gpu("GPU-44-55", "divided", (Gpu("MIG-66", "first"), Gpu("MIG-77", "second")))
GPUS = [FULL, OTHER, DIVIDED]


class TestVariable:
    @pytest.mark.parametrize(
        ("text", "entries"),
        [
            (None, None),
            ("", []),
            ("0", [0]),
            ("2,0", [2, 0]),
            (" 1 , 3 ", [1, 3]),
            ("-1", []),
            ("NoDevFiles", []),
            ("0,-1,1", [0]),
            ("GPU-11-22,GPU-44", ["GPU-11-22", "GPU-44"]),
            ("MIG-66", ["MIG-66"]),
            ("MIG-GPU-11-22/1/0", ["MIG-GPU-11-22/1/0"]),
            ("0,0", []),
            ("GPU-1,GPU-1", []),
            ("0,GPU-11-22", [0]),
            ("GPU-11-22,0", ["GPU-11-22"]),
            ("GPU-11-22,MIG-66", ["GPU-11-22"]),
            ("GPU-11-22, GPU-44", ["GPU-11-22"]),
            ("1gpu,+2", [1, 2]),
            ("0,²", [0]),
            ("0,", [0]),
        ],
    )
    def test_entries_are_parsed_as_by_cuda(self, text, entries):
        assert parse_visible_devices(text) == entries

    @given(st.lists(st.sampled_from([*"0123", "-1", "+1", " 1", "1a", "0x1", "", "GPU-a", " GPU-a", "MIG-a", "x"])))
    def test_entries_are_parsed_as_by_torch(self, words):
        text = ",".join(words)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", text)
            assert parse_visible_devices(text) == torch.cuda._parse_visible_devices()


class TestDevices:
    @pytest.mark.parametrize(
        ("text", "uuids", "entries"),
        [
            (None, None, None),
            ("1", None, [1]),
            ("1", [], [1]),
            ("1", ["11-33"], ["11-33"]),
            (None, ["11-22", "11-33"], ["11-22", "11-33"]),
            ("MIG-77", ["44-55"], ["MIG-77"]),
        ],
    )
    def test_entries_are_the_uuids_of_torch_if_known(self, text, uuids, entries):
        assert get_process_devices(text, uuids) == entries


def get_handles(entries, gpus=GPUS):
    return {index: gpu.handle for index, gpu in select_gpus(entries, gpus).items()}


class TestPick:
    def test_select_gpus_returns_all_gpus_without_entries(self):
        assert get_handles(None) == {0: "full", 1: "other", 2: "first"}

    def test_select_gpus_returns_the_order_of_the_entries(self):
        assert get_handles([1, 0]) == {0: "other", 1: "full"}

    @pytest.mark.parametrize("name", ["GPU-11-22", "GPU-11-2", "11-22"])
    def test_select_gpus_finds_a_gpu_by_uuid(self, name):
        assert get_handles([name]) == {0: "full"}

    @pytest.mark.parametrize("name", ["GPU-11", "GPU-9", "11-2", "MIG-"])
    def test_select_gpus_ignores_an_ambiguous_or_unknown_uuid(self, name):
        assert get_handles([name]) == {}

    @pytest.mark.parametrize(
        ("name", "handle"), [("MIG-77", "second"), ("66", "first"), ("GPU-44", "first"), (2, "first")]
    )
    def test_select_gpus_finds_mig_instances(self, name, handle):
        assert get_handles([name]) == {0: handle}

    def test_select_gpus_ignores_entries_after_one_without_a_match(self):
        assert get_handles([0, 7, 1]) == {0: "full"}

    def test_select_gpus_leaves_the_index_of_an_unavailable_gpu_empty(self):
        assert get_handles(None, [None, OTHER]) == {1: "other"}
        assert get_handles([0, 1], [None, OTHER]) == {1: "other"}
        assert get_handles(["GPU-11-22", "GPU-11-33"], [None, OTHER]) == {1: "other"}
