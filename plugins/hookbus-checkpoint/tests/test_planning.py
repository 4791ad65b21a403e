"""Tests of the planned files: their patterns match the files of a training."""

import re
from pathlib import Path

import pytest

from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook


@pytest.mark.parametrize(
    "settings",
    [
        {"interval": 2, "max_keep_ckpts": 2},
        {"by_epoch": False, "interval": 3, "save_last": False, "save_best": False},
        {"every": "1h", "interval": None, "publish": True, "out_dir": "saved"},
    ],
)
def test_each_file_matches_a_pattern(settings, tmp_path):
    hook = CheckpointHook(**settings)
    training = fake_training([hook], work_dir=tmp_path)
    patterns = [re.escape(file.path).replace(r"\{\}", r"\d+") for file in hook.planned_files(training.run)]
    names = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.pth")]
    names += [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors")]
    assert names
    assert [name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []


def test_size_is_about_that_of_the_file(tmp_path):
    hook = CheckpointHook()
    training = fake_training([hook], work_dir=tmp_path)
    planned = next(iter(hook.planned_files(training.run)))
    assert (planned.point, planned.keep) == ("after_train_epoch", 5)
    size = Path(tmp_path / "checkpoints" / "epoch_1.pth").stat().st_size
    assert 0 < planned.size < size  # without the states of the run and of the archive
