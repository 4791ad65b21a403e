"""Which files a training leaves, and what is in them."""

import errno
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.checkpoints.files import verify
from hookbus.errors import CheckpointError, ConfigError, HookWarning, MetricError, WorkDirError
from hookbus.run import Run
from hookbus.state import read_checkpoint
from hookbus.testing import check_hook, fake_training
from hookbus_checkpoint import CheckpointHook


def train(
    directory: Path, *hooks: object, scores: Sequence[float | None] = (), name: str = "accuracy", **options: Any
) -> Run:
    """A training of one epoch per score; None is an epoch whose validation does not find the metric."""

    def results(epoch: int) -> Mapping[str, float]:
        score = scores[epoch - 1]
        return {"other": 1.0} if score is None else {name: score}

    options.setdefault("epochs", len(scores) or 2)
    return fake_training(hooks, scores=results if scores else None, work_dir=directory, **options).run


def files(directory: Path) -> set[str]:
    """The checkpoints of a work directory; each of them is whole."""
    paths = list((directory / "checkpoints").glob("*.pth"))
    for path in paths:
        verify(path)
    return {path.name for path in paths}


def epoch_of(path: Path) -> int:
    return int(read_checkpoint(path)["meta"]["epoch"])


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(CheckpointHook)


def test_a_file_per_epoch_the_best_and_the_last(tmp_path: Path) -> None:
    run = train(tmp_path, CheckpointHook(), scores=[0.5, 0.9, 0.7])

    assert files(tmp_path) == {"epoch_1.pth", "epoch_2.pth", "epoch_3.pth", "best_accuracy.pth", "last.pth"}
    assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 2
    assert epoch_of(tmp_path / "checkpoints/last.pth") == 3
    assert run.best["val/accuracy"].path == tmp_path / "checkpoints/best_accuracy.pth"


def test_best_and_last_are_further_names_of_one_file(tmp_path: Path) -> None:
    train(tmp_path, CheckpointHook(), scores=[0.5])

    inodes = {path.stat().st_ino for path in (tmp_path / "checkpoints").glob("*.pth")}
    assert len(inodes) == 1


@pytest.mark.parametrize(
    ("settings", "metrics"),
    [
        ({}, []),
        ({"best_metric": "accuracy"}, ["accuracy"]),
        ({"save_best": ["loss", "f1"]}, ["loss", "f1"]),
        ({"save_best": "loss"}, ["loss"]),
        ({"save_best": "auto"}, []),
        ({"save_best": False, "best_metric": "accuracy"}, []),
    ],
)
def test_it_needs_the_metrics_that_were_named(settings: dict[str, Any], metrics: list[str]) -> None:
    assert CheckpointHook(settings).needs_metrics == metrics


