"""The life of a run: what is done before its loop, where it writes, and from where it goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus import Hook, HookBus, Trainer
from hookbus.config import load_config
from hookbus.errors import ConfigError, OrderError, RequestError, WorkDirError, in_one_line
from hookbus.ranks import Ranks
from hookbus.run import Run
from hookbus.runs.workdir import read_status
from hookbus.session import claim_for
from hookbus.testing import RecordingBus
from tests import toys

if TYPE_CHECKING:
    from tests.conftest import Project


class TestBeginning:
    def test_the_run_begins_on_entry_and_ends_on_leaving(self) -> None:
        bus = RecordingBus()
        assert not bus.current.alive
        with bus.run() as run:
            assert bus.current is run
            assert (bus.fired, run.alive, run.outcome) == (["before_run"], True, "running")
        assert (bus.fired, run.alive, run.outcome) == (["before_run", "after_run", "cleanup"], False, "finished")

    def test_hooks_have_the_run_from_the_start(self) -> None:
        class Early(Hook):
            def before_run(self, run: Run) -> None:
                self.same = self.run is run

        hook = Early()
        with HookBus([hook]).run():
            assert hook.same

    def test_a_second_run_inside_is_refused_and_the_first_goes_on(self) -> None:
        bus = RecordingBus()
        with bus.run() as run:
            with (
                pytest.raises(RequestError, match=r"A run \(train\) is active on this bus.*run.request_validation"),
                bus.run(),
            ):
                pass
            assert run.alive
        assert bus.fired == ["before_run", "after_run", "cleanup"]

    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
    def test_a_hook_that_fails_at_the_start_keeps_the_loop_from_beginning(
        self, tmp_path: Path, error: BaseException
    ) -> None:
        class Failing(Hook):
            def before_run(self) -> None:
                raise error

        bus = RecordingBus([Failing()])
        with pytest.raises(type(error)), bus.run(work_dir=tmp_path):
            pytest.fail("the loop has begun")
        assert bus.fired == ["before_run", "on_exception", "after_run", "cleanup"]
        assert read_status(tmp_path)["error"] == in_one_line(error)
        with RecordingBus().run(work_dir=tmp_path, resume="auto"):
            pass

    def test_wishes_of_order_that_contradict_each_other_are_an_error_at_the_start(self) -> None:
        bus = HookBus()
        bus.on("after_train_iter", name="a", before="b")(lambda: None)
        bus.on("after_train_iter", name="b", before="a")(lambda: None)
        with pytest.raises(OrderError), bus.run():
            pytest.fail("the loop has begun")
        assert not bus.current.alive

    def test_a_hook_that_will_ask_for_validations_needs_a_way_to_make_them(self) -> None:
        class Evaluates(Hook):
            schedules_validation = True

        bus = RecordingBus([Evaluates(name="judge")])
        expected = (
            r"hook 'judge' \(module .*test_session\): the hook requests validations, .*val_loader= .*validate= to bus"
        )
        with pytest.raises(RequestError, match=expected), bus.run():
            pytest.fail("the loop has begun")
        assert "before_run" not in bus.fired
        with bus.run(validate=lambda: {"loss": 0.5}):
            pass

    def test_a_trainer_says_so_as_well_but_can_test(self) -> None:
        class Evaluates(Hook):
            schedules_validation = True

        training = toys.trainer(Evaluates(), epochs=1, test_loader=toys.pairs())
        with pytest.raises(RequestError, match="val_loader= to the Trainer"):
            training.fit()
        assert set(training.test()) == {"test/loss"}


class TestValidate:
    @pytest.mark.parametrize(
        "validate",
        [
            lambda: {"loss": 0.5},
            lambda run: {"loss": 0.5},
            lambda run, again=False: {"loss": 0.5},
            lambda loader=None: {"loss": 0.5},
            lambda **options: {"loss": 0.5},
        ],
        ids=["nothing", "the run", "the run and an option", "an option", "any options"],
    )
    def test_may_take_the_run_or_nothing(self, validate: Callable[..., Mapping[str, Any]]) -> None:
        with HookBus().run(validate=validate) as run:
            assert dict(run.validate()) == {"val/loss": 0.5}

    def test_gets_the_run_that_is_going_on(self) -> None:
        seen = []
        with HookBus().run(validate=lambda run: seen.append(run)) as run:
            run.validate()
        assert seen == [run]


class TestLength:
    def test_of_the_epoch_is_known_from_the_loader(self) -> None:
        with HookBus().run(train_loader=[1, 2, 3]) as run:
            assert run.clock.epoch_length == 3
        with HookBus().run() as run:
            assert run.clock.epoch_length is None


class TestGoingOn:
    def train(self, bus: HookBus, **options: Any) -> Run:
        with bus.run(epochs=1, **options) as run:
            for _ in run.epochs():
                for _ in run.batches([1, 2]):
                    bus.emit("after_train_iter")
        return run

    def test_a_second_run_on_the_same_bus_goes_on_unless_told_to_be_fresh(self) -> None:
        bus = HookBus()
        assert self.train(bus).iters_done == 2
        with bus.run(epochs=2) as run:
            assert (run.epochs_done, run.iters_done) == (1, 2)
        with bus.run(epochs=2, fresh=True) as run:
            assert (run.epochs_done, run.iters_done) == (0, 0)

    def test_a_first_run_begins_at_zero_with_its_own_seed(self) -> None:
        bus = HookBus()
        torch.manual_seed(5)
        assert self.train(bus).seed == 5
        torch.manual_seed(6)
        assert self.train(bus).seed == 5
        assert self.train(bus, seed=7).seed == 7
        assert self.train(bus, fresh=True).seed == 6


class Remembers:
    """A configuration as run files have it."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        return {**self.values, "mode": mode}

    def to_yaml(self) -> str:
        return "".join(f"{key}: {value}\n" for key, value in self.values.items())


