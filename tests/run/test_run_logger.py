"""Tests of the methods of a writer on the logger."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus._run.run_logger import get_run_logger
from hookbus.errors import ServiceError


class Scalars(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def log_scalars(self, values: Any, step: int) -> None:
        self.seen.append((values, step))

    def log_images(self, tag: str, images: Any, caption: Any) -> None:
        self.seen.append((tag, images, caption))

    def log_config(self, config: Any) -> None:
        self.seen.append(config)


class Logging(Hook):
    def before_epoch(self, trainner: Any) -> None:
        trainner.logger.write_scalar("loss", 2, 7)
        trainner.logger.write_image("image", [0], caption="c")
        trainner.logger.write_config({"a": 1})


def test_logger_writes_to_the_run_of_the_event() -> None:
    (bus, other), hooks = (HookBus(), HookBus()), (Scalars(), Scalars())
    for current, hook in zip((bus, other), hooks, strict=True):
        current.register(hook)
        current.register(Logging())
    with bus.run(epochs=1), other.run(epochs=1):
        other.emit("before_epoch")
    assert hooks[0].seen == []
    assert hooks[1].seen == [({"loss": 2.0}, 7), ("image", [0], "c"), {"a": 1}]


def test_logger_writes_to_the_only_active_run_outside_of_events() -> None:
    bus = HookBus([hook := Scalars()])
    with bus.run(epochs=1) as run:
        run.logger.write_scalar("loss", 1.5)
        assert hook.seen == [({"loss": 1.5}, 0)]
        other = HookBus()
        with (
            other.run(epochs=1),
            pytest.raises(
                ServiceError, match=r"^run.logger.write_scalar: expected one active run, got 2. Call run.wri"
            ),
        ):
            run.logger.write_scalar("loss", 1.5)


def test_class_of_an_existing_logger_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(logging.Logger):
        pass

    logger = Own("hookbus")
    monkeypatch.setitem(logging.Logger.manager.loggerDict, "hookbus", logger)
    assert get_run_logger() is logger is HookBus().current.logger
    assert isinstance(logger, Own)
    assert callable(logger.write_scalar)  # type: ignore[attr-defined]


def test_loss_dict_contains_the_latest_values_as_tensors() -> None:
    bus = HookBus([Hook()])
    with bus.run(epochs=1) as run:
        assert run.loss_dict == {}
        for value in (1.0, 3.0):
            bus.emit("before_train_iter", batch_idx=0, batch=[1])
            outputs = {"loss": torch.tensor(value, requires_grad=True), "L1": torch.tensor(value * 2)}
            bus.emit("after_train_iter", batch_idx=0, batch=[1], outputs=outputs)
        assert {name: value.item() for name, value in run.loss_dict.items()} == {"loss": 3.0, "L1": 6.0}
        assert not run.loss_dict["loss"].requires_grad
        assert run.global_step == run.steps_done == 2


def test_events_are_emitted_by_call_hook() -> None:
    bus = HookBus([hook := Scalars()])
    bus.current.call_hook("log_scalars", values={"a": 1}, step=4)
    bus.current.writer.write_scalar("b", 1, 5)
    assert hook.seen == [({"a": 1}, 4), ({"b": 1.0}, 5)]
