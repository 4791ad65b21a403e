"""`fast_dev_run`: one epoch of a few batches that writes and resumes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from hookbus import Hook, Run, Trainer, hookimpl, once
from hookbus.errors import ConfigError
from hookbus.writers import Writer, WriterHook
from tests import toys


class ScalarWriter:
    def write_scalar(self, name: str, value: float, step: int) -> None:
        raise AssertionError("a writer was used")


class Tracker(WriterHook):
    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        raise AssertionError("a writer was created")


class FileHook(Hook):
    requires_work_dir = True

    def before_run(self) -> None:
        raise AssertionError("a hook that writes files was called")


class PathHook(FileHook):
    requires_work_dir = False

    output_paths = MappingProxyType({"path": "a"})


class StoppingHook(Hook):
    stops_training = True

    def before_run(self) -> None:
        raise AssertionError("a hook that stops the training was called")


class CountHook(Hook):
    """Count the events, request a checkpoint, and continue."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def after_train_iter(self, run: Run) -> None:
        self.events.append("train")
        run.request_save("requested")

    def after_val_iter(self) -> None:
        self.events.append("val")

    def after_test_iter(self) -> None:
        self.events.append("test")


def dev_trainer(*hooks: Hook, **options: Any) -> Trainer:
    loaders = {f"{kind}_loader": toys.pairs(5) for kind in ("train", "val", "test")}
    return toys.trainer(*hooks, **{**loaders, "epochs": 7, "fast_dev_run": True, **options})


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


class TestBatches:
    @pytest.mark.parametrize(("value", "batches"), [(True, 1), (1, 1), (3, 3), (99, 5)])
    def test_one_epoch_of_n_batches(self, value: int, batches: int) -> None:
        hook = CountHook()
        trainer = dev_trainer(toys.Saver(), hook, fast_dev_run=value)
        run = trainer.fit()
        trainer.test()

        assert hook.events == ["train"] * batches + ["val"] * batches + ["test"] * batches
        assert (run.epochs_done, run.outcome) == (1, "finished")

    @pytest.mark.parametrize("value", [False, 0])
    def test_false_is_a_full_run(self, value: int) -> None:
        assert dev_trainer(fast_dev_run=value).fit().iters_done == 35

    def test_limit_in_iterations_and_that_of_fit_are_replaced(self) -> None:
        assert dev_trainer(epochs=None, iterations=100).fit().iters_done == 1
        assert dev_trainer().fit(epochs=4).iters_done == 1
        assert dev_trainer(epochs=None).fit().iters_done == 1

    def test_disabled_loader_stays_disabled(self) -> None:
        hook = CountHook()
        dev_trainer(toys.Saver(), hook, limit_val_batches=0, limit_train_batches=0.5).fit()
        assert hook.events == ["train"]

    def test_overfitted_batches_are_in_order(self) -> None:
        assert dev_trainer(overfit_batches=3).fit().iters_done == 1


class TestHooks:
    @pytest.mark.parametrize("make", [Tracker, FileHook, PathHook, StoppingHook, toys.Saver], ids=["writer", *"fpsc"])
    def test_hook_is_omitted_by_its_class(self, make: Callable[[], Hook]) -> None:
        hook = make()
        trainer = dev_trainer(hook)

        assert hook not in trainer.bus.hooks.values()
        assert f"Omitted hooks: {hook.name}." in trainer.short_run.describe()
        trainer.fit()

    def test_hook_without_files_participates(self) -> None:
        class Probe(Hook):
            output_paths = MappingProxyType({"path": None})
            seen = 0

            def after_epoch(self) -> None:
                self.seen += 1

        probe = Probe()
        dev_trainer(probe).fit()
        assert probe.seen == 1

    def test_hook_that_is_registered_later_is_omitted(self) -> None:
        trainer = dev_trainer()
        trainer.register_hook(FileHook())
        trainer.bus.register(StoppingHook())
        trainer.fit()
        assert dict(trainer.bus.hooks) == {}

    def test_checkpoint_that_a_hook_requests_is_discarded(self) -> None:
        saver = toys.Saver()
        dev_trainer(saver, CountHook()).fit()
        assert saver.files == []

    def test_request_fails_as_in_the_full_run_if_no_hook_saves(self) -> None:
        with pytest.raises(Exception, match="no hook writes checkpoints"):
            dev_trainer(CountHook()).fit()

    def test_writer_that_the_user_provides_is_not_used(self) -> None:
        trainer = dev_trainer()
        trainer.register_service("writer", ScalarWriter())
        trainer.bus.on("after_epoch")(lambda run: run.get("writer").write_scalar("x", 1.0, 0))
        trainer.fit()

    def test_full_run_keeps_all_hooks(self) -> None:
        hooks = [toys.Saver(), StoppingHook()]
        assert list(dev_trainer(*hooks, fast_dev_run=False).bus.hooks.values()) == hooks


class TestFiles:
    def test_nothing_is_written(self, tmp_path: Path) -> None:
        dev_trainer(toys.Saver(), CountHook(), work_dir=tmp_path / "x").fit()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("options", [{"resume": "auto"}, {"overwrite": True}, {}], ids=str)
    def test_existing_run_is_neither_resumed_nor_erased(self, options: dict[str, Any], tmp_path: Path) -> None:
        dev_trainer(toys.Saver(), work_dir=tmp_path / "x", fast_dev_run=False).fit()
        before = tree(tmp_path)
        run = dev_trainer(toys.Saver(), CountHook(), work_dir=tmp_path / "x", **options).fit()

        assert tree(tmp_path) == before
        assert before
        assert run.iters_done == 1
        assert not run.resumed

    def test_explicit_checkpoint_is_not_resumed(self, tmp_path: Path) -> None:
        saver = toys.Saver("after_epoch")
        dev_trainer(saver, work_dir=tmp_path / "x", fast_dev_run=False, epochs=1).fit()
        assert dev_trainer(resume=str(saver.files[0])).fit().iters_done == 1


class TestReports:
    def test_announcement(self, caplog: pytest.LogCaptureFixture) -> None:
        dev_trainer(toys.Saver(), limit_test_batches=0).fit()
        assert caplog.messages[0] == (
            "fast_dev_run: one epoch, and no file is written or read in the work directory. train: 1 of 5 batches "
            "(fast_dev_run=1); val: 1 of 5 batches (fast_dev_run=1); test: no batches (limit_test_batches=0). Omitted "
            "hooks: saver."
        )

    def test_schedule_for_the_full_length_is_not_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        class Late(Hook):
            @hookimpl(when=once(30))
            def after_train_iter(self) -> None: ...

        class Idle(Hook): ...

        dev_trainer(Late(), Idle()).fit()
        assert [text.split()[1] for text in caplog.messages if text.startswith("hook ")] == ["'idle'"]

    def test_check_omits_the_hooks_as_well(self) -> None:
        lines = dev_trainer(FileHook()).check()
        assert "limit: 1 epoch" in lines
        assert any(line.startswith("fast_dev_run: one epoch") for line in lines)

    def test_errors_of_the_full_run_are_found(self) -> None:
        class Broken(Hook):
            def check(self, run: Run) -> None:
                raise ConfigError(["broken"])

            def after_epoch(self) -> None: ...

        with pytest.raises(ConfigError, match="broken"):
            dev_trainer(Broken()).fit()
