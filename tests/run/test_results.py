"""The best result of a metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hookbus._run.results import BestResult, merge_ranks


@pytest.mark.parametrize("path", [None, Path("runs/x/checkpoints/best_loss.pth")])
def test_best_is_restored_from_its_json_state(path: Path | None) -> None:
    best = BestResult(0.25, epoch=2, step=6, weights="averaged", path=path)
    state = json.loads(json.dumps(best.state_dict()))
    assert state == {"value": 0.25, "epoch": 2, "step": 6, "weights": "averaged", "path": path and path.name}
    assert BestResult.from_state(state) == replace(best, path=path and Path(path.name))


class TestPath:
    """The files of the run `a` are in the directory `b` after it was renamed or copied."""

    def make(self, root: Path, name: str) -> Path:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    def find(self, stored: Path | str, *directories: Path) -> Path | None:
        state = {**BestResult(0.5, 1, 1).state_dict(), "path": str(stored)}
        return BestResult.from_state(state).locate(directories).path

    def test_path_is_stored_relative_to_the_work_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for path, stored in {"a/checkpoints/best.pth": "checkpoints/best.pth", "out/best.pth": "best.pth"}.items():
            for best in (BestResult(0.5, 1, 1, path=Path(path)), BestResult(0.5, 1, 1, path=tmp_path / path)):
                assert best.state_dict(Path("a"))["path"] == best.state_dict(tmp_path / "a")["path"] == stored

    def test_file_is_found_in_the_renamed_directory(self, tmp_path: Path) -> None:
        path = self.make(tmp_path, "b/checkpoints/best.pth")
        assert self.find("checkpoints/best.pth", tmp_path / "b", tmp_path / "b/checkpoints") == path

    def test_file_is_found_in_a_separate_checkpoint_directory(self, tmp_path: Path) -> None:
        path = self.make(tmp_path, "out/best.pth")
        assert self.find("best.pth", tmp_path / "b", tmp_path / "out") == path

    @pytest.mark.parametrize("is_absolute", [True, False])
    def test_path_of_an_early_version_is_found_by_name_in_the_copy(self, tmp_path: Path, is_absolute: bool) -> None:
        original = self.make(tmp_path, "a/checkpoints/best.pth")
        copy = self.make(tmp_path, "b/checkpoints/best.pth")
        stored = original if is_absolute else "a/checkpoints/best.pth"
        assert self.find(stored, tmp_path / "b", tmp_path / "b/checkpoints") == copy

    def test_file_outside_of_the_run_is_found_by_its_path(self, tmp_path: Path) -> None:
        path = self.make(tmp_path, "elsewhere/best.pth")
        assert self.find(path, tmp_path / "b") == path

    def test_missing_file_is_expected_in_the_directory_of_the_run(self, tmp_path: Path) -> None:
        assert self.find("checkpoints/best.pth", tmp_path / "b") == tmp_path / "b/checkpoints/best.pth"


def test_values_of_ranks_are_those_of_the_lowest_rank_that_logged_them() -> None:
    gathered = [{"val/a": 1.0}, {"val/a": 1.0, "val/b": 2.0}, {"val/b": 2.0}]
    assert merge_ranks(gathered) == ({"val/a": 1.0, "val/b": 2.0}, [])


def test_values_that_differ_between_ranks_are_described() -> None:
    assert merge_ranks([{"val/a": 1.0}, {"val/a": 4.0}]) == ({"val/a": 1.0}, ["val/a is 1, 4"])


def test_equal_nan_of_ranks_is_no_difference() -> None:
    _, differing = merge_ranks([{"val/a": float("nan")}, {"val/a": float("nan")}])
    assert differing == []
