"""Tests of the hook of a writer class without a hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hookbus import HookBus, Writer, build_hook
from hookbus._config.hooks import HOOKS
from hookbus.errors import ConfigError, PluginError, RegistrationError
from hookbus.testing import fake_training

LINES: list[Any] = []


class LineWriter(Writer):
    def __init__(self, label: str, *, scale: float = 1.0) -> None:
        self.label, self.scale = label, scale

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        LINES.append((self.label, name, value * self.scale, step))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None: ...

    def write_config(self, config: Mapping[str, Any]) -> None: ...


class PartialWriter(Writer):
    def write_scalar(self, name: str, value: Any, step: int) -> None: ...


class LooseWriter:
    def write_scalar(self, name: str, value: Any, step: int) -> None: ...


def test_writer_class_named_in_settings_receives_the_records() -> None:
    LINES.clear()
    hook = build_hook({"type": f"{__name__}:LineWriter", "label": "a", "scale": 2, "interval": 2})
    assert hook.name == "line_writer"
    bus = HookBus([hook])
    bus.on("after_train_iter", priority=90)(lambda run: run.log(x=run.iters_done))
    fake_training(bus=bus, epochs=1, batches=4)
    # The means of iterations 1 and 2, and of 3 and 4, times the scale.
    assert [line for line in LINES if line[1] == "train/x"] == [("a", "train/x", 3.0, 2), ("a", "train/x", 7.0, 4)]


def test_registered_writer_class_is_accepted_by_name() -> None:
    HOOKS.register("lines", force=True)(LineWriter)
    assert build_hook({"type": "lines", "label": "a", "name": "mine"}).name == "mine"
    assert build_hook({"type": LineWriter, "label": "a"}).name == "line_writer"


def test_invalid_settings_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        build_hook({"type": LineWriter, "lable": "a", "interval": 3})
    assert caught.value.problems == [
        "LineWriter: lable: unknown key. Did you mean 'label' or 'enabled'?",
        "LineWriter: label: required, but missing.",
    ]
    with pytest.raises(ConfigError, match="^LineWriter: interval: should be greater than 0, got 0.$"):
        build_hook({"type": LineWriter, "label": "a", "interval": 0})


def test_class_that_is_no_writer_names_the_base_classes() -> None:
    with pytest.raises(ConfigError, match="PartialWriter: abstract methods of hookbus.Writer: write_config, write_im"):
        build_hook({"type": PartialWriter})
    with pytest.raises(PluginError, match=r"not a hook class. A writer subclasses hookbus.Writer, .*WriterHook.$"):
        build_hook({"type": f"{__name__}:LooseWriter"})
    with pytest.raises(RegistrationError, match=r"a writer is not a hook. .*build_hook\({'type': LineWriter, ...}\)"):
        HookBus([LineWriter("a")])
