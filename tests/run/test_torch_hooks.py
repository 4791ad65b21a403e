"""PyTorch hooks that a hook has registered leave with it, on any object and with any function."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from hookbus import Hook, HookBus
from hookbus._run.run import Run
from tests import toys

calls: list[str] = []


def record_forward(*_: Any, **__: Any) -> None:
    calls.append("function")


def record(name: str) -> Callable[..., None]:
    """Return a closure that is no method and does not refer to the hook that registers it."""
    return lambda *_, **__: calls.append(name)


class Observer(Hook):
    """Hook that registers PyTorch hooks of each kind, and fails in the second iteration on request."""

    fails = False

    def before_train(self, run: Run, model: nn.Module) -> None:
        layer: Any = [part for part in model.modules() if isinstance(part, nn.Linear)][-1]
        layer.register_forward_hook(record_forward, with_kwargs=True, always_call=True)
        layer.register_forward_pre_hook(record("forward_pre"))
        layer.register_full_backward_hook(record("backward"))
        layer.register_full_backward_pre_hook(record("backward_pre"))
        model.register_state_dict_pre_hook(record("state_dict_pre"))
        model.register_state_dict_post_hook(record("state_dict_post"))
        model.register_load_state_dict_pre_hook(record("load_state_dict_pre"))
        model.register_load_state_dict_post_hook(record("load_state_dict_post"))
        self.register_on_optimizer(run.optimizer)
        layer.weight.register_hook(record("grad"))
        layer.weight.register_post_accumulate_grad_hook(record("accumulated"))
        register_multi_grad_hook([layer.weight], record("multi_grad"))
        register_module_forward_hook(record("global_forward"))
        register_optimizer_step_post_hook(record("global_step"))

    def register_on_optimizer(self, optimizer: Any) -> None:
        optimizer.register_step_pre_hook(record("step_pre"))
        optimizer.register_step_post_hook(record("step_post"))
        optimizer.register_state_dict_post_hook(record("optimizer_state"))

    def before_train_iter(self, run: Run) -> None:
        if self.fails and run.iter == 1:
            raise OSError("gone")


KINDS = {
    *("function", "forward_pre", "backward", "backward_pre", "state_dict_pre", "state_dict_post"),
    *("load_state_dict_pre", "load_state_dict_post", "step_pre", "step_post", "optimizer_state", "grad"),
    *("accumulated", "multi_grad", "global_forward", "global_step"),
}


@pytest.fixture(autouse=True)
def clear_calls() -> None:
    calls.clear()


class Loop:
    """Custom loop with a model of one weight."""

    def __init__(self, *hooks: Hook) -> None:
        self.model, self.bus = nn.Linear(1, 1), HookBus(hooks)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self, iterations: int = 3) -> list[set[str]]:
        """Return the PyTorch hooks that were called in each iteration."""
        called: list[set[str]] = []
        options: Any = {"model": self.model, "optimizer": self.optimizer, "iterations": iterations}
        with self.bus.run(**options) as run:
            self.bus.emit("before_train")
            for _ in range(iterations):
                self.bus.emit("before_train_iter")
                self.step()
                self.bus.emit("after_train_iter")
                called.append({*calls})
                calls.clear()
            assert run.steps_done == iterations
        return called

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 1, requires_grad=True)).sum().backward()
        self.optimizer.step()
        self.model.load_state_dict(self.model.state_dict())
        self.optimizer.state_dict()


def unregister_at(point: str, iteration: int, hook: Hook) -> Hook:
    """Return a hook that unregisters another one at a point of an iteration, counted from 0."""

    class Leave(Hook):
        def should_leave(self, run: Run) -> None:
            if run.iter == iteration:
                run.bus.unregister(hook)

    setattr(Leave, point, lambda self, run: self.should_leave(run))
    return Leave()


def test_hooks_of_every_kind_leave_with_a_hook() -> None:
    observer = Observer()
    loop = Loop(observer, unregister_at("before_train_iter", 1, observer))
    assert loop.run() == [KINDS, set(), set()]
    assert [key for key, hooks in vars(loop.model).items() if key.endswith("_hooks") and hooks] == []


def test_hooks_of_every_kind_leave_with_a_disabled_hook() -> None:
    observer = Observer(on_error="disable")
    observer.fails = True
    with pytest.warns(UserWarning, match="gone"):
        assert Loop(observer).run() == [KINDS, set(), set()]


def test_hooks_leave_in_a_training_of_the_trainer() -> None:
    observer = Observer()
    trainer = toys.trainer(observer, unregister_at("after_train_iter", 1, observer), iterations=2)
    trainer.fit()
    assert {"function", "backward", "step_post", "global_step"} <= {*calls}
    calls.clear()
    trainer.iterations = 4
    trainer.fit()
    assert trainer.bus.current.iters_done == 4
    assert calls == []


def test_hook_leaves_within_the_step_of_an_optimizer_that_calls_its_hooks() -> None:
    observer = Observer()
    first, second, _ = Loop(observer, unregister_at("after_optimizer_step", 1, observer)).run()
    assert first == KINDS
    assert {"grad", "step_pre"} <= second
    assert "step_post" not in second


def test_hooks_of_a_method_that_the_loop_calls_leave() -> None:
    observer = Observer()
    loop = Loop()
    with loop.bus.run(model=loop.model, optimizer=loop.optimizer, iterations=1):
        loop.bus.register(observer)
        observer.register_on_optimizer(loop.optimizer)
        loop.bus.unregister(observer)
        loop.step()
    assert calls == []


def test_hooks_of_an_earlier_run_leave() -> None:
    class First(Observer):
        def before_train(self, run: Run, model: nn.Module) -> None:
            if run.iters_done == 0:
                super().before_train(run, model)

    loop = Loop(first := First())
    loop.run(1)
    loop.bus.unregister(first)
    loop.step()
    assert calls == []


def test_hooks_of_the_loop_and_of_other_hooks_stay() -> None:
    class Other(Hook):
        def before_train(self, model: nn.Module) -> None:
            model.register_forward_hook(record("other"))

    observer = Observer()
    loop = Loop(observer, Other(), unregister_at("before_train_iter", 1, observer))
    loop.model.register_forward_hook(record("loop"))
    assert loop.run() == [{*KINDS, "other", "loop"}, {"other", "loop"}, {"other", "loop"}]


def test_changes_of_the_model_stay() -> None:
    class Change(Hook):
        def before_train(self, model: nn.Linear) -> None:
            prune.l1_unstructured(model, "weight", 0)
            parametrizations.weight_norm(model, "bias", dim=0)

    change = Change()
    loop = Loop(change, unregister_at("before_train_iter", 1, change))
    loop.run()
    assert parametrize.is_parametrized(loop.model, "bias")
    loop.model(torch.ones(1, 1))
    assert loop.model.weight.item() == loop.model.get_parameter("weight_orig").item()


def test_handles_of_tensors_that_no_longer_exist_are_discarded() -> None:
    class Watch(Hook):
        def after_forward(self, loss: Tensor) -> None:
            loss.register_hook(record("loss"))

    with (bus := HookBus([Watch()])).run(iterations=1):
        for _ in range(2000):
            bus.emit("after_forward", loss=torch.ones(1, requires_grad=True) * 2)
        assert sum(type(item) is RemovableHandle for item in gc.get_objects()) < 600


def test_pytorch_is_unchanged_after_a_run() -> None:
    before = RemovableHandle.__init__
    with HookBus().run(), HookBus().run():
        assert RemovableHandle.__init__ is not before
    assert RemovableHandle.__init__ is before


def test_extension_by_another_library_is_kept() -> None:
    counts: list[int] = []
    with HookBus().run():
        ours = RemovableHandle.__init__

        def count(self: RemovableHandle, *args: Any, **kwargs: Any) -> None:
            ours(self, *args, **kwargs)
            counts.append(1)

        RemovableHandle.__init__ = count  # type: ignore[method-assign]
    try:
        assert RemovableHandle.__init__ is count
        with HookBus().run():
            nn.Linear(1, 1).register_forward_hook(record_forward)
        assert (RemovableHandle.__init__, counts) == (count, [1])
    finally:
        RemovableHandle.__init__ = ours  # type: ignore[method-assign]
        with HookBus().run():
            pass
    assert RemovableHandle.__init__ is not ours


@pytest.mark.slow
def test_compiled_function_with_hooks_is_compiled_into_one_graph() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def double(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        return y.sum()

    x = torch.ones(1, requires_grad=True)
    with HookBus([Observer()]).run(iterations=1):
        double(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 6.0
