"""Checkpoints of a training: names, retention, best, schedule, content, and errors."""

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus._run.run import Run
from hookbus.checkpoint.sidecars import verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointError, ConfigError, MetricError, WorkDirError
from hookbus.testing import check_hook, fake_training
from hookbus_checkpoint import CheckpointHook


def train(
    directory: Path, *hooks: object, scores: Sequence[float | None] = (), name: str = "accuracy", **options: Any
) -> Run:
    """Train one epoch per score; None is an epoch whose validation lacks the metric."""

    def results(epoch: int) -> Mapping[str, float]:
        score = scores[epoch - 1]
        return {"other": 1.0} if score is None else {name: score}

    options.setdefault("epochs", len(scores) or 2)
    return fake_training(hooks, scores=results if scores else None, work_dir=directory, **options).run


def list_files(directory: Path) -> set[str]:
    """Verify the checkpoints of a work directory, and return their names."""
    paths = list((directory / "checkpoints").glob("*.pth"))
    for path in paths:
        verify(path)
    return {path.name for path in paths}


def load_epoch(path: Path) -> int:
    return int(read_checkpoint(path)["meta"]["epoch"])


def read_files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_hook_passes_the_conformance_check() -> None:
    check_hook(CheckpointHook)


def test_hook_writes_a_file_per_epoch_the_best_and_the_last(tmp_path: Path) -> None:
    run = train(tmp_path, CheckpointHook(), scores=[0.5, 0.9, 0.7])

    assert list_files(tmp_path) == {"epoch_1.pth", "epoch_2.pth", "epoch_3.pth", "best_accuracy.pth", "last.pth"}
    assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 2
    assert load_epoch(tmp_path / "checkpoints/last.pth") == 3
    assert run.best["val/accuracy"].path == tmp_path / "checkpoints/best_accuracy.pth"


def test_best_and_last_are_hard_links_of_one_file(tmp_path: Path) -> None:
    train(tmp_path, CheckpointHook(), scores=[0.5])

    inodes = {path.stat().st_ino for path in (tmp_path / "checkpoints").glob("*.pth")}
    assert len(inodes) == 1


@pytest.mark.parametrize(
    ("settings", "metrics", "requires_validation"),
    [
        ({}, [], False),
        ({"save_best": True, "best_metric": "accuracy"}, [], False),
        ({"save_best": "accuracy"}, ["accuracy"], True),
        ({"best_metric": "f1"}, ["f1"], True),
        ({"save_best": ["loss", "f1"]}, ["loss", "f1"], True),
        ({"save_best": "loss"}, ["loss"], True),
        ({"save_best": "auto"}, [], True),
        ({"save_best": False, "best_metric": "accuracy"}, [], False),
    ],
)
def test_every_metric_but_the_default_one_is_required(
    settings: dict[str, Any], metrics: list[str], requires_validation: bool
) -> None:
    hook = CheckpointHook(settings)
    assert (hook.required_metrics, hook.requires_validation) == (metrics, requires_validation)


