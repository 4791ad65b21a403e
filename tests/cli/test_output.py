"""Tests of the output of commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.text import Text
from typer.testing import CliRunner

from hookbus import Hook, HookBus, Trainer
from hookbus._cli.app import app
from hookbus._cli.output import print_order, print_pairs, print_paragraph, print_table
from hookbus._cli.training_summary import print_summary

if TYPE_CHECKING:
    from tests.conftest import Project


class Step(Hook):
    def before_train(self) -> None: ...

    def train_step(self, batch: Any) -> Any: ...


def test_order_lists_the_hooks_of_actions_after_the_points(capsys: pytest.CaptureFixture[str]) -> None:
    print_order(HookBus([Step()]).explain())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["before_train"] in lines
    action = lines.index(["action", "train_step"])
    assert lines.index(["before_train"]) < action
    assert (lines[action + 1][0], lines[action + 1][-1]) == ("step", "replaces")


HOOKS = [("ema", "EMAHook", "hookbus-ema"), ("eval", "EvalHook", "hookbus-eval")]


def get_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed lines without trailing spaces."""
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return the monkeypatch that sets the width: `wide.setenv("COLUMNS", "40")`."""
    return monkeypatch


class TestTable:
    @pytest.mark.parametrize("columns", [28, 120])  # 4 + 8 + 12 letters, and twice 2 spaces
    def test_rows_are_aligned_below_a_header(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch, columns: int
    ) -> None:
        wide.setenv("COLUMNS", str(columns))
        print_table(["name", "class", "package"], HOOKS)
        assert get_lines(capsys) == [
            "name  class     package",
            "ema   EMAHook   hookbus-ema",
            "eval  EvalHook  hookbus-eval",
        ]

    def test_narrow_output_lists_cells_below_the_title(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "27")
        print_table(["name", "class", "package"], HOOKS)
        assert get_lines(capsys) == [
            "name",
            "    class, package",
            "ema",
            "    EMAHook, hookbus-ema",
            "eval",
            "    EvalHook, hookbus-eval",
        ]
        wide.setenv("COLUMNS", "24")  # a cell in the middle keeps its place
        print_table(["run", "epochs", "loss", "lr"], [("a-long-name", "", "0.123456", ""), ("b", "2", "", "")])
        assert get_lines(capsys) == ["run", "    epochs, loss, lr", "a-long-name", "    -, 0.123456", "b", "    2"]

    def test_rightmost_cells_are_wrapped_first(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "30")
        print_table(["name", "from", "when"], [("ema", "class EMAHook", "every(1) | once(50)")])
        assert get_lines(capsys) == [
            "name  from           when",
            "ema   class EMAHook  every(1)",
            "                     |",
            "                     once(50)",
        ]

    def test_row_may_be_short_and_indented(self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch) -> None:
        rows: list[list[str | Text]] = [[Text("before_run", "bold")], ["  ema", "40"], ["  eval", ""]]
        wide.setenv("COLUMNS", "20")
        print_table(["point", "priority"], rows)
        assert get_lines(capsys) == ["point       priority", "before_run", "  ema       40", "  eval"]
        wide.setenv("COLUMNS", "19")
        print_table(["point", "priority"], rows)
        assert get_lines(capsys) == ["point", "    priority", "before_run", "  ema", "      40", "  eval"]

    def test_title_may_have_several_cells(self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch) -> None:
        wide.setenv("COLUMNS", "20")
        print_table(["", "name", "problem"], [("ok", "ema", ""), ("broken", "eval", "No module named 'acme'.")], 2)
        assert get_lines(capsys) == [
            "name",
            "    problem",
            "ok ema",
            "broken eval",
            "    No module named",
            "    'acme'.",
        ]

    def test_markup_is_escaped(self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch) -> None:
        for columns in ("30", "8"):
            wide.setenv("COLUMNS", columns)
            print_table(["a", "b"], [("[bold]", "[/]")])
            assert get_lines(capsys)[-1].split()[-1] == "[/]"


class TestParagraph:
    def test_paragraph_is_indented_without_breaking_words(
        self, capsys: pytest.CaptureFixture[str], wide: pytest.MonkeyPatch
    ) -> None:
        wide.setenv("COLUMNS", "20")
        print_paragraph("a read-only word of [markup] in runs/of-some-length/digits", 2, 3)
        assert get_lines(capsys) == [
            "  a read-only word",
            "     of [markup] in",
            "     runs/of-some-length/digits",
        ]


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
    text = "\n".join(lines[lines.index("Next steps") + 1 :])
    return [shlex.split(line) for line in text.replace(" \\\n", " ").splitlines()]


def test_summary_lists_the_output_files(project: Project) -> None:
    project.write(RUN)
    lines = run_train()
    assert lines[1] == "The files of this run are in runs/x"
    listed = {line.split()[0] for line in lines[2 : lines.index("Next steps") - 1]}
    checkpoints = {"checkpoints/best_loss.pth", "checkpoints/epoch_2.pth"}
    assert listed == {*checkpoints, "checkpoints", "config.yaml", "history.jsonl", "report.html", "status.json"}
    assert all((project.path / "runs/x" / name).exists() for name in listed)


def test_summary_lists_the_files_that_hooks_have_registered_with_their_descriptions(project: Project) -> None:
    project.write(
        """
        from hookbus import Hook

        class ReportHook(Hook):
            def after_train(self, run):
                for name in ("notes.txt", "report/index.html", "never.txt"):
                    path = run.work_dir.path / name
                    run.register_output(path if name != "report/index.html" else path.parent, "made by a hook")
                    if name != "never.txt":
                        path.parent.mkdir(exist_ok=True)
                        path.write_text("x")
        """,
        "reports_1.py",
    )
    project.write(RUN)
    lines = run_train('hooks=["reports_1:ReportHook"]')
    assert lines[2 : lines.index("Next steps") - 1] == [
        "  history.jsonl  metrics of each epoch",
        "  notes.txt      made by a hook",
        "  report         made by a hook",
        "  report.html    report of the run",
        "  config.yaml    all settings",
        "  status.json    outcome: finished",
    ]


@pytest.mark.slow
def test_lines_of_the_summary_fit_a_narrow_output(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    project.write(RUN)
    lines = run_train("seed=3")
    commands = "\n".join(lines[lines.index("Next steps") + 1 :]).replace(" \\\n    ", " ").splitlines()
    assert [shlex.split(command)[1] for command in commands] == ["test", "train", "explain"]
    assert any(line.endswith(" \\") for line in lines)
    assert max(map(len, lines)) <= 50


@pytest.mark.slow
def test_repeated_overrides_are_suggested_once_and_quoted(project: Project) -> None:
    project.write(RUN)
    overrides = ["seed=1", "experiment_dir=runs/y", "hooks.checkpoint.interval=2", "seed=2", "work_dir=runs/a b"]
    for directory in ("runs/a b", "runs/a b-2"):  # the second run uses a sibling of the directory
        commands = suggested_commands(run_train(*overrides))
        repeated = ["hooks.checkpoint.interval=2", "seed=2", f"work_dir={directory}"]
        assert commands[1] == ["hookbus", "train", "run.yaml", *repeated, "training.epochs=4", "--resume"]
        assert commands[2] == ["hookbus", "explain", "run.yaml", *repeated]
    assert run_train(*commands[1][3:])[1] == "The files of this run are in runs/a b-2"


def test_suggested_commands_contain_no_secret(project: Project) -> None:
    project.write("from parts import net\n\ndef net_with_key(api_key, note):\n    return net()\n", "keyed.py")
    project.write(RUN.replace("parts:net", "keyed:net_with_key"))
    commands = suggested_commands(run_train("model.api_key=S3cretValue", "model.note=at S3cretValue"))
    assert commands[2] == ["hookbus", "explain", "run.yaml", "model.api_key=***", "model.note=at ***"]


def test_description_that_does_not_fit_is_printed_below_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a", "a text of several words"), ("long_name.txt", "")]
    for columns in ("40", "39", "20"):
        monkeypatch.setenv("COLUMNS", columns)
        print_pairs(rows)
    below = ["  a", "    a text of several words", "  long_name.txt"]
    assert capsys.readouterr().out.splitlines() == [
        *("  a              a text of several words", "  long_name.txt"),
        *below,
        *("  a", "    a text of", "    several words", "  long_name.txt"),
    ]


@pytest.mark.slow
def test_suggested_commands_work(project: Project) -> None:
    project.write(RUN)
    for program, command, *arguments in suggested_commands(run_train("seed=3")):
        assert program == "hookbus"
        assert "seed=3" in arguments
        result = CliRunner().invoke(app, [command, *arguments])
        assert result.exit_code == 0, result.output


@pytest.mark.slow
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


@pytest.mark.slow
def test_resume_is_suggested_after_early_stopping(project: Project) -> None:
    project.write(RUN)
    stopping = "hooks=[{type: checkpoint}, {type: early_stopping, monitor: val_loss, stopping_threshold: 1000}]"
    lines = run_train("training.epochs=9", stopping)
    assert any(line.endswith("outcome: stopped") for line in lines)
    assert ["hookbus", "train", "run.yaml", "training.epochs=9", stopping, "--resume"] in suggested_commands(lines)


@pytest.mark.slow
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


@pytest.mark.slow
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
