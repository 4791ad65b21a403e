"""Checkpoints with the best results of each metric: files, names, resumes, interruptions and failures."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, Run, Trainer
from hookbus.checkpoint.sidecars import verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook
from hookbus_checkpoint.directory import CheckpointDirectory

NAN = math.nan
LOSS: dict[str, Any] = {"best_metric": "val_loss", "interval": None, "save_last": False}


def train(directory: Path, settings: dict[str, Any], scores: Sequence[Any], *hooks: Hook, **options: Any) -> Run:
    """Train one epoch per score: a loss, or a mapping of metrics."""

    def results(epoch: int) -> Mapping[str, float]:
        score = scores[epoch - 1]
        return score if isinstance(score, Mapping) else {"loss": score}

    hooks = (CheckpointHook(settings), *hooks)
    return fake_training(hooks, epochs=len(scores), batches=2, scores=results, work_dir=directory, **options).run


def list_epochs(directory: Path, pattern: str = "best_val_loss_*.pth") -> list[int]:
    """Verify the files of a ranking, and return the epochs of their checkpoints."""
    paths = list((directory / "checkpoints").glob(pattern))
    for path in paths:
        verify(path)
    return sorted(int(read_checkpoint(path)["meta"]["epoch"]) for path in paths)


def list_names(directory: Path) -> set[str]:
    return {path.name for path in (directory / "checkpoints").glob("*.pth")}


@pytest.mark.parametrize(
    ("settings", "scores", "kept", "best"),
    [
        ({"save_top_k": 2}, [3, 1, 2, 4], [2, 3], 2),
        ({"save_top_k": 2, "rule": "greater"}, [3, 1, 2, 4], [1, 4], 4),
        ({"save_top_k": 2}, [1, 1, 1], [1, 2], 1),
        ({"save_top_k": 2}, [NAN, 2, NAN, 3], [2, 4], 2),
        ({"save_top_k": 3}, [2, 1], [1, 2], 2),
        ({"save_top_k": -1}, [2, 3, NAN, 1], [1, 2, 4], 4),
        ({"save_top_k": 1}, [3, 1, 2], [], 2),
        ({"save_top_k": 2, "async_save": True}, [3, 1, 2, 4, 0], [2, 5], 5),
    ],
)
def test_kept_files(tmp_path: Path, settings: dict[str, Any], scores: list[float], kept: list[int], best: int) -> None:
    run = train(tmp_path, LOSS | settings, scores)

    assert list_epochs(tmp_path) == kept
    assert list_epochs(tmp_path, "best_val_loss.pth") == [best]
    assert list_names(tmp_path) == {"best_val_loss.pth", *(f"best_val_loss_epoch_{epoch}.pth" for epoch in kept)}
    assert run.best["val/loss"].epoch == best


def test_zero_keeps_no_best_checkpoint(tmp_path: Path) -> None:
    run = train(tmp_path, {"save_top_k": 0}, [2, 1])

    assert list_names(tmp_path) == {"epoch_1.pth", "epoch_2.pth", "last.pth"}
    assert run.best == {}


def test_each_metric_has_its_rule_and_its_ranking(tmp_path: Path) -> None:
    results = [{"loss": 3, "dice": 0.9}, {"loss": 2, "dice": 0.1}, {"loss": 1, "dice": 0.5}, {"loss": 4, "dice": 0.7}]
    settings = LOSS | {"save_top_k": 2, "best_metric": "accuracy", "save_best": {"val_loss": "less", "dice": "greater"}}
    train(tmp_path, settings, results)

    assert list_epochs(tmp_path) == [2, 3]
    assert list_epochs(tmp_path, "best_dice_*.pth") == [1, 4]


def test_rankings_periodic_and_last_checkpoints_are_independent(tmp_path: Path) -> None:
    settings = {"best_metric": "val_loss", "save_top_k": 2, "max_keep_ckpts": 1}
    train(tmp_path, settings, [1, 2, 3, 4])

    ranked = {"best_val_loss_epoch_1.pth", "best_val_loss_epoch_2.pth"}
    assert list_names(tmp_path) == {"epoch_4.pth", "last.pth", "best_val_loss.pth"} | ranked


def test_validation_within_an_epoch_is_named_after_the_iteration(tmp_path: Path) -> None:
    scores = iter([4, 3, 2, 1])

    class Requester(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.request_validation()

    hooks = [CheckpointHook(LOSS | {"save_top_k": -1}), Requester()]
    fake_training(hooks, epochs=2, batches=2, scores=lambda _: {"loss": next(scores)}, work_dir=tmp_path)
    # The validation after the second iteration of an epoch is that of the epoch, too.
    assert {name for name in list_names(tmp_path) if "_iter_" in name} >= {
        "best_val_loss_iter_1.pth",
        "best_val_loss_iter_3.pth",
    }
    assert len(list_names(tmp_path)) == 4 + 1


def test_save_event_is_best_only_for_the_best_result(tmp_path: Path) -> None:
    saved: list[tuple[str, bool]] = []

    class Recorder(Hook):
        def after_save_checkpoint(self, path: Path, is_best: bool) -> None:
            saved.append((path.name, is_best))

    train(tmp_path, LOSS | {"save_top_k": 2}, [1, 2, 3], Recorder())
    assert saved == [("best_val_loss.pth", True), ("best_val_loss_epoch_2.pth", False)]


@pytest.mark.parametrize("split", [1, 2, 3, 4, 5])
def test_resumed_run_keeps_the_same_files(tmp_path: Path, split: int) -> None:
    settings, scores = {"best_metric": "val_loss", "save_top_k": 2, "max_keep_ckpts": 2}, [3, 2, 2, 4, 1, 2]
    train(tmp_path / "a", settings, scores)
    train(tmp_path / "b", settings, scores[:split])
    (tmp_path / "b").rename(tmp_path / "moved")
    train(tmp_path / "moved", settings, scores, resume="auto")

    assert list_epochs(tmp_path / "moved") == [2, 5]
    assert list_names(tmp_path / "moved") == list_names(tmp_path / "a")


def test_file_that_was_removed_by_hand_leaves_its_place(tmp_path: Path) -> None:
    settings = {"best_metric": "val_loss", "save_top_k": 2}
    train(tmp_path, settings, [1, 2, 3])
    (tmp_path / "checkpoints/best_val_loss_epoch_1.pth").unlink()
    train(tmp_path, settings, [1, 2, 3, 4], resume="auto")

    assert list_epochs(tmp_path) == [2, 4]


def test_smaller_number_of_a_resumed_run_removes_the_worst_files(tmp_path: Path) -> None:
    train(tmp_path, {"best_metric": "val_loss", "save_top_k": 3}, [3, 1, 2])
    train(tmp_path, {"best_metric": "val_loss", "save_top_k": 2}, [3, 1, 2], resume="auto")
    assert list_epochs(tmp_path) == [2, 3]
    train(tmp_path, {"best_metric": "val_loss"}, [3, 1, 2], resume="auto")
    assert list_epochs(tmp_path) == []
    assert list_epochs(tmp_path, "best_val_loss.pth") == [2]


def test_file_of_another_owner_in_a_ranking_is_kept(tmp_path: Path) -> None:
    settings = {"best_metric": "val_loss", "save_top_k": 2}
    train(tmp_path, settings, [3, 2])
    foreign = tmp_path / "checkpoints/best_val_loss_epoch_1.pth"
    foreign.write_text("mine")
    train(tmp_path, settings, [3, 2, 1], resume="auto")

    assert foreign.read_text() == "mine"
    assert {"best_val_loss_epoch_2.pth", "best_val_loss_epoch_3.pth"} <= list_names(tmp_path)


class Killed(BaseException):
    """Simulation of SIGKILL."""


@pytest.mark.parametrize("point", ["before the links", "before the removal"])
def test_killed_run_leaves_no_excess_after_the_resume(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, scores = {"best_metric": "val_loss", "save_top_k": 2, "max_keep_ckpts": 2}, [3, 2, 1, 4]

    def fail(self: Any, *_: Any) -> None:
        if self.path.joinpath("epoch_3.pth").exists():
            raise Killed

    with monkeypatch.context() as patch:
        name = "finish" if point == "before the links" else "remove_excess"
        method = getattr(CheckpointDirectory, name)
        patch.setattr(CheckpointDirectory, name, lambda *args: (fail(*args), method(*args)))
        with pytest.raises(Killed):
            train(tmp_path, settings, scores)
    assert list_epochs(tmp_path) == ([1, 2] if point == "before the links" else [1, 2, 3])
    train(tmp_path, settings, scores[:3], resume="auto")

    assert list_epochs(tmp_path) == [2, 3]
    assert list_epochs(tmp_path, "best_val_loss.pth") == [3]


@pytest.mark.parametrize("settings", [{}, {"async_save": True}])
def test_failed_save_does_not_enter_the_ranking(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full in the second epoch, whose result would have replaced that of the first one."""
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == "best_val_loss_epoch_3.pth":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    settings = LOSS | {"save_top_k": 2, "on_save_error": "warn"} | settings
    with pytest.warns(HookWarning, match="could not be written: .*No space left on device"):
        train(tmp_path, settings, [1, 4, 3, 2, 5])

    assert list_epochs(tmp_path) == [1, 4]


