"""Tests of the settings of hooks with all defaults, and of the configuration that a run writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from pydantic import Field, SecretStr
from typer.testing import CliRunner

from hookbus import HOOKS, Hook, HookBus, HookConfig, Trainer
from hookbus._cli.app import app
from hookbus._config.complete import complete_settings, describe_hook
from hookbus._config.hooks import COMMON_KEYS, build_hook, get_default_hooks
from hookbus._config.load import load_config
from hookbus._utils.known_keys import PUBLISHED_HOOKS
from hookbus._utils.redaction import redact_config
from hookbus.checkpoint.state import hash_config
from hookbus.discovery import list_entries
from tests.conftest import PARTS

if TYPE_CHECKING:
    from tests.conftest import Project


def double(value: int) -> int:
    return 2 * value


class CompleteConfig(HookConfig):
    interval: int = 3
    path: str | None = None
    token: str = "s3cr3t"
    link: SecretStr = SecretStr("s3cr3t")
    call: Any = double
    old: int = Field(default=1, deprecated="Use interval.")
    sizes: tuple[int, ...] = (1, 2)


class CompleteHook(Hook):
    Config = CompleteConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)


class WithKeywords(Hook):
    def __init__(self, interval: int = 50, sizes: Any = (1,), api_key: str = "s3cr3t", path: str | None = None) -> None:
        super().__init__()


@pytest.fixture(autouse=True)
def registered() -> Any:
    before = dict(HOOKS)
    HOOKS.register("complete")(CompleteHook)
    HOOKS.register("with_keywords")(WithKeywords)
    yield
    HOOKS.clear()
    HOOKS.update(before)


def complete(**settings: Any) -> dict[str, Any]:
    return complete_settings(settings, build_hook(settings))


def test_defaults_follow_the_settings() -> None:
    expected = {"type": "complete", "path": "x", "interval": 3, "sizes": [1, 2], "enabled": True}
    assert complete(type="complete", path="x") == expected
    assert list(complete(type="complete", path="x"))[:2] == ["type", "path"]
    assert complete(type="complete", when="every(3)", priority="LOW") == {
        "type": "complete", "when": "every(3)", "priority": "LOW", "interval": 3, "sizes": [1, 2], "path": None,
        "enabled": True,
    }  # fmt: skip


def test_keyword_arguments_have_their_defaults() -> None:
    assert complete(type="with_keywords", priority=3) == {
        "type": "with_keywords", "priority": 3, "interval": 50, "path": None
    }  # fmt: skip


def test_defaults_that_cannot_be_combined_are_omitted() -> None:
    built = complete(type="yolox_lr", num_last_iters=5)
    assert "num_last_epochs" not in built
    assert built["warmup_epochs"] == 5
    # An explicit null has another meaning than an omitted key: no warm-up.
    assert "warmup_iters" not in built


OWN = [plugin for plugin in list_entries() if plugin.package in PUBLISHED_HOOKS]


@pytest.mark.slow
def test_completed_settings_of_every_hook_have_the_same_values() -> None:
    checked = 0
    for plugin in OWN:
        try:
            hook = build_hook(plugin.full_name)
        except Exception:  # a required setting
            continue
        settings = complete_settings({"type": plugin.full_name}, hook)
        again = build_hook(settings)
        assert again.config == hook.config, plugin.full_name
        fields = {name: field for name, field in type(hook).Config.model_fields.items() if name not in COMMON_KEYS}
        omitted = {name for name in fields if name not in settings}
        # Those that differ from an explicit null, and those of which one excludes the other.
        assert all(fields[name].default is None or type(hook).__name__ == "YOLOXLrUpdaterHook" for name in omitted)
        checked += 1
    assert checked > 30


def test_hook_of_python_code_is_described_if_a_run_file_can_contain_it() -> None:
    (logger, *_) = get_default_hooks()
    assert describe_hook(logger, "logger") == {"type": "logger"}
    described = describe_hook(CompleteHook({"interval": 5}), "mine")
    assert described == {"type": f"{__name__}:CompleteHook", "name": "mine", "interval": 5}
    assert describe_hook(CompleteHook({"call": lambda value: value}), "mine") is None
    assert describe_hook(object(), "mine") is None

    class LocalHook(Hook):
        pass

    assert describe_hook(LocalHook(), "local") is None


RUN = """
    work_dir: runs/x
    model: {type: "parts:net", width: "${env:WIDTH,6}"}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 2, clip_grad_norm: 1.0}
    scheduler: {type: StepLR, step_size: 1}
    hooks:
      - {type: checkpoint, save_best: true, best_metric: accuracy}
      - {type: jsonl, interval: 1}
      - {type: ema, momentum: 0.9, name: average}
      - {type: "parts:ProbeHook", tags: ["${env:TAG}"]}
      - {type: "parts:KeywordHook"}
      - {type: progress, enabled: false}
