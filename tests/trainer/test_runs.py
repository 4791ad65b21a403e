"""Tests of the consecutive runs of a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookbus._run.run import Run
from hookbus.errors import ConfigError, RequestError
from hookbus.hook import Hook
from tests import toys


class RunRecorder(Hook):
    """Record services and progress at the start of each run."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def before_run(self, run: Run) -> None:
        self.records.append((run.get("board"), run.get("experiment_dir"), run.iters_done))


def test_new_run_has_the_objects_of_the_trainer() -> None:
    train, val = toys.pairs(3), toys.pairs(1)
    trainer = toys.trainer(train_loader=train, val_loader=val, epochs=2, seed=5, agree_every=4)
    run = trainer.runs.create("train")

    assert (run.model, run.optimizer, run.trainer) == (trainer.model, trainer.optimizer, trainer)
    assert (run.train_loader, run.val_loader, run.test_loader) == (train, val, None)
    assert (run.mode, run.seed, run.max_epochs, run.max_iters) == ("train", 5, 2, None)
    assert (run.epoch_length, run.request_sync.every) == (3, 4)
    assert (run.validations.is_available("val"), run.validations.is_available("test")) == (True, False)
    assert not run.is_running


def test_services_are_available_in_every_run() -> None:
    recorder = RunRecorder()
    trainer = toys.trainer(recorder, epochs=0, val_loader=toys.pairs(1))
    trainer.register_service("board", "a board")
    assert trainer.bus.current.get("board") == "a board"
    trainer.fit()
    trainer.validate()

    assert [board for board, _, _ in recorder.records] == ["a board", "a board"]


def test_runs_share_the_directory_of_the_first_training(tmp_path: Path) -> None:
    toys.trainer(epochs=1, work_dir=tmp_path / "run").fit()
    recorder = RunRecorder()
    trainer = toys.trainer(recorder, epochs=1, val_loader=toys.pairs(1), work_dir=tmp_path / "run")
    trainer.fit()
    trainer.validate()
    trainer.fit(epochs=2)

    assert [directory for _, directory, _ in recorder.records] == [tmp_path / "run-2"] * 3


def test_checkpoint_is_resumed_once(tmp_path: Path) -> None:
    saver = toys.Saver("after_train")
    toys.trainer(saver, iterations=2, work_dir=tmp_path / "first").fit()
    trainer = toys.trainer(iterations=3, resume=saver.files[0], work_dir=None)
    reads: list[Path] = []
    trainer.bus.on("after_load_checkpoint")(lambda path: reads.append(path))

    assert trainer.fit().iters_done == 3
    assert trainer.fit(iterations=4).iters_done == 4
    assert reads == saver.files


def test_nested_run_is_an_error() -> None:
    trainer = toys.trainer(epochs=1)
    trainer.bus.on("after_train_iter")(lambda run: run.trainer.fit())
    with pytest.raises(RequestError) as raised:
        trainer.fit()

    assert str(raised.value) == (
        "A run (train) is active on this bus, so a second run cannot start. To validate during the run, call "
        "run.request_validation() or run.validate()."
    )


def test_resume_and_overwrite_are_mutually_exclusive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        toys.trainer(epochs=1, work_dir=tmp_path, resume="auto", overwrite=True).fit()

    assert str(raised.value) == "`resume` and `overwrite` are mutually exclusive. Set only one of them."
