"""Tests of the validation of plugins before registration."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pluggy
import pytest
import torch

from hookbus import Hook, HookBus, HookConfig, every, hookimpl
from hookbus.errors import RegistrationError

plain_mark = pluggy.HookimplMarker("hookbus")


def refusal(plugin: object, name: str = "mine") -> str:
    """Return the error message for an invalid plugin, and check that the bus is unchanged."""
    bus = HookBus([Bystander()])
    before, callers = bus.explain(), implementations(bus)
    with pytest.raises(RegistrationError) as caught:
        bus.register(plugin, name)
    assert bus.explain() == before
    assert implementations(bus) == callers
    assert list(bus.hooks) == ["bystander"]
    assert [name for name, _ in bus.pm.list_name_plugin()] == ["bystander"]
    bus.register(Bystander(), name)
    return str(caught.value)


def implementations(bus: HookBus) -> dict[str, int]:
    return {point: len(getattr(bus.pm.hook, point).get_hookimpls()) for point in bus.points}


class Bystander(Hook):
    def after_train_iter(self, run: Any) -> None: ...


def make_hook(name: str, function: Callable[..., Any]) -> Hook:
    return type("Made", (Hook,), {name: function})()


def emit_to(plugin: object, point: str = "after_train_iter", **arguments: Any) -> None:
    HookBus([plugin]).fire(point, **arguments)


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("after_trian_iter", "after_train_iter"),
        ("before_epohc", "before_epoch"),
        ("on_exeption", "on_exception"),
        ("after_trainning", "after_training"),
    ],
)
def test_misspelled_point_raises_with_a_suggestion_and_bus_declare(name: str, near: str) -> None:
    message = refusal(make_hook(name, lambda self, run: None))
    assert message.startswith(f"hook 'mine' (module {__name__}) cannot be registered: ")
    assert f"unknown point {name}. Did you mean" in message
    assert repr(near) in message
    assert f"bus.declare({name!r}, args=(...))" in message


def test_name_similar_to_a_point_with_only_its_arguments_raises() -> None:
    message = refusal(make_hook("log_scalar", lambda self, values, step: None))
    assert (
        "log_scalar is similar to the point log_scalars. Define log_scalars(run, values, step), or rename the"
        in message
    )
    assert "clean_up is similar to the point cleanup. Define cleanup(run)" in refusal(
        make_hook("clean_up", lambda self: None)
    )


@pytest.mark.parametrize("name", ["log_scalar", "train_iter", "trainstep", "log_image"])
def test_helper_similar_to_a_point_with_other_arguments_is_ignored(name: str) -> None:
    hook = make_hook(name, lambda self, writer, values, step: None)
    assert HookBus([hook]).explain().points == {}


def test_static_helper_is_checked_by_all_of_its_arguments() -> None:
    hook = make_hook("log_scalar", staticmethod(lambda writer, values: None))
    assert HookBus([hook]).explain().points == {}
    assert "is similar to the point" in refusal(make_hook("log_scalar", staticmethod(lambda values: None)))


def test_private_methods_and_attributes_are_ignored() -> None:
    class Careful(Hook):
        before_train_count = 3
        after_train = None

        def _after_trian_iter(self) -> None: ...

    assert HookBus([Careful()]).explain().points == {}


def test_callback_of_another_framework_raises_with_the_matching_point() -> None:
    message = refusal(make_hook("on_train_batch_end", lambda self, trainer, pl_module, outputs, batch, batch_idx: None))
    assert message.endswith(
        "on_train_batch_end is a callback of Lightning and Keras. Define "
        "after_train_iter(run, step, batch_idx, batch, model, outputs, loss) instead."
    )


def test_marked_function_must_be_similar_to_no_point() -> None:
    class Plain:
        @plain_mark
        def before_trian(self, run: Any) -> None: ...

    assert "unknown point before_trian. Did you mean 'before_train'" in refusal(Plain())


def test_two_methods_for_one_point_raise() -> None:
    class Twice(Hook):
        def before_step(self, run: Any) -> None: ...
        def before_train_iter(self, run: Any) -> None: ...

    assert "before_step and before_train_iter both implement before_train_iter. Remove one of them." in refusal(Twice())


# -- signatures ----------------------------------------------------------------------------------------------

SIGNATURES: list[tuple[str, Callable[..., Any], str]] = [
    (
        "an unknown argument",
        lambda self, run, losss: None,
        "after_train_iter(run, losss): unknown argument 'losss'. Did you mean 'loss'? "
        "Use any arguments of after_train_iter(run, step, batch_idx, batch, model, outputs, loss).",
    ),
    (
        "a keyword-only argument",
        lambda self, run, *, loss: None,
        "after_train_iter(run, *, loss): 'loss' is keyword-only. Remove the * before it.",
    ),
    (
        "starred arguments",
        lambda self, *args: None,
        "after_train_iter(*args): *args is not supported. Name the arguments, any of after_train_iter(run, step, ",
    ),
    (
        "one argument under two names",
        lambda self, run, runner: None,
        "after_train_iter(run, runner): an argument is listed under two names.",
    ),
    (
        "no parameter",
        lambda: None,
        "after_train_iter(): the parameter for the hook is missing. Define after_train_iter(self, ...).",
    ),
    (
        "an unknown argument with a default",
        lambda self, run, gain=2: None,
        "after_train_iter(run, gain=2): unknown argument 'gain'.",
    ),
]


@pytest.mark.parametrize(("function", "message"), [s[1:] for s in SIGNATURES], ids=[s[0] for s in SIGNATURES])
def test_invalid_signature_is_shown_with_the_expected_one(function: Callable[..., Any], message: str) -> None:
    assert message in refusal(make_hook("after_train_iter", function))


async def async_listener(self: Any, run: Any) -> None: ...


async def async_generator_listener(self: Any, run: Any) -> Any:
    yield


def generator_listener(self: Any, run: Any) -> Any:
    yield


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (async_listener, "after_train_iter: async functions are not supported. Define it as a synchronous method."),
        (async_generator_listener, "after_train_iter: async functions are not supported"),
        (generator_listener, "after_train_iter: generator functions are not supported. Remove the yield."),
    ],
)
def test_async_and_generator_listeners_raise(function: Callable[..., Any], message: str) -> None:
    assert message in refusal(make_hook("after_train_iter", function))


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (hookimpl(wrapper=True), "supported by actions (train_step, val_step, test_step, predict_step) only"),
        (hookimpl(tryfirst=True), "tryfirst and trylast are supported by actions only. Set priority=, before="),
        (hookimpl(trylast=True), "tryfirst and trylast are supported by actions only"),
        (plain_mark(hookwrapper=True), "old-style wrappers are not supported. Use @hookimpl(wrapper=True)."),
    ],
)
def test_options_of_actions_raise_at_points(mark: Callable[..., Any], message: str) -> None:
    def after_train_iter(self: Any, run: Any) -> Any:
        yield

    assert message in refusal(make_hook("after_train_iter", mark(after_train_iter)))


@pytest.mark.parametrize("point", ["before_train", "after_run", "log_scalars", "cleanup", "before_val"])
def test_when_raises_at_points_without_a_unit_unless_it_sets_one(point: str) -> None:
    marked = hookimpl(when=every(2) | every(3, unit="epoch"))(lambda self, run: None)
    message = f"when=(every(2) | every(3, unit='epoch')): {point} counts nothing. Set the unit, as in every(2, unit="
    assert message in refusal(make_hook(point, marked))
    HookBus([make_hook(point, hookimpl(when=every(2, unit="epoch"))(lambda self, run: None))])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, run, batch=3: None, "actions pass every argument. Remove the default of 'batch'"),
        (lambda self, run, **rest: None, "train_step(run, **rest): **rest is not supported. Name the arguments"),
        (
            lambda self, run, loss: None,
            "unknown argument 'loss'. Available: batch, run. Use any arguments of train_step(run",
        ),
        (hookimpl(when=every(2))(lambda self, run: None), "when= is supported by points only. Remove when=."),
        (hookimpl(before="a")(lambda self, run: None), "before= is supported by points only. Remove before=."),
        (hookimpl(after="a")(lambda self, run: None), "after= is supported by points only. Remove after=."),
        (hookimpl(frequency=False)(lambda self, run: None), "train_step: frequency=False has no effect"),
        (generator_listener, "train_step: generator functions are not supported. Mark it with @hookimpl(wrapper=True)"),
        (hookimpl(wrapper=True)(lambda self, run: None), "train_step: marked as a wrapper, but contains no yield"),
    ],
)
def test_invalid_action_implementation_raises(function: Callable[..., Any], message: str) -> None:
    assert message in refusal(make_hook("train_step", function))


def test_frequency_option_raises_where_the_setting_never_applies() -> None:
    class Plain:
        @hookimpl(frequency=False)
        def after_train_iter(self) -> None: ...

    message = "frequency=False has no effect, `frequency` never applies to it. Remove it."
    assert message in refusal(Plain())
    assert message in refusal(make_hook("before_train", hookimpl(frequency=False)(lambda self, run: None)))
    with pytest.raises(RegistrationError, match="hookimpl: invalid `frequency`, got 3"):
        hookimpl(frequency=3)  # type: ignore[call-overload]


# -- valid plugins -------------------------------------------------------------------------------------------


def test_defaults_of_point_arguments_are_overridden() -> None:
    seen: list[object] = []

    class Defaults(Hook):
        def after_train_iter(self, loss: object = "default", batch: object = "default") -> None:
            seen.extend([loss, batch])

    emit_to(Defaults(), batch=1)
    assert seen == [None, 1]


def test_kwargs_receive_the_remaining_arguments() -> None:
    seen: list[dict[str, Any]] = []

    class Rest(Hook):
        def after_epoch(self, model: Any, **rest: Any) -> None:
            seen.append(rest)

    bus = HookBus([Rest()])
    bus.fire("after_epoch", epoch=4, metrics={"a": 1})
    assert seen == [{"run": bus.current, "epoch": 4, "metrics": {"a": 1}}]


def test_argument_aliases_and_positional_only_arguments_are_valid() -> None:
    seen: list[object] = []

    class Spelled(Hook):
        def after_train_iter(self, data_batch: Any, step: Any, /, runner: Any) -> None:
            seen.extend([data_batch, step, runner])

    class OtherSpelling(Hook):
        def before_train(self, trainer: Any) -> None:
            seen.append(trainer)

        def after_train(self, trainner: Any, metrics: Any) -> None:
            seen.append((trainner, metrics))

    bus = HookBus([Spelled(), OtherSpelling()])
    bus.fire("after_train_iter", batch="b", step=7)
    assert seen == ["b", 7, bus.current]
    bus.fire("before_train")
    bus.fire("after_train", metrics={"a": 1})
    assert seen[3:] == [bus.current, (bus.current, {"a": 1})]


def test_static_class_and_instance_functions_are_called() -> None:
    seen: list[object] = []

    class Forms(Hook):
        def __init__(self) -> None:
            super().__init__()
            self.after_epoch = lambda epoch: seen.append(("instance", epoch))

        @staticmethod
        def before_epoch(epoch: int) -> None:
            seen.append(("static", epoch))

        @classmethod
        def before_train_epoch(cls, epoch: int) -> None:
            seen.append((cls.__name__, epoch))

    bus = HookBus([Forms()])
    for point in ("before_epoch", "before_train_epoch", "after_epoch"):
        bus.fire(point, epoch=3)
    assert seen == [("static", 3), ("Forms", 3), ("instance", 3)]


def test_marker_may_be_inside_or_outside_of_staticmethod() -> None:
    class Inside(Hook):
        @staticmethod
        @hookimpl(when=every(2))
        def after_train_iter(run: Any) -> None: ...

    class Outside(Hook):
        @hookimpl(when=every(2))
        @staticmethod
        def after_train_iter(run: Any) -> None: ...

    for hook in (Inside(), Outside()):
        (row,) = HookBus([hook]).explain().points["after_train_iter"]
        assert row.when == "every(2)"


def test_decorated_methods_use_the_wrapped_signature() -> None:
    seen: list[object] = []

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    class Decorated(Hook):
        @torch.no_grad()
        def before_train_iter(self, batch: Any) -> None:
            seen.append((batch, torch.is_grad_enabled()))

        @hookimpl(priority=3)
        @logged
        def after_train_iter(self, batch: Any) -> None:
            seen.append(batch)

    bus = HookBus([Decorated()])
    bus.fire("before_train_iter", batch=1)
    bus.fire("after_train_iter", batch=2)
    assert seen == [(1, False), 2]


@pytest.mark.parametrize("value", [functools.lru_cache(lambda run: None), functools.partial(print), len])
def test_callable_object_at_a_point_raises(value: Any) -> None:
    class Attribute(Hook):
        def __init__(self) -> None:
            super().__init__()
            self.after_train = value

    kind = type(value).__name__
    expected = f"after_train: expected a method, got a {kind}. Define a method after_train that calls it."
    assert expected in refusal(Attribute())


def evaluate(hook: Hook) -> None:
    raise AssertionError("a property was evaluated")


@pytest.mark.parametrize(
    "kind", [property, functools.cached_property, functools.partialmethod, functools.singledispatchmethod]
)
@pytest.mark.parametrize("name", ["after_train", "train_step"])
def test_descriptor_at_a_point_or_an_action_raises_without_evaluation(kind: Any, name: str) -> None:
    hook = type("Described", (Hook,), {name: kind(evaluate)})()
    assert f"{name}: expected a method, got a {kind.__name__}. Define a method {name} that" in refusal(hook)


def test_similar_name_without_a_parameter_raises() -> None:
    assert "clean_up(): the parameter for the hook is missing. Define clean_up(self, ...)." in refusal(
        make_hook("clean_up", lambda: None)
    )


def test_subclass_can_disable_a_listener() -> None:
    class Quiet(Bystander):
        after_train_iter = None  # type: ignore[assignment]

    assert HookBus([Quiet()]).explain().points == {}


def test_only_marked_functions_of_objects_and_modules_are_called() -> None:
    seen: list[str] = []
    module = types.ModuleType("loose_module")

    class Plain:
        @plain_mark
        def before_train(self, run: Any) -> None:
            seen.append("plain")

        def after_train(self, run: Any) -> None:
            seen.append("unmarked")

    def before_train(run: Any) -> None:
        seen.append("module")

    module.before_train = hookimpl(priority=10)(before_train)  # type: ignore[attr-defined]
    bus = HookBus([Plain(), module])
    assert list(bus.hooks) == [f"{__name__}.{Plain.__qualname__}", "loose_module"]
    bus.fire("before_train")
    bus.fire("after_train")
    assert seen == ["module", "plain"]


def test_plugin_without_implementations_raises_unless_it_is_a_hook() -> None:
    HookBus([Hook()])
    message = refusal(object())
    assert "it implements no point or action. Subclass hookbus.Hook, or mark its functions with @hookimpl." in message


def test_registration_does_not_execute_code_of_the_plugin() -> None:
    class Explosive:
        @property
        def before_train(self) -> None:
            raise AssertionError("a property was evaluated")

        @functools.cached_property
        def after_train(self) -> None:
            raise AssertionError("a cached property was evaluated")

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name) if name.startswith("__") else AssertionError(f"{name} was read")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was compared")

        __hash__ = None  # type: ignore[assignment]

        def __len__(self) -> int:
            raise AssertionError("its truth was tested")

        @plain_mark
        def cleanup(self) -> None: ...

    class ExplosiveHook(Hook):
        @property
        def after_training_loss(self) -> None:
            raise AssertionError("a property was evaluated")

    bus = HookBus()
    bus.register(Explosive(), "a")
    bus.register(ExplosiveHook(), "b")
    other = Explosive()
    bus.register(other, "c")
    bus.unregister("a")
    bus.unregister(other)
    assert list(bus.hooks) == ["b"]


# -- instances -----------------------------------------------------------------------------------------------


def test_class_instead_of_an_instance_raises() -> None:
    assert "expected an instance, got the class Bystander. Register Bystander(...)." in refusal(Bystander)
    with pytest.raises(RegistrationError, match="got the class Bystander"):
        HookBus([Bystander])
    with pytest.raises(RegistrationError, match="got the class Bystander"):
        HookBus().pm.register(Bystander, "named")


def test_duplicate_objects_and_names_raise() -> None:
    hook = Bystander()
    bus = HookBus([hook])
    with pytest.raises(RegistrationError, match=r"hook 'again' \(.*\) .*: the object is already registered"):
        bus.register(hook, "again")
    with pytest.raises(
        RegistrationError, match=r"a hook with this name is already registered \(.*\). Set another `name`"
    ):
        bus.register(Bystander())
    assert list(bus.hooks) == ["bystander"]
    bus.register(Bystander(name="second"))
    bus.register(Bystander(), "third")
    assert list(bus.hooks) == ["bystander", "second", "third"]


def test_registration_error_names_the_package_of_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = make_hook("after_trian", lambda self, run: None)
    type(bad).__module__ = "pluggy._manager"
    version = sys.modules["importlib.metadata"].version("pluggy")
    assert f"hook 'mine' (pluggy {version}) cannot be registered" in refusal(bad)
    type(bad).__module__ = "__main__"
    assert "hook 'mine' (your script) cannot be registered" in refusal(bad)
    type(bad).__module__ = "loose_module"
    assert "hook 'mine' (module loose_module) cannot be registered" in refusal(bad)


def test_schedules_and_priorities_are_validated_at_registration() -> None:
    class Settings(HookConfig):
        interval: int = 0

    class Scheduled(Hook):
        Config = Settings

        @hookimpl(when=every("interval"))
        def after_train_iter(self, run: Any) -> None: ...

    message = refusal(Scheduled())
    assert "after_train_iter: every('interval'), interval=0: expected an integer >= 1, got 0" in message
    marked = hookimpl(priority="LOW")(lambda self, run: None)  # type: ignore[call-overload]
    assert "invalid priority, got 'LOW'. Pass an integer such as Priority.LOW or 70." in refusal(
        make_hook("after_train_iter", marked)
    )
    with pytest.raises(RegistrationError, match="invalid priority, got 'HIGH'"):
        HookBus().register(Bystander(), priority="HIGH")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"patience": 3}, " Its keys are those of `early_stopping`: add `type: early_stopping`."),
        ({"interval": 3}, " Add `type: ...`."),
        (
            {"type": "ema", "max_keep_ckpts": 3},
            " max_keep_ckpts: unknown key. `max_keep_ckpts` is a setting of the hook `checkpoint`: write it in hooks.",
        ),
        ({"type": "EMAHook", "work_dir": "a"}, " work_dir: unknown key. `work_dir` belongs at the top level."),
        ({"type": "my_module:Hook", "work_dir": "a"}, ""),
    ],
)
def test_settings_of_a_hook_are_explained_like_those_of_a_run_file(settings: dict[str, Any], hint: str) -> None:
    assert refusal(settings).endswith(f"Build the hook with hookbus.build_hook({settings!r}).{hint}")


@pytest.mark.parametrize("settings", ["ema", {"type": "ema"}])
def test_settings_instead_of_a_hook_raise_and_suggest_build_hook(settings: Any) -> None:
    assert refusal(settings).endswith(
        f"expected a hook, got settings. Build the hook with hookbus.build_hook({settings!r})."
    )
