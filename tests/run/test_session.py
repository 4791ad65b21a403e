"""Start and end of a run: setup, work directory and resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus import Hook, HookBus, Trainer
from hookbus._config.load import load_config
from hookbus._run.run import Run
from hookbus._run.session import acquire_work_dir
from hookbus._run.status import read_status
from hookbus.distributed.collectives import Collectives
from hookbus.errors import ConfigError, OrderError, RequestError, WorkDirError, format_error
from hookbus.testing import RecordingBus
from tests import toys

if TYPE_CHECKING:
    from tests.conftest import Project


class TestStart:
    def test_run_starts_on_entry_and_ends_on_exit(self) -> None:
        bus = RecordingBus()
        assert not bus.current.is_running
        with bus.run() as run:
            assert bus.current is run
            assert (bus.emitted_points, run.is_running, run.outcome) == (["before_run"], True, "running")
        assert (bus.emitted_points, run.is_running, run.outcome) == (
            ["before_run", "after_run", "cleanup"],
            False,
            "finished",
        )

    def test_hooks_have_the_run_in_before_run(self) -> None:
        class RecordRun(Hook):
            def before_run(self, run: Run) -> None:
                self.same = self.run is run

        hook = RecordRun()
        with HookBus([hook]).run():
            assert hook.same

    def test_second_run_on_an_active_bus_raises_and_the_first_continues(self) -> None:
        bus = RecordingBus()
        with bus.run() as run:
            with (
                pytest.raises(RequestError, match=r"A run \(train\) is active on this bus.*run.request_validation"),
                bus.run(),
            ):
                pass
            assert run.is_running
        assert bus.emitted_points == ["before_run", "after_run", "cleanup"]

    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
    def test_error_of_a_hook_in_before_run_prevents_the_loop(self, tmp_path: Path, error: BaseException) -> None:
        class FailAtStart(Hook):
            def before_run(self) -> None:
                raise error

        bus = RecordingBus([FailAtStart()])
        with pytest.raises(type(error)), bus.run(work_dir=tmp_path):
            pytest.fail("the loop has started")
        assert bus.emitted_points == ["before_run", "on_exception", "after_run", "cleanup"]
        assert read_status(tmp_path)["error"] == format_error(error)
        with RecordingBus().run(work_dir=tmp_path, resume="auto"):
            pass

    def test_contradictory_ordering_constraints_raise_at_the_start(self) -> None:
        bus = HookBus()
        bus.on("after_train_iter", name="a", before="b")(lambda: None)
        bus.on("after_train_iter", name="b", before="a")(lambda: None)
        with pytest.raises(OrderError), bus.run():
            pytest.fail("the loop has started")
        assert not bus.current.is_running

    def test_hook_that_schedules_validations_requires_a_validation_function(self) -> None:
        class ScheduleValidation(Hook):
            schedules_validation = True

        bus = RecordingBus([ScheduleValidation(name="evaluator")])
        expected = (
            r"hook 'evaluator' \(module .*test_session\): the hook requests validations, .*val_loader= .*validate= to"
        )
        with pytest.raises(ConfigError, match=expected), bus.run():
            pytest.fail("the loop has started")
        assert "before_run" not in bus.emitted_points
        with bus.run(validate=lambda: {"loss": 0.5}):
            pass

    def test_trainer_without_val_loader_raises_in_fit_but_not_in_test(self) -> None:
        class ScheduleValidation(Hook):
            schedules_validation = True

        training = toys.trainer(ScheduleValidation(), epochs=1, test_loader=toys.pairs())
        with pytest.raises(ConfigError, match="val_loader= to the Trainer"):
            training.fit()
        assert set(training.test()) == {"test/loss"}


class TestValidate:
    @pytest.mark.parametrize(
        "validate",
        [
            lambda: {"loss": 0.5},
            lambda run: {"loss": 0.5},
            lambda run, config=False: {"loss": 0.5},
            lambda loader=None: {"loss": 0.5},
            lambda **options: {"loss": 0.5},
        ],
        ids=["nothing", "the run", "the run and an option", "an option", "any options"],
    )
    def test_validation_function_may_take_the_run_or_nothing(self, validate: Callable[..., Mapping[str, Any]]) -> None:
        with HookBus().run(validate=validate) as run:
            assert dict(run.validate()) == {"val/loss": 0.5}

    def test_validation_function_receives_the_active_run(self) -> None:
        seen = []
        with HookBus().run(validate=lambda run: seen.append(run)) as run:
            run.validate()
        assert seen == [run]


class TestLength:
    def test_epoch_length_is_that_of_the_loader(self) -> None:
        with HookBus().run(train_loader=[1, 2, 3]) as run:
            assert run.epoch_length == 3
        with HookBus().run() as run:
            assert run.epoch_length is None


class TestContinuedRun:
    def train(self, bus: HookBus, **options: Any) -> Run:
        with bus.run(epochs=1, **options) as run:
            for _ in run.epochs():
                for _ in run.batches([1, 2]):
                    bus.emit("after_train_iter")
        return run

    def test_second_run_on_a_bus_continues_the_first_unless_it_is_fresh(self) -> None:
        bus = HookBus()
        assert self.train(bus).iters_done == 2
        with bus.run(epochs=2) as run:
            assert (run.epochs_done, run.iters_done) == (1, 2)
        with bus.run(epochs=2, fresh=True) as run:
            assert (run.epochs_done, run.iters_done) == (0, 0)

    def test_fresh_run_has_its_own_seed(self) -> None:
        bus = HookBus()
        torch.manual_seed(5)
        assert self.train(bus).seed == 5
        torch.manual_seed(6)
        assert self.train(bus).seed == 5
        assert self.train(bus, seed=7).seed == 7
        assert self.train(bus, fresh=True).seed == 6


class DumpableConfig:
    """Configuration with the methods of a run file."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        return {**self.values, "mode": mode}

    def to_yaml(self) -> str:
        return "".join(f"{key}: {value}\n" for key, value in self.values.items())