def test_ranking_does_not_depend_on_the_names_of_files(tmp_path: Path) -> None:
    settings = {"best_metric": "val_loss", "save_top_k": 2, "filename_tmpl": "{epoch}-{val_loss:.1f}"}
    train(tmp_path, settings, [3, 2, 4])
    assert {"1-3.0.pth", "2-2.0.pth", "3-4.0.pth"} < list_names(tmp_path)
    run = train(tmp_path, settings | {"filename_tmpl": "e{}_{val/loss:.0f}.pth"}, [3, 2, 4, 1], resume="auto")

    assert run.epochs_done == 4
    assert {name for name in list_names(tmp_path) if name.startswith("best_val_loss_")} == {
        "best_val_loss_2-2.0.pth",
        "best_val_loss_e4_1.pth",
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"save_top_k": -2}, "save_top_k: should be greater than or equal to -1"),
        ({"save_best": False, "save_top_k": 2}, "save_top_k: no effect without `save_best`, got 2"),
        ({"save_top_k": 0, "save_best": "loss"}, "save_best: no effect with `save_top_k: 0`, got 'loss'"),
        ({"save_top_k": 0, "best_metric": "loss"}, "best_metric: no effect with `save_top_k: 0`, got 'loss'"),
        ({"save_top_k": 0, "rule": "less"}, "rule: no effect with `save_top_k: 0`, got 'less'"),
        (
            {"save_best": {"loss": "less"}, "rule": "less"},
            "rule: no effect if `save_best` contains the rule of each metric, got 'less'",
        ),
        ({"save_best": {"loss": "min"}}, "save_best"),
    ],
)
def test_invalid_setting_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        CheckpointHook(settings)
    assert message in str(error.value)