class TestRetention:
    def test_numbers_are_compared_as_numbers(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=3, save_best=False, save_last=False), epochs=12)

        assert files(tmp_path) == {"epoch_10.pth", "epoch_11.pth", "epoch_12.pth"}

    def test_the_best_is_kept_however_old_it_is(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=1), scores=[0.2, 0.9, 0.5, 0.4])

        assert files(tmp_path) == {"epoch_4.pth", "best_accuracy.pth", "last.pth"}
        assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 2

    def test_the_newest_file_is_there_after_every_save(self, tmp_path: Path) -> None:
        seen = []

        class Watch(Hook):
            def after_save_checkpoint(self, run: Run, path: Path) -> None:
                verify(path)
                seen.append((path.name, len(list(path.parent.glob("epoch_*.pth")))))

        train(tmp_path, CheckpointHook(max_keep_ckpts=2), Watch(), scores=[0.9, 0.5, 0.4, 0.3, 0.2, 0.1])

        assert [name for name, _ in seen] == [f"epoch_{n}.pth" for n in range(1, 7)]
        assert max(count for _, count in seen) == 2

    def test_a_resumed_run_removes_the_files_of_its_first_part(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=2), epochs=3)
        train(tmp_path, CheckpointHook(max_keep_ckpts=2), epochs=5, resume="auto")

        assert {name for name in files(tmp_path) if name.startswith("epoch")} == {"epoch_4.pth", "epoch_5.pth"}

    def test_files_of_the_run_that_was_resumed_from_are_left_alone(self, tmp_path: Path) -> None:
        first, second = tmp_path / "a", tmp_path / "b"
        train(first, CheckpointHook(), epochs=3)
        train(second, CheckpointHook(max_keep_ckpts=1), epochs=5, resume=first / "checkpoints/epoch_3.pth")

        assert "epoch_3.pth" in files(first)
        assert {name for name in files(second) if name.startswith("epoch")} == {"epoch_5.pth"}

    def test_files_of_others_in_the_folder_are_left_alone(self, tmp_path: Path) -> None:
        foreign = tmp_path / "elsewhere" / "epoch_0.pth"
        foreign.parent.mkdir()
        foreign.write_bytes(b"not ours")
        train(tmp_path / "run", CheckpointHook(max_keep_ckpts=1, out_dir=str(foreign.parent)), epochs=3)

        assert foreign.read_bytes() == b"not ours"
        assert (foreign.parent / "epoch_3.pth").exists()
        assert not (foreign.parent / "epoch_2.pth").exists()

    def test_a_file_of_others_under_a_name_of_ours_is_neither_written_over_nor_removed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = tmp_path / "checkpoints"
        folder.mkdir()
        foreign = {folder / name for name in ("epoch_2.pth", "last.pth", "best_accuracy.pth", "model.safetensors")}
        for path in foreign:
            path.write_text("mine")
        run = train(tmp_path, CheckpointHook(max_keep_ckpts=1, publish=True), scores=[0.5, 0.9, 0.7])

        assert {path.read_text() for path in foreign} == {"mine"}
        found = {path.name for path in folder.iterdir() if path.suffix != ".json"} - {path.name for path in foreign}
        assert found == {"epoch_3.pth", "last-2.pth", "best_accuracy-2.pth", "model-2.safetensors"}
        assert run.best["val/accuracy"].path == folder / "best_accuracy-2.pth"
        for path in foreign:
            said = [each for each in caplog.messages if each.startswith(f"{path} was not written by this run, so it")]
            assert len(said) == 1, path
        assert train(tmp_path, CheckpointHook(), scores=[0.5, 0.9, 0.7, 0.6], resume="auto").epochs_done == 4

    def test_a_file_whose_sidecar_is_gone_is_nobodys_after_a_resume(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_last=False, save_best=False), epochs=3)
        (tmp_path / "checkpoints" / "epoch_3.pth.json").unlink()
        train(tmp_path, CheckpointHook(max_keep_ckpts=1, save_last=False, save_best=False), epochs=3, resume="auto")

        names = {path.name for path in (tmp_path / "checkpoints").glob("*.pth")}
        assert names == {"epoch_3.pth", "epoch_3-2.pth"}

    def test_told_to_overwrite_it_removes_the_files_of_that_run_in_a_directory_elsewhere(self, tmp_path: Path) -> None:
        def attempt(epochs: int, **options: Any) -> Run:
            return train(tmp_path / "run", CheckpointHook(out_dir=str(tmp_path / "out")), epochs=epochs, **options)

        attempt(3)
        (tmp_path / "out" / "notes.pth").write_text("mine")
        attempt(1, overwrite=True)

        names = {path.name for path in (tmp_path / "out").glob("*.pth")}
        assert names == {"epoch_1.pth", "last.pth", "notes.pth"}
        assert attempt(2, resume="auto").iters_done == 2 * attempt(1, overwrite=True).iters_done

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_directory_with_files_of_another_run_is_an_error_at_the_start(
        self, tmp_path: Path, overwrite: bool
    ) -> None:
        def attempt(work_dir: str = "run", **options: Any) -> Run:
            return train(tmp_path / work_dir, CheckpointHook(out_dir=str(tmp_path / "out")), epochs=1, **options)

        attempt("other")
        before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        with pytest.raises(
            CheckpointError,
            match=r"/out holds checkpoints of another run: epoch_1.pth, last.pth. Resume that run, move its files, or",
        ):
            attempt(overwrite=overwrite)
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before

    def test_a_directory_of_a_live_run_is_an_error_at_the_start(self, tmp_path: Path) -> None:
        tried: list[str] = []

        class Other(Hook):
            def after_train_epoch(self, run: Run) -> None:
                with pytest.raises(WorkDirError, match="in use by a live run .*give another out_dir") as caught:
                    train(tmp_path / "other", CheckpointHook(out_dir=str(tmp_path / "out")), epochs=1)
                tried.append(str(caught.value))

        train(tmp_path / "run", CheckpointHook(out_dir=str(tmp_path / "out")), Other(), epochs=2)

        assert len(tried) == 2
        assert {path.name for path in (tmp_path / "out").glob("*.pth")} == {"epoch_1.pth", "epoch_2.pth", "last.pth"}

    def test_two_hooks_of_one_run_may_share_a_directory(self, tmp_path: Path) -> None:
        hooks = [
            CheckpointHook(name="epochs", out_dir=str(tmp_path / "out")),
            CheckpointHook(name="often", out_dir=str(tmp_path / "out"), interval=2, by_epoch=False, max_keep_ckpts=1),
        ]
        train(tmp_path / "run", *hooks, epochs=2, batches=3)

        found = {path.name: verify(path).generation for path in (tmp_path / "out").glob("*.pth")}
        assert sorted(found) == ["epoch_1.pth", "epoch_2.pth", "iter_6.pth", "last.pth"]
        assert found["iter_6.pth"] < found["epoch_2.pth"]

    def test_null_keeps_all(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=None, save_last=False), epochs=7)

        assert files(tmp_path) == {f"epoch_{n}.pth" for n in range(1, 8)}


