"""What a hook has registered leaves with it when it is unregistered, blocked or disabled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, once
from hookbus._run.run import Run
from hookbus.testing import fake_training


class Owner(Hook):
    """Hook that registers something of each kind, and fails on request."""

    fails = False

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.calls: list[str] = []

    def before_run(self, run: Run) -> None:
        run.provide("answer", 42)
        run.provide("logger_name", "owner")
        run.bus.on("after_train_iter", name="function")(lambda: self.calls.append("function"))
        run.around_validation(self.context)

    def before_train(self, run: Run, model: nn.Module) -> None:
        model.register_forward_hook(self.record_forward)
        run.optimizer.register_step_post_hook(self.record_step)

    def before_epoch(self, run: Run) -> None:
        if self.fails and run.epochs_done == 1:
            raise OSError("gone")

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        self.calls.append("context")
        yield

    def record_forward(self, *_: Any) -> None:
        self.calls.append("forward")

    def record_step(self, *_: Any) -> None:
        self.calls.append("step")


EPOCH = ["forward", "step", "function", "context"]


def unregister(bus: HookBus) -> None:
    bus.unregister("owner")


def block(bus: HookBus) -> None:
    bus.pm.set_blocked("owner")


@pytest.mark.parametrize("leave", [unregister, block])
def test_everything_leaves_with_a_hook(leave: Callable[[HookBus], None]) -> None:
    owner, bus, services = Owner(), HookBus(), []
    bus.register(owner)

    @bus.on("after_epoch", name="loop")
    def act(run: Run) -> None:
        services.append((run.get("answer"), run.get("logger_name")))
        if run.epochs_done == 1:
            leave(bus)

    fake_training(bus=bus, batches=1, scores=lambda epoch: {"loss": 1.0})
    assert owner.calls == EPOCH
    assert services == [(42, "owner"), (None, None)]
    assert list(bus.hooks) == ["loop"]


def test_everything_leaves_with_a_disabled_hook() -> None:
    owner, bus = Owner(on_error="disable"), HookBus()
    owner.fails = True
    bus.register(owner)
    with pytest.warns(UserWarning, match=r"hook 'owner' .* failed"):
        run = fake_training(bus=bus, batches=1, scores=lambda epoch: {"loss": 1.0}).run
    assert owner.calls == EPOCH
    assert run.get("answer") is None
    assert list(bus.hooks) == ["owner"]


def test_replaced_service_is_restored() -> None:
    bus, owner = HookBus(), Owner()
    with bus.run() as run:
        run.provide("answer", 7)
        bus.register(owner)
        assert run.get("answer") == 42
        bus.unregister(owner)
        assert run.get("answer") == 7


def test_service_that_the_loop_has_replaced_stays() -> None:
    bus, owner = HookBus(), Owner()
    with bus.run() as run:
        bus.register(owner)
        run.provide("answer", 7)
        bus.unregister(owner)
        assert run.get("answer") == 7


def test_pending_requests_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Stop(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.request_stop("enough")

    bus = HookBus([Stop()])
    bus.on("after_train_iter", name="last", priority=0, when=once(1))(lambda run: run.bus.unregister("stop"))
    run = fake_training(bus=bus, batches=1).run
    assert (run.iters_done, run.outcome) == (2, "finished")
    assert "stop left the run before a request was processed: stop, requested by stop: enough" in caplog.text


def test_torch_hooks_of_other_hooks_stay() -> None:
    calls: list[int] = []
    model = nn.Linear(1, 1)
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus, owner = HookBus(), Owner()
    with bus.run(model=model, optimizer=optimizer, iterations=1):
        bus.emit("before_train")
        bus.register(owner)
        bus.unregister(owner)
        model(torch.ones(1, 1))
    assert (calls, owner.calls) == ([1], [])