class TestTrainingMetric:
    def train(self, directory: Path, losses: Sequence[float], *hooks: Hook, **settings: Any) -> Run:
        hook = CheckpointHook({"best_metric": "train/loss", "save_last": False, "interval": None} | settings)
        return fake_training(
            [hook, *hooks],
            epochs=len(losses) // 2,
            batches=2,
            losses=lambda i: losses[i - 1],
            work_dir=directory,
        ).run

    @pytest.mark.parametrize("metric", ["train/loss", "train_loss"])
    def test_best_is_the_mean_of_an_epoch_without_validations(self, tmp_path: Path, metric: str) -> None:
        """The means are 3, 2, 2.5 and 2."""
        run = self.train(tmp_path, [1, 5, 2, 2, 4, 1, 0, 4], best_metric=metric, save_top_k=2)

        best = run.best["train/loss"]
        assert (best.value, best.epoch, best.step, best.weights) == (2, 2, 4, "raw")
        assert list_epochs(tmp_path, "best_train_loss_*.pth") == [2, 4]

    def test_both_kinds_of_metrics_result_in_one_file(self, tmp_path: Path) -> None:
        hook = CheckpointHook(save_best=["train/loss", "val/loss"], save_last=False)
        fake_training(
            [hook], epochs=2, batches=1, losses=lambda i: i, scores=lambda epoch: {"loss": 3 - epoch}, work_dir=tmp_path
        )
        assert list_epochs(tmp_path, "best_train_loss.pth") == [1]
        assert list_epochs(tmp_path, "best_val_loss.pth") == [2]
        assert len({path.stat().st_ino for path in (tmp_path / "checkpoints").glob("*.pth")}) == 2

    def test_epoch_that_is_left_early_is_not_evaluated(self, tmp_path: Path) -> None:
        class Leave(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 3:
                    run.request_stop_epoch("enough")

        run = self.train(tmp_path, [2, 2, 0, 3, 1, 9], Leave())
        assert (run.best["train/loss"].value, run.best["train/loss"].epoch) == (2, 1)

    def test_missing_training_metric_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(Exception, match=r"Unknown metric 'train/accuracy'.* Available: train/loss"):
            self.train(tmp_path, [1, 2], best_metric="train/accuracy")

    def test_trainer_without_validations_is_accepted(self, tmp_path: Path) -> None:
        hook = CheckpointHook(best_metric="train_loss", filename_tmpl="{epoch}-{train_loss:.2f}")
        assert (hook.required_metrics, hook.requires_validation) == ([], False)
        assert hook.needs.loss


class TestNames:
    def test_metrics_are_part_of_the_names(self, tmp_path: Path) -> None:
        settings = {"filename_tmpl": "{epoch}-{val/loss:.2f}-{train_loss:.1f}", "save_best": False}
        train(tmp_path, settings, [0.123, 0.45], losses=float)

        assert list_names(tmp_path) == {"1-0.12-1.5.pth", "2-0.45-3.5.pth", "last.pth"}
        assert [path for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()] == []

    def test_names_are_counted_for_the_retention(self, tmp_path: Path) -> None:
        settings = {"filename_tmpl": "{epoch}-{val_loss:.2f}", "save_best": False, "max_keep_ckpts": 2}
        train(tmp_path, settings, [1, 2])
        train(tmp_path, settings, [1, 2, 3, 4], resume="auto")

        assert list_names(tmp_path) == {"3-3.00.pth", "4-4.00.pth", "last.pth"}

    def test_unknown_metric_is_an_error_that_lists_the_metrics(self, tmp_path: Path) -> None:
        with pytest.raises(
            Exception, match=r"requires the metric 'val_los'\. Unknown metric 'val_los'.* Available: val/loss\. Remove"
        ):
            train(tmp_path, {"filename_tmpl": "{epoch}-{val_los:.2f}", "save_best": False}, [1])

    def test_iterations_have_the_counts_of_the_clock(self, tmp_path: Path) -> None:
        settings = {
            "filename_tmpl": "{epoch}-{iter}-{step}-{sample}",
            "by_epoch": False,
            "interval": 2,
            "save_best": False,
        }
        fake_training([CheckpointHook(settings)], epochs=1, batches=4, batch_size=8, accumulate=2, work_dir=tmp_path)

        assert list_names(tmp_path) == {"0-2-1-16.pth", "0-4-2-32.pth", "last.pth"}

    def test_missing_metric_is_found_before_the_training(self, tmp_path: Path) -> None:
        hook = CheckpointHook(filename_tmpl="{epoch}-{val_los:.2f}-{train_loss:.2f}", save_best=False)
        batch = torch.ones(2, 1), torch.ones(2, 1)
        trainer = Trainer(
            model := nn.Linear(1, 1),
            torch.optim.SGD(model.parameters(), lr=0.1),
            loss_fn=nn.functional.mse_loss,
            train_loader=[batch],
            val_loader=[batch],
            hooks=[hook],
            default_hooks=False,
            work_dir=tmp_path,
            epochs=1,
        )
        with pytest.raises(
            ConfigError, match=r"Unknown metric 'val_los'. Did you mean 'val/loss'\? Available: val/loss"
        ):
            trainer.check()


class TestSupersededProgress:
    """A run continues in its directory from an older checkpoint, with other results and thus other names."""

    @pytest.fixture
    def resume(self, tmp_path: Path) -> Callable[..., Run]:
        def resume(scores: list[float], name: str = "") -> Run:
            # The same directory in each of the work directories.
            folder = tmp_path / "checkpoints"
            settings = {"filename_tmpl": "{epoch}-{val_loss:.0f}", "best_metric": "val_loss", "save_top_k": 2}
            options = {"resume": folder / name} if name else {}
            return train(tmp_path / "run", settings | {"out_dir": str(folder)}, scores, **options)

        return resume

    def list_periodic(self, directory: Path) -> set[str]:
        return {name for name in list_names(directory) if name[0].isdigit()}

    def test_files_of_repeated_epochs_are_replaced(self, tmp_path: Path, resume: Callable[..., Run]) -> None:
        resume([9, 8, 7, 6])
        resume([9, 8, 5], "2-8.pth")
        assert self.list_periodic(tmp_path) == {"1-9.pth", "2-8.pth", "3-5.pth", "4-6.pth"}
        assert list_epochs(tmp_path) == [2, 3, 4]
        # The file of the fourth epoch is still known after another resume.
        resume([9, 8, 5, 4], "3-5.pth")

        assert self.list_periodic(tmp_path) == {"1-9.pth", "2-8.pth", "3-5.pth", "4-4.pth"}
        ranked = {name for name in list_names(tmp_path) if name.startswith("best_val_loss_")}
        assert ranked == {"best_val_loss_3-5.pth", "best_val_loss_4-4.pth"}

    def test_same_names_are_replaced_without_a_suffix(self, tmp_path: Path, resume: Callable[..., Run]) -> None:
        resume([9, 8, 7])
        before = verify(tmp_path / "checkpoints/3-7.pth").generation
        resume([9, 8, 7], "1-9.pth")

        assert verify(tmp_path / "checkpoints/3-7.pth").generation > before
        assert self.list_periodic(tmp_path) == {"1-9.pth", "2-8.pth", "3-7.pth"}
        assert list_epochs(tmp_path) == [2, 3]

    def test_file_of_the_user_is_kept(self, tmp_path: Path, resume: Callable[..., Run]) -> None:
        resume([9, 8, 7])
        path = tmp_path / "checkpoints/3-7.pth"
        path.unlink()
        path.write_text("mine")
        resume([9, 8, 5], "2-8.pth")

        assert path.read_text() == "mine"

    def test_corrupted_file_is_replaced_after_an_automatic_resume(self, tmp_path: Path) -> None:
        settings = {"filename_tmpl": "{epoch}-{val_loss:.0f}", "save_best": False, "save_last": False}
        train(tmp_path, settings, [9, 8])
        path = tmp_path / "checkpoints/2-8.pth"
        path.write_bytes(path.read_bytes()[:100])
        train(tmp_path, settings, [9, 5], resume="auto")

        assert list_names(tmp_path) == {"1-9.pth", "2-5.pth"}


def test_copied_run_has_its_own_ranking(tmp_path: Path) -> None:
    settings = {"best_metric": "val_loss", "save_top_k": 2}
    train(tmp_path / "a", settings, [3, 2])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    train(tmp_path / "b", settings, [3, 2, 1], resume="auto")

    assert (list_epochs(tmp_path / "a"), list_epochs(tmp_path / "b")) == ([1, 2], [2, 3])