class TestBest:
    def test_the_best_of_the_first_part_is_remembered_after_resume(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.5, 0.9])
        run = train(tmp_path, CheckpointHook(), scores=[0.5, 0.9, 0.6, 0.7], resume="auto")

        assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 2
        assert run.best["val/accuracy"].value == 0.9

    def test_a_resumed_run_with_the_other_direction_begins_afresh_and_says_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def go(*scores: float, **settings: Any) -> Run:
            return train(
                tmp_path, CheckpointHook(settings), scores=scores, name="dice", resume="auto", epochs=len(scores)
            )

        go(0.2, 0.9, best_metric="dice", rule="greater")
        best = go(0.2, 0.9, 0.96, 0.95, best_metric="dice", rule="less").best["val/dice"]

        assert (best.value, best.epoch) == (0.95, 4)
        assert epoch_of(tmp_path / "checkpoints/best_dice.pth") == 4
        assert caplog.messages == ["less is better of val/dice now, and it was greater: its best begins afresh."]

    def test_a_resumed_run_that_wants_another_metric_keeps_the_best_of_the_first(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.9])
        run = train(
            tmp_path,
            CheckpointHook(best_metric="other", rule="less"),
            scores=[None, None],
            resume="auto",
        )

        assert (run.best["val/accuracy"].value, run.best["val/other"].value) == (0.9, 1.0)

    def test_the_last_file_knows_the_newest_best(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.5, 0.9])

        best = read_checkpoint(tmp_path / "checkpoints/last.pth")["loop"]["best"]["val/accuracy"]
        assert best["value"] == 0.9
        assert best["epoch"] == 2
        assert Path(best["path"]).name == "best_accuracy.pth"

    def test_the_best_is_tracked_when_nothing_is_ever_removed(self, tmp_path: Path) -> None:
        run = train(tmp_path, CheckpointHook(max_keep_ckpts=None), scores=[0.3, 0.8, 0.5])

        assert run.best["val/accuracy"].epoch == 2
        assert len([name for name in files(tmp_path) if name.startswith("epoch")]) == 3

    def test_a_second_loop_on_the_same_bus_goes_on(self, tmp_path: Path) -> None:
        bus = HookBus([CheckpointHook()])
        scores = [0.9, 0.5, 0.6]
        results = lambda epoch: {"accuracy": scores[epoch - 1]}  # noqa: E731
        fake_training(bus=bus, epochs=1, scores=results, work_dir=tmp_path / "a")
        second = fake_training(bus=bus, epochs=3, scores=results, work_dir=tmp_path / "b").run
        fresh = fake_training(
            bus=bus, epochs=3, scores=lambda epoch: {"accuracy": 0.1}, work_dir=tmp_path / "c", fresh=True
        )

        assert (second.best["val/accuracy"].value, second.best["val/accuracy"].epoch) == (0.9, 1)
        assert fresh.run.best["val/accuracy"].value == 0.1

    def test_nan_is_never_the_best(self, tmp_path: Path) -> None:
        run = train(tmp_path, CheckpointHook(best_metric="loss"), scores=[float("nan"), 0.5, 0.4], name="loss")

        assert (run.best["val/loss"].value, run.best["val/loss"].epoch) == (0.4, 3)
        assert epoch_of(tmp_path / "checkpoints/best_loss.pth") == 3

    def test_only_nan_gives_no_best_file(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[float("nan")] * 2)

        assert "best_accuracy.pth" not in files(tmp_path)

    def test_in_the_middle_of_an_epoch_is_one_of_that_epoch(self, tmp_path: Path) -> None:
        """As early stopping and the log name it."""
        scores = iter([0.5, 0.4, 0.9, 0.4])  # after iterations 2, 3, 5 and 6

        class Judges(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done in (2, 5):
                    run.request_validation()

        hooks = [CheckpointHook(), Judges()]
        run = fake_training(hooks, scores=lambda _: {"accuracy": next(scores)}, work_dir=tmp_path).run
        best = run.best["val/accuracy"]
        assert (best.value, best.epoch, best.step) == (0.9, 2, 5)

    def test_a_tie_keeps_the_older_file(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.5, 0.5])

        assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 1

    def test_a_score_of_zero_counts(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.0])

        assert "best_accuracy.pth" in files(tmp_path)

    def test_a_metric_that_is_missing_now_and_then_is_passed_over(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(best_metric="accuracy"), scores=[0.5, None, 0.7])

        assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 3

    def test_a_metric_that_was_asked_for_and_never_was_there_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(MetricError, match="no metric 'accuracy'. Available: val/other"):
            train(tmp_path, CheckpointHook(best_metric="accuracy"), scores=[None])

    def test_without_the_default_metric_there_is_one_warning_and_no_best_file(self, tmp_path: Path) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(tmp_path, CheckpointHook(), scores=[None, None])

        assert [str(each.message) for each in caught if each.category is HookWarning] == [
            "There is no metric 'accuracy'. Available: val/other. No best checkpoint is kept: set best_metric."
        ]
        assert files(tmp_path) == {"epoch_1.pth", "epoch_2.pth", "last.pth"}

    def test_several_metrics_have_a_best_file_each(self, tmp_path: Path) -> None:
        results = [{"acc": 0.9, "loss": 0.5}, {"acc": 0.8, "loss": 0.4}]
        fake_training(
            [CheckpointHook(save_best=["acc", "loss"])], epochs=2, scores=lambda e: results[e - 1], work_dir=tmp_path
        )

        assert epoch_of(tmp_path / "checkpoints/best_acc.pth") == 1
        assert epoch_of(tmp_path / "checkpoints/best_loss.pth") == 2

    def test_auto_takes_the_first_metric_of_the_first_validation(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_best="auto"), scores=[0.5, 0.6])

        assert "best_val_accuracy.pth" in files(tmp_path)

    def test_auto_with_a_metric_that_tells_no_direction_says_what_to_set(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="set rule"):
            train(tmp_path, CheckpointHook(save_best="auto"), scores=[0.5], name="recall")

    def test_a_metric_with_slashes_stays_in_the_folder(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_best="../up/acc", save_last=False), scores=[0.5], name="../up/acc")

        assert files(tmp_path) == {"epoch_1.pth", "best_up_acc.pth"}
        assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()] == []

    def test_a_metric_with_a_name_that_is_too_long_for_a_file_has_one(self, tmp_path: Path) -> None:
        metric = "率" * 100
        run = train(tmp_path, CheckpointHook(best_metric=metric, rule="greater"), scores=[0.5, 0.7], name=metric)

        assert epoch_of(tmp_path / "checkpoints" / f"best_{'率' * 60}.pth") == 2
        assert list(run.best) == [f"val/{metric}"]

    def test_the_validation_before_training_counts_for_nothing(self, tmp_path: Path) -> None:
        class Early(Hook):
            def before_run(self, run: Run) -> None:
                run.request_validation("before training")

        scores = {0: 0.99, 1: 0.5, 2: 0.6}
        run = fake_training(
            [CheckpointHook(), Early()], epochs=2, scores=lambda e: {"accuracy": scores[e]}, work_dir=tmp_path
        ).run

        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.6, 2)