class TestConfig:
    def test_is_told_right_after_the_beginning_as_plain_values(self) -> None:
        bus = RecordingBus()
        with bus.run(config=Remembers(lr=0.1)):
            pass
        assert bus.fired == ["before_run", "log_config", "after_run", "cleanup"]
        assert bus.arguments("log_config") == [{"config": {"lr": 0.1, "mode": "json"}}]

    def test_a_mapping_is_told_as_it_is(self) -> None:
        bus = RecordingBus()
        with bus.run(config={"lr": 0.1}):
            pass
        assert bus.arguments("log_config") == [{"config": {"lr": 0.1}}]

    def test_without_one_nothing_is_told(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        with bus.run(work_dir=tmp_path):
            pass
        assert "log_config" not in bus.fired
        assert not (tmp_path / "config.yaml").exists()

    def test_is_written_before_it_is_told(self, tmp_path: Path) -> None:
        bus, seen = HookBus(), []
        bus.on("log_config")(lambda: seen.append((tmp_path / "config.yaml").read_text()))
        with bus.run(config=Remembers(name="zwölf"), work_dir=tmp_path):
            pass
        assert seen == ["name: zwölf\n"]

    def test_of_a_run_that_goes_on_is_that_of_the_last(self, tmp_path: Path) -> None:
        for lr in (0.1, 0.2):
            with HookBus().run(config=Remembers(lr=lr), work_dir=tmp_path, resume="auto"):
                pass
        assert (tmp_path / "config.yaml").read_text() == "lr: 0.2\n"

    def test_that_cannot_be_written_leaves_the_older_one(self, tmp_path: Path) -> None:
        class Broken(Remembers):
            def to_yaml(self) -> str:
                return "\ud800"  # half a character, which has no bytes

        with HookBus().run(config=Remembers(lr=0.1), work_dir=tmp_path):
            pass
        with pytest.raises(UnicodeEncodeError), HookBus().run(config=Broken(), work_dir=tmp_path, resume="auto"):
            pass
        assert (tmp_path / "config.yaml").read_text() == "lr: 0.1\n"
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
            ".lock", ".made", "config.yaml", "status.json"
        ]  # fmt: skip

    def test_of_a_validation_on_its_own_is_not_that_of_the_training(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"work_dir": tmp_path, "val_loader": toys.pairs(), "epochs": 1}
        training = toys.trainer(config=Remembers(lr=0.1), **options)
        training.fit()
        other = toys.trainer(config=Remembers(lr=0.2), **options)
        told: list[Any] = []
        other.bus.on("log_config")(lambda config: told.append(config))
        other.validate()
        assert ((tmp_path / "config.yaml").read_text(), told) == ("lr: 0.1\n", [])

    def test_of_a_run_file_can_be_run_again(self, project: Project) -> None:
        project.write(RUN)
        Trainer.from_file("run.yaml", ["training.epochs=1"]).fit()
        again = load_config("runs/train/config.yaml")
        assert again.to_yaml() == load_config("run.yaml", ["training.epochs=1"]).to_yaml()


