"""Tests of the paths in settings of hooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookbus import Hook, HookBus, build_hook
from hookbus._config.hooks import get_hook_class
from hookbus.discovery import list_entries
from hookbus.errors import ConfigError
from hookbus.testing import fake_training
from hookbus.writers import resolve_output_path

OUTPUT_SETTINGS = {
    ("checkpoint", "out_dir"): "",
    ("det_visualization", "out_dir"): "visualization",
    ("feature_map", "out_dir"): "visualization",
    ("gradient_flow", "save_dir"): "visualization",
    ("jsonl", "path"): "",
    ("seg_visualization", "out_dir"): "visualization",
    ("tensorboard", "log_dir"): "",
    ("time_tracking", "log_path"): "logs",
    ("visualization", "out_dir"): "visualization",
}
"""Settings with an output path, and the directory below the work directory to which relative paths refer."""

FURTHER_SETTINGS = {"time_tracking": {"log_to_file": True}, "gradient_flow": {"frequency": 1}}
"""Settings with which a hook writes files in a training of one epoch."""

DIRECTORY_HOOKS = {"checkpoint": "out_dir", "jsonl": "path", "mlflow": "", "tensorboard": "log_dir", "wandb": ""}
"""Hooks that require a work directory, and the setting that replaces it."""

OTHER_SETTINGS = {("ema", "resume_from")}
"""Settings with an input path, which is relative to the current directory."""

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


@pytest.mark.parametrize("hook", ["checkpoint", "gradient_flow", "jsonl", "tensorboard", "time_tracking"])
def test_relative_path_of_each_hook_is_below_the_work_directory(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    setting, parent = next((name, parent) for (type_, name), parent in OUTPUT_SETTINGS.items() if type_ == hook)
    settings = {"type": hook, setting: "a/b", **FURTHER_SETTINGS.get(hook, {})}
    fake_training([build_hook(settings)], epochs=1, work_dir="run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / parent / "a" / "b").exists()