"""


def train(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 0, result.output


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records without times and durations."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    measured = ("time/", "throughput/", "memory/")
    for record in records:
        values = record.get("values", {})
        record["values"] = {key: value for key, value in values.items() if not key.startswith(measured)}
        record.pop("time", None)
    return records


def without_comments(path: Path) -> str:
    return re.sub(r"  # .*|^# run:.*", "", path.read_text(), flags=re.MULTILINE)


@pytest.mark.slow
def test_training_from_the_written_configuration_gives_the_same_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = project.path / "first", project.path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "parts.py").write_text(dedent(PARTS))
    monkeypatch.chdir(first)
    for name, value in {"TAG": "a", "WIDTH": "5", "HOOKBUS_OPTIMIZER__LR": "0.05", "HOOKBUS_SEED": "7"}.items():
        monkeypatch.setenv(name, value)
    project.write(RUN, "first/run.yaml")
    train("run.yaml", "training.epochs=3", "optimizer.weight_decay=0.1")

    for name in ("TAG", "WIDTH"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOOKBUS_SEED", "8")
    monkeypatch.setenv("HOOKBUS_HOOKS__CHECKPOINT__MAX_KEEP_CKPTS", "1")
    monkeypatch.chdir(second)
    written = first / "runs/x/config.yaml"
    (second / "again.yaml").write_bytes(written.read_bytes())
    train("again.yaml")

    files = [
        sorted(str(path.relative_to(folder / "runs/x")) for path in (folder / "runs/x").rglob("*") if path.is_file())
        for folder in (first, second)
    ]
    assert files[0] == files[1]
    checkpoints = [name for name in files[0] if name.endswith(".pth")]
    assert len(checkpoints) >= 2
    for name in checkpoints:
        saved, again = (torch.load(folder / "runs/x" / name, weights_only=True) for folder in (first, second))
        assert saved["meta"]["config_hash"] == again["meta"]["config_hash"]
        for key in ("state_dict", "ema_state_dict"):
            assert saved[key].keys() == again[key].keys()
            assert all(torch.equal(value, again[key][entry]) for entry, value in saved[key].items())
        assert {name: hook["state"].keys() for name, hook in saved["hooks"].items()} == {
            name: hook["state"].keys() for name, hook in again["hooks"].items()
        }
    (log,) = [name for name in files[0] if name.endswith(".jsonl") and "metrics" in name]
    assert read_records(first / "runs/x" / log) == read_records(second / "runs/x" / log)
    assert without_comments(written) == without_comments(second / "runs/x/config.yaml")

    config = load_config(written)
    assert (config.seed, config.optimizer.settings) == (7, {"lr": 0.05, "weight_decay": 0.1})
    assert not config.default_hooks
    hooks = {hook.get("name", hook["type"]): hook for hook in config.hooks}
    assert list(hooks) == [
        "logger", "iter_timer", "preemption", "checkpoint", "jsonl", "average", "parts:ProbeHook", "parts:KeywordHook",
        "progress",
    ]  # fmt: skip
    assert (hooks["checkpoint"]["max_keep_ckpts"], hooks["average"]["momentum"]) == (5, 0.9)
    assert hooks["parts:ProbeHook"] == {
        "type": "parts:ProbeHook", "tags": ["a"], "interval": 1, "ratio": 0.5, "enabled": True
    }  # fmt: skip
    assert hooks["parts:KeywordHook"] == {"type": "parts:KeywordHook", "interval": 50}
    assert "- a  # from the environment: TAG" in written.read_text()


SHORT = """
    work_dir: runs/x
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 16}
    training: {epochs: 1}
    default_hooks: false
    hooks: [checkpoint, jsonl]