class TestConfig:
    def test_config_is_logged_after_before_run_as_built_in_types(self) -> None:
        bus = RecordingBus()
        with bus.run(config=DumpableConfig(lr=0.1)):
            pass
        assert bus.emitted_points == ["before_run", "log_config", "after_run", "cleanup"]
        assert bus.get_arguments("log_config") == [{"config": {"lr": 0.1, "mode": "json"}}]

    def test_mapping_is_logged_unchanged(self) -> None:
        bus = RecordingBus()
        with bus.run(config={"lr": 0.1}):
            pass
        assert bus.get_arguments("log_config") == [{"config": {"lr": 0.1}}]

    def test_run_without_a_config_logs_none(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        with bus.run(work_dir=tmp_path):
            pass
        assert "log_config" not in bus.emitted_points
        assert not (tmp_path / "config.yaml").exists()

    def test_config_is_written_before_it_is_logged(self, tmp_path: Path) -> None:
        bus, seen = HookBus(), []
        bus.on("log_config")(lambda: seen.append((tmp_path / "config.yaml").read_text()))
        with bus.run(config=DumpableConfig(name="zwölf"), work_dir=tmp_path) as run:
            pass
        assert seen == [f"# run: {run.id}\nname: zwölf\n"]

    def test_resumed_run_overwrites_the_config(self, tmp_path: Path) -> None:
        for lr in (0.1, 0.2):
            with HookBus().run(config=DumpableConfig(lr=lr), work_dir=tmp_path, resume="auto") as run:
                pass
        assert (tmp_path / "config.yaml").read_text() == f"# run: {run.id}\nlr: 0.2\n"

    def test_config_that_cannot_be_written_keeps_the_previous_one(self, tmp_path: Path) -> None:
        class UnencodableConfig(DumpableConfig):
            def to_yaml(self) -> str:
                return "\ud800"  # a lone surrogate, which cannot be encoded

        with HookBus().run(config=DumpableConfig(lr=0.1), work_dir=tmp_path) as run:
            pass
        with (
            pytest.raises(UnicodeEncodeError),
            HookBus().run(config=UnencodableConfig(), work_dir=tmp_path, resume="auto"),
        ):
            pass
        assert (tmp_path / "config.yaml").read_text() == f"# run: {run.id}\nlr: 0.1\n"
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
            ".hookbus.lock", ".made", "config.yaml", "report.html", "status.json"
        ]  # fmt: skip

    def test_separate_validation_neither_writes_nor_logs_its_config(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"work_dir": tmp_path, "val_loader": toys.pairs(), "epochs": 1}
        training = toys.trainer(config=DumpableConfig(lr=0.1), **options)
        run = training.fit()
        other = toys.trainer(config=DumpableConfig(lr=0.2), **options)
        logged: list[Any] = []
        other.bus.on("log_config")(lambda config: logged.append(config))
        other.validate()
        assert ((tmp_path / "config.yaml").read_text(), logged) == (f"# run: {run.id}\nlr: 0.1\n", [])

    def test_written_config_can_be_loaded_as_a_run_file(self, project: Project) -> None:
        project.write(RUN)
        Trainer.from_file("run.yaml", ["training.epochs=1"]).fit()
        config = load_config("runs/train/config.yaml")
        complete = "hooks=[{type: 'parts:QuietHook', enabled: true}]"  # with its defaults
        assert config.to_yaml() == load_config("run.yaml", ["training.epochs=1", complete]).to_yaml()


