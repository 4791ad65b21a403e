"""Settings of runs: paths of nested values, and those in which runs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookbus._run.recorded_settings import find_differing, flatten_settings, read_settings


def test_nested_values_have_paths_with_the_names_of_hooks() -> None:
    hooks = [{"type": "ema", "momentum": 0.9}, {"type": "ema", "name": "slow"}, ["x"]]
    assert flatten_settings({"seed": 1, "training": {"epochs": 2}, "metrics": ["a"], "none": {}, "hooks": hooks}) == {
        "seed": 1,
        "training.epochs": 2,
        "metrics": ["a"],
        "none": {},
        "hooks.ema.type": "ema",
        "hooks.ema.momentum": 0.9,
        "hooks.slow.type": "ema",
        "hooks.slow.name": "slow",
        "hooks.2": ["x"],
    }


def test_settings_of_runs_differ_if_a_value_or_its_presence_differs() -> None:
    runs = [{"a": 1, "b": 1, "work_dir": "x"}, {"a": 1, "b": True, "c": 2, "work_dir": "y"}, {}]
    assert find_differing(runs) == ["b", "c"]
    assert find_differing([]) == find_differing(runs[:1]) == []


@pytest.mark.parametrize("content", [None, "- 1\n", "{", "\x00", "a: !!python/object:os.x {}\n"])
def test_damaged_or_missing_file_has_no_settings(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    assert read_settings(tmp_path) == {}


def test_settings_are_read_from_the_work_directory(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("# run: a\ntraining: {epochs: 2}\n")
    assert read_settings(tmp_path) == {"training.epochs": 2}
