import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus_system_monitor.visible import Gpu, entries_of, pick, visible_entries

WHOLE = Gpu("GPU-11-22", "whole")
OTHER = Gpu("GPU-11-33", "other")
DIVIDED = Gpu("GPU-44-55", "divided", (Gpu("MIG-66", "first"), Gpu("MIG-77", "second")))
GPUS = [WHOLE, OTHER, DIVIDED]


class TestTheVariable:
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
    def test_is_read_as_cuda_reads_it(self, text, entries):
        assert visible_entries(text) == entries

    @given(st.lists(st.sampled_from([*"0123", "-1", "+1", " 1", "1a", "0x1", "", "GPU-a", " GPU-a", "MIG-a", "x"])))
    def test_is_read_as_torch_reads_it(self, words):
        text = ",".join(words)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", text)
            assert visible_entries(text) == torch.cuda._parse_visible_devices()


class TestTheDevices:
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
    def test_are_those_of_torch_as_far_as_it_knows_them(self, text, uuids, entries):
        assert entries_of(text, uuids) == entries


def handles(entries, gpus=GPUS):
    return {index: gpu.handle for index, gpu in pick(entries, gpus).items()}


class TestPicking:
    def test_takes_all_where_nothing_is_said(self):
        assert handles(None) == {0: "whole", 1: "other", 2: "first"}

    def test_keeps_the_order_that_was_asked_for(self):
        assert handles([1, 0]) == {0: "other", 1: "whole"}

    @pytest.mark.parametrize("name", ["GPU-11-22", "GPU-11-2", "11-22"])
    def test_finds_a_gpu_by_its_uuid(self, name):
        assert handles([name]) == {0: "whole"}

    @pytest.mark.parametrize("name", ["GPU-11", "GPU-9", "11-2", "MIG-"])
    def test_finds_nothing_by_a_name_that_is_not_of_one(self, name):
        assert handles([name]) == {}

    @pytest.mark.parametrize(
        ("name", "handle"), [("MIG-77", "second"), ("66", "first"), ("GPU-44", "first"), (2, "first")]
    )
    def test_finds_parts(self, name, handle):
        assert handles([name]) == {0: handle}

    def test_hides_what_is_behind_an_entry_that_names_nothing(self):
        assert handles([0, 7, 1]) == {0: "whole"}

    def test_leaves_the_place_of_a_gpu_that_does_not_answer_empty(self):
        assert handles(None, [None, OTHER]) == {1: "other"}
        assert handles([0, 1], [None, OTHER]) == {1: "other"}
        assert handles(["GPU-11-22", "GPU-11-33"], [None, OTHER]) == {1: "other"}
