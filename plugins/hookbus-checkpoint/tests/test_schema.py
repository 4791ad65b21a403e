"""Compatibility with checkpoints of all schema versions, and protection against code in checkpoints.

`golden/schema_N.pth` was written by the first release with schema N and must not be regenerated.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook
from hookbus._run.run import Run
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.checkpoint.sidecars import verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointCorruptedError
from hookbus.testing import fake_training, fingerprint
from hookbus_checkpoint import CheckpointHook
from tests.checkpoints import find_latest_checkpoint

GOLDEN = Path(__file__).parent / "golden"


class TestSchema1:
    PATH = GOLDEN / "schema_1.pth"

    def test_checkpoint_of_schema_1_is_loaded(self) -> None:
        checkpoint = read_checkpoint(self.PATH)

        assert verify(self.PATH).generation == 2
        assert checkpoint["meta"]["schema"] == 1
        assert checkpoint["meta"]["metrics"] == {"val/accuracy": 0.5}
        assert {"state_dict", "optimizer", "hooks", "rng", "loop"} <= set(checkpoint)
        assert checkpoint["state_dict"]["2.weight"].shape == (2, 4)

    def test_run_resumes_from_a_checkpoint_of_schema_1(self, tmp_path: Path) -> None:
        weights: list[str] = []

        class WeightRecorder(Hook):
            def before_train(self, run: Run) -> None:
                assert run.model is not None
                weights.append(fingerprint(run.model.state_dict()))

        run = fake_training(
            [CheckpointHook(max_keep_ckpts=2), WeightRecorder()],
            epochs=3,
            batches=2,
            work_dir=tmp_path,
            resume=self.PATH,
        ).run

        assert weights == [fingerprint(read_checkpoint(self.PATH)["state_dict"])]
        assert (run.epochs_done, run.iters_done, run.seed, run.outcome) == (3, 6, 7, "finished")
        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.75, 1)
        assert verify(tmp_path / "checkpoints/epoch_3.pth").generation == 3


class CallOnUnpickle:
    """Object whose unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class CustomObject:
    """Object of a custom class, whose unpickling sets its state."""

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("code of the checkpoint was executed")


def build_hostile_contents(marker: Path) -> dict[str, Any]:
    """Return contents that create a marker file if any code in them is executed."""
    return {
        "a command": CallOnUnpickle(os.system, f"touch {marker}"),
        "a file": CallOnUnpickle(open, str(marker), "w"),
        "an expression": CallOnUnpickle(eval, f"open({str(marker)!r}, 'w')"),
        "a load": CallOnUnpickle(torch.load, str(marker)),
        "an object": CustomObject(),
    }


@pytest.mark.parametrize("kind", ["a command", "a file", "an expression", "a load", "an object"])
@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("has_sidecar", [True, False])
class TestHostileCheckpoint:
    def test_hostile_checkpoint_is_rejected_without_executing_code(
        self, tmp_path: Path, kind: str, deep: bool, has_sidecar: bool
    ) -> None:
        marker, path = tmp_path / "marker", tmp_path / "x.pth"
        content = build_hostile_contents(marker)[kind]
        save(
            path,
            {"state_dict": {"weight": torch.zeros(1), "bias": content}} if deep else content,
            has_sidecar=has_sidecar,
        )

        with pytest.raises(CheckpointCorruptedError, match="file cannot be loaded as data"):
            read_checkpoint(path)
        assert not marker.exists()


def save(path: Path, content: Any, *, has_sidecar: bool) -> None:
    if has_sidecar:
        atomic_write(path, lambda file: torch.save(content, file), 1)
    else:
        torch.save(content, path)


@pytest.mark.parametrize("container", ["plain pickle", "zip with another pickle", "script"])
def test_other_containers_are_rejected_without_executing_code(tmp_path: Path, container: str) -> None:
    marker, path = tmp_path / "marker", tmp_path / "x.pth"
    attack = pickle.dumps(CallOnUnpickle(os.system, f"touch {marker}"))
    if container == "plain pickle":
        atomic_write(path, lambda file: file.write(attack), 1)
    elif container == "zip with another pickle":
        torch.save({"a": torch.zeros(1)}, tmp_path / "good.pth")
        with zipfile.ZipFile(tmp_path / "good.pth") as good, zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
            for name in good.namelist():
                bad.writestr(name, attack if name.endswith("data.pkl") else good.read(name))
        atomic_write(path, lambda file: file.write((tmp_path / "bad.zip").read_bytes()), 1)
    else:
        atomic_write(path, lambda file: file.write(f"import os; os.system('touch {marker}')".encode()), 1)

    with pytest.raises(CheckpointCorruptedError, match="file cannot be loaded as data"):
        read_checkpoint(path)
    assert not marker.exists()


def test_automatic_resume_skips_hostile_checkpoints(tmp_path: Path) -> None:
    fake_training([CheckpointHook(save_last=False, save_best=False)], epochs=1, work_dir=tmp_path)
    save(
        tmp_path / "checkpoints/evil.pth", CallOnUnpickle(os.system, f"touch {tmp_path / 'marker'}"), has_sidecar=False
    )
    atomic_write(
        tmp_path / "checkpoints/with_sidecar.pth",
        lambda file: torch.save(CallOnUnpickle(os.system, f"touch {tmp_path / 'marker'}"), file),
        99,
    )
    newest = find_latest_checkpoint(tmp_path / "checkpoints")

    assert newest is not None
    assert newest[0].name == "epoch_1.pth"
    assert len(newest[2]) == 2
    assert not (tmp_path / "marker").exists()
