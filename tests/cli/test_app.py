"""Tests of the command line."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import hookbus
from hookbus import HOOKS, Hook, Run
from hookbus._cli.app import app
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.lifecycle import POINTS

if TYPE_CHECKING:
    from tests.conftest import Environment, Project

TRAINING = """
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 2}
    default_hooks: false
    hooks:
"""
RUN = f"""{TRAINING.rstrip()}
      - {{type: "parts:ProbeHook", interval: 2, priority: 20}}
      - "parts:QuietHook"
"""
MISSING_LIBRARY = f"""{TRAINING.rstrip()}
      - {{type: HOOK}}
"""


class Counting(Hook):
    """Record the iterations in a list that all instances of the class share."""

    seen: ClassVar[list[int]]

    def after_train_iter(self, run: Run) -> None:
        self.seen.append(run.iter)


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def call(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, arguments, env=env)


class TestTrain:
    def test_train_prints_the_output_directory(self, project: Project) -> None:
        project.write(RUN)
        result = call("train", "run.yaml", "work_dir=runs/x")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[1] == "The files of this run are in runs/x"
        status = json.loads((project.path / "runs/x/status.json").read_text())
        assert (status["outcome"], status["iters_done"]) == ("finished", 8)

    def test_profile_adds_missing_profiling_hooks(self, project: Project) -> None:
        project.write(RUN.replace("\n    hooks:", "\n    hooks:\n      - {type: iter_timer, name: mine}"))
        names = ("iter_timer", "profiler", "memory_profiler", "time_tracking")
        classes = {name: type(name, (Counting,), {"seen": []}) for name in names}
        for name, cls in classes.items():
            HOOKS.register(name)(cls)
        try:
            assert call("train", "run.yaml", "--profile").exit_code == 0
            assert {name: len(cls.seen) for name, cls in classes.items()} == dict.fromkeys(classes, 8)
            assert call("train", "run.yaml").exit_code == 0
            assert len(classes["profiler"].seen) == 8
        finally:
            for name in classes:
                HOOKS.pop(name)

    @pytest.mark.slow
    def test_profile_names_the_missing_package(self, environment: Environment, project: Project) -> None:
        project.write(RUN)
        result = subprocess.run(
            [environment.executable, "-m", "hookbus", "train", "run.yaml", "--profile"],
            cwd=project.path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (
            1, "error: The hook 'profiler' is not installed. Run: pip install hookbus-profiler\n"
        )  # fmt: skip

    def test_missing_file_is_an_error_of_the_command_line(self) -> None:
        result = call("train")
        assert (result.exit_code, "Missing argument" in result.output) == (2, True)
        result = call("train", "--fast-dev-run")
        assert (result.exit_code, "Missing argument" in result.output) == (2, True)

    @pytest.mark.parametrize(
        ("arguments", "batches"),
        [
            ("run.yaml --fast-dev-run", 1),
            ("run.yaml --fast-dev-run 2", 2),
            ("run.yaml --fast-dev-run=3", 3),
            ("run.yaml --fast-dev-run training.epochs=5", 1),
            ("--fast-dev-run run.yaml", 1),
            ("--fast-dev-run 2 run.yaml --overwrite", 2),
            ("run.yaml training.fast_dev_run=true --resume", 1),
        ],
    )
    def test_fast_dev_run_leaves_the_existing_run_unchanged(
        self, project: Project, arguments: str, batches: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        project.write(f"work_dir: runs/x\n{dedent(RUN)}")
        call("train", "run.yaml")
        before = {path: path.stat().st_mtime_ns for path in (project.path / "runs").rglob("*")}
        caplog.clear()
        result = call("train", *arguments.split())

        assert result.exit_code == 0
        assert {path: path.stat().st_mtime_ns for path in (project.path / "runs").rglob("*")} == before
        assert f"train: {batches} of 4 batches" in result.output + caplog.text

    @pytest.mark.parametrize("number", ["0", "-1"])
    def test_number_of_a_fast_dev_run_is_positive(self, project: Project, number: str) -> None:
        project.write(RUN)
        result = call("train", "run.yaml", "--fast-dev-run", number)
        assert result.exit_code == 2
        assert "Invalid value for '--fast-dev-run'" in result.stderr

    def test_limits_of_a_run_file_are_located(self, project: Project) -> None:
        project.write(RUN.replace("{epochs: 2}", "{epochs: 2, limit_train_batches: true, limit_val_batches: 2.0}"))
        result = call("train", "run.yaml")
        prefix = "should be an int, the number of batches, or a float in [0, 1], the fraction of all batches, got"
        assert [line.partition(": ")[2] for line in result.stderr.splitlines()] == [
            f"training.limit_train_batches: {prefix} true. Set 1 for one batch, or 1.0 for all of them.",
            f"training.limit_val_batches: {prefix} 2.0. Set 2, without a decimal point, for a number of batches.",
        ]

    def test_limit_of_a_run_file_distinguishes_1_and_1_0(self, project: Project) -> None:
        project.write(RUN)
        for limit, iterations in (("1", 2), ("1.0", 8), ("0.5", 4)):
            overrides = f"training.limit_train_batches={limit}", f"work_dir=runs/{limit}"
            assert call("train", "run.yaml", *overrides).exit_code == 0
            assert json.loads((project.path / "runs" / limit / "status.json").read_text())["iters_done"] == iterations

    def test_second_run_uses_another_directory_with_a_warning(self, project: Project) -> None:
        project.write(RUN)
        call("train", "run.yaml", "work_dir=runs/x")
        result = call("train", "run.yaml", "work_dir=runs/x")
        assert result.stdout.splitlines()[1] == "The files of this run are in runs/x-2"
        assert result.stderr.startswith("warning: runs/x already contains a run, so this run uses runs/x-2.")

    @pytest.mark.parametrize("option", ["--resume", "--overwrite"])
    def test_resume_and_overwrite_keep_the_directory(self, project: Project, option: str) -> None:
        project.write(RUN)
        call("train", "run.yaml", "work_dir=runs/x")
        assert call("train", "run.yaml", "work_dir=runs/x", option).exit_code == 0
        assert [path.name for path in (project.path / "runs").iterdir()] == ["x"]

    def test_resume_and_overwrite_are_mutually_exclusive(self, project: Project) -> None:
        project.write(RUN)
        result = call("train", "run.yaml", "--resume", "--overwrite")
        assert (result.exit_code, result.stderr) == (
            2,
            "--resume continues the run that --overwrite removes. Pass only one of the two options.\n",
        )
        assert call("train", "run.yaml", "resume=auto", "--overwrite").exit_code == 2

    def test_overrides_are_applied(self, project: Project) -> None:
        project.write(RUN)
        assert call("train", "run.yaml", "training.epochs=1", "~hooks.probe", "work_dir=runs/x").exit_code == 0
        assert json.loads((project.path / "runs/x/status.json").read_text())["iters_done"] == 4

    def test_all_errors_are_listed_and_no_file_is_written(self, project: Project) -> None:
        project.write("training: {epochs: x}\nmodle: 3\nhooks: [EarlyStopingHook]\n")
        result = call("train", "run.yaml", "ordr=nested")
        assert result.exit_code == 2
        assert result.stdout == ""
        problems = result.stderr.splitlines()
        places = [re.match(r"(run\.yaml:\d+:\d+|command line): ", problem) for problem in problems]
        assert [place[1] for place in places if place] == [
            "run.yaml:1:1", "run.yaml:1:1", "run.yaml:1:20", "run.yaml:2:1", "run.yaml:3:9", "command line"
        ]  # fmt: skip
        assert "Did you mean 'EarlyStoppingHook'" in problems[4]
        assert sorted(path.name for path in project.path.iterdir()) == ["parts.py", "run.yaml"]

    def test_missing_file_exits_with_code_2(self, project: Project) -> None:
        result = call("train", "nowhere.yaml")
        assert (result.exit_code, result.stderr) == (
            2,
            "nowhere.yaml: the run file cannot be read: No such file or directory.\n",
        )

    @pytest.mark.slow
    def test_preempted_run_exits_with_code_75(self, project: Project) -> None:
        project.write(
            """
            from hookbus import Hook

            class LeavingHook(Hook):
                def after_train_iter(self, run):
                    run.request_stop("the machine goes", outcome="preempted")
            """,
            "leaving_1.py",
        )
        project.write(RUN)
        assert call("train", "run.yaml", "hooks=['leaving_1:LeavingHook']").exit_code == 75

    def test_failing_hook_is_shown_with_its_traceback(self, project: Project) -> None:
        project.write(
            """
            from hookbus import Hook

            class FailingHook(Hook):
                def before_train(self, run):
                    raise KeyError("no such image")
            """,
            "failing_1.py",
        )
        project.write(RUN)
        result = call("train", "run.yaml", "hooks=['failing_1:FailingHook']")
        assert result.exit_code == 1
        assert "failing_1.py" in result.stderr
        assert "KeyError: 'no such image'" in result.stderr
        assert "hook 'failing'" in result.stderr

    @pytest.mark.slow
    def test_ctrl_c_exits_with_code_130(self, project: Project) -> None:
        project.write(
            """
            import time

            from hookbus import Hook

            class SlowHook(Hook):
                def after_train_iter(self, run):
                    print("iteration", flush=True)
                    time.sleep(0.05)
            """,
            "slow_1.py",
        )
        project.write(RUN)
        command = [
            sys.executable,
            "-m",
            "hookbus",
            "train",
            "run.yaml",
            "training.epochs=10000",
            "hooks=[slow_1:SlowHook]",
        ]
        with subprocess.Popen(
            command, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "iteration\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err.splitlines()[-1] == "interrupted"
        assert "Traceback" not in err
        assert json.loads((project.path / "runs/train/status.json").read_text())["outcome"] == "interrupted"


class TestPredict:
    @pytest.fixture(autouse=True)
    def trained(self, project: Project) -> None:
        project.write(RUN)
        sys.path.insert(0, str(project.path))
        directory = project.path / "runs/train/checkpoints"
        for generation, name in ((1, "first.pth"), (2, "second.pth")):
            weights = TestTest.weights(float(generation - 1))
            atomic_write(directory / name, lambda file, content=weights: file.write(content), generation)

    @staticmethod
    def read(path: Path) -> list[list[float]]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["index"] for row in rows] == list(range(len(rows)))
        return [row["output"] for row in rows]

    def test_predictions_of_the_newest_checkpoint_are_written_into_the_work_directory(self, project: Project) -> None:
        result = call("predict", "run.yaml")
        assert result.exit_code == 0, result.stderr
        content = torch.load(project.path / "runs/train/predictions.pt", weights_only=True)
        assert content["index"].tolist() == list(range(len(content["output"])))
        assert not torch.equal(content["output"], torch.zeros_like(content["output"]))

    def test_checkpoint_and_file_are_options(self, project: Project) -> None:
        checkpoint = "runs/train/checkpoints/first.pth"  # whose weights are zero
        result = call("predict", "run.yaml", "--checkpoint", checkpoint, "--output", "here.jsonl")
        assert result.exit_code == 0, result.stderr
        outputs = self.read(project.path / "here.jsonl")
        assert outputs == [[0.0, 0.0]] * len(outputs)
        assert outputs

    def test_existing_file_is_replaced_on_request_only(self, project: Project) -> None:
        (project.path / "here.jsonl").write_text("mine")
        result = call("predict", "run.yaml", "-o", "here.jsonl")
        assert result.exit_code == 2
        assert "the predictions exist" in result.stderr
        assert (project.path / "here.jsonl").read_text() == "mine"
        assert call("predict", "run.yaml", "-o", "here.jsonl", "--overwrite").exit_code == 0
        assert self.read(project.path / "here.jsonl")

    def test_hook_of_the_run_file_keeps_its_other_settings(self, project: Project) -> None:
        project.write(RUN.rstrip() + "\n      - {type: predictions, interval: batch}\n")
        assert call("predict", "run.yaml", "-o", "here.jsonl").exit_code == 0
        assert not (project.path / "here.jsonl").exists()
        assert self.read(project.path / "here-batches/000000.jsonl")

    def test_checkpoint_is_required(self, project: Project) -> None:
        result = call("predict", "run.yaml", "work_dir=elsewhere")
        assert result.exit_code == 1
        assert "contains no checkpoint to predict with. Train first, or pass --checkpoint." in result.stderr


class TestTest:
    @pytest.fixture(autouse=True)
    def trained(self, project: Project) -> None:
        project.write(RUN)

    @staticmethod
    def weights(value: float) -> bytes:
        from parts import net  # type: ignore[import-not-found]

        stream = io.BytesIO()
        torch.save({name: torch.full_like(tensor, value) for name, tensor in net().state_dict().items()}, stream)
        return stream.getvalue()

    def test_newest_checkpoint_is_tested(self, project: Project) -> None:
        sys.path.insert(0, str(project.path))
        directory = project.path / "runs/train/checkpoints"
        for generation, name in ((1, "newer_name.pth"), (2, "a.pth")):
            atomic_write(directory / name, lambda file, value=generation: file.write(self.weights(value)), generation)
        result = call("test", "run.yaml", "--json")
        assert result.exit_code == 0, result.stderr
        answer = json.loads(result.stdout)
        assert answer["checkpoint"] == "runs/train/checkpoints/a.pth"
        assert answer["weights"] == "raw"
        assert set(answer["metrics"]) == {"test/loss", "test/accuracy"}
        # equal outputs for both classes: the loss is ln 2
        assert answer["metrics"]["test/loss"] == pytest.approx(0.693147, abs=1e-6)

    def test_averaged_weights_are_tested_if_available(self, project: Project) -> None:
        sys.path.insert(0, str(project.path))
        from parts import net  # type: ignore[import-not-found]

        raw = net().state_dict()
        raw["2.bias"] = torch.tensor([9.0, 0.0])
        averaged = {name: torch.zeros_like(tensor) for name, tensor in raw.items()}
        torch.save({"state_dict": raw, "ema_state_dict": averaged}, project.path / "mine.pth")
        result = call("test", "run.yaml", "--checkpoint", "mine.pth")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines()[0] == "mine.pth, averaged weights"
        rows = dict(line.split() for line in result.stdout.splitlines()[2:])
        assert rows["test/loss"] == "0.693147"

    def test_checkpoint_option_overrides_resume(self, project: Project) -> None:
        sys.path.insert(0, str(project.path))
        (project.path / "mine.pth").write_bytes(self.weights(0.0))
        result = call("test", "run.yaml", "resume=nowhere.pth", "--checkpoint", "mine.pth")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines()[0] == "mine.pth"
        rows = dict(line.split() for line in result.stdout.splitlines()[2:])
        assert rows["test/loss"] == "0.693147"

    def test_checkpoint_directory_of_the_hook_is_searched(self, project: Project) -> None:
        project.write(
            """
            import torch
            from pathlib import Path

            from hookbus import Hook
            from hookbus.checkpoint.state import write_checkpoint

            class Elsewhere(Hook):
                def before_run(self, run):
                    if run.mode == "train":
                        run.provide("checkpoint_saver", self)

                def after_epoch(self, run):
                    run.request_save()

                def directory(self, run):
                    return Path("elsewhere")

                def plan(self, run, requests):
                    return self.directory(run) / f"{run.epochs_done}.pth"

                def write(self, run, checkpoint):
                    write_checkpoint(self.plan(run, []), checkpoint, run.epochs_done)
            """,
            "elsewhere_1.py",
        )
        (project.path / "elsewhere").mkdir()
        override = "hooks=['elsewhere_1:Elsewhere']"
        assert call("train", "run.yaml", override).exit_code == 0
        assert call("test", "run.yaml", override).stdout.splitlines()[0] == "elsewhere/2.pth"

    @pytest.mark.slow
    def test_hook_states_are_restored_before_the_test(self, project: Project) -> None:
        project.write(
            """
            from hookbus import Hook

            class Counter(Hook):
                count = 0

                def after_train_iter(self):
                    self.count += 1

                def before_test(self, run):
                    self.found = self.count

                def after_test(self, run):
                    run.log(found=self.found)

                def state_dict(self):
                    return {"count": self.count}

                def load_state_dict(self, state):
                    self.count = state["count"]
            """,
            "counter_1.py",
        )
        override = "hooks=['counter_1:Counter', 'checkpoint']"
        assert call("train", "run.yaml", override).exit_code == 0
        answer = json.loads(call("test", "run.yaml", override, "--json").stdout)
        trained = torch.load(project.path / answer["checkpoint"], weights_only=True)["hooks"]["counter"]["state"]
        assert answer["metrics"]["test/found"] == trained["count"] > 0
        assert answer["hooks"] == ["counter", "checkpoint"]

        result = call("test", "run.yaml", override)
        assert result.stdout.splitlines()[0] == f"{answer['checkpoint']}, state of counter, checkpoint"

    def test_missing_checkpoint_is_an_error(self) -> None:
        result = call("test", "run.yaml")
        assert (result.exit_code, result.stderr) == (
            1,
            "error: runs/train/checkpoints contains no checkpoint to test. Train first, or pass --checkpoint.\n",
        )


class TestHooks:
    def test_hooks_lists_installed_hooks_by_package(self, environment: Environment) -> None:
        lines = environment.hookbus("hooks").stdout.splitlines()
        assert lines[lines.index("acme-hooks 1.2") + 1] == "  greet          Greet the run: first line."
        assert lines[lines.index("twin-two 2.0") + 1].split() == ["twin-two/twin"]

    def test_hooks_marks_blocked_hooks(self, environment: Environment) -> None:
        rows = json.loads(environment.hookbus("hooks", "--json", HOOKBUS_BLOCK="greet").stdout)
        assert [row["name"] for row in rows if row["blocked"]] == ["greet"]
        assert rows[1] == {
            "name": "greet", "class": "GreetHook", "package": "acme-hooks", "version": "1.2", "blocked": True,
            "summary": "Greet the run: first line.",
        }  # fmt: skip
        lines = environment.hookbus("hooks", HOOKBUS_BLOCK="greet").stdout.splitlines()
        assert [line.split()[0] for line in lines if " blocked by HOOKBUS_BLOCK" in line] == ["greet"]

    def test_hooks_without_packages_prints_an_install_command(self, bare_environment: Environment) -> None:
        assert bare_environment.hookbus("hooks").stdout == (
            'No hooks are installed. Run: pip install "hookbus[standard]"\n'
        )


class TestPoints:
    def test_points_lists_signatures_and_descriptions(self) -> None:
        result = call("points")
        lines = result.stdout.splitlines()
        for point in POINTS.values():
            meaning = lines[lines.index(point.signature) + 1]
            assert meaning.startswith(f"    {point.doc}")
            assert (point.unit is None) == ("Schedules count" not in meaning)
        assert "Alias: before_step." in lines[lines.index(POINTS["before_train_iter"].signature) + 1]

    def test_json_output(self) -> None:
        output = json.loads(call("points", "--json").stdout)
        assert list(output)[: len(POINTS)] == list(POINTS)
        assert output["after_epoch"] == {
            "args": ["run", "epoch", "model", "metrics"],
            "unit": "epoch",
            "aliases": [],
            "doc": POINTS["after_epoch"].doc,
        }

    def test_points_of_packages_are_listed(self, environment: Environment) -> None:
        assert environment.hookbus("points").stdout.endswith("\nafter_render\n    Declared by acme-render 1.0.\n")
        output = json.loads(environment.hookbus("points", "--json").stdout)
        assert output["after_render"] == {"package": "acme-render 1.0"}


class TestExplain:
    def test_explain_shows_the_order_and_its_source(self, project: Project) -> None:
        project.write(RUN)
        result = call("explain", "run.yaml", "hooks.probe.name=mine")
        assert result.exit_code == 0, result.stderr
        lines = [line.split() for line in result.stdout.splitlines()]
        assert lines[0] == ["order:", "nested;", "hooks", "are", "listed", "in", "call", "order"]
        assert lines[2] == ["point", "priority", "priority", "from", "when"]
        assert lines[lines.index(["before_run"]) + 1] == ["quiet", "50", "class", "QuietHook"]
        assert lines[lines.index(["after_train_iter"]) + 1] == ["mine", "20", "config", "every(2)"]
        assert lines[-2:] == [["quiet", "module", "parts"], ["mine", "module", "parts"]]

    @pytest.mark.slow
    def test_hook_has_the_name_of_the_requested_entry_point(self, project: Project) -> None:
        info = project.path / "two_names-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: two-names\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[hookbus.hooks]\none = two_names:OneHook\ntwo = two_names:OneHook\nzwei = two_names:OneHook\n"
        )
        project.write("from parts import QuietHook\n\nclass OneHook(QuietHook): pass\n", "two_names.py")
        project.write(RUN)
        hooks = "hooks=[two, one, two-names/zwei, {type: two, name: mine}]"
        done = project.run("explain", "run.yaml", hooks, "--json")
        assert done.returncode == 0, done.stderr
        assert [row["hook"] for row in json.loads(done.stdout)["points"]["before_run"]] == [
            "two",
            "one",
            "zwei",
            "mine",
        ]

    def test_ordering_constraints_are_shown(self, project: Project) -> None:
        project.write(
            """
            from hookbus import Hook, hookimpl

            class ConstrainedHook(Hook):
                @hookimpl(before="quiet", after="nobody")
                def before_run(self, run):
                    pass
            """,
            "constrained_1.py",
        )
        project.write(RUN)
        lines = call(
            "explain", "run.yaml", "hooks=['parts:QuietHook', 'constrained_1:ConstrainedHook']"
        ).stdout.splitlines()
        assert lines[2].split()[-1] == "constraints"
        assert lines[4].split()[0] == "constrained"
        assert "before quiet" in lines[4]
        assert "nobody" in lines[4]

    def test_json_output(self, project: Project) -> None:
        project.write(RUN)
        output = json.loads(call("explain", "run.yaml", "order=ascending", "--json").stdout)
        assert output["order"] == "ascending"
        (row,) = output["points"]["before_run"]
        assert (row["hook"], row["priority"], row["package"]) == ("quiet", 50, "module parts")

    @pytest.mark.slow
    def test_explain_includes_default_hooks(self, environment: Environment) -> None:
        (environment.path / "explained.yaml").write_text("hooks: [greet]\n")
        names = [
            self.explained_hooks(environment, *more) for more in ((), ("default_hooks=false",), ("~hooks.logger",))
        ]
        assert names == [{"logger", "greet"}, {"greet"}, {"greet"}]

    @staticmethod
    def explained_hooks(environment: Environment, *overrides: str) -> set[str]:
        output = json.loads(environment.hookbus("explain", "explained.yaml", *overrides, "--json").stdout)
        return {row["hook"] for rows in output["points"].values() for row in rows}

    @pytest.mark.slow
    def test_only_a_requested_broken_package_is_an_error(self, environment: Environment) -> None:
        (environment.path / "broken.yaml").write_text("hooks:\n  - greet\n  - broken\n")
        done = environment.hookbus("explain", "broken.yaml")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("broken.yaml:3:5: hooks.1: broken-hooks 0.3 publishes 'broken', but ")
        assert environment.hookbus("explain", "broken.yaml", "hooks=[greet]").returncode == 0


class TestExplainSettings:
    @pytest.fixture
    def layers(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("HOOKBUS_SEED", "7")
        project.write("seed: 8\nhooks: {'parts:ProbeHook': {interval: 3, tags: [a, b]}}\n", "base.yaml")
        project.write('defaults: [base.yaml]\nwork_dir: "[red]x\\e"\n')

    @pytest.mark.usefixtures("layers")
    def test_each_setting_is_followed_by_the_values_that_it_replaces(self) -> None:
        result = call("explain", "run.yaml", "--settings", "hooks.probe.interval=2")
        assert (result.exit_code, result.stderr) == (0, "")
        assert [line.rstrip() for line in result.stdout.splitlines()] == [
            "setting                         value       source",
            "work_dir                        [red]x\\x1b  run.yaml:2:11",
            "seed                            8           base.yaml:1:7",
            "  overrides                     7           HOOKBUS_SEED",
            "hooks.parts:ProbeHook.interval  2           command line",
            "  overrides                     3           base.yaml:2:39",
            'hooks.parts:ProbeHook.tags      ["a", "b"]  base.yaml:2:48',
        ]

    @pytest.mark.usefixtures("layers")
    def test_json_output_has_the_same_rows(self) -> None:
        rows = json.loads(call("explain", "run.yaml", "--settings", "--json").stdout)
        assert rows[1] == {
            "path": "seed",
            "value": 8,
            "source": "base.yaml:1:7",
            "overrides": [{"value": 7, "source": "HOOKBUS_SEED"}],
            "dropped": False,
        }

    def test_invalid_variable_exits_with_2(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOOKBUS_TRAINNG__EPOCHS", "2")
        project.write(RUN)
        for command in (["explain", "run.yaml", "--settings"], ["check", "run.yaml"]):
            result = call(*command)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr.startswith("HOOKBUS_TRAINNG__EPOCHS: trainng: unknown key. Did you mean 'training'?")


class TestCheck:
    def test_check_describes_the_training(self, project: Project) -> None:
        project.write(RUN)
        result = call("check", "run.yaml")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines() == [
            "model: Sequential, 58 parameters to train on cpu",  # 4*8+8 + 8*2+2
            "train: 4 batches",
            "val: 4 batches",
            "limit: 2 epochs",
            "hooks: probe, quiet",
            "work dir: runs/train",
            "ok  run.yaml",
        ]
        assert not (project.path / "runs").exists()

    @pytest.mark.parametrize(
        ("hook", "module", "install"),
        [
            ("tensorboard", "torch.utils.tensorboard", "tensorboard"),
            ("mlflow", "mlflow", "mlflow-skinny sqlalchemy alembic"),
            ("wandb", "wandb", "wandb"),
        ],
    )
    def test_missing_library_names_the_pip_command(
        self, project: Project, monkeypatch: pytest.MonkeyPatch, hook: str, module: str, install: str
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        project.write(MISSING_LIBRARY.replace("HOOK", hook))
        result = call("check", "run.yaml")
        assert result.exit_code == 2
        assert result.stderr.startswith("run.yaml:7:5: hooks.0: ")
        assert f"the required module {module} cannot be imported: " in result.stderr
        assert result.stderr.endswith(f" Run: pip install {install}\n")

    @pytest.mark.parametrize(
        "hook",
        [
            '{type: "early_stopping", monitor: val_loss}',
            '{type: "checkpoint", save_best: accuracy}',
            '{type: "param_scheduler", schedulers: {type: ReduceLROnPlateau}}',
            '{type: "eval"}',
        ],
        ids=["early_stopping", "checkpoint", "param_scheduler", "eval"],
    )
    def test_check_and_train_refuse_a_hook_without_its_validation(self, project: Project, hook: str) -> None:
        project.write(f"{TRAINING.rstrip()}\n      - {hook}\n".replace("parts:points", "parts:train_only"))
        checked, trained = call("check", "run.yaml"), call("train", "run.yaml")
        assert (checked.exit_code, trained.exit_code, checked.stdout, trained.stdout) == (2, 2, "", "")
        assert checked.stderr == trained.stderr
        assert "but the run has no validation function. Pass val_loader=" in checked.stderr
        assert not (project.path / "runs").exists()

    @pytest.mark.parametrize(
        ("setting", "hook", "message"),
        [
            ("loss=null", '"parts:QuietHook"', "loss: missing, because Sequential.forward cannot be called with the 2"),
            (
                "seed=1",
                '{type: "param_scheduler", schedulers: {type: OneCycleLR, max_lr: 1}}',
                "schedulers: OneCycleLR cannot be built: ValueError: You must define",
            ),
            (
                "seed=1",
                '{type: "early_stopping", monitor: val_loss, restore_best_weights: file}',
                "restore_best_weights: file requires the checkpoint hook. Install it",
            ),
        ],
        ids=["loss", "scheduler", "saver"],
    )
    def test_check_and_train_refuse_what_is_known_before(
        self, project: Project, setting: str, hook: str, message: str
    ) -> None:
        project.write(f"{TRAINING.rstrip()}\n      - {hook}\n")
        checked, trained = call("check", "run.yaml", setting), call("train", "run.yaml", setting)
        assert (checked.exit_code, trained.exit_code, checked.stdout, trained.stdout) == (2, 2, "", "")
        assert checked.stderr == trained.stderr
        assert message in " ".join(checked.stderr.split())
        assert not (project.path / "runs").exists()

    def test_check_reports_all_errors(self, project: Project) -> None:
        project.write(RUN)
        (project.path / "broken.pth").write_text("no checkpoint")
        result = call("check", "run.yaml", "load_from=broken.pth", "model.input_shape=[5]")
        assert (result.exit_code, result.stdout) == (1, "")
        first, *_, last = result.stderr.splitlines()
        assert first.startswith("error: A batch of the train_loader cannot be processed by the model: RuntimeError: ")
        assert last.startswith("error: load_from: broken.pth: ")

    @pytest.mark.parametrize("command", ["train", "check"])
    @pytest.mark.parametrize(
        ("override", "problem"),
        [
            ("load_from=no.pth", "load_from: no.pth: file does not exist."),
            ("load_from={path: no.pth}", "load_from: no.pth: file does not exist."),
            ("resume=no.pth", "resume: no.pth: file does not exist."),
            ("load_from=runs", "load_from: runs: is a directory. Pass the path of a file."),
            ("resume=pipe", "resume: pipe: is not a regular file. Pass the path of a file."),
            ("load_from=" + "x" * 300, "load_from: a name of 300 bytes, but a file system allows 255."),
            ("work_dir=" + "x" * 300, "work_dir: a name of 300 bytes, but a file system allows 255."),
            ("work_dir=" + "x/" * 2000, "work_dir: a path of "),
            ("hooks.jsonl.path=" + "x" * 300, "hooks.2.path: a name of 300 bytes, but a file system allows 255."),
            ("hooks.jsonl.name=" + "x" * 300, "hooks.2.name: should have at most 200 characters, got 'xxx"),
        ],
        ids=lambda value: value[:20],
    )
    def test_path_that_cannot_be_used_is_a_configuration_error(
        self, project: Project, command: str, override: str, problem: str
    ) -> None:
        (project.path / "runs").mkdir()
        os.mkfifo(project.path / "pipe")
        project.write(RUN)
        result = call(command, "run.yaml", override)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"command line: {override[:79]}")
        assert problem in result.stderr
        assert not (project.path / "runs" / "train").exists()

    def test_missing_file_is_reported_with_its_line_and_all_other_errors(self, project: Project) -> None:
        path = project.write(RUN)
        path.write_text(path.read_text() + "\nload_from: no.pth\nsead: 1\n")
        lines = path.read_text().splitlines()
        result = call("check", "run.yaml")
        assert result.exit_code == 2
        assert result.stderr.splitlines()[0] == (
            f"run.yaml:{lines.index('load_from: no.pth') + 1}:12: load_from: no.pth: file does not exist."
        )
        assert "sead: unknown key" in result.stderr

    def test_tested_checkpoint_must_exist_but_not_the_initial_weights(self, project: Project) -> None:
        project.write(RUN)
        result = call("test", "run.yaml", "load_from=no.pth", "--checkpoint", "nowhere.pth")
        assert (result.exit_code, result.stderr) == (2, "--checkpoint: nowhere.pth: file does not exist.\n")


class TestSchema:
    @pytest.mark.slow
    def test_schema_is_printed_or_written(self, project: Project) -> None:
        printed = json.loads(call("schema").stdout)
        result = call("schema", "-o", "run.schema.json")
        assert result.stdout == (
            "Wrote run.schema.json. Add this line at the top of run files: "
            "# yaml-language-server: $schema=run.schema.json\n"
        )
        assert json.loads((project.path / "run.schema.json").read_text()) == printed
        assert printed["title"] == "RunConfig"

    @pytest.mark.slow
    def test_unwritable_file_is_an_error(self, project: Project) -> None:
        path = "x" * 300
        result = call("schema", "-o", path)
        assert result.exit_code == 1
        assert result.stderr == f"error: {path} cannot be written: File name too long. Pass another file to --output.\n"


@pytest.mark.parametrize(
    "command",
    ["schema", "trace run.yaml", "plot runs/x", "predict run.yaml --checkpoint parts.py", "consolidate generation_1"],
)
def test_output_option_creates_no_folder(project: Project, command: str) -> None:
    project.write(RUN)
    (project.path / "folder.html").mkdir()
    before = sorted(project.path.rglob("*"))
    messages = {
        "no/x.html": "no is no existing folder, got no/x.html. Create the folder, or pass another file.",
        "parts.py/x.html": "parts.py is no existing folder, got parts.py/x.html. Create the folder, or pass another "
        "file.",
        "folder.html": "must be a file, got the folder folder.html. Pass a file in it.",
    }
    for path, message in messages.items():
        result = call(*command.split(), "-o", path)
        assert (result.exit_code, result.stderr) == (2, f"--output: {message}\n")
    assert sorted(project.path.rglob("*")) == before


def test_version_is_printed() -> None:
    assert call("--version").stdout == f"hookbus {hookbus.__version__}\n"


def test_help_is_printed_without_a_command() -> None:
    result = call()
    assert result.exit_code == 2
    assert {"train", "test", "predict", "hooks", "points", "explain", "check", "schema", "doctor"} <= set(
        re.findall(r"^  (\w+)  ", result.stdout + result.stderr, re.MULTILINE)
    )


def test_unknown_command_is_an_error() -> None:
    assert call("trian").exit_code == 2


class TestPipes:
    @pytest.mark.parametrize("command", [["hooks"], ["points"], ["points", "--json"]])
    def test_piped_output_has_no_control_characters(self, environment: Environment, command: list[str]) -> None:
        done = environment.hookbus(*command)
        assert done.returncode == 0
        assert CONTROL.findall(done.stdout + done.stderr) == []

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "arguments",
        [["check", "run.yaml"], ["explain", "run.yaml"], ["train", "run.yaml", "default_hooks=true"]],
        ids=lambda arguments: arguments[0],
    )
    def test_piped_run_has_no_control_characters(self, project: Project, arguments: list[str]) -> None:
        project.write(RUN)
        done = project.run(*arguments)
        assert done.returncode == 0, done.stderr
        assert CONTROL.findall(done.stdout + done.stderr) == []

    @pytest.mark.parametrize("option", ["", "--json"])
    def test_closed_pipe_is_not_an_error(self, option: str) -> None:
        command = f"'{sys.executable}' -m hookbus points {option} | true"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("points >&-", 0, ""),
        ("points >&- 2>&-", 0, ""),
        ("points >/dev/full", 1, "error: Standard output cannot be written: No space left on device.\n"),
        ("points --json >/dev/full", 1, "error: Standard output cannot be written: No space left on device.\n"),
        ("--version >/dev/full", 1, "error: Standard output cannot be written: No space left on device.\n"),
        ("train --help >/dev/full", 1, "error: Standard output cannot be written: No space left on device.\n"),
    ],
)
def test_unwritable_output_prints_no_traceback(command: str, code: int, message: str) -> None:
    done = subprocess.run(["bash", "-c", f"'{sys.executable}' -m hookbus {command}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.slow
def test_train_that_finishes_with_a_full_output_exits_with_0(project: Project) -> None:
    project.write(RUN)
    command = f"'{sys.executable}' -m hookbus train run.yaml >/dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=project.path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("error: Standard output cannot be written: No space left on device.\n")


@pytest.mark.slow
def test_ascii_output_escapes_other_characters(project: Project) -> None:
    project.write(RUN, "caf\u00e9.yaml")
    done = project.run("check", "caf\u00e9.yaml", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ok  caf\\xe9.yaml")


def run_in_terminal(command: list[str], columns: int, cwd: Path) -> str:
    """Return the output of a command in a terminal of the given width, without colors."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        command, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm"}
    ) as process:
        os.close(slave)
        shown = b""
        while chunk := _read(master):
            shown += chunk
    os.close(master)
    assert process.returncode == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux raises when the other end is closed
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["points"], ["explain", "run.yaml"], ["hooks"]])
def test_output_fits_80_columns(project: Project, arguments: list[str]) -> None:
    project.write(RUN)
    shown = run_in_terminal([sys.executable, "-m", "hookbus", *arguments], 80, project.path)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["points"], ["explain", "run.yaml"], ["hooks"], ["check", "run.yaml"]])
