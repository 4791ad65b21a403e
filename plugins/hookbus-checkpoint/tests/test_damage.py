"""Damage of every kind to a folder of checkpoints: none goes unseen, and an older file takes over."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hookbus.checkpoints.files import newest_first, verify
from hookbus.errors import CheckpointError, HookWarning
from hookbus.state import find_newest, read_checkpoint
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook

Damage = Callable[[Path, random.Random], Path]
"""Damages a file of a folder, or its sidecar. Returns the file."""


def some_file(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(folder.glob("*.pth")))


def sidecar_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    replace(path, bytes(content))


def cut(path: Path, chance: random.Random) -> None:
    end = path.stat().st_size - 1  # without the line break that ends a sidecar, nothing is missing from it
    replace(path, path.read_bytes()[: chance.randrange(end)])


def replace(path: Path, content: bytes) -> None:
    """Other bytes under this name only: the file may have other names."""
    path.unlink()
    path.write_bytes(content)


def flip_a_file(folder: Path, chance: random.Random) -> Path:
    flip(path := some_file(folder, chance), chance)
    return path


def cut_a_file(folder: Path, chance: random.Random) -> Path:
    cut(path := some_file(folder, chance), chance)
    return path


def flip_a_sidecar(folder: Path, chance: random.Random) -> Path:
    flip(sidecar_of(path := some_file(folder, chance)), chance)
    return path


def cut_a_sidecar(folder: Path, chance: random.Random) -> Path:
    cut(sidecar_of(path := some_file(folder, chance)), chance)
    return path


def delete_a_file(folder: Path, chance: random.Random) -> Path:
    (path := some_file(folder, chance)).unlink()
    return path


def delete_a_sidecar(folder: Path, chance: random.Random) -> Path:
    sidecar_of(path := some_file(folder, chance)).unlink()
    return path


def swap_files(folder: Path, chance: random.Random) -> Path:
    one, other = two_different(folder, chance)
    first, second = one.read_bytes(), other.read_bytes()
    replace(one, second)
    replace(other, first)
    return one


def swap_sidecars(folder: Path, chance: random.Random) -> Path:
    one, other = map(sidecar_of, two_different(folder, chance))
    first, second = one.read_bytes(), other.read_bytes()
    replace(one, second)
    replace(other, first)
    return one.with_suffix("")


def two_different(folder: Path, chance: random.Random) -> tuple[Path, Path]:
    while True:
        one, other = chance.sample(sorted(folder.glob("*.pth")), 2)
        if one.read_bytes() != other.read_bytes():
            return one, other


KINDS: list[Damage] = [
    flip_a_file,
    cut_a_file,
    flip_a_sidecar,
    cut_a_sidecar,
    delete_a_file,
    delete_a_sidecar,
    swap_files,
    swap_sidecars,
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training: three periodic files, a best one and a last one."""
    directory = tmp_path_factory.mktemp("sound")
    scores = {1: 0.5, 2: 0.9, 3: 0.7}
    fake_training([CheckpointHook()], epochs=3, batches=1, scores=lambda e: {"accuracy": scores[e]}, work_dir=directory)
    return directory / "checkpoints"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.pth")}


def see_what_happens(folder: Path, sound: dict[str, bytes], path: Path) -> None:
    """What is used is a file as it was written; each that was passed over is named; and one that is named fails."""
    found = find_newest(folder)
    assert found is not None
    used, _, troubles = found
    assert used.read_bytes() in sound.values()
    assert verify(used)
    order = newest_first(folder)
    is_passed_over = path not in order or order.index(path) < order.index(used)
    assert used != path
    assert any(str(path) in trouble for trouble in troubles) == is_passed_over
    with pytest.raises((CheckpointError, HookWarning), match=path.name):  # a warning of a missing sidecar is an error
        read_checkpoint(path)


def damage_and_see(sound: Path, folder: Path, kind: Damage, seed: int) -> None:
    shutil.copytree(sound, folder)
    before = contents(folder)
    see_what_happens(folder, before, kind(folder, random.Random(seed)))
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_damage_is_seen(sound: Path, tmp_path: Path, kind: Damage) -> None:
    for seed in range(4):
        damage_and_see(sound, tmp_path / "folder", kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_damage_at_any_place_is_seen(sound: Path, tmp_path: Path, kind: Damage) -> None:
    for seed in range(250):
        damage_and_see(sound, tmp_path / "folder", kind, seed)


def test_a_training_goes_on_from_the_file_before_and_says_why(
    sound: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(sound, tmp_path / "checkpoints")
    for name in ("epoch_3.pth", "last.pth"):
        cut(tmp_path / "checkpoints" / name, random.Random(0))
    run = fake_training([CheckpointHook()], epochs=4, batches=1, work_dir=tmp_path, resume="auto").run

    assert run.iters_done == 4
    assert "epoch_3.pth: damaged" in caplog.text
    assert "last.pth: damaged" in caplog.text
    assert verify(tmp_path / "checkpoints/last.pth").generation > 3


def test_a_training_that_has_nothing_but_damaged_files_does_not_begin_anew(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints").glob("*.pth"):
        flip(path, random.Random(0))

    with pytest.raises(CheckpointError, match="No checkpoint can be used:\n.*damaged"):
        fake_training([CheckpointHook()], epochs=4, batches=1, work_dir=tmp_path, resume="auto")