"""


def load_weights(run: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(f"runs/{run}/checkpoints/last.pth", weights_only=True)["state_dict"]
    return weights


@pytest.mark.slow
def test_settings_of_a_resumed_run_are_those_of_its_checkpoint(project: Project) -> None:
    project.write(SHORT)
    written = project.path / "runs/x/config.yaml"
    train("run.yaml", "optimizer.lr=0.05", "seed=3", "optimizer.weight_decay=0.5")
    train("run.yaml", "--resume", "training.epochs=2")
    config = load_config(written)
    assert (config.seed, config.optimizer.settings) == (3, {"lr": 0.05, "weight_decay": 0.5})
    assert config.training is not None
    assert config.training.epochs == 2
    project.write(written.read_text(), "again.yaml")
    train("again.yaml", "work_dir=runs/y")
    first, second = load_weights("x"), load_weights("y")
    assert all(torch.equal(value, second[name]) for name, value in first.items())

    (record,) = [line for line in read_records(project.path / "runs/y/logs/metrics.jsonl") if line["kind"] == "config"]
    assert record["config"] == redact_config(load_config("runs/y/config.yaml"))
    saved = torch.load("runs/y/checkpoints/last.pth", weights_only=True)
    assert saved["meta"]["config_hash"] == hash_config(record["config"])


@pytest.mark.slow
def test_resume_that_trains_nothing_leaves_the_configuration_unchanged(project: Project) -> None:
    project.write(SHORT)
    train("run.yaml")
    written = project.path / "runs/x/config.yaml"
    before = written.read_text()
    train("run.yaml", "--resume", "training.clip_grad_norm=1.0", "hooks.jsonl.interval=3")
    assert written.read_text() == before


@pytest.mark.slow
def test_settings_that_a_checkpoint_replaces_are_reported(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    project.write(SHORT)
    scheduler = "scheduler={type: StepLR, step_size: 1, gamma: 0.5}"
    train("run.yaml", scheduler)
    result = CliRunner().invoke(
        app,
        ["train", "run.yaml", "--resume", "training.epochs=2", "seed=4", "optimizer.lr=0.5", "optimizer.eps=1e-6",
         scheduler, "scheduler.gamma=0.9", "scheduler.interval=step"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    fix = "Set `load_from` instead of `resume` to train its weights with other settings."
    for place, restored, got in (
        ("seed", "0", "4"),
        ("optimizer.lr", "0.001", "0.5"),
        ("optimizer.eps", "the default", "1e-06"),
        ("scheduler.gamma", "0.5", "0.9"),
    ):
        prefix = f"{place}: has no effect in a resumed run, whose checkpoint restores "
        assert f"{prefix}{restored}, got {got}. {fix}" in result.stderr
    config = load_config(project.path / "runs/x/config.yaml")
    assert (config.seed, config.optimizer.settings) == (0, {"lr": 0.001})
    assert config.scheduler is not None
    assert (config.scheduler.settings, config.scheduler.interval) == ({"step_size": 1, "gamma": 0.5}, "step")


def test_hooks_of_python_code_are_written_or_named(project: Project) -> None:
    class LocalHook(Hook):
        seen: ClassVar[list[str]] = []

        def before_run(self, run: Any) -> None:
            run.bus.register(Hook(name="of_a_hook"))

    file = project.write(RUN.partition("    hooks:")[0].replace('"${env:WIDTH,6}"', "6"))
    trainer = Trainer(load_config(file, ["default_hooks=false", "training.epochs=1"]))
    trainer.register_hook(CompleteHook({"interval": 4}))
    trainer.register_hook(LocalHook())
    trainer.fit()
    text = (project.path / "runs/x/config.yaml").read_text()
    assert text.endswith('# not in this file: the hook "local", which Python code registered\n')
    (hook,) = load_config("runs/x/config.yaml").hooks
    assert (hook["type"], hook["interval"]) == (f"{__name__}:CompleteHook", 4)


def test_secrets_are_written_as_references_or_redacted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_KEY", "s3cr3t-1")
    source = {
        "hooks": [
            {"type": "complete", "token": "${env:HUB_KEY}"},
            {"type": "complete", "link": "s3cr3t-2", "name": "b"},
        ]
    }
    config = load_config(source)
    text = config.resolve_for_run(HookBus(config.build_hooks()).hooks, {})[0].to_yaml()
    assert "s3cr3t" not in text
    assert "token: ${env:HUB_KEY}\n" in text
    assert "link: '***'  # redacted: set in config\n" in text