class Killed(BaseException):
    """Stands for SIGKILL."""


def die_at(name: str, time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the process when a file is to get this name for the so-many-th time."""
    real, replaced = os.replace, []

    def replace(source: Any, target: Any) -> None:
        replaced.append(Path(target).name)
        if Path(target).name == name and replaced.count(name) == time:
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


class TestASaveThatWasCutOff:
    SCORES = (0.5, 0.9, 0.7)

    def go_on_after(self, name: str, directory: Path, **options: Any) -> Run:
        """Die where the file of epoch 2 is there and is to get a further name; then go on."""
        with pytest.MonkeyPatch.context() as patch:
            die_at(name, 2, patch)
            with pytest.raises(Killed):
                train(directory, CheckpointHook(), scores=self.SCORES)
        assert epoch_of(directory / "checkpoints" / name) == 1
        return train(directory, CheckpointHook(), scores=self.SCORES, resume="auto", **options)

    def test_is_made_up_for_where_the_best_lacked_its_name(self, tmp_path: Path) -> None:
        run = self.go_on_after("best_accuracy.pth", tmp_path)

        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.9, 2)
        assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 2
        assert files(tmp_path) == {"epoch_1.pth", "epoch_2.pth", "epoch_3.pth", "best_accuracy.pth", "last.pth"}

    @pytest.mark.parametrize("name", ["best_accuracy.pth", "last.pth"])
    def test_is_made_up_for_where_nothing_is_left_to_train(self, tmp_path: Path, name: str) -> None:
        self.go_on_after(name, tmp_path, epochs=2)

        assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 2
        assert epoch_of(tmp_path / "checkpoints/last.pth") == 2


class TestTheFileOfTheBest:
    def test_that_holds_a_later_one_is_not_that_of_a_run_from_an_older_checkpoint(self, tmp_path: Path) -> None:
        """The best of epoch 1 has its own file in the new place: that of the old place holds epoch 2."""
        train(tmp_path / "a", CheckpointHook(), scores=[0.5, 0.9])
        run = train(
            tmp_path / "b", CheckpointHook(), scores=[0.5, 0.3], resume=tmp_path / "a" / "checkpoints/epoch_1.pth"
        )

        assert run.best["val/accuracy"].path == tmp_path / "b" / "checkpoints/best_accuracy.pth"
        assert epoch_of(tmp_path / "b" / "checkpoints/best_accuracy.pth") == 1
        assert epoch_of(tmp_path / "a" / "checkpoints/best_accuracy.pth") == 2

    def test_that_was_deleted_is_told_of_and_the_score_stays(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.9, 0.5])
        (tmp_path / "checkpoints/best_accuracy.pth").unlink()
        run = train(tmp_path, CheckpointHook(), scores=[0.9, 0.5, 0.6], resume="auto")

        assert "No file holds the best val/accuracy, 0.9 of epoch 1, any more." in caplog.messages
        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].path) == (0.9, None)

    def test_is_left_alone_where_it_is_as_it_should_be(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.9, 0.5])
        generation = verify(tmp_path / "checkpoints/best_accuracy.pth").generation
        train(tmp_path, CheckpointHook(), scores=[0.9, 0.5, 0.6], resume="auto")

        assert verify(tmp_path / "checkpoints/best_accuracy.pth").generation == generation
        assert not [message for message in caplog.messages if "best" in message]


class Wants(Hook):
    """A hook that needs the best of some metrics."""

    def __init__(self, **rules: Any) -> None:
        super().__init__()
        self.rules = rules

    @property
    def keeps_best_of(self) -> Mapping[str, Any]:
        return self.rules


class TestBestOfOtherHooks:
    @pytest.mark.parametrize("first", [True, False])
    def test_is_kept_besides_its_own(self, tmp_path: Path, first: bool) -> None:
        own, wants = CheckpointHook(best_metric="loss"), Wants(score="less", accuracy=None)
        results = [{"loss": 0.5, "score": 0.2, "accuracy": 0.5}, {"loss": 0.4, "score": 0.3, "accuracy": 0.4}]
        hooks = [own, wants] if first else [wants, own]
        fake_training(hooks, epochs=2, scores=lambda epoch: results[epoch - 1], work_dir=tmp_path)

        best = {path.name: epoch_of(path) for path in (tmp_path / "checkpoints").glob("best_*.pth")}
        assert best == {"best_loss.pth": 2, "best_score.pth": 1, "best_accuracy.pth": 1}

    def test_is_one_file_where_it_is_its_own_under_another_name(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), Wants(**{"val/accuracy": None}), scores=[0.5, 0.9])
        assert {name for name in files(tmp_path) if name.startswith("best")} == {"best_accuracy.pth"}

    def test_is_not_kept_where_no_best_is(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_best=False), Wants(accuracy=None), scores=[0.5, 0.9])
        assert not [name for name in files(tmp_path) if name.startswith("best")]

    def test_that_is_missing_is_an_error_that_lists_what_there_is(self, tmp_path: Path) -> None:
        with pytest.raises(MetricError, match=r"no metric 'f1'. Available: val/accuracy"):
            train(tmp_path, CheckpointHook(), Wants(f1=None), scores=[0.5])

    def test_never_shares_the_file_of_another_metric(self, tmp_path: Path) -> None:
        hooks = [CheckpointHook(best_metric="acc 1", rule="greater"), Wants(acc_1="greater")]
        with pytest.raises(ConfigError, match=r"val/acc 1 and val/acc_1 would both be best_acc_1\.pth\. Give one"):
            fake_training(hooks, epochs=1, scores=lambda _: {"acc 1": 0.5, "acc_1": 0.6}, work_dir=tmp_path)
        assert files(tmp_path) == set()

    def test_with_another_direction_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"wants: less is better of 'accuracy', but another hook says otherwise"):
            train(tmp_path, CheckpointHook(), Wants(accuracy="less"), scores=[0.5])


class TestWhen:
    def test_every_second_epoch_and_the_last_file_is_the_end(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(interval=2), epochs=5)

        assert files(tmp_path) == {"epoch_2.pth", "epoch_4.pth", "last.pth"}
        assert epoch_of(tmp_path / "checkpoints/last.pth") == 5

    def test_by_iteration(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(interval=4, by_epoch=False, save_last=False), epochs=3, batches=3)

        assert files(tmp_path) == {"iter_4.pth", "iter_8.pth"}

    def test_less_often_by_the_frequency_that_every_hook_has(self, tmp_path: Path) -> None:
        train(tmp_path / "a", CheckpointHook(frequency=2, save_last=False), epochs=5)
        train(tmp_path / "b", CheckpointHook(interval=2, by_epoch=False, frequency=3, save_last=False), epochs=3)

        assert files(tmp_path / "a") == {"epoch_2.pth", "epoch_4.pth"}
        assert files(tmp_path / "b") == {"iter_6.pth"}

    def test_no_periodic_files_leaves_best_and_last(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(interval=None), scores=[0.5, 0.4])

        assert files(tmp_path) == {"best_accuracy.pth", "last.pth"}
        assert epoch_of(tmp_path / "checkpoints/best_accuracy.pth") == 1

    def test_an_early_stop_leaves_a_last_file_of_its_place(self, tmp_path: Path) -> None:
        class Stop(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 2:
                    run.request_stop("enough")

        train(tmp_path, CheckpointHook(interval=50), Stop(), epochs=3)

        loop = read_checkpoint(tmp_path / "checkpoints/last.pth")["loop"]["clock"]
        assert (loop["epochs_done"], loop["iters_done"], loop["epoch_open"]) == (0, 2, True)

    def test_a_save_that_another_hook_asks_for_is_the_last_file(self, tmp_path: Path) -> None:
        class Ask(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 2:
                    run.request_save("please")

        train(tmp_path, CheckpointHook(interval=None, save_best=False, save_last=False), Ask(), epochs=1)

        assert files(tmp_path) == {"iter_2.pth"}

    def test_requests_of_one_boundary_are_one_file(self, tmp_path: Path) -> None:
        saved: list[tuple[str, bool]] = []

        class Watch(Hook):
            def after_save_checkpoint(self, path: Path, is_best: bool) -> None:
                saved.append((path.name, is_best))

        train(tmp_path, CheckpointHook(), Watch(), scores=[0.5, 0.4])

        assert saved == [("epoch_1.pth", True), ("epoch_2.pth", False)]

    def test_nothing_is_saved_when_only_validating(self, tmp_path: Path) -> None:
        from torch import nn

        from hookbus.loop import Trainer

        trainer = Trainer(
            nn.Linear(2, 2),
            loss_fn=nn.functional.cross_entropy,
            val_loader=[(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))],
            metrics=["accuracy"],
            hooks=[CheckpointHook()],
            default_hooks=False,
            work_dir=tmp_path,
        )
        metrics = trainer.validate()

        assert metrics["accuracy"] >= 0
        assert not (tmp_path / "checkpoints").exists()

    def test_without_a_work_dir_it_says_what_to_give(self) -> None:
        with pytest.raises(CheckpointError, match="give work_dir to the run, or out_dir to this hook"):
            fake_training([CheckpointHook()])


class TestContent:
    def test_optimizer_and_scheduler_can_be_left_out(self, tmp_path: Path) -> None:
        train(tmp_path / "with", CheckpointHook(), epochs=1)
        train(tmp_path / "without", CheckpointHook(save_optimizer=False), epochs=1)

        assert "optimizer" in read_checkpoint(tmp_path / "with/checkpoints/last.pth")
        assert "optimizer" not in read_checkpoint(tmp_path / "without/checkpoints/last.pth")

    def test_a_best_file_can_be_resumed(self, tmp_path: Path) -> None:
        train(tmp_path / "a", CheckpointHook(), scores=[0.9, 0.1])
        run = train(
            tmp_path / "b",
            CheckpointHook(),
            scores=[0.9, 0.1, 0.2],
            resume=tmp_path / "a/checkpoints/best_accuracy.pth",
        )

        assert (run.epochs_done, run.outcome) == (3, "finished")


class TestTrouble:
    def test_a_save_that_fails_leaves_the_older_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real, count = torch.save, 0

        def full_disk(value: Any, file: Any) -> None:
            nonlocal count
            count += 1
            if count == 2:
                file.write(b"half of it")
                raise OSError(errno.ENOSPC, "No space left on device")
            real(value, file)

        monkeypatch.setattr(torch, "save", full_disk)
        with pytest.raises(CheckpointError, match="epoch_2.pth could not be written: .*No space left.*untouched"):
            train(tmp_path, CheckpointHook(max_keep_ckpts=1), scores=[0.5, 0.9])

        assert files(tmp_path) == {"epoch_1.pth", "best_accuracy.pth", "last.pth"}
        assert epoch_of(tmp_path / "checkpoints/last.pth") == 1
        assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")] == []

    def test_a_damaged_newest_file_is_passed_over_and_reported(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        train(tmp_path, CheckpointHook(save_last=False, save_best=False), epochs=3)
        path = tmp_path / "checkpoints/epoch_3.pth"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

        with caplog.at_level("WARNING", logger="hookbus"):
            run = train(tmp_path, CheckpointHook(save_last=False, save_best=False), epochs=4, resume="auto")

        assert run.iters_done == 12
        assert "epoch_3.pth: damaged" in caplog.text

    def test_a_damaged_file_that_was_named_is_an_error(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), epochs=1)
        path = tmp_path / "checkpoints/epoch_1.pth"
        path.write_bytes(path.read_bytes()[:-1])

        with pytest.raises(CheckpointError, match="damaged"):
            train(tmp_path / "again", CheckpointHook(), epochs=2, resume=path)
