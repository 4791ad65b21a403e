"""Checkpoint files as data, and their outlines."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.checkpoints.reading import check_fit, content_of, existing, outline_of
from hookbus.errors import CheckpointDamaged, CheckpointError
from hookbus.testing import fingerprint


def saved(path: Path, value: Any, **how: Any) -> Path:
    torch.save(value, path, **how)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_an_outline_has_names_shapes_and_plain_values_but_no_numbers(tmp_path: Path, zipped: bool) -> None:
    path = saved(tmp_path / "a.pth", {"w": torch.ones(2, 3), "n": {"epoch": 4}}, _use_new_zipfile_serialization=zipped)
    outline = outline_of(path)
    assert (outline["w"].shape, outline["w"].device.type, outline["n"]) == ((2, 3), "meta", {"epoch": 4})
    assert torch.equal(content_of(path)["w"], torch.ones(2, 3))


class TestWhatIsNoCheckpoint:
    def test_a_file_that_holds_code_is_told_what_to_do_and_never_how_to_run_it(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "model.pth", nn.Linear(2, 2))
        for read in (outline_of, content_of):
            with pytest.raises(CheckpointDamaged) as caught:
                read(path)
            assert str(caught.value) == (
                f"{path}: it cannot be read as data: it holds torch.nn.modules.linear.Linear, and reading that would "
                "run code. Where the file comes from, save its weights alone: torch.save(model.state_dict(), path)."
            )

    @pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", pickle.dumps({"a": 1}), b"\x00" * 100])
    def test_a_file_of_another_kind_is_told(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "a.pth"
        path.write_bytes(content)
        with pytest.raises(CheckpointDamaged) as caught:
            outline_of(path)
        assert str(caught.value) == (
            f"{path}: it cannot be read as data: it is no file that torch.save has written, or only a part of one."
        )

    def test_a_part_of_a_file_is_told(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "a.pth", {"w": torch.ones(1000)})
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(CheckpointDamaged, match="or only a part of one"):
            outline_of(path)

    def test_something_else_than_a_mapping_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="it holds a list, not a checkpoint"):
            outline_of(saved(tmp_path / "a.pth", [1]))

    def test_a_path_that_no_file_can_have_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="File name too long"):
            existing(tmp_path / ("x" * 300))
        with pytest.raises(CheckpointError, match="there is no such file"):
            existing("a\0b")

    def test_a_directory_is_told(self, tmp_path: Path) -> None:
        saved(tmp_path / "a.pth", {})
        with pytest.raises(CheckpointError, match="it is a directory: name a file. .* has a.pth."):
            outline_of(tmp_path)


class TestFit:
    def made(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    def test_weights_that_fit_leave_the_model_alone(self, tmp_path: Path) -> None:
        model = self.made()
        before = fingerprint(model.state_dict())
        path = saved(tmp_path / "a.pth", {name: value + 1 for name, value in model.state_dict().items()})
        check_fit(model, outline_of(path))
        assert fingerprint(model.state_dict()) == before
        assert all(not parameter.is_meta for parameter in model.parameters())

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"0.weight": torch.ones(9, 9)}, "size mismatch for 0.weight"),
            ({"more": torch.ones(1)}, 'Unexpected key.*"more"'),
        ],
    )
    def test_weights_that_do_not_are_told(self, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
        model = self.made()
        outline = outline_of(saved(tmp_path / "a.pth", {**model.state_dict(), **change}))
        with pytest.raises(CheckpointError, match=f"^The weights do not fit the model: .*{reason}"):
            check_fit(model, outline)

    def test_a_model_that_cannot_be_copied_is_not_looked_at(self) -> None:
        class Stubborn(nn.Linear):
            def __deepcopy__(self, memo: Any) -> Any:
                raise TypeError("no")

        check_fit(Stubborn(2, 2), {"other": torch.ones(1)})