class TestRetention:
    def test_retention_compares_numbers_numerically(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=3, save_best=False, save_last=False), epochs=12)

        assert list_files(tmp_path) == {"epoch_10.pth", "epoch_11.pth", "epoch_12.pth"}

    def test_best_is_kept_regardless_of_its_age(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=1), scores=[0.2, 0.9, 0.5, 0.4])

        assert list_files(tmp_path) == {"epoch_4.pth", "best_accuracy.pth", "last.pth"}
        assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 2

    def test_latest_file_exists_after_each_save(self, tmp_path: Path) -> None:
        saves = []

        class SaveRecorder(Hook):
            def after_save_checkpoint(self, run: Run, path: Path) -> None:
                verify(path)
                saves.append((path.name, len(list(path.parent.glob("epoch_*.pth")))))

        train(tmp_path, CheckpointHook(max_keep_ckpts=2), SaveRecorder(), scores=[0.9, 0.5, 0.4, 0.3, 0.2, 0.1])

        assert [name for name, _ in saves] == [f"epoch_{n}.pth" for n in range(1, 7)]
        assert max(count for _, count in saves) == 2

    def test_resumed_run_removes_the_files_of_its_first_part(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=2), epochs=3)
        train(tmp_path, CheckpointHook(max_keep_ckpts=2), epochs=5, resume="auto")

        assert {name for name in list_files(tmp_path) if name.startswith("epoch")} == {"epoch_4.pth", "epoch_5.pth"}

    def test_files_of_the_resumed_run_in_another_directory_are_kept(self, tmp_path: Path) -> None:
        first, second = tmp_path / "a", tmp_path / "b"
        train(first, CheckpointHook(), epochs=3)
        train(second, CheckpointHook(max_keep_ckpts=1), epochs=5, resume=first / "checkpoints/epoch_3.pth")

        assert "epoch_3.pth" in list_files(first)
        assert {name for name in list_files(second) if name.startswith("epoch")} == {"epoch_5.pth"}

    def test_foreign_files_in_the_directory_are_not_modified(self, tmp_path: Path) -> None:
        foreign = tmp_path / "elsewhere" / "epoch_0.pth"
        foreign.parent.mkdir()
        foreign.write_bytes(b"foreign")
        train(tmp_path / "run", CheckpointHook(max_keep_ckpts=1, out_dir=str(foreign.parent)), epochs=3)

        assert foreign.read_bytes() == b"foreign"
        assert (foreign.parent / "epoch_3.pth").exists()
        assert not (foreign.parent / "epoch_2.pth").exists()

    def test_foreign_file_with_a_checkpoint_name_is_neither_overwritten_nor_removed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = tmp_path / "checkpoints"
        folder.mkdir()
        foreign = {folder / name for name in ("epoch_2.pth", "last.pth", "best_accuracy.pth", "model.safetensors")}
        for path in foreign:
            path.write_text("mine")
        run = train(tmp_path, CheckpointHook(max_keep_ckpts=1, publish=True), scores=[0.5, 0.9, 0.7])

        assert {path.read_text() for path in foreign} == {"mine"}
        names = {path.name for path in folder.iterdir() if path.suffix != ".json"} - {path.name for path in foreign}
        assert names == {"epoch_3.pth", "last-2.pth", "best_accuracy-2.pth", "model-2.safetensors"}
        assert run.best["val/accuracy"].path == folder / "best_accuracy-2.pth"
        for path in foreign:
            messages = [text for text in caplog.messages if text.startswith(f"{path} was not written by this run")]
            assert len(messages) == 1, path
        assert train(tmp_path, CheckpointHook(), scores=[0.5, 0.9, 0.7, 0.6], resume="auto").epochs_done == 4

    def test_file_without_sidecar_is_foreign_after_a_resume(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_last=False, save_best=False), epochs=3)
        (tmp_path / "checkpoints" / "epoch_3.pth.json").unlink()
        train(tmp_path, CheckpointHook(max_keep_ckpts=1, save_last=False, save_best=False), epochs=3, resume="auto")

        names = {path.name for path in (tmp_path / "checkpoints").glob("*.pth")}
        assert names == {"epoch_3.pth", "epoch_3-2.pth"}

    def test_overwrite_removes_the_files_of_the_run_in_out_dir(self, tmp_path: Path) -> None:
        def train_in_out_dir(epochs: int, **options: Any) -> Run:
            return train(tmp_path / "run", CheckpointHook(out_dir=str(tmp_path / "out")), epochs=epochs, **options)

        train_in_out_dir(3)
        (tmp_path / "out" / "notes.pth").write_text("mine")
        train_in_out_dir(1, overwrite=True)

        names = {path.name for path in (tmp_path / "out").glob("*.pth")}
        assert names == {"epoch_1.pth", "last.pth", "notes.pth"}
        assert train_in_out_dir(2, resume="auto").iters_done == 2 * train_in_out_dir(1, overwrite=True).iters_done

    @pytest.mark.parametrize("missing", ["a", "b"])
    def test_resume_with_two_hooks_searches_both_directories(self, tmp_path: Path, missing: str) -> None:
        started_at: list[int] = []

        class Recorder(Hook):
            def before_train(self, run: Run) -> None:
                started_at.append(run.iters_done)

        def train_with_two_hooks(epochs: int, **options: Any) -> Run:
            hooks = [CheckpointHook(name=name, out_dir=str(tmp_path / name)) for name in "ab"]
            return train(tmp_path / "run", *hooks, Recorder(), epochs=epochs, **options)

        first = train_with_two_hooks(2)
        (tmp_path / missing).rename(tmp_path / "moved")
        train_with_two_hooks(3, resume="auto")
        assert started_at == [0, first.iters_done]

    @pytest.mark.parametrize("is_link", [False, True])
    def test_resume_without_the_checkpoint_directory_creates_no_directory(self, tmp_path: Path, is_link: bool) -> None:
        train(tmp_path, CheckpointHook(), epochs=2)
        checkpoints = tmp_path / "checkpoints"
        checkpoints.rename(tmp_path / "moved")
        if is_link:
            checkpoints.symlink_to(tmp_path / "not-mounted")
        with pytest.raises(ConfigError, match="no checkpoint of that run was found in"):
            train(tmp_path, CheckpointHook(), epochs=3, resume="auto")
        assert (checkpoints.exists(), checkpoints.is_symlink()) == (False, is_link)

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_directory_with_files_of_another_run_is_an_error_at_the_start(
        self, tmp_path: Path, overwrite: bool
    ) -> None:
        def train_in_out_dir(work_dir: str = "run", **options: Any) -> Run:
            return train(tmp_path / work_dir, CheckpointHook(out_dir=str(tmp_path / "out")), epochs=1, **options)

        train_in_out_dir("other")
        before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        with pytest.raises(
            CheckpointError,
            match=r"/out contains checkpoints of another run: epoch_1.pth, last.pth. Resume that run, move its",
        ):
            train_in_out_dir(overwrite=overwrite)
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before

    def test_directory_of_an_active_run_is_an_error_at_the_start(self, tmp_path: Path) -> None:
        messages: list[str] = []

        class OtherRun(Hook):
            def after_train_epoch(self, run: Run) -> None:
                with pytest.raises(WorkDirError, match="in use by an active run .*set another out_dir") as error:
                    train(tmp_path / "other", CheckpointHook(out_dir=str(tmp_path / "out")), epochs=1)
                messages.append(str(error.value))

        train(tmp_path / "run", CheckpointHook(out_dir=str(tmp_path / "out")), OtherRun(), epochs=2)

        assert len(messages) == 2
        assert {path.name for path in (tmp_path / "out").glob("*.pth")} == {"epoch_1.pth", "epoch_2.pth", "last.pth"}

    def test_two_hooks_of_one_run_may_share_a_directory(self, tmp_path: Path) -> None:
        hooks = [
            CheckpointHook(name="epochs", out_dir=str(tmp_path / "out")),
            CheckpointHook(name="often", out_dir=str(tmp_path / "out"), interval=2, by_epoch=False, max_keep_ckpts=1),
        ]
        train(tmp_path / "run", *hooks, epochs=2, batches=3)

        generations = {path.name: verify(path).generation for path in (tmp_path / "out").glob("*.pth")}
        assert sorted(generations) == ["epoch_1.pth", "epoch_2.pth", "iter_6.pth", "last.pth"]
        assert generations["iter_6.pth"] < generations["epoch_2.pth"]

    def test_all_files_are_kept_with_null(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(max_keep_ckpts=None, save_last=False), epochs=7)

        assert list_files(tmp_path) == {f"epoch_{n}.pth" for n in range(1, 8)}


