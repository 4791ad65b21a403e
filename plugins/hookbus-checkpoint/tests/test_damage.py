"""Corruption of checkpoints: each kind is detected, and an older checkpoint is used."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hookbus.checkpoint.sidecars import list_newest_first, verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointError, ConfigError, HookWarning
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook
from tests.checkpoints import find_latest_checkpoint

Corruption = Callable[[Path, random.Random], Path]
"""Corrupts a checkpoint of a folder, or its sidecar, and returns the checkpoint."""


def choose_file(folder: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(folder.glob("*.pth")))


def get_sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    replace(path, bytes(content))


def truncate(path: Path, rng: random.Random) -> None:
    end = path.stat().st_size - 1  # a sidecar without its final line break is complete
    replace(path, path.read_bytes()[: rng.randrange(end)])


def replace(path: Path, content: bytes) -> None:
    """Replace the content under this name only; other hard links keep the old content."""
    path.unlink()
    path.write_bytes(content)


def flip_file(folder: Path, rng: random.Random) -> Path:
    flip(path := choose_file(folder, rng), rng)
    return path


def truncate_file(folder: Path, rng: random.Random) -> Path:
    truncate(path := choose_file(folder, rng), rng)
    return path


def flip_sidecar(folder: Path, rng: random.Random) -> Path:
    flip(get_sidecar(path := choose_file(folder, rng)), rng)
    return path


def truncate_sidecar(folder: Path, rng: random.Random) -> Path:
    truncate(get_sidecar(path := choose_file(folder, rng)), rng)
    return path


def delete_file(folder: Path, rng: random.Random) -> Path:
    (path := choose_file(folder, rng)).unlink()
    return path


def delete_sidecar(folder: Path, rng: random.Random) -> Path:
    get_sidecar(path := choose_file(folder, rng)).unlink()
    return path


def swap_files(folder: Path, rng: random.Random) -> Path:
    one, other = choose_two_files(folder, rng)
    first, second = one.read_bytes(), other.read_bytes()
    replace(one, second)
    replace(other, first)
    return one


def swap_sidecars(folder: Path, rng: random.Random) -> Path:
    one, other = map(get_sidecar, choose_two_files(folder, rng))
    first, second = one.read_bytes(), other.read_bytes()
    replace(one, second)
    replace(other, first)
    return one.with_suffix("")


def choose_two_files(folder: Path, rng: random.Random) -> tuple[Path, Path]:
    while True:
        one, other = rng.sample(sorted(folder.glob("*.pth")), 2)
        if one.read_bytes() != other.read_bytes():
            return one, other


KINDS: list[Corruption] = [
    flip_file,
    truncate_file,
    flip_sidecar,
    truncate_sidecar,
    delete_file,
    delete_sidecar,
    swap_files,
    swap_sidecars,
]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint directory of a training: three periodic checkpoints, the best, and the last."""
    directory = tmp_path_factory.mktemp("intact")
    scores = {1: 0.5, 2: 0.9, 3: 0.7}
    fake_training([CheckpointHook()], epochs=3, batches=1, scores=lambda e: {"accuracy": scores[e]}, work_dir=directory)
    return directory / "checkpoints"


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.pth")}


def check_resume(folder: Path, intact: dict[str, bytes], path: Path) -> None:
    """Check that resume uses an intact checkpoint and reports skipped ones, and that the corrupted one is rejected."""
    newest = find_latest_checkpoint(folder)
    assert newest is not None
    used, _, problems = newest
    assert used.read_bytes() in intact.values()
    assert verify(used)
    order = list_newest_first(folder)
    is_skipped = path not in order or order.index(path) < order.index(used)
    assert used != path
    assert any(str(path) in problem for problem in problems) == is_skipped
    with pytest.raises((CheckpointError, HookWarning), match=path.name):  # a warning of a missing sidecar is an error
        read_checkpoint(path)


def corrupt_and_check(intact: Path, folder: Path, kind: Corruption, seed: int) -> None:
    shutil.copytree(intact, folder)
    before = read_files(folder)
    check_resume(folder, before, kind(folder, random.Random(seed)))
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_corruption_is_detected(intact: Path, tmp_path: Path, kind: Corruption) -> None:
    for seed in range(4):
        corrupt_and_check(intact, tmp_path / "folder", kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(4, 50), pytest.param(range(50, 500), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_corruption_at_any_position_is_detected(intact: Path, tmp_path: Path, kind: Corruption, seeds: range) -> None:
    for seed in seeds:
        corrupt_and_check(intact, tmp_path / "folder", kind, seed)


def test_training_resumes_from_an_older_checkpoint_with_a_warning(
    intact: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(intact, tmp_path / "checkpoints")
    for name in ("epoch_3.pth", "last.pth"):
        truncate(tmp_path / "checkpoints" / name, random.Random(0))
    run = fake_training([CheckpointHook()], epochs=4, batches=1, work_dir=tmp_path, resume="auto").run

    assert run.iters_done == 4
    assert "epoch_3.pth: corrupted" in caplog.text
    assert "last.pth: corrupted" in caplog.text
    assert verify(tmp_path / "checkpoints/last.pth").generation > 3


def test_training_with_only_corrupted_checkpoints_does_not_start_from_scratch(intact: Path, tmp_path: Path) -> None:
    shutil.copytree(intact, tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints").glob("*.pth"):
        flip(path, random.Random(0))

    with pytest.raises(ConfigError, match="no checkpoint in .* can be used.*\n.*corrupted"):
        fake_training([CheckpointHook()], epochs=4, batches=1, work_dir=tmp_path, resume="auto")
