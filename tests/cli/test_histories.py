"""The commands that read histories: `hookbus plot` and `hookbus runs`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from hookbus._cli.app import app
from hookbus._cli.plots import _build_figure
from hookbus._run.history_file import HistoryFile


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "300"})


def make_run(directory: Path, accuracies: list[float], **settings: Any) -> None:
    directory.mkdir(parents=True)
    rows = [
        {
            "kind": "epoch",
            "epoch": epoch,
            "iteration": epoch * 4,
            "step": epoch * 4,
            "seconds": epoch * 60.0,
            "train/loss": 1 / epoch,
            "val/accuracy": accuracy,
        }
        for epoch, accuracy in enumerate(accuracies, start=1)
    ]
    HistoryFile(directory / "history.jsonl", "r").write(rows)
    status = {"run": "r", "outcome": "finished", "epochs_done": len(rows), "iters_done": 4 * len(rows), "metrics": {}}
    (directory / "status.json").write_text(json.dumps(status))
    (directory / "config.yaml").write_text(json.dumps({"seed": 0, **settings}))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "a", [0.5, 0.7, 0.6], optimizer={"lr": 0.1})
    make_run(tmp_path / "runs" / "sweep" / "b", [0.9], optimizer={"lr": 0.2})
    return tmp_path / "runs"


# -- plot ----------------------------------------------------------------------------------------


def test_page_has_a_chart_per_metric_with_the_curves_of_all_runs(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "c.html"
    done = invoke("plot", runs / "a", runs / "sweep" / "b", "-o", output)
    assert (done.exit_code, done.output.strip()) == (0, f"Wrote {output}.")
    page = output.read_text()
    assert re.findall('aria-label="([^"]*)"', page) == ["loss", "accuracy"]
    assert re.findall("<title>([^<]*)</title>", page) == [
        "a, b", "a train/loss", "b train/loss", "a val/accuracy", "b val/accuracy",
    ]  # fmt: skip


def test_only_named_metrics_are_plotted(runs: Path, tmp_path: Path) -> None:
    assert invoke("plot", runs / "a", "-o", tmp_path / "c.html", "-m", "accuracy").exit_code == 0
    assert re.findall('aria-label="([^"]*)"', (tmp_path / "c.html").read_text()) == ["accuracy"]
    done = invoke("plot", runs / "a", "-o", tmp_path / "c.html", "--metric", "bleu")
    assert done.exit_code == 2
    assert "--metric: run a: Unknown metric 'bleu'. Available: train/loss, val/accuracy." in done.output


def test_image_is_drawn_by_matplotlib(runs: Path, tmp_path: Path) -> None:
    assert invoke("plot", runs / "a", "-o", tmp_path / "c.png").exit_code == 0
    with Image.open(tmp_path / "c.png") as image:
        assert (image.format, image.width > image.height) == ("PNG", True)


def test_image_without_matplotlib_is_an_error_that_names_the_command(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = invoke("plot", runs / "a", "-o", tmp_path / "c.png")
    assert done.exit_code == 1
    assert "Run: pip install matplotlib, or pass a file with the suffix .html." in done.output


def test_unknown_suffix_and_runs_without_a_history_are_errors(runs: Path, tmp_path: Path) -> None:
    assert "the suffix must be .html or .png, got 'c.gif'" in invoke("plot", runs / "a", "-o", "c.gif").output
    done = invoke("plot", runs, "-o", tmp_path / "c.html")
    assert done.exit_code == 1
    assert done.output == (
        f"error: {runs} has no history.jsonl: it is not the work directory of a training. Pass that of a run, such as "
        f"{runs / 'a'}.\n"
    )
    done = invoke("plot", runs / "none", "-o", tmp_path / "c.html")
    assert done.exit_code == 2
    assert done.output == f"{runs / 'none'}: no such directory. Pass the work directory of a run.\n"
    (runs / "a" / "history.jsonl").write_text("")
    reason = "the run has not completed an epoch or a validation. Pass another run."
    done = invoke("plot", runs / "a", "-o", tmp_path / "c.html")
    assert done.output == f"error: {runs / 'a' / 'history.jsonl'} has no rows: {reason}\n"
    (runs / "a" / "history.jsonl").unlink()
    done = invoke("plot", runs / "a", "-o", tmp_path / "c.html")
    assert done.output == f"error: {runs / 'a'} has no history.jsonl: {reason}\n"
    assert not (tmp_path / "c.html").exists()


def test_run_that_is_passed_twice_is_an_error(runs: Path) -> None:
    result = invoke("plot", runs / "a", runs / "a")
    assert result.exit_code == 2
    assert f"a run is passed more than once, got {runs / 'a'}. Pass it once." in result.output.replace("\n", " ")

    again = runs / "sweep" / ".." / "a"
    result = invoke("plot", runs / "a", again)
    assert (result.exit_code, f"more than once, got {again}" in result.output) == (2, True)


def test_names_in_an_image_are_no_formulas_and_have_an_entry_in_the_legend(tmp_path: Path) -> None:
    make_run(tmp_path / r"$\frac$", [0.5, 0.6])
    make_run(tmp_path / "_b", [0.5])
    assert invoke("plot", tmp_path / r"$\frac$", "-o", tmp_path / "c.png").exit_code == 0
    figure = _build_figure({"loss": {"_b train/loss": [(1.0, 2.0)], "a": [(1.0, 3.0)]}}, "epoch", "title")
    texts = figure.axes[0].get_legend().get_texts()
    assert [text.get_text().strip() for text in texts] == ["_b train/loss", "a"]


@pytest.mark.parametrize("last", [1, 2, 3, 200])
def test_axis_of_an_image_has_whole_epochs(last: int) -> None:
    curve = [(float(epoch), 0.5) for epoch in range(1, last + 1)]
    axes = _build_figure({"loss": {"a": curve}}, "epoch", "title").axes[0]
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == int(tick) for tick in ticks)


def test_damaged_lines_are_reported_with_their_number(runs: Path, tmp_path: Path) -> None:
    with (runs / "a" / "history.jsonl").open("a") as file:
        file.write("damaged\n")
    for done in (invoke("plot", runs / "a", "-o", tmp_path / "c.html"), invoke("runs", runs)):
        assert done.exit_code == 0
        assert f"{runs / 'a' / 'history.jsonl'}:4: invalid JSON" in done.output


# -- runs ----------------------------------------------------------------------------------------


def test_table_shows_the_best_results_and_the_settings_that_differ(runs: Path) -> None:
    done = invoke("runs", runs)
    assert done.exit_code == 0
    assert [line.split() for line in done.output.splitlines()] == [
        ["run", "outcome", "epochs", "time", "val/accuracy", "optimizer.lr"],
        ["a", "finished", "3", "0:03:00", "0.7000", "0.1"],
        ["sweep/b", "finished", "1", "0:01:00", "0.9000", "0.2"],
    ]


def test_runs_are_sorted_by_columns_metrics_and_settings(runs: Path) -> None:
    def get_names(key: str) -> list[str]:
        return [run["name"] for run in json.loads(invoke("runs", runs, "--json", "--sort", key).stdout)]

    assert get_names("val/accuracy") == ["sweep/b", "a"]  # the best run first
    assert get_names("seconds") == ["sweep/b", "a"]
    assert get_names("optimizer.lr") == get_names("name") == ["a", "sweep/b"]
    # The titles of the table, and the names of a metric that `monitor` accepts.
    assert get_names("time") == get_names("accuracy") == get_names("val_accuracy") == ["sweep/b", "a"]
    assert get_names("run") == ["a", "sweep/b"]
    done = invoke("runs", runs, "--sort", "val/acc")
    assert done.exit_code == 2
    assert "--sort: no run has 'val/acc'. Did you mean 'val/accuracy'?" in done.output
    path = runs / "a" / "history.jsonl"
    path.write_text(path.read_text().replace('"train/loss"', '"test/accuracy"'))
    done = invoke("runs", runs, "--sort", "accuracy")
    assert (done.exit_code, "--sort: Ambiguous metric 'accuracy': test/accuracy or val/accuracy." in done.output) == (
        2,
        True,
    )


def test_hook_that_some_runs_lack_is_one_setting(tmp_path: Path) -> None:
    ema, logger = {"type": "ema", "momentum": 0.1}, {"type": "logger", "interval": 10}
    make_run(tmp_path / "a", [0.5], hooks=[ema, logger])
    make_run(tmp_path / "b", [0.5], hooks=[{**logger, "interval": 20}])
    first, second = json.loads(invoke("runs", tmp_path, "--json").stdout)
    assert first["settings"] == {"hooks.ema": True, "hooks.logger.interval": 10}
    assert second["settings"] == {"hooks.ema": False, "hooks.logger.interval": 20}


def test_control_characters_of_a_metric_are_escaped(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5])
    path = tmp_path / "a" / "history.jsonl"
    path.write_text(path.read_text().replace("val/accuracy", "val/\\u001b[31mx"))
    result = invoke("runs", tmp_path)
    assert "val/\\x1b[31mx" in result.stdout
    assert "\x1b[31m" not in result.stdout


def test_json_contains_all_values(runs: Path) -> None:
    first = json.loads(invoke("runs", runs, "--json").stdout)[0]
    assert first == {
        "name": "a", "outcome": "finished", "epochs": 3, "iterations": 12, "seconds": 180.0, "started": "",
        "best": {"val/accuracy": 0.7}, "settings": {"optimizer.lr": 0.1}, "problems": [],
    }  # fmt: skip


def test_run_of_an_earlier_version_and_a_damaged_status_are_listed(runs: Path) -> None:
    (runs / "old").mkdir()
    status = {"run": "r", "outcome": "failed", "epochs_done": 2, "best": {"val/loss": {"value": 0.25}}}
    (runs / "old" / "status.json").write_text(json.dumps(status))
    (runs / "damaged").mkdir()
    (runs / "damaged" / "status.json").write_text("{")
    done = invoke("runs", runs)
    lines = [line.split() for line in done.output.splitlines()]
    assert ["damaged", "unknown"] in lines
    assert ["old", "failed", "2", "0.2500"] in lines
    assert f"{runs / 'damaged' / 'status.json'}: invalid JSON" in done.output


def test_directory_without_runs_is_no_error_and_a_missing_one_is(tmp_path: Path) -> None:
    done = invoke("runs", tmp_path)
    assert (done.exit_code, done.output.strip()) == (
        0,
        f"{tmp_path} contains no training runs. Pass the directory that contains their work directories.",
    )
    assert invoke("runs", tmp_path / "none").exit_code == 2


def test_directory_of_a_run_lists_that_run(runs: Path) -> None:
    assert invoke("runs", runs / "a").output.splitlines()[1].split()[0] == "a"


def test_runs_in_the_directory_of_a_run_are_listed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(runs / "a" / "more" / "c", [0.5])
    names = [line.split()[0] for line in invoke("runs", runs).output.splitlines()[1:]]
    assert names == ["a", "a/more/c", "sweep/b"]
    monkeypatch.chdir(runs / "a")
    assert [run["name"] for run in json.loads(invoke("runs", ".", "--json").stdout)] == ["a", "more/c"]


def test_best_result_of_a_metric_of_unknown_direction_is_that_of_the_run(runs: Path) -> None:
    for path in (runs / "a").iterdir():
        path.write_text(path.read_text().replace("val/accuracy", "val/quality"))
    path = runs / "a" / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "best": {"val/quality": {"value": 0.7}}}))
    best = {run["name"]: run["best"] for run in json.loads(invoke("runs", runs, "--json").stdout)}
    assert best == {"a": {"val/quality": 0.7}, "sweep/b": {"val/accuracy": 0.9}}