RUN = """
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 2}
    default_hooks: false
    hooks: ["parts:QuietHook"]
"""


class TestWorkDir:
    def test_is_needed_by_nobody(self) -> None:
        with HookBus().run() as run:
            assert run.work_dir is None

    def test_that_holds_a_run_is_left_alone_and_that_is_said(
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

    def test_of_a_live_run_cannot_be_gone_on_with(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        with HookBus().run(work_dir=tmp_path) as run:
            expected = (
                rf"{tmp_path} is in use by an active run \(pid {os.getpid()} on .*\)\. Stop that run, or set another"
            )
            with pytest.raises(WorkDirError, match=expected), bus.run(work_dir=tmp_path, resume="auto"):
                pytest.fail("the loop has begun")
            assert (run.alive, read_status(tmp_path)["outcome"]) == (True, "running")
        assert (bus.fired, bus.current.alive) == ([], False)

    def test_of_a_live_run_leaves_a_new_one_to_a_sibling(self, tmp_path: Path) -> None:
        with HookBus().run(work_dir=tmp_path / "x"), HookBus().run(work_dir=tmp_path / "x") as second:
            assert second.require("experiment_dir") == tmp_path / "x-2"

    def test_going_on_and_removing_contradict_each_other(self, tmp_path: Path) -> None:
        for resume in ("auto", tmp_path / "a.pth"):
            with pytest.raises(ConfigError, match="`resume` and `overwrite` are mutually exclusive"):
                claim_for(tmp_path / "x", resume, True, Ranks())
        assert list(tmp_path.iterdir()) == []

    def test_is_emptied_of_an_earlier_run_when_told_and_what_others_put_there_is_left(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with HookBus().run(work_dir=tmp_path, config=Remembers(lr=0.1)) as run:
            logs = Path(run.require("logs_dir"))
            assert run.own(logs / "log.txt")
            for name in ("log.txt", "notes.txt"):
                (logs / name).touch()
        with HookBus().run(work_dir=tmp_path, overwrite=True):
            assert sorted(each.name for each in tmp_path.iterdir()) == [".lock", "logs", "status.json"]
            assert [each.name for each in logs.iterdir()] == ["notes.txt"]
        assert caplog.messages == [
            f"overwrite: files that the removed run did not write are kept: {logs / 'notes.txt'}."
        ]

    def test_of_a_run_that_was_resumed_is_known_by_the_first_ones_id(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path).fit()
        first = read_status(tmp_path)["run"]
        run = toys.trainer(toys.Saver(), iterations=4, work_dir=tmp_path, resume="auto").fit()
        assert run.id == first == read_status(tmp_path)["run"]
        other = toys.trainer(toys.Saver(), iterations=1, work_dir=tmp_path, overwrite=True).fit()
        assert other.id != first
        assert [path.name for path in (tmp_path / "checkpoints").glob("*.pth")] == ["iter_1.pth"]

    def test_of_another_run_is_not_that_of_a_checkpoint(self, tmp_path: Path) -> None:
        saver = toys.Saver("after_train_iter", 2)
        toys.trainer(saver, iterations=2, work_dir=tmp_path / "x").fit()
        run = toys.trainer(iterations=3, work_dir=tmp_path / "x", resume=saver.files[0]).fit()
        assert (run.require("experiment_dir"), run.iters_done) == (tmp_path / "x-2", 3)


def test_an_empty_work_dir_is_refused_rather_than_taken_for_the_current_directory() -> None:
    with pytest.raises(ConfigError, match="work_dir: the path is empty. Set a directory"), HookBus().run(work_dir=""):
        pass


@pytest.mark.parametrize("resume", [True, None, "", 3])
def test_what_is_nothing_to_resume_from_is_refused_before_anything_is_made(tmp_path: Path, resume: Any) -> None:
    with (
        pytest.raises(ConfigError, match="resume: should be auto, never or the path of a checkpoint"),
        HookBus().run(work_dir=tmp_path / "run", resume=resume),
    ):
        pass
    assert not (tmp_path / "run").exists()