def test_narrow_terminal_does_not_break_names(project: Project, arguments: list[str]) -> None:
    project.write(RUN)
    narrow, wide = (set(re.findall(r"\w+", call(*arguments, env={"COLUMNS": str(n)}).stdout)) for n in (40, 160))
    assert narrow == wide


IMPORTS = """
    import contextlib, io, sys
    from hookbus._cli.app import app
    from hookbus.discovery import list_entries
    answer = {}
    for command in (["hooks"], ["points"], ["points", "--json"]):
        with contextlib.redirect_stdout(io.StringIO()):
            app(command, standalone_mode=False)
    answer = sorted({"torch", "numpy", *(plugin.entry.module for plugin in list_entries())} & set(sys.modules))
"""


def test_listing_commands_import_neither_torch_nor_plugins(environment: Environment) -> None:
    assert environment.answer(IMPORTS) == []


def test_import_of_hookbus_imports_no_dependency(environment: Environment) -> None:
    script = """
        import sys
        import hookbus
        libraries = {"torch", "pluggy", "pydantic", "rich", "typer"}
        answer = sorted(libraries & {name.partition(".")[0] for name in sys.modules})
    """
    assert environment.answer(script) == []


def test_python_m_hookbus_runs_the_command_line(project: Project) -> None:
    done = project.run("explain", "nowhere.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "nowhere.yaml: the run file cannot be read: No such file or directory.\n",
    )


@pytest.mark.slow
def test_third_party_hook_runs_in_a_training(environment: Environment, project: Project) -> None:
    project.write(RUN)
    arguments = [
        "train",
        "run.yaml",
        "hooks=[{type: greet, text: hi}, {type: logger, text: mine}]",
        "default_hooks=true",
    ]
    variables = {"PYTHONPATH": str(project.path)}
    for name in ("run.yaml", "parts.py"):
        (environment.path / name).write_text((project.path / name).read_text())
    done = environment.hookbus(*arguments, "training.epochs=3", "work_dir=runs/greeting", **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:6] == [
        "greet says hi",
        *(f"record {epoch} mine" for epoch in range(3)),
        "",
        "The files of this run are in runs/greeting",
    ]