RUN = """
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 2}
    default_hooks: false
    hooks: ["parts:QuietHook"]
"""


class TestWorkDir:
    def test_work_dir_is_optional(self) -> None:
        with HookBus().run() as run:
            assert run.work_dir is None

    def test_work_dir_with_a_run_is_not_used_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "x"
        for _ in range(2):
            with HookBus().run(work_dir=path) as run:
                pass
        assert run.require("experiment_dir") == tmp_path / "x-2"
        assert caplog.messages == [
            f"{path} already contains a run, so this run uses {path}-2. "
            "Set `resume` to continue that run, or `overwrite` to replace it."
        ]

    def test_work_dir_of_an_active_run_cannot_be_resumed(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        with HookBus().run(work_dir=tmp_path) as run:
            expected = (
                rf"{tmp_path} is in use by an active run \(pid {os.getpid()} on .*\)\. Stop that run, or set another"
            )
            with pytest.raises(WorkDirError, match=expected), bus.run(work_dir=tmp_path, resume="auto"):
                pytest.fail("the loop has started")
            assert (run.is_running, read_status(tmp_path)["outcome"]) == (True, "running")
        assert (bus.emitted_points, bus.current.is_running) == ([], False)

    def test_new_run_uses_a_sibling_of_the_work_dir_of_an_active_run(self, tmp_path: Path) -> None:
        with HookBus().run(work_dir=tmp_path / "x"), HookBus().run(work_dir=tmp_path / "x") as second:
            assert second.require("experiment_dir") == tmp_path / "x-2"

    def test_resume_and_overwrite_are_mutually_exclusive(self, tmp_path: Path) -> None:
        for resume in ("auto", tmp_path / "a.pth"):
            with pytest.raises(ConfigError, match="`resume` and `overwrite` are mutually exclusive"):
                acquire_work_dir(tmp_path / "x", resume, True, Collectives())
        assert list(tmp_path.iterdir()) == []

    def test_overwrite_removes_the_previous_run_and_keeps_other_files(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with HookBus().run(work_dir=tmp_path, config=DumpableConfig(lr=0.1)) as run:
            logs = Path(run.require("logs_dir"))
            assert run.register_output(logs / "log.txt")
            for name in ("log.txt", "notes.txt"):
                (logs / name).touch()
        with HookBus().run(work_dir=tmp_path, overwrite=True):
            assert sorted(path.name for path in tmp_path.iterdir()) == [".hookbus.lock", "logs", "status.json"]
            assert [path.name for path in logs.iterdir()] == ["notes.txt"]
        assert caplog.messages == [
            f"overwrite: files that the removed run did not write are kept: {logs / 'notes.txt'}."
        ]

    def test_resumed_run_keeps_the_id_of_the_first_run(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path).fit()
        first = read_status(tmp_path)["run"]
        run = toys.trainer(toys.Saver(), iterations=4, work_dir=tmp_path, resume="auto").fit()
        assert run.id == first == read_status(tmp_path)["run"]
        other = toys.trainer(toys.Saver(), iterations=1, work_dir=tmp_path, overwrite=True).fit()
        assert other.id != first
        assert [path.name for path in (tmp_path / "checkpoints").glob("*.pth")] == ["iter_1.pth"]

    def test_checkpoint_of_another_work_dir_starts_a_new_run(self, tmp_path: Path) -> None:
        saver = toys.Saver("after_train_iter", 2)
        toys.trainer(saver, iterations=2, work_dir=tmp_path / "x").fit()
        run = toys.trainer(iterations=3, work_dir=tmp_path / "x", resume=saver.files[0]).fit()
        assert (run.require("experiment_dir"), run.iters_done) == (tmp_path / "x-2", 3)


def test_empty_work_dir_raises() -> None:
    with pytest.raises(ConfigError, match="work_dir: the path is empty. Set a directory"), HookBus().run(work_dir=""):
        pass


@pytest.mark.parametrize("resume", [True, None, "", 3])
def test_invalid_resume_raises_before_the_work_dir_is_created(tmp_path: Path, resume: Any) -> None:
    with (
        pytest.raises(ConfigError, match="resume: should be auto, never or the path of a checkpoint"),
        HookBus().run(work_dir=tmp_path / "run", resume=resume),
    ):
        pass
    assert not (tmp_path / "run").exists()