class TestBest:
    def test_resumed_run_keeps_the_best_of_its_first_part(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.5, 0.9])
        run = train(tmp_path, CheckpointHook(), scores=[0.5, 0.9, 0.6, 0.7], resume="auto")

        assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 2
        assert run.best["val/accuracy"].value == 0.9

    def test_resume_with_another_direction_resets_the_best_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def train_dice(*scores: float, **settings: Any) -> Run:
            return train(
                tmp_path, CheckpointHook(settings), scores=scores, name="dice", resume="auto", epochs=len(scores)
            )

        train_dice(0.2, 0.9, best_metric="dice", rule="greater")
        best = train_dice(0.2, 0.9, 0.96, 0.95, best_metric="dice", rule="less").best["val/dice"]

        assert (best.value, best.epoch) == (0.95, 4)
        assert load_epoch(tmp_path / "checkpoints/best_dice.pth") == 4
        assert caplog.messages == ["The direction of val/dice changed from greater to less; its best result is reset."]

    def test_resume_with_another_metric_keeps_the_best_of_the_first(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.9])
        run = train(
            tmp_path,
            CheckpointHook(best_metric="other", rule="less"),
            scores=[None, None],
            resume="auto",
        )

        assert (run.best["val/accuracy"].value, run.best["val/other"].value) == (0.9, 1.0)

    def test_last_file_contains_the_latest_best_result(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.5, 0.9])

        best = read_checkpoint(tmp_path / "checkpoints/last.pth")["loop"]["best"]["val/accuracy"]
        assert best["value"] == 0.9
        assert best["epoch"] == 2
        assert Path(best["path"]).name == "best_accuracy.pth"

    def test_best_is_tracked_without_retention(self, tmp_path: Path) -> None:
        run = train(tmp_path, CheckpointHook(max_keep_ckpts=None), scores=[0.3, 0.8, 0.5])

        assert run.best["val/accuracy"].epoch == 2
        assert len([name for name in list_files(tmp_path) if name.startswith("epoch")]) == 3

    def test_second_loop_on_the_same_bus_keeps_the_best(self, tmp_path: Path) -> None:
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
        assert load_epoch(tmp_path / "checkpoints/best_loss.pth") == 3

    def test_nan_scores_result_in_no_best_file(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[float("nan")] * 2)

        assert "best_accuracy.pth" not in list_files(tmp_path)

    def test_best_within_an_epoch_has_the_number_of_that_epoch(self, tmp_path: Path) -> None:
        """Early stopping and the log use the same number."""
        scores = iter([0.5, 0.4, 0.9, 0.4])  # after iterations 2, 3, 5 and 6

        class ValidationRequester(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done in (2, 5):
                    run.request_validation()

        hooks = [CheckpointHook(), ValidationRequester()]
        run = fake_training(hooks, scores=lambda _: {"accuracy": next(scores)}, work_dir=tmp_path).run
        best = run.best["val/accuracy"]
        assert (best.value, best.epoch, best.step) == (0.9, 2, 5)

    def test_tie_keeps_the_older_file(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.5, 0.5])

        assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 1

    def test_score_of_zero_is_valid(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.0])

        assert "best_accuracy.pth" in list_files(tmp_path)

    def test_metric_missing_in_some_validations_is_skipped(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(best_metric="accuracy"), scores=[0.5, None, 0.7])

        assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 3

    def test_missing_required_metric_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(MetricError, match="'accuracy'.* val/other"):
            train(tmp_path, CheckpointHook(save_best="accuracy"), scores=[None])

    @pytest.mark.parametrize("settings", [{}, {"save_best": True, "best_metric": "accuracy"}])
    def test_missing_default_metric_is_one_warning(
        self, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        train(tmp_path, CheckpointHook(settings, name="best"), scores=[None, None])

        assert [message for message in caplog.messages if "metric" in message] == [
            "best: Unknown metric 'accuracy'. Available: val/other. No best checkpoint is kept for it. Set "
            "`best_metric`."
        ]
        assert list_files(tmp_path) == {"epoch_1.pth", "epoch_2.pth", "last.pth"}

    @pytest.mark.parametrize(
        ("settings", "metrics"),
        [({"save_best": ["loss", "f1"]}, "'loss', 'f1'"), ({"save_best": "auto"}, "a metric"), ({}, None)],
    )
    def test_metric_of_a_run_without_validations_is_one_warning(
        self, settings: dict[str, Any], metrics: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        bus = HookBus([CheckpointHook(settings)])
        with bus.run(epochs=1, work_dir=tmp_path) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("after_train_iter")

        expected = f"checkpoint: no validation provided {metrics}; no best checkpoint was kept."
        assert [message for message in caplog.messages if "validation" in message] == [expected] * (metrics is not None)

    def test_each_metric_has_its_best_file(self, tmp_path: Path) -> None:
        results = [{"acc": 0.9, "loss": 0.5}, {"acc": 0.8, "loss": 0.4}]
        fake_training(
            [CheckpointHook(save_best=["acc", "loss"])], epochs=2, scores=lambda e: results[e - 1], work_dir=tmp_path
        )

        assert load_epoch(tmp_path / "checkpoints/best_acc.pth") == 1
        assert load_epoch(tmp_path / "checkpoints/best_loss.pth") == 2

    def test_auto_selects_the_first_metric_of_the_first_validation(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_best="auto"), scores=[0.5, 0.6])

        assert "best_val_accuracy.pth" in list_files(tmp_path)

    def test_auto_with_a_metric_without_direction_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="Set `rule`"):
            train(tmp_path, CheckpointHook(save_best="auto"), scores=[0.5], name="recall")

    def test_metric_with_slashes_does_not_leave_the_directory(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_best="../up/acc", save_last=False), scores=[0.5], name="../up/acc")

        assert list_files(tmp_path) == {"epoch_1.pth", "best_up_acc.pth"}
        assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()] == []

    def test_best_file_of_a_long_metric_name_is_truncated(self, tmp_path: Path) -> None:
        metric = "率" * 100
        run = train(tmp_path, CheckpointHook(best_metric=metric, rule="greater"), scores=[0.5, 0.7], name=metric)

        assert load_epoch(tmp_path / "checkpoints" / f"best_{'率' * 60}.pth") == 2
        assert list(run.best) == [f"val/{metric}"]

    def test_validation_before_training_is_ignored(self, tmp_path: Path) -> None:
        class SanityCheck(Hook):
            def before_run(self, run: Run) -> None:
                run.request_validation("before training")

        scores = {0: 0.99, 1: 0.5, 2: 0.6}
        run = fake_training(
            [CheckpointHook(), SanityCheck()], epochs=2, scores=lambda e: {"accuracy": scores[e]}, work_dir=tmp_path
        ).run

        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.6, 2)


