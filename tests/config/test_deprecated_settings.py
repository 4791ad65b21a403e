"""Tests of deprecated settings in run files: one warning for each, with its line."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hookbus import Trainer, deprecated
from hookbus._cli.app import app
from hookbus._config.load import load_config
from hookbus._config.models import LoaderConfig
from hookbus.errors import HookDeprecationWarning

if TYPE_CHECKING:
    from tests.conftest import Project

HOOKS = """
    from pydantic import Field

    from hookbus import Hook, HookConfig, deprecated


    class BlendConfig(HookConfig):
        decay: float = Field(
            default=0.0, deprecated=deprecated(removed_in="acme-blend 2.0", replacement="`momentum`")
        )


    class BlendHook(Hook):
        Config = BlendConfig

        def before_train(self): ...
        def after_frame(self): ...


    class RenderPoints:
        @deprecated(removed_in="acme-blend 3.0", replacement="after_render")
        def after_frame(self): ...
"""
RUN_FILE = """
    model: {type: "parts:net"}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 1}
    default_hooks: false
    loader:
      drop_last: true
    hooks:
      blend:
        type: blend_hooks:BlendHook
        decay: 0.5
"""
AT_LINE = "run.yaml:11:5: hooks.blend.decay: deprecated and will be removed in acme-blend 2.0. Use `momentum` instead."
AT_LISTENER = (
    "hook 'blend' (module blend_hooks): after_frame is deprecated and will be removed in acme-blend 3.0. Use "
    "after_render instead."
)


@pytest.fixture
def blend(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "blend_hooks", raising=False)
    (project.path / "blend_hooks.py").write_text(dedent(HOOKS))
    project.write(RUN_FILE)
    # A package that publishes the point of its spec class.
    monkeypatch.syspath_prepend(project.path)
    info = project.path / "acme_blend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-blend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hookbus.points]\nafter_frame = blend_hooks:RenderPoints\n")


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield records


def texts(records: list[warnings.WarningMessage]) -> list[str]:
    return [str(record.message) for record in records]


@pytest.mark.usefixtures("blend")
def test_setting_of_a_hook_is_reported_once_with_its_line(caught: list[warnings.WarningMessage]) -> None:
    config = load_config("run.yaml")
    config.build_valid_hooks()

    assert texts(caught) == [AT_LINE]
    assert (caught[0].category, caught[0].filename) == (HookDeprecationWarning, __file__)


@pytest.mark.usefixtures("blend")
def test_override_is_reported_as_the_location(caught: list[warnings.WarningMessage]) -> None:
    load_config("run.yaml", ["hooks.blend.decay=0.25"])

    assert texts(caught) == [AT_LINE.replace("run.yaml:11:5", "command line: hooks.blend.decay=0.25")]


@pytest.mark.usefixtures("blend")
def test_setting_of_a_section_is_reported_once_with_its_line(
    monkeypatch: pytest.MonkeyPatch, caught: list[warnings.WarningMessage]
) -> None:
    notice = deprecated(removed_in="hookbus 2.0", replacement="`last_batch`")
    monkeypatch.setattr(LoaderConfig.model_fields["drop_last"], "deprecated", notice)
    Trainer.from_file("run.yaml")

    assert texts(caught) == [
        "run.yaml:7:3: loader.drop_last: deprecated and will be removed in hookbus 2.0. Use `last_batch` instead.",
        AT_LINE,
        AT_LISTENER,
    ]


@pytest.mark.usefixtures("blend")
def test_warning_that_is_an_error_has_the_line() -> None:
    with pytest.raises(HookDeprecationWarning, match=re.escape(AT_LINE)):
        load_config("run.yaml")


@pytest.mark.usefixtures("blend")
def test_check_shows_each_deprecation_once() -> None:
    result = CliRunner().invoke(app, ["check", "run.yaml"])

    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"warning: {AT_LINE}",
        f"warning: {AT_LISTENER}",
    ]
