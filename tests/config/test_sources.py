"""Tests of the list of settings with their places."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from hookbus._config.sources import Source, list_settings
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Project

DECLARED = """
from pydantic import SecretStr
from hookbus import Hook, HookConfig


class NoteConfig(HookConfig):
    link: SecretStr | None = None


class Note(Hook):
    Config = NoteConfig
"""


def list_rows(source: Any, *overrides: str) -> list[tuple[Any, ...]]:
    return [(setting.path, setting.value, setting.source) for setting in list_settings(source, overrides)]


def test_each_setting_has_its_place_and_the_values_that_it_replaces(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("[tool.hookbus]\nseed = 1\norder = 'ascending'\n", "pyproject.toml")
    monkeypatch.setenv("HOOKBUS_SEED", "2")
    project.write("seed: 3\nmodel: {type: a, b: [1]}\n", "base.yaml")
    project.write("defaults: [base.yaml]\nmodel: {type: c, b: [2]}\nseed: 4\n")
    settings = {setting.path: setting for setting in list_settings("run.yaml", ["seed=5", "device=cpu"])}
    assert list(settings) == ["seed", "model.type", "model.b", "device", "order"]
    assert (settings["seed"].value, settings["seed"].source) == (5, "command line")
    assert settings["seed"].overrides == [
        Source(4, "run.yaml:3:7"),
        Source(3, "base.yaml:1:7"),
        Source(2, "HOOKBUS_SEED"),
        Source(1, "pyproject.toml [tool.hookbus]"),
    ]
    assert asdict(settings["model.b"]) == {
        "path": "model.b",
        "value": [2],
        "source": "run.yaml:2:21",
        "overrides": [{"value": [1], "source": "base.yaml:2:21"}],
        "dropped": False,
    }
    assert (settings["device"].source, settings["device"].overrides) == ("command line", [])


def test_dropped_settings_are_listed_with_the_place_that_drops_them(project: Project) -> None:
    project.write(
        "optimizer: {type: SGD, lr: 0.1, momentum: 0.9}\nscheduler: {type: StepLR, step_size: 3}\n"
        "training: {epochs: 3}\nhooks: [{type: 'parts:ProbeHook', interval: 2}]\n",
        "base.yaml",
    )
    project.write(
        "defaults: [base.yaml]\noptimizer: {type: AdamW, lr: 0.2}\nscheduler: null\ntraining: {iterations: 9}\n"
        "hooks: {probe: null}\n"
    )
    settings = list_settings("run.yaml", ["~optimizer.lr", "loss.reduction=sum"])
    assert [(row.path, row.source, row.overrides) for row in settings if row.dropped] == [
        ("optimizer.lr", "command line", [Source(0.2, "run.yaml:2:30"), Source(0.1, "base.yaml:1:28")]),
        ("optimizer.momentum", "run.yaml:2:12", [Source(0.9, "base.yaml:1:43")]),
        ("scheduler.type", "run.yaml:3:12", [Source("StepLR", "base.yaml:2:19")]),
        ("scheduler.step_size", "run.yaml:3:12", [Source(3, "base.yaml:2:38")]),
        ("training.epochs", "run.yaml:4:11", [Source(3, "base.yaml:3:20")]),
        ("hooks.parts:ProbeHook.interval", "run.yaml:5:16", [Source(2, "base.yaml:4:45")]),
    ]
    assert [row.path for row in settings if row.path.startswith("training")] == [
        "training.iterations",
        "training.epochs",
    ]


def test_settings_that_an_override_replaces_are_dropped(project: Project) -> None:
    project.write("optimizer: {type: SGD, lr: 0.1}\n")
    dropped = [row for row in list_settings("run.yaml", ["optimizer={weight_decay: 0.2}"]) if row.dropped]
    assert [(row.path, row.value, row.source) for row in dropped] == [
        ("optimizer.type", None, "command line"),
        ("optimizer.lr", None, "command line"),
    ]


def test_hooks_are_listed_by_name(project: Project) -> None:
    project.write(
        "hooks:\n- ema\n- {type: jsonl, name: x}\n- {type: 'parts:QuietHook'}\n- {type: 'parts:QuietHook', name: q}\n"
    )
    assert [row[0] for row in list_rows("run.yaml", "hooks.timing={type: iter_timer}")] == [
        "hooks.ema.type",
        "hooks.x.type",
        "hooks.x.name",
        "hooks.parts:QuietHook.type",
        "hooks.q.type",
        "hooks.q.name",
        "hooks.iter_timer.type",
    ]
    project.write("hooks: {ema: null, jsonl: {}, iter_timer: {priority: 3}}\n")
    assert list_rows("run.yaml", "hooks.iter_timer.priority=4") == [
        ("hooks.ema", None, "run.yaml:1:14"),
        ("hooks.jsonl", {}, "run.yaml:1:27"),
        ("hooks.iter_timer.priority", 4, "command line"),
    ]


def test_override_of_an_item_is_the_place_of_its_list() -> None:
    (setting,) = list_settings({"metrics": ["a", "b"]}, ["metrics.1=c"])
    assert (setting.value, setting.source, setting.overrides) == (
        ["a", "c"],
        "command line",
        [Source(["a", "b"], "config")],
    )


def test_secrets_are_redacted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / "declared_links.py").write_text(DECLARED)
    monkeypatch.setenv("KEY", "h4shh4sh-e")
    monkeypatch.setenv("HOOKBUS_MODEL__API_KEY", "h4shh4sh-v")
    hook = "declared_links:Note"
    project.write(
        f"model: {{api_key: h4shh4sh-b, url: 'https://u:h4shh4sh@x/y', token: '${{env:KEY}}'}}\n"
        f"hooks: {{a: {{type: '{hook}', link: h4shh4sh-h}}, b: {{type: '{hook}', link: h4shh4sh-h}}}}\n",
        "base.yaml",
    )
    project.write("defaults: [base.yaml]\nmodel: {token: null, url: null}\nhooks: {b: {link: null}}\n")
    settings = list_settings("run.yaml", ["model.api_key=h4shh4sh-o", "model.type=x"])
    assert "h4shh4sh" not in str(settings)
    by_path = {setting.path: setting for setting in settings}
    assert by_path["model.api_key"].value == "***"
    assert [source.value for source in by_path["model.api_key"].overrides] == ["***", "***"]
    assert by_path["hooks.b.link"].overrides == [Source("***", "base.yaml:2:100")]


def test_invalid_file_is_an_error(project: Project) -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml:1:1: sead: unknown key"):
        list_settings(project.write("sead: 1\n"))
