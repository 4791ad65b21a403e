"""Tests of the log of a run that is killed at any place and resumed: it equals that of the uninterrupted run."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook
from hookbus._run.run import Run
from hookbus.checkpoint.state import write_checkpoint
from hookbus.testing import fake_training
from hookbus_logger import JsonlHook, read_jsonl

Row = dict[str, Any]


def read_log(path: Path) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "time"} for row in read_jsonl(path)]


class LogEverywhere(Hook):
    """Log rows at many points, most of them of one moment."""

    def __init__(self, name: str, priority: int) -> None:
        super().__init__(name=name, priority=priority)

    def _log(self, run: Run, point: str) -> None:
        # A constant value, so that a repeated row cannot be recognized by its value.
        run.bus.emit("log_scalars", values={f"{self.name}/{point}": 1.0})
        run.bus.emit("log_text", tag=self.name, text=point)

    def before_run(self, run: Run) -> None:
        self._log(run, "before_run")

    def before_train(self, run: Run) -> None:
        self._log(run, "before_train")

    def before_epoch(self, run: Run) -> None:
        self._log(run, "before_epoch")

    def before_train_iter(self, run: Run) -> None:
        if run.iter == 1:
            self._log(run, "before_train_iter")

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done != 2:
            self._log(run, "after_train_iter")

    def after_val_epoch(self, run: Run) -> None:
        self._log(run, "after_val_epoch")

    def after_train_epoch(self, run: Run) -> None:
        self._log(run, "after_train_epoch")

    def after_epoch(self, run: Run) -> None:
        self._log(run, "after_epoch")


class SaveOften(Hook):
    """Write a checkpoint after each iteration and each epoch."""

    def after_train_iter(self, run: Run) -> None:
        run.request_save(saver=self)

    def after_epoch(self, run: Run) -> None:
        run.request_save(saver=self)

    def plan(self, run: Run, _requests: list[Any]) -> Path:
        kind = "iteration" if run.epoch_open else "epoch"
        return Path(run.require("checkpoints_dir")) / f"{kind}-{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        write_checkpoint(self.plan(run, []), checkpoint, 2 * run.iters_done + (not run.epoch_open))
        return False


class CopyWorkDir(Hook):
    """Copy the work directory at each point, as a process that is killed there would leave it."""

    def __init__(self, name: str, priority: int, copies: Path) -> None:
        super().__init__(name=name, priority=priority)
        self.copies = copies

    def copy(self, run: Run) -> None:
        assert run.work_dir is not None
        if any((run.work_dir.path / "checkpoints").glob("*.pth")):
            target = self.copies / f"{len(list(self.copies.glob('*.jsonl'))):03}"
            shutil.copytree(run.work_dir.path, target)
            shutil.copy(get_second_log(run.work_dir.path), get_second_log(target))

    before_train_iter = after_train_iter = after_val_epoch = after_train_epoch = copy
    before_epoch = after_epoch = after_save_checkpoint = after_train = copy


def get_second_log(work_dir: Path) -> Path:
    """Return the path of the log of the second hook, which is outside of the work directory."""
    return work_dir.with_name(f"{work_dir.name}.jsonl")


def read_logs(work_dir: Path) -> list[list[Row]]:
    return [read_log(work_dir / "logs" / "metrics.jsonl"), read_log(get_second_log(work_dir))]


def train(work_dir: Path, copies: Path | None = None, *, by_epoch: bool = True, **more: Any) -> None:
    hooks: list[object] = [
        LogEverywhere("b", 20),
        JsonlHook(interval=2 if by_epoch else 4, by_epoch=by_epoch),
        JsonlHook(name="second", interval=1, path=get_second_log(work_dir)),
        SaveOften(),
        LogEverywhere("a", 95),
    ]
    if copies is not None:
        copies.mkdir()
        hooks += [CopyWorkDir("first", 0, copies), CopyWorkDir("last", 100, copies)]
    options: dict[str, Any] = {"scores": lambda epoch: {"accuracy": 0.5}, "config": {"lr": 0.1}, **more}
    fake_training(hooks, epochs=2, batches=3, losses=float, work_dir=work_dir, **options)


@pytest.mark.slow
@pytest.mark.parametrize("by_epoch", [True, False])
def test_run_killed_anywhere_and_resumed_writes_the_rows_of_one_run(tmp_path: Path, by_epoch: bool) -> None:
    copies = tmp_path / "copies"
    train(tmp_path / "run", copies, by_epoch=by_epoch)
    expected = read_logs(tmp_path / "run")
    killed = sorted(path for path in copies.iterdir() if path.is_dir())

    assert len(killed) > 30
    for work_dir in killed:
        train(work_dir, resume="auto", by_epoch=by_epoch)
        assert read_logs(work_dir) == expected, work_dir


@pytest.mark.slow
def test_run_killed_several_times_in_a_row_writes_the_rows_of_one_run(tmp_path: Path) -> None:
    train(tmp_path / "run", tmp_path / "0")
    for kill, place in enumerate((2, 5, 1, 7, 4)):
        work_dir = tmp_path / f"{kill}" / f"{place:03}"
        train(work_dir, tmp_path / f"{kill + 1}", resume="auto")
        assert read_logs(work_dir) == read_logs(tmp_path / "run")


@pytest.mark.slow
def test_changed_configuration_is_a_row_at_the_place_of_the_resume(tmp_path: Path) -> None:
    train(tmp_path / "run", tmp_path / "copies")
    work_dir = tmp_path / "copies" / "003"
    checkpoints = shutil.copytree(work_dir / "checkpoints", tmp_path / "checkpoints")
    configs = []
    for rate in (0.1, 0.2, 0.2, 0.1):
        shutil.rmtree(work_dir / "checkpoints")
        shutil.copytree(checkpoints, work_dir / "checkpoints")
        train(work_dir, resume="auto", config={"lr": rate})
        rows = read_log(work_dir / "logs" / "metrics.jsonl")
        configs.append([(row["config"]["lr"], row["iteration"]) for row in rows if row["kind"] == "config"])

    assert configs == [[(0.1, 0)], [(0.1, 0), (0.2, 1)], [(0.1, 0), (0.2, 1)], [(0.1, 0)]]
    assert rows == read_log(tmp_path / "run" / "logs" / "metrics.jsonl")


def test_copy_of_a_run_does_not_change_the_log_of_the_original(tmp_path: Path) -> None:
    train(tmp_path / "run")
    content = get_second_log(tmp_path / "run").read_bytes()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")

    train(tmp_path / "copy", resume="auto")

    assert get_second_log(tmp_path / "run").read_bytes() == content


def test_configuration_that_differs_in_the_resume_is_not_repeated(tmp_path: Path) -> None:
    train(tmp_path / "run", tmp_path / "copies", config={"lr": 0.1, "resume": "never"})
    work_dir = tmp_path / "copies" / "004"
    train(work_dir, resume="auto", config={"lr": 0.1, "resume": "auto"})

    assert read_logs(work_dir) == read_logs(tmp_path / "run")
