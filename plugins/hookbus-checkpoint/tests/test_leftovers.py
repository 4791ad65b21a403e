"""Files that a killed training leaves: the next run in the directory removes all that it does not use."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook
from hookbus.checkpoint.atomic_files import make_temporary_name
from hookbus.checkpoint.sidecars import verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import fake_training, fingerprint
from hookbus_checkpoint import CheckpointHook
from tests.crashes import is_killed_at, run_in_fork

SCORES = (0.5, 0.7, 0.9)
"""Scores of the epochs. The last checkpoint is the best one, and replaces all older files."""

CASES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "elsewhere": {"out_dir": "out"},
    "ranked": {"save_top_k": 2, "filename_tmpl": "{epoch}-{val/accuracy:.1f}"},
    "asynchronous": {"async_save": True},
    "overlapped, elsewhere": {"async_save": "overlap", "out_dir": "out"},
}


def train(root: Path, settings: dict[str, Any], *hooks: Hook, epochs: int = 3, **options: Any) -> None:
    """Train or resume in a work directory below a directory."""
    elsewhere = {"out_dir": str(root / settings["out_dir"])} if "out_dir" in settings else {}
    hook = CheckpointHook(**{"max_keep_ckpts": 1, "publish": True, **settings, **elsewhere})
    fake_training(
        [hook, *hooks],
        epochs=epochs,
        batches=1,
        scores=lambda epoch: {"accuracy": SCORES[epoch - 1]},
        work_dir=root / "run",
        **(options or {"resume": "auto"}),
    )


def list_files(root: Path) -> dict[str, str]:
    """Verify all checkpoints below a directory, and return all paths with fingerprints of the weights."""
    for path in root.rglob("*.pth"):
        verify(path)
    return {
        path.relative_to(root).as_posix(): fingerprint(read_checkpoint(path)["state_dict"])
        if path.suffix == ".pth"
        else ""
        for path in root.rglob("*")
    }


def refuse_link(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def check_kills(tmp_path: Path, settings: dict[str, Any], *, step: int, links: bool = True, **options: Any) -> int:
    """Kill the last epoch of a training before every `step`-th file operation, train again, and compare all files.

    The first operation is a random one of the first `step`, so that repeated tests kill at all of them.

    Returns:
        Number of killed processes.
    """
    first = random.randrange(step)
    train(tmp_path / "reference", settings)
    expected = list_files(tmp_path / "reference")
    before, root = tmp_path / "before", tmp_path / "root"
    train(root, settings, epochs=2)
    root.rename(before)

    def finish() -> None:
        if not links:
            os.link = refuse_link
        train(root, settings)

    for killed in count():
        shutil.copytree(before, root)
        if not is_killed_at(finish, first + killed * step):
            return killed
        assert run_in_fork(lambda: train(root, settings, **options)) == 0
        assert list_files(root) == expected, f"killed at operation {first + killed * step}"
        shutil.rmtree(root)
    raise AssertionError


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.exhaustive), 16])
@pytest.mark.parametrize("case", CASES)
def test_kill_at_any_operation_leaves_no_files_after_the_resume(tmp_path: Path, case: str, step: int) -> None:
    assert check_kills(tmp_path, CASES[case], step=step) >= 120 // step


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.exhaustive), 20])
@pytest.mark.parametrize("case", ["synchronous", "elsewhere"])
def test_kill_at_any_operation_leaves_no_files_after_an_overwrite(tmp_path: Path, case: str, step: int) -> None:
    assert check_kills(tmp_path, CASES[case], step=step, overwrite=True) >= 120 // step


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.exhaustive), 20])
def test_kill_at_any_operation_without_hard_links_leaves_no_files(tmp_path: Path, step: int) -> None:
    assert check_kills(tmp_path, CASES["synchronous"], step=step, links=False) >= 120 // step


def test_excess_checkpoints_of_a_complete_training_are_removed_by_the_resume(tmp_path: Path) -> None:
    train(tmp_path, {"max_keep_ckpts": 3})
    train(tmp_path, {})

    assert sorted(path.name for path in tmp_path.rglob("epoch_*")) == ["epoch_3.pth", "epoch_3.pth.json"]


class KillAtSave(Hook):
    """Hook that kills the process when the first checkpoint is complete, before the file gets its name."""

    def before_save_checkpoint(self) -> None:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("epochs", "options"), [(0, {}), (0, {"overwrite": True}), (2, {"overwrite": True})], ids=str)
def test_partial_files_in_a_former_directory_are_removed(tmp_path: Path, epochs: int, options: dict[str, Any]) -> None:
    former, folder = {"out_dir": "former"}, tmp_path / "former"
    if epochs:
        train(tmp_path, former, epochs=epochs)
    complete = sorted(folder.glob("*.pth"))
    assert os.WIFSIGNALED(run_in_fork(lambda: train(tmp_path, former, KillAtSave())))
    assert len(list(folder.glob(".tmp-*"))) == 2  # the checkpoint and its sidecar
    train(tmp_path, {"out_dir": "latter"}, **options)

    assert list(folder.glob(".tmp-*")) == []
    assert sorted(folder.glob("*.pth")) == complete
    assert (tmp_path / "latter/last.pth").exists()


def test_files_of_other_runs_in_a_shared_directory_are_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    partial = tmp_path / "out" / make_temporary_name("other")
    partial.write_text("a checkpoint that another run is writing")
    train(tmp_path, {"out_dir": "out"})
    train(tmp_path, {"out_dir": "out"}, overwrite=True)

    assert partial.exists()
