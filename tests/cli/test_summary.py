"""Tests of the summary at the end of a training."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hookbus import Trainer
from hookbus._cli.app import app
from hookbus._cli.summary import print_summary

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
def hookbus_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/hookbus"])
    monkeypatch.setattr("shutil.which", lambda _: "/somewhere/bin/hookbus")


def run_train(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["train", "run.yaml", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def suggested_commands(lines: list[str]) -> list[list[str]]:
    return [shlex.split(line) for line in lines[lines.index("Next steps") + 1 :]]


def test_summary_lists_the_output_files(project: Project) -> None:
    project.write(RUN)
    lines = run_train()
    assert lines[1] == "The files of this run are in runs/x"
    listed = {line.split()[0] for line in lines[2 : lines.index("Next steps") - 1]}
    assert listed == {"checkpoints/best_loss.pth", "checkpoints/epoch_2.pth", "config.yaml", "status.json"}
    assert all((project.path / "runs/x" / name).exists() for name in listed)


def test_suggested_commands_work(project: Project) -> None:
    project.write(RUN)
    for program, command, *arguments in suggested_commands(run_train("seed=3")):
        assert program == "hookbus"
        assert "seed=3" in arguments
        result = CliRunner().invoke(app, [command, *arguments])
        assert result.exit_code == 0, result.output


def test_suggested_limit_is_doubled(project: Project) -> None:
    project.write(RUN)
    assert ["hookbus", "train", "run.yaml", "training.epochs=6", "--resume"] in suggested_commands(
        run_train("training.epochs=3")
    )
    by_iteration = suggested_commands(run_train("training={iterations: 5}", "--overwrite"))
    assert by_iteration[1][-2:] == ["training.iterations=10", "--resume"]


def test_resume_is_suggested_after_ctrl_c(project: Project) -> None:
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
    assert ["hookbus", "train", "run.yaml", hooks, "--resume"] in suggested_commands(result.stdout.splitlines())


def test_resume_is_suggested_after_early_stopping(project: Project) -> None:
    project.write(RUN)
    stopping = "hooks=[{type: checkpoint}, {type: early_stopping, monitor: val_loss, stopping_threshold: 1000}]"
    lines = run_train("training.epochs=9", stopping)
    assert any(line.endswith("outcome: stopped") for line in lines)
    assert ["hookbus", "train", "run.yaml", "training.epochs=9", stopping, "--resume"] in suggested_commands(lines)


def test_suggested_commands_contain_the_actual_directory(project: Project) -> None:
    project.write(RUN)
    run_train()
    assert all("work_dir=runs/x-2" in command for command in suggested_commands(run_train()))


def test_resume_is_not_suggested_without_checkpoints(project: Project) -> None:
    project.write(RUN)
    assert suggested_commands(run_train("hooks=[]")) == [["hookbus", "explain", "run.yaml", "hooks=[]"]]


def test_summary_creates_no_checkpoint_directory(project: Project) -> None:
    project.write(
        """
        from hookbus import Hook

        class WritesElsewhereHook(Hook):
            def before_run(self, run):
                run.provide("checkpoint_saver", self)

            def plan(self, run, requests):
                return None
        """,
        "saver_without_path_1.py",
    )
    project.write(RUN)
    assert suggested_commands(run_train("hooks=['saver_without_path_1:WritesElsewhereHook']"))[0][1] == "explain"
    assert not (project.path / "runs/x/checkpoints").exists()


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("/somewhere/bin/hookbus", "hookbus"),
        (".venv/bin/hookbus", ".venv/bin/hookbus"),
        ("/a place/bin/hookbus", "'/a place/bin/hookbus'"),
        ("/somewhere/hookbus/__main__.py", "python -m hookbus"),
    ],
)
def test_suggested_commands_use_the_same_program(
    project: Project, monkeypatch: pytest.MonkeyPatch, program: str, shown: str
) -> None:
    monkeypatch.setattr("sys.argv", [program])
    project.write(RUN)
    assert run_train("hooks=[]")[-1] == f"  {shown} explain run.yaml 'hooks=[]'"


@pytest.mark.parametrize(("local_world_size", "how"), [("2", "--nproc-per-node 2"), ("1", "...")])
def test_resume_of_a_distributed_run_uses_torchrun(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    local_world_size: str,
    how: str,
) -> None:
    project.write(RUN)
    run = Trainer.from_file("run.yaml").fit()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    capsys.readouterr()
    print_summary(run, Path("run.yaml"), [], None)
    test, train, explain = capsys.readouterr().out.splitlines()[-3:]
    assert test.startswith("  hookbus test run.yaml")
    assert train == f"  torchrun {how} -m hookbus train run.yaml training.epochs=4 --resume"
    assert explain == "  hookbus explain run.yaml"


def test_only_rank_0_prints_the_summary(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    project.write(RUN)
    assert run_train("hooks=[]") == []
