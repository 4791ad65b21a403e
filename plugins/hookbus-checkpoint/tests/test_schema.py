"""Files of every layout that there has been can be read for ever, and no file runs code.

`golden/schema_N.pth` was written by the first release with layout N, and is never written again.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook
from hookbus.checkpoints.files import commit, verify
from hookbus.errors import CheckpointDamaged, HookWarning
from hookbus.run import Run
from hookbus.state import find_newest, read_checkpoint
from hookbus.testing import fake_training, fingerprint
from hookbus_checkpoint import CheckpointHook

GOLDEN = Path(__file__).parent / "golden"


class TestLayout1:
    PATH = GOLDEN / "schema_1.pth"

    def test_is_read(self) -> None:
        checkpoint = read_checkpoint(self.PATH)

        assert verify(self.PATH).generation == 2
        assert checkpoint["meta"]["schema"] == 1
        assert checkpoint["meta"]["metrics"] == {"val/accuracy": 0.5}
        assert {"state_dict", "optimizer", "hooks", "rng", "loop"} <= set(checkpoint)
        assert checkpoint["state_dict"]["2.weight"].shape == (2, 4)

    def test_is_resumed_from(self, tmp_path: Path) -> None:
        weights: list[str] = []

        class Look(Hook):
            def before_train(self, run: Run) -> None:
                assert run.model is not None
                weights.append(fingerprint(run.model.state_dict()))

        run = fake_training(
            [CheckpointHook(max_keep_ckpts=2), Look()], epochs=3, batches=2, work_dir=tmp_path, resume=self.PATH
        ).run

        assert weights == [fingerprint(read_checkpoint(self.PATH)["state_dict"])]
        assert (run.epochs_done, run.iters_done, run.seed, run.outcome) == (3, 6, 7, "finished")
        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.75, 1)
        assert verify(tmp_path / "checkpoints/epoch_3.pth").generation == 3


class Runs:
    """An object whose unpickling is a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Builds:
    """An object of a class of one's own, whose unpickling sets its state."""

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("code of a file ran")


def hostile(marker: Path) -> dict[str, Any]:
    """Contents that would leave a mark if anything in them ran."""
    return {
        "a command": Runs(os.system, f"touch {marker}"),
        "a file": Runs(open, str(marker), "w"),
        "an expression": Runs(eval, f"open({str(marker)!r}, 'w')"),
        "a load": Runs(torch.load, str(marker)),
        "an object": Builds(),
    }


@pytest.mark.parametrize("kind", ["a command", "a file", "an expression", "a load", "an object"])
@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("vouched", [True, False])
class TestAFileThatWouldRunCode:
    def test_is_refused_and_runs_nothing(self, tmp_path: Path, kind: str, deep: bool, vouched: bool) -> None:
        marker, path = tmp_path / "marker", tmp_path / "x.pth"
        content = hostile(marker)[kind]
        save(path, {"state_dict": {"weight": torch.zeros(1), "bias": content}} if deep else content, vouched=vouched)

        told = nullcontext() if vouched else pytest.warns(HookWarning, match="no sidecar")
        with told, pytest.raises(CheckpointDamaged, match="it cannot be read as data"):
            read_checkpoint(path)
        assert not marker.exists()


def save(path: Path, content: Any, *, vouched: bool) -> None:
    if vouched:
        commit(path, lambda file: torch.save(content, file), 1)
    else:
        torch.save(content, path)


@pytest.mark.parametrize("container", ["plain pickle", "zip with another pickle", "script"])
def test_other_containers_run_nothing_either(tmp_path: Path, container: str) -> None:
    marker, path = tmp_path / "marker", tmp_path / "x.pth"
    attack = pickle.dumps(Runs(os.system, f"touch {marker}"))
    if container == "plain pickle":
        commit(path, lambda file: file.write(attack), 1)
    elif container == "zip with another pickle":
        torch.save({"a": torch.zeros(1)}, tmp_path / "good.pth")
        with zipfile.ZipFile(tmp_path / "good.pth") as good, zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
            for name in good.namelist():
                bad.writestr(name, attack if name.endswith("data.pkl") else good.read(name))
        commit(path, lambda file: file.write((tmp_path / "bad.zip").read_bytes()), 1)
    else:
        commit(path, lambda file: file.write(f"import os; os.system('touch {marker}')".encode()), 1)

    with pytest.raises(CheckpointDamaged, match="it cannot be read as data"):
        read_checkpoint(path)
    assert not marker.exists()


def test_automatic_resume_passes_over_a_hostile_file(tmp_path: Path) -> None:
    fake_training([CheckpointHook(save_last=False, save_best=False)], epochs=1, work_dir=tmp_path)
    save(tmp_path / "checkpoints/evil.pth", Runs(os.system, f"touch {tmp_path / 'marker'}"), vouched=False)
    commit(
        tmp_path / "checkpoints/vouched.pth",
        lambda file: torch.save(Runs(os.system, f"touch {tmp_path / 'marker'}"), file),
        99,
    )
    found = find_newest(tmp_path / "checkpoints")

    assert found is not None
    assert found[0].name == "epoch_1.pth"
    assert len(found[2]) == 2
    assert not (tmp_path / "marker").exists()