class Killed(BaseException):
    """Simulation of SIGKILL."""


def kill_at_rename(name: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise `Killed` at the n-th rename to a name."""
    real, replaced = os.replace, []

    def replace(source: Any, target: Any) -> None:
        replaced.append(Path(target).name)
        if Path(target).name == name and replaced.count(name) == n:
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


class TestInterruptedSave:
    SCORES = (0.5, 0.9, 0.7)

    def kill_and_resume(self, name: str, directory: Path, **options: Any) -> Run:
        """Kill the run between the write of epoch 2 and the creation of its link, and resume it."""
        with pytest.MonkeyPatch.context() as patch:
            kill_at_rename(name, 2, patch)
            with pytest.raises(Killed):
                train(directory, CheckpointHook(), scores=self.SCORES)
        assert load_epoch(directory / "checkpoints" / name) == 1
        return train(directory, CheckpointHook(), scores=self.SCORES, resume="auto", **options)

    def test_missing_best_link_is_repaired_on_resume(self, tmp_path: Path) -> None:
        run = self.kill_and_resume("best_accuracy.pth", tmp_path)

        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.9, 2)
        assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 2
        assert list_files(tmp_path) == {"epoch_1.pth", "epoch_2.pth", "epoch_3.pth", "best_accuracy.pth", "last.pth"}

    @pytest.mark.parametrize("name", ["best_accuracy.pth", "last.pth"])
    def test_missing_links_of_a_completed_training_are_repaired(self, tmp_path: Path, name: str) -> None:
        self.kill_and_resume(name, tmp_path, epochs=2)

        assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 2
        assert load_epoch(tmp_path / "checkpoints/last.pth") == 2


class TestBestFile:
    def test_best_file_is_written_again_after_a_resume_from_an_older_checkpoint(self, tmp_path: Path) -> None:
        """The best file of the first run contains epoch 2, and the second run resumes from epoch 1."""
        train(tmp_path / "a", CheckpointHook(), scores=[0.5, 0.9])
        run = train(
            tmp_path / "b", CheckpointHook(), scores=[0.5, 0.3], resume=tmp_path / "a" / "checkpoints/epoch_1.pth"
        )

        assert run.best["val/accuracy"].path == tmp_path / "b" / "checkpoints/best_accuracy.pth"
        assert load_epoch(tmp_path / "b" / "checkpoints/best_accuracy.pth") == 1
        assert load_epoch(tmp_path / "a" / "checkpoints/best_accuracy.pth") == 2

    @pytest.mark.parametrize("out_dir", [None, "inside"])
    @pytest.mark.parametrize("change", [shutil.move, shutil.copytree])
    def test_renamed_or_copied_run_keeps_its_best_file(
        self, tmp_path: Path, change: Any, out_dir: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        def resume(name: str, scores: list[float], **options: Any) -> Run:
            settings = {} if out_dir is None else {"out_dir": str(tmp_path / name / out_dir)}
            return train(tmp_path / name, CheckpointHook(settings), scores=scores, **options)

        resume("a", [0.9, 0.5])
        change(tmp_path / "a", tmp_path / "b")
        before = read_files(tmp_path / "a")
        caplog.clear()
        run = resume("b", [0.9, 0.5, 0.6], resume="auto")

        best = run.best["val/accuracy"]
        assert (best.value, best.path) == (0.9, tmp_path / "b" / (out_dir or "checkpoints") / "best_accuracy.pth")
        assert best.path.exists()
        assert load_epoch(best.path) == 1
        assert [record for record in caplog.records if record.levelname == "WARNING"] == []
        assert read_files(tmp_path / "a") == before

    def test_best_file_beside_the_checkpoint_of_another_run_is_used(self, tmp_path: Path) -> None:
        train(tmp_path / "a", CheckpointHook(), scores=[0.9, 0.5])
        path = tmp_path / "a" / "checkpoints/epoch_2.pth"
        run = train(tmp_path / "b", CheckpointHook(), scores=[0.9, 0.5, 0.6], resume=path)
        assert run.best["val/accuracy"].path == tmp_path / "a" / "checkpoints/best_accuracy.pth"

    def test_deleted_best_file_is_logged_and_the_score_is_kept(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.9, 0.5])
        (tmp_path / "checkpoints/best_accuracy.pth").unlink()
        run = train(tmp_path, CheckpointHook(), scores=[0.9, 0.5, 0.6], resume="auto")

        assert "No checkpoint of the best val/accuracy is available (0.9 in epoch 1)." in caplog.messages
        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].path) == (0.9, None)

    def test_intact_best_file_is_not_written_again(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        train(tmp_path, CheckpointHook(), scores=[0.9, 0.5])
        generation = verify(tmp_path / "checkpoints/best_accuracy.pth").generation
        train(tmp_path, CheckpointHook(), scores=[0.9, 0.5, 0.6], resume="auto")

        assert verify(tmp_path / "checkpoints/best_accuracy.pth").generation == generation
        assert not [message for message in caplog.messages if "best" in message]


class BestRequester(Hook):
    """Hook that requests the best of metrics."""

    def __init__(self, **rules: Any) -> None:
        super().__init__()
        self.rules = rules

    @property
    def best_metrics(self) -> Mapping[str, Any]:
        return self.rules


class TestBestOfOtherHooks:
    @pytest.mark.parametrize("first", [True, False])
    def test_best_of_other_hooks_is_kept_in_addition(self, tmp_path: Path, first: bool) -> None:
        own, requester = CheckpointHook(best_metric="loss"), BestRequester(score="less", accuracy=None)
        results = [{"loss": 0.5, "score": 0.2, "accuracy": 0.5}, {"loss": 0.4, "score": 0.3, "accuracy": 0.4}]
        hooks = [own, requester] if first else [requester, own]
        fake_training(hooks, epochs=2, scores=lambda epoch: results[epoch - 1], work_dir=tmp_path)

        best = {path.name: load_epoch(path) for path in (tmp_path / "checkpoints").glob("best_*.pth")}
        assert best == {"best_loss.pth": 2, "best_score.pth": 1, "best_accuracy.pth": 1}

    def test_same_metric_under_two_names_has_one_file(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), BestRequester(**{"val/accuracy": None}), scores=[0.5, 0.9])
        assert {name for name in list_files(tmp_path) if name.startswith("best")} == {"best_accuracy.pth"}

    def test_best_of_other_hooks_is_not_kept_with_save_best_false(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(save_best=False), BestRequester(accuracy=None), scores=[0.5, 0.9])
        assert not [name for name in list_files(tmp_path) if name.startswith("best")]

    def test_missing_metric_of_another_hook_is_an_error_that_lists_the_metrics(self, tmp_path: Path) -> None:
        with pytest.raises(MetricError, match=r"'f1'.* val/accuracy"):
            train(tmp_path, CheckpointHook(), BestRequester(f1=None), scores=[0.5])

    def test_metrics_with_one_file_name_are_rejected(self, tmp_path: Path) -> None:
        hooks = [CheckpointHook(best_metric="acc 1", rule="greater"), BestRequester(acc_1="greater")]
        with pytest.raises(ConfigError, match=r"got best_acc_1\.pth for val/acc 1 and val/acc_1\. Rename one"):
            fake_training(hooks, epochs=1, scores=lambda _: {"acc 1": 0.5, "acc_1": 0.6}, work_dir=tmp_path)
        assert list_files(tmp_path) == set()

    def test_conflicting_direction_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"'best_requester': the direction of 'accuracy' must be greater .*, got less"
        ):
            train(tmp_path, CheckpointHook(), BestRequester(accuracy="less"), scores=[0.5])
        assert list(tmp_path.iterdir()) == []


class TestSchedule:
    def test_interval_counts_epochs_and_the_last_file_is_final(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(interval=2), epochs=5)

        assert list_files(tmp_path) == {"epoch_2.pth", "epoch_4.pth", "last.pth"}
        assert load_epoch(tmp_path / "checkpoints/last.pth") == 5

    def test_interval_counts_iterations(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(interval=4, by_epoch=False, save_last=False), epochs=3, batches=3)

        assert list_files(tmp_path) == {"iter_4.pth", "iter_8.pth"}

    def test_common_frequency_thins_out_the_schedule(self, tmp_path: Path) -> None:
        train(tmp_path / "a", CheckpointHook(frequency=2, save_last=False), epochs=5)
        train(tmp_path / "b", CheckpointHook(interval=2, by_epoch=False, frequency=3, save_last=False), epochs=3)

        assert list_files(tmp_path / "a") == {"epoch_2.pth", "epoch_4.pth"}
        assert list_files(tmp_path / "b") == {"iter_6.pth"}

    def test_interval_null_writes_only_best_and_last(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(interval=None), scores=[0.5, 0.4])

        assert list_files(tmp_path) == {"best_accuracy.pth", "last.pth"}
        assert load_epoch(tmp_path / "checkpoints/best_accuracy.pth") == 1

    def test_stop_within_an_epoch_writes_a_last_file(self, tmp_path: Path) -> None:
        class Stopper(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 2:
                    run.request_stop("enough")

        train(tmp_path, CheckpointHook(interval=50), Stopper(), epochs=3)

        loop = read_checkpoint(tmp_path / "checkpoints/last.pth")["loop"]["clock"]
        assert (loop["epochs_done"], loop["iters_done"], loop["epoch_open"]) == (0, 2, True)

    def test_save_requested_by_another_hook_is_written(self, tmp_path: Path) -> None:
        class SaveRequester(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 2:
                    run.request_save("please")

        train(tmp_path, CheckpointHook(interval=None, save_best=False, save_last=False), SaveRequester(), epochs=1)

        assert list_files(tmp_path) == {"iter_2.pth"}

    def test_requests_of_one_boundary_result_in_one_file(self, tmp_path: Path) -> None:
        saved: list[tuple[str, bool]] = []

        class SaveRecorder(Hook):
            def after_save_checkpoint(self, path: Path, is_best: bool) -> None:
                saved.append((path.name, is_best))

        train(tmp_path, CheckpointHook(), SaveRecorder(), scores=[0.5, 0.4])

        assert saved == [("epoch_1.pth", True), ("epoch_2.pth", False)]

    def test_validation_run_writes_no_checkpoints(self, tmp_path: Path) -> None:
        from torch import nn

        from hookbus.trainer.trainer import Trainer

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

    def test_missing_work_dir_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="requires a work directory, got none. Set `work_dir`, or set `out_dir`"):
            fake_training([CheckpointHook()])


class TestContent:
    def test_state_of_the_optimizer_can_be_omitted(self, tmp_path: Path) -> None:
        train(tmp_path / "with", CheckpointHook(), epochs=1)
        train(tmp_path / "without", CheckpointHook(save_optimizer=False), epochs=1)

        assert "optimizer" in read_checkpoint(tmp_path / "with/checkpoints/last.pth")
        assert "optimizer" not in read_checkpoint(tmp_path / "without/checkpoints/last.pth")

    def test_run_resumes_from_a_best_file(self, tmp_path: Path) -> None:
        train(tmp_path / "a", CheckpointHook(), scores=[0.9, 0.1])
        run = train(
            tmp_path / "b",
            CheckpointHook(),
            scores=[0.9, 0.1, 0.2],
            resume=tmp_path / "a/checkpoints/best_accuracy.pth",
        )

        assert (run.epochs_done, run.outcome) == (3, "finished")


class TestErrors:
    def test_failed_save_keeps_existing_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real, count = torch.save, 0

        def full_disk(value: Any, file: Any) -> None:
            nonlocal count
            count += 1
            if count == 2:
                file.write(b"half of it")
                raise OSError(errno.ENOSPC, "No space left on device")
            real(value, file)

        monkeypatch.setattr(torch, "save", full_disk)
        with pytest.raises(CheckpointError, match="epoch_2.pth could not be written: .*No space left.*unchanged"):
            train(tmp_path, CheckpointHook(max_keep_ckpts=1), scores=[0.5, 0.9])

        assert list_files(tmp_path) == {"epoch_1.pth", "best_accuracy.pth", "last.pth"}
        assert load_epoch(tmp_path / "checkpoints/last.pth") == 1
        assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")] == []

    def test_corrupted_latest_file_is_skipped_with_a_warning(
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
        assert "epoch_3.pth: corrupted" in caplog.text

    def test_explicitly_resumed_corrupted_file_is_an_error(self, tmp_path: Path) -> None:
        train(tmp_path, CheckpointHook(), epochs=1)
        path = tmp_path / "checkpoints/epoch_1.pth"
        path.write_bytes(path.read_bytes()[:-1])

        with pytest.raises(CheckpointError, match="corrupted"):
            train(tmp_path / "again", CheckpointHook(), epochs=2, resume=path)


class TestLoopWithoutEpochs:
    @pytest.mark.parametrize(
        ("settings", "when"),
        [({}, "only at the end of the training"), ({"save_last": False}, "only on request")],
    )
    def test_hook_that_counts_epochs_states_once_when_it_saves(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], when: str
    ) -> None:
        bus = HookBus([CheckpointHook({"save_best": False} | settings)])
        with bus.run(model=torch.nn.Linear(1, 1), work_dir=tmp_path):
            bus.emit("after_train_iter")
            messages = [message for message in caplog.messages if "checkpoints are saved" in message]
            bus.emit("after_train_iter")
        assert [message for message in caplog.messages if "checkpoints are saved" in message] == messages
        assert messages[0].startswith(f"checkpoint: checkpoints are saved {when}, because `by_epoch` is true")
        assert list(bus.hooks) == ["checkpoint"]

    @pytest.mark.parametrize("settings", [{"by_epoch": False}, {"every": "1h"}, {"interval": None}])
    def test_hook_that_counts_no_epochs_states_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
    ) -> None:
        bus = HookBus([CheckpointHook({"save_best": False} | settings)])
        with bus.run(model=torch.nn.Linear(1, 1), work_dir=tmp_path):
            bus.emit("after_train_iter")
        assert not any("checkpoints are saved" in message for message in caplog.messages)

    def test_loop_with_epochs_needs_no_statement(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        bus = HookBus([CheckpointHook(save_best=False)])
        with bus.run(model=torch.nn.Linear(1, 1), epochs=1, work_dir=tmp_path):
            for point in ("before_train_epoch", "after_train_iter", "after_train_epoch"):
                bus.emit(point)
        assert not any("checkpoints are saved" in message for message in caplog.messages)
