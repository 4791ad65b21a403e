"""What the command line says when a training is over."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hookbus import Trainer
from hookbus.cli import app
from hookbus.commands.summary import say_summary

if TYPE_CHECKING:
    from tests.conftest import Project

RUN = """
    work_dir: runs/x
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 2}
    default_hooks: false
    hooks: [{type: checkpoint, save_best: true, best_metric: loss}]
"""


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/hookbus"])
    monkeypatch.setattr("shutil.which", lambda _: "/somewhere/bin/hookbus")


def said(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["train", "run.yaml", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def commands(lines: list[str]) -> list[list[str]]:
    return [shlex.split(line) for line in lines[lines.index("What to try next") + 1 :]]


def test_it_names_every_file_that_a_user_may_want(project: Project) -> None:
    project.write(RUN)
    lines = said()
    assert lines[1] == "The files of this run are in runs/x"
    named = {line.split()[0] for line in lines[2 : lines.index("What to try next") - 1]}
    assert named == {"checkpoints/best_loss.pth", "checkpoints/epoch_2.pth", "config.yaml", "status.json"}
    assert all((project.path / "runs/x" / name).exists() for name in named)


def test_each_command_that_it_proposes_works(project: Project) -> None:
    project.write(RUN)
    for program, command, *arguments in commands(said("seed=3")):
        assert program == "hookbus"
        assert "seed=3" in arguments
        result = CliRunner().invoke(app, [command, *arguments])
        assert result.exit_code == 0, result.output


def test_going_on_doubles_what_was_done(project: Project) -> None:
    project.write(RUN)
    assert ["hookbus", "train", "run.yaml", "training.epochs=6", "--resume"] in commands(said("training.epochs=3"))
    by_iteration = commands(said("training={iterations: 5}", "--overwrite"))
    assert by_iteration[1][-2:] == ["training.iterations=10", "--resume"]


def test_after_ctrl_c_it_says_how_to_go_on(project: Project) -> None:
    project.write(
        """
        from hookbus import Hook

        class LeavesHook(Hook):
            def after_train_iter(self, run):
                run.interrupt()
        """,
        "leaves_1.py",
    )
    project.write(RUN)
    hooks = 'hooks=[checkpoint, "leaves_1:LeavesHook"]'
    result = CliRunner().invoke(app, ["train", "run.yaml", hooks])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "interrupted")
    assert ["hookbus", "train", "run.yaml", hooks, "--resume"] in commands(result.stdout.splitlines())


def test_a_run_that_was_stopped_early_is_gone_on_with_as_it_is(project: Project) -> None:
    project.write(RUN)
    stopping = "hooks=[{type: checkpoint}, {type: early_stopping, monitor: val_loss, stopping_threshold: 1000}]"
    lines = said("training.epochs=9", stopping)
    assert any(line.endswith("how it ended: stopped") for line in lines)
    assert ["hookbus", "train", "run.yaml", "training.epochs=9", stopping, "--resume"] in commands(lines)


def test_a_run_that_had_to_go_elsewhere_is_named_in_the_commands(project: Project) -> None:
    project.write(RUN)
    said()
    assert all("work_dir=runs/x-2" in command for command in commands(said()))


def test_a_run_without_checkpoints_cannot_be_gone_on_with(project: Project) -> None:
    project.write(RUN)
    assert commands(said("hooks=[]")) == [["hookbus", "explain", "run.yaml", "hooks=[]"]]


def test_it_makes_no_directory_for_checkpoints_of_a_saver_without_a_place(project: Project) -> None:
    project.write(
        """
        from hookbus import Hook

        class WritesElsewhereHook(Hook):
            def before_run(self, run):
                run.provide("saver", self)

            def plan(self, run, requests):
                return None
        """,
        "elsewhere_1.py",
    )
    project.write(RUN)
    assert commands(said("hooks=['elsewhere_1:WritesElsewhereHook']"))[0][1] == "explain"
    assert not (project.path / "runs/x/checkpoints").exists()


@pytest.mark.parametrize(
    ("called", "shown"),
    [
        ("/somewhere/bin/hookbus", "hookbus"),
        (".venv/bin/hookbus", ".venv/bin/hookbus"),
        ("/a place/bin/hookbus", "'/a place/bin/hookbus'"),
        ("/somewhere/hookbus/__main__.py", "python -m hookbus"),
    ],
)
def test_it_repeats_the_command_as_it_was_called(
    project: Project, monkeypatch: pytest.MonkeyPatch, called: str, shown: str
) -> None:
    monkeypatch.setattr("sys.argv", [called])
    project.write(RUN)
    assert said("hooks=[]")[-1] == f"  {shown} explain run.yaml 'hooks=[]'"


@pytest.mark.parametrize(("on_this_host", "how"), [("2", "--nproc-per-node 2"), ("1", "...")])
def test_several_processes_go_on_as_several(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on_this_host: str, how: str
) -> None:
    project.write(RUN)
    run = Trainer.from_file("run.yaml").fit()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", on_this_host)
    capsys.readouterr()
    say_summary(run, Path("run.yaml"), [], None)
    test, train, explain = capsys.readouterr().out.splitlines()[-3:]
    assert test.startswith("  hookbus test run.yaml")
    assert train == f"  torchrun {how} -m hookbus train run.yaml training.epochs=4 --resume"
    assert explain == "  hookbus explain run.yaml"


def test_only_the_main_rank_speaks(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    project.write(RUN)
    assert said("hooks=[]") == []
