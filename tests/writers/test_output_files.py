"""Tests of the output files of hooks: those of others are never replaced or changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookbus import Hook, HookBus, Run, build_hook
from hookbus._config.hooks import get_hook_class
from hookbus.discovery import list_entries
from hookbus.errors import ConfigError
from hookbus.testing import fake_training
from hookbus.writers import resolve_output_path
from hookbus.writers.output_files import (
    MARKER,
    OutputFiles,
    claim_directory,
    image_directory,
    owns_directory,
    register_directory,
    set_aside,
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        yield run


def create(kind: str, path: Path) -> None:
    creators: dict[str, Callable[[], object]] = {
        "file": lambda: path.write_text("mine"),
        "link": lambda: path.symlink_to(path.parent / "target"),
        "directory": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
    }
    creators[kind]()


def describe(path: Path) -> tuple[int, int, int]:
    state = os.lstat(path)
    return state.st_ino, state.st_size, state.st_mtime_ns


@pytest.mark.parametrize("kind", ["file", "link", "directory", "fifo"])
def test_foreign_name_is_not_replaced(run: Run, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "target").write_text("mine")
    create(kind, tmp_path / "x.png")
    before = describe(tmp_path / "x.png")

    files = OutputFiles(run, tmp_path)
    written = [
        files.write("x.png", lambda file: file.write(b"new")),
        files.create("x.png", lambda path: path.write_bytes(b"new")),
    ]

    assert written == [tmp_path / "x-2.png", tmp_path / "x-3.png"]
    assert [path.read_bytes() for path in written] == [b"new", b"new"]
    assert describe(tmp_path / "x.png") == before
    assert (tmp_path / "target").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))
    assert caplog.records[0].getMessage() == (
        f"{tmp_path / 'x.png'} already exists and was not written by this run, so x-2.png is written."
    )


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_only_files_are_replaced_in_an_own_directory(run: Run, tmp_path: Path, kind: str) -> None:
    (tmp_path / "target").write_text("mine")
    directory = tmp_path / "images"
    files = OutputFiles(run, directory)
    files.write("first.png", lambda file: file.write(b"first"))
    create(kind, directory / "x.png")

    assert files.write("x.png", lambda file: file.write(b"new")).name == "x-2.png"
    assert (tmp_path / "target").read_text() == "mine"
    again = OutputFiles(run, directory)
    assert again.write("first.png", lambda file: file.write(b"newer")).name == "first.png"
    assert (directory / "first.png").read_bytes() == b"newer"


def test_file_of_the_run_is_replaced_in_a_directory_of_others(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "run" / "mine"
    directory.mkdir()
    (directory / "x.png").write_text("mine")

    names = [
        OutputFiles(run, directory).write(name, lambda file: file.write(b"new")).name
        for name in ("x.png", "x.png", "y.png", "y.png")
    ]

    assert names == ["x-2.png", "x-2.png", "y.png", "y.png"]
    assert (directory / "x.png").read_text() == "mine"


def test_failed_creation_leaves_no_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()

    def fail(path: Path) -> None:
        path.write_text("incomplete")
        raise OSError("simulated full disk")

    with pytest.raises(OSError, match="simulated"):
        OutputFiles(run, tmp_path / "images").create("x.png", fail)
    assert not list((tmp_path / "images").iterdir())


def test_directory_outside_is_owned_if_this_run_has_created_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("")

    owned = [owns_directory(run, tmp_path / name) for name in ("new", "empty", "used", "new")]

    assert owned == [True, True, False, True]
    assert (tmp_path / "new" / MARKER).read_text() == f"run: {run.id}\n"
    assert os.listdir(tmp_path / "used") == ["mine"]
    run.id = "0" * 32
    assert not owns_directory(run, tmp_path / "new")


def test_leftovers_of_the_run_are_removed_from_its_directory(run: Run, tmp_path: Path) -> None:
    OutputFiles(run, tmp_path / "new").write("x", lambda file: file.write(b""))
    own, other = f".tmp-{run.id}-{'0' * 32}", f".tmp-{'1' * 32}-{'0' * 32}"
    for name in (own, other, ".tmp-mine"):
        (tmp_path / "new" / name).write_text("")

    OutputFiles(run, tmp_path / "new")
    assert sorted(os.listdir(tmp_path / "new")) == [MARKER, other, ".tmp-mine", "x"]


@pytest.mark.parametrize("content", ["", "run: 0\n", "x" * 1000])
def test_directory_with_another_marker_is_foreign(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / MARKER).write_text(content)

    assert not owns_directory(run, tmp_path / "new")
    assert claim_directory(run, tmp_path / "new", lambda _: False) == tmp_path / "new" / "run-2"


def test_claimed_directory_is_found_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "event").write_text("")

    def is_foreign(directory: Path) -> bool:
        return (directory / "event").exists()

    claimed = [claim_directory(run, tmp_path / "events", is_foreign) for _ in range(2)]
    assert claimed == [tmp_path / "events" / "run-2"] * 2
    (claimed[0] / "event").write_text("")
    assert claim_directory(run, tmp_path / "events", is_foreign) == claimed[0]
    run.id = "0" * 32
    assert claim_directory(run, tmp_path / "events", is_foreign) == tmp_path / "events" / "run-3"


def test_directory_in_the_work_dir_is_registered(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run" / "mine").mkdir()

    assert register_directory(run, tmp_path / "run" / "new").name == "new"
    assert register_directory(run, tmp_path / "run" / "mine").name == "mine-2"
    assert owns_directory(run, tmp_path / "run" / "new")
    assert not owns_directory(run, tmp_path / "run" / "mine")


def test_file_is_set_aside_under_the_first_free_name(run: Run, tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        (tmp_path / "x.txt").write_text("old")
        names.append(set_aside(run, tmp_path / "x.txt").name)

    assert names == ["x-old.txt", "x-old-2.txt"]
    assert sorted(path.name for path in tmp_path.glob("x*")) == ["x-old-2.txt", "x-old.txt"]


OUTPUT_SETTINGS = {
    ("checkpoint", "out_dir"): "",
    ("csv", "path"): "",
    ("det_visualization", "out_dir"): "visualization",
    ("feature_map", "out_dir"): "visualization",
    ("gradient_flow", "save_dir"): "visualization",
    ("jsonl", "path"): "",
    ("lr_finder", "save_dir"): "visualization",
    ("seg_visualization", "out_dir"): "visualization",
    ("tensorboard", "log_dir"): "",
    ("time_tracking", "log_path"): "logs",
    ("visualization", "out_dir"): "visualization",
}
"""Settings with an output path, and the directory below the work directory to which relative paths refer."""

FURTHER_SETTINGS = {"time_tracking": {"log_to_file": True}, "gradient_flow": {"frequency": 1}}
"""Settings with which a hook writes files in a training of one epoch."""

DIRECTORY_HOOKS = {
    "checkpoint": "out_dir",
    "csv": "path",
    "jsonl": "path",
    "mlflow": "",
    "tensorboard": "log_dir",
    "wandb": "",
}
"""Hooks that require a work directory, and the setting that replaces it."""

OTHER_SETTINGS = {("ema", "resume_from"), ("early_stopping", "start_from_epoch")}
"""An input path, which is relative to the current directory, and a number of epochs."""

WORDS = ("path", "_dir", "directory", "folder", "_from")


def test_relative_path_is_below_the_work_directory(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        assert resolve_output_path(run, "h", "out_dir", "a/b") == tmp_path / "run" / "a/b"
        assert resolve_output_path(run, "h", "out_dir", "a", parent="logs_dir") == tmp_path / "run/logs/a"


def test_absolute_paths_and_the_home_directory_are_used_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = HookBus().current
    assert resolve_output_path(run, "h", "out_dir", tmp_path / "a") == tmp_path / "a"
    assert resolve_output_path(run, "h", "out_dir", "~/a") == tmp_path / "a"


def test_relative_path_requires_a_work_directory() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_output_path(HookBus().current, "h", "out_dir", "a")
    assert str(caught.value) == (
        "hook 'h': out_dir: expected an absolute path in a run without a work directory, got a. Set `work_dir`, or set "
        "`out_dir` to an absolute path."
    )


@pytest.mark.slow  # imports all plugins
def test_every_path_setting_of_the_installed_hooks_is_listed() -> None:
    listed: set[tuple[str, str]] = set()
    for entry in list_entries():
        cls = get_hook_class(entry.name)
        assert issubclass(cls, Hook)
        names = [name for name, field in cls.Config.model_fields.items() if _is_path(name, str(field.annotation))]
        listed |= {(entry.name, name) for name in names}
    assert listed == {*OUTPUT_SETTINGS, *OTHER_SETTINGS}


def _is_path(name: str, annotation: str) -> bool:
    return "pathlib.Path" in annotation or any(word in name for word in WORDS)


@pytest.mark.parametrize(("hook", "setting"), OUTPUT_SETTINGS)
def test_relative_path_of_each_hook_is_refused_without_a_work_directory(
    hook: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hooks = [build_hook({"type": hook, setting: "here", **FURTHER_SETTINGS.get(hook, {})})]
    message = rf"^hook '{hook}' \(.*\): {setting}: expected an absolute path in a run without a .*, got here\."
    with pytest.raises(ConfigError, match=message):
        fake_training(hooks, epochs=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("hook", "setting"), DIRECTORY_HOOKS.items())
def test_hook_that_requires_a_directory_is_refused_without_a_work_directory(hook: str, setting: str) -> None:
    alternative = f", or set `{setting}` to an absolute path" if setting else ""
    message = rf"^hook '{hook}' \(.*\): requires a work directory, got none\. Set `work_dir`{alternative}\.$"
    with pytest.raises(ConfigError, match=message), HookBus([build_hook({"type": hook})]).run():
        pytest.fail("the loop has started")


@pytest.mark.parametrize("hook", ["checkpoint", "csv", "gradient_flow", "jsonl", "tensorboard", "time_tracking"])
def test_relative_path_of_each_hook_is_below_the_work_directory(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    setting, parent = next((name, parent) for (type_, name), parent in OUTPUT_SETTINGS.items() if type_ == hook)
    settings = {"type": hook, setting: "a/b", **FURTHER_SETTINGS.get(hook, {})}
    fake_training([build_hook(settings)], epochs=1, work_dir="run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / parent / "a" / "b").exists()


class TestImageDirectory:
    @pytest.mark.parametrize(("value", "folder"), [(None, "own"), ("mine", "mine")])
    def test_relative_directory_is_created_in_the_run_and_claimed(
        self, value: str | None, folder: str, tmp_path: Path
    ) -> None:
        with HookBus().run(work_dir=tmp_path) as run:
            directory = image_directory(run, "maps", "out_dir", value, "own")
            assert directory == tmp_path / "visualization" / folder
            directory.mkdir(parents=True)
            assert run.register_output(directory)

    def test_run_without_work_directory_has_only_absolute_directories(self, tmp_path: Path) -> None:
        with HookBus().run() as run:
            assert image_directory(run, "maps", "out_dir", None, "own") is None
            assert image_directory(run, "maps", "out_dir", str(tmp_path), "own") == tmp_path
            with pytest.raises(
                ConfigError, match="^hook 'maps': out_dir: expected an absolute path .*, got here. Set `work_dir`"
            ):
                image_directory(run, "maps", "out_dir", "here", "own")
