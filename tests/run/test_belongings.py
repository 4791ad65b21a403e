"""What a hook has registered leaves with it when it is unregistered, blocked or disabled."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from hookbus import Hook, HookBus, between, once
from hookbus._run.run import Run
from hookbus.errors import PointError, RegistrationError
from hookbus.testing import fake_training
from tests import toys


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


class Part(Hook):
    """Hook that another one registers; records its events."""

    def __init__(self) -> None:
        super().__init__(None)
        self.events: list[str] = []

    def after_train_iter(self) -> None:
        self.events.append("iter")

    def cleanup(self) -> None:
        self.events.append("cleanup")


class Registrar(Hook):
    """Hook that calls a function with the run at `before_run`, and fails in the second iteration on request."""

    fails = False

    def __init__(self, act: Callable[[Run], object], **settings: Any) -> None:
        super().__init__(None, **settings)
        self._act = act
        self.cleanups = 0

    def before_run(self, run: Run) -> None:
        self._act(run)

    def before_train_iter(self, run: Run) -> None:
        if self.fails and run.iter == 1:
            raise OSError("gone")

    def cleanup(self) -> None:
        self.cleanups += 1


class Drawing:
    """Points of a hook."""

    def before_drawing(self, run: Run) -> None:
        """Point of a hook."""


Act = Callable[[Run], object]
Train = Callable[..., Run]


@pytest.fixture(params=["unregistered", "disabled", "trainer"])
def train(request: pytest.FixtureRequest) -> Train:
    """Function that trains 3 iterations with a `Registrar`, which leaves in the second one.

    It calls one function at `before_run` of the registrar, and one at the end of each later iteration. Further hooks
    may be registered after the registrar.
    """

    def run_training(register: Act, check: Act, *hooks: Hook) -> Run:
        registrar = Registrar(register, on_error="disable")
        registrar.fails = request.param == "disabled"
        trainer = toys.trainer(registrar, *hooks, iterations=3)
        bus = trainer.bus if request.param == "trainer" else HookBus([registrar, *hooks])

        @bus.on("before_train_iter", name="loop", priority=99)
        def unregister(run: Run) -> None:
            if run.iter == 1 and not registrar.fails:
                bus.unregister(registrar)

        bus.on("after_train_iter", name="check", when=between(2, 3))(check)
        with pytest.warns(UserWarning, match="gone") if registrar.fails else contextlib.nullcontext():
            if request.param == "trainer":
                trainer.fit()
            else:
                fake_training(bus=bus, batches=3, epochs=1)
        assert registrar.cleanups == 1
        return bus.current

    return run_training


def test_registered_hook_leaves_with_its_registrar(train: Train) -> None:
    part, hooks = Part(), []
    train(lambda run: run.bus.register(part), lambda run: hooks.append(list(run.bus.hooks)))
    assert part.events == ["iter", "cleanup"]
    assert all("part" not in names for names in hooks)
    assert len(hooks) == 2


def test_chain_of_registered_hooks_leaves(train: Train) -> None:
    part = Part()
    inner = Registrar(lambda run: run.bus.register(part), name="inner")
    run = train(lambda run: run.bus.register(inner), lambda run: None)
    assert (part.events, inner.cleanups) == (["iter", "cleanup"], 1)
    assert {"inner", "part"}.isdisjoint(run.bus.hooks)


def test_successor_of_a_hook_that_has_unregistered_itself_stays() -> None:
    class Former(Hook):
        def after_train_iter(self, run: Run) -> None:
            run.bus.unregister(self)
            run.bus.register(part)

    part = Part()
    fake_training([Former()], batches=3, epochs=1)
    assert part.events == ["iter", "iter", "cleanup"]


def test_declared_point_leaves(train: Train) -> None:
    def declare(run: Run) -> None:
        run.bus.declare("after_drawing", args=("image",))
        run.bus.declare_from(Drawing)
        run.bus.on("after_drawing", name="own")(lambda image: None)

    def check(run: Run) -> None:
        assert {"after_drawing", "before_drawing"}.isdisjoint(run.bus.points)
        assert not hasattr(run.bus.pm.hook, "after_drawing")
        with pytest.raises(PointError, match=r"'after_drawing'\. The hook 'registrar' that declared it has left\."):
            run.call_hook("after_drawing", image=1)
        with pytest.raises(RegistrationError, match="unknown point"):
            run.bus.on("before_drawing")(check)

    run = train(declare, check)
    run.bus.declare("after_drawing", args=("other",))


def test_point_with_a_listener_leaves_with_the_listener(train: Train) -> None:
    images: list[int] = []

    def declare(run: Run) -> None:
        run.bus.declare("after_drawing", args=("image",))

    class Listener(Hook):
        def before_epoch(self, run: Run) -> None:
            run.bus.on("after_drawing", name="other")(lambda image: images.append(image))

    def check(run: Run) -> None:
        if "listener" in run.bus.hooks:
            run.call_hook("after_drawing", image=1)
            run.bus.unregister("listener")
        assert "after_drawing" not in run.bus.points

    train(declare, check, Listener())
    assert images == [1]


def test_hook_declares_its_point_again_in_the_next_run() -> None:
    bus = HookBus([Registrar(lambda run: run.bus.declare("after_drawing"))])
    for _ in range(2):
        with bus.run():
            assert "after_drawing" in bus.points
    with pytest.raises(PointError, match="already declared"):
        bus.declare("after_drawing")


def test_windows_of_logged_values_leave(train: Train) -> None:
    windows: list[Any] = []

    def request(run: Run) -> None:
        for name in ("own", "shared", "epoch"):
            run.metrics.window(name)

    def check(run: Run) -> None:
        windows.append(sorted(run.metrics.state_dict()["windows"]))
        run.metrics.window("shared")

    train(request, check)
    assert windows == [["epoch", "history"], ["epoch", "history", "shared"]]


def test_window_that_the_loop_has_requested_stays() -> None:
    with (bus := HookBus()).run() as run:
        bus.register(registrar := Registrar(lambda run: run.metrics.window("shared")))
        window = run.metrics.window("shared")
        bus.unregister(registrar)
        assert run.metrics.window("shared") is window


@pytest.mark.parametrize(("point", "last"), [("after_train_iter", 1), ("after_epoch", 0)])
def test_function_that_modifies_the_data_leaves_after_its_pass(
    point: str, last: int, caplog: pytest.LogCaptureFixture
) -> None:
    epochs: set[int] = set()

    def register(run: Run) -> None:
        run.register_dataset_hook(lambda dataset, epoch, iteration: epochs.add(epoch))

    bus = HookBus([Registrar(register)])
    bus.on(point, name="leave", when=once(3 if point == "after_train_iter" else 1))(
        lambda run: run.bus.unregister("registrar")
    )
    fake_training(bus=bus, batches=2, epochs=3)
    assert epochs == {*range(last + 1)}
    warning = "registrar left the run while the training data is being read"
    assert (warning in caplog.text) == (point == "after_train_iter")


def test_service_of_the_trainer_leaves() -> None:
    trainer = toys.trainer(val_loader=toys.pairs(1), iterations=1)
    trainer.register_service("answer", 7)
    registrar, answers = Registrar(lambda run: run.trainer.register_service("answer", 42)), []
    trainer.register_hook(registrar)
    trainer.bus.on("after_val", name="answers")(lambda run: answers.append(run.get("answer")))
    trainer.fit()
    trainer.validate()
    trainer.bus.unregister(registrar)
    trainer.validate()
    assert answers == [42, 42, 7]


def provide_answer(answer: int) -> Act:
    return lambda run: run.provide("answer", answer)


def test_services_of_three_hooks_leave_in_any_order() -> None:
    with (bus := HookBus()).run() as run:
        run.provide("answer", 0)
        for answer in (1, 2, 3):
            bus.register(Registrar(provide_answer(answer), name=str(answer)))
        for name, answer in (("2", 3), ("3", 1), ("1", 0)):
            bus.unregister(name)
            assert run.get("answer") == answer


def test_hooks_of_a_hook_that_fails_at_the_end_receive_cleanup_once() -> None:
    class Failing(Registrar):
        def cleanup(self) -> None:
            raise OSError("gone")

    part, bus = Part(), HookBus()
    bus.register(Failing(lambda run: run.bus.register(part), on_error="disable"))
    with pytest.warns(UserWarning, match="gone"), bus.run(iterations=1):
        bus.emit("after_train_iter")
    assert part.events == ["iter", "cleanup"]
    assert list(bus.hooks) == ["failing"]


def test_hook_and_point_of_a_function_leave_with_the_hook_of_the_function() -> None:
    def register(run: Run) -> None:
        run.bus.on("before_train", name="function")(add)

    def add(run: Run) -> None:
        run.bus.register(part)
        run.bus.declare("after_drawing")

    part, bus = Part(), HookBus()
    with bus.run(iterations=1):
        bus.register(Registrar(register))
        bus.emit("before_train")
        bus.unregister("function")
        assert part in bus.hooks.values()
        assert "after_drawing" in bus.points
        bus.unregister("registrar")
    assert part.events == ["cleanup"]
    assert "after_drawing" not in bus.points


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


def run_script(script: str) -> None:
    """Run a script in a process of its own: a run that an earlier test has left open keeps PyTorch extended."""
    subprocess.run([sys.executable, "-c", dedent(script)], check=True)


@pytest.mark.slow
def test_pytorch_is_unchanged_after_a_run() -> None:
    run_script("""
        from torch.utils.hooks import RemovableHandle
        from hookbus import HookBus

        before = RemovableHandle.__init__
        with HookBus().run(), HookBus().run():
            assert RemovableHandle.__init__ is not before
        assert RemovableHandle.__init__ is before
    """)


@pytest.mark.slow
def test_extension_by_another_library_is_kept() -> None:
    run_script("""
        from torch import nn
        from torch.utils.hooks import RemovableHandle
        from hookbus import HookBus

        before, counts = RemovableHandle.__init__, []
        with HookBus().run():
            ours = RemovableHandle.__init__

            def count(self, *args, **kwargs):
                ours(self, *args, **kwargs)
                counts.append(1)

            RemovableHandle.__init__ = count
        assert RemovableHandle.__init__ is count
        with HookBus().run():
            nn.Linear(1, 1).register_forward_hook(print)
        assert (RemovableHandle.__init__, counts) == (count, [1])
        RemovableHandle.__init__ = ours
        with HookBus().run():
            pass
        assert RemovableHandle.__init__ is before
    """)


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
