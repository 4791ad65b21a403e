"""Tests of the public API of pluggy on the plugin manager of a bus: a feature works, or raises the reason."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pluggy
import pytest

from hookbus import Hook, HookBus, hookimpl
from hookbus._events.markers import hookspec
from hookbus.errors import HookError, PointError, RegistrationError

heard: list[str] = []


class Plain:
    """Plugin without a base class."""

    def __init__(self, name: str) -> None:
        self.name = name

    @hookimpl
    def before_train(self, run: Any) -> None:
        heard.append(self.name)


class Equal(Plain):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def bus() -> HookBus:
    heard.clear()
    return HookBus()


UNSUPPORTED: list[tuple[str, Callable[[Any], object]]] = [
    ("add_hookcall_monitoring", lambda manager: manager.add_hookcall_monitoring(print, print)),
    ("enable_tracing", lambda manager: manager.enable_tracing()),
    ("load_setuptools_entrypoints", lambda manager: manager.load_setuptools_entrypoints("hookbus.hooks")),
    ("list_plugin_distinfo", lambda manager: manager.list_plugin_distinfo()),
    ("list_plugin_distributions", lambda manager: manager.list_plugin_distributions()),
]


@pytest.mark.parametrize(("name", "call"), UNSUPPORTED, ids=lambda case: case if isinstance(case, str) else "")
def test_unsupported_feature_raises_with_the_reason(bus: HookBus, name: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(HookError, match=rf"bus\.pm\.{name} is not supported: .*\. (Read|Register) "):
        call(bus.pm)


@pytest.mark.parametrize("register", ["bus", "manager"])
@pytest.mark.parametrize("cls", [Plain, Equal])
def test_queries_return_the_plugin_itself(bus: HookBus, cls: type[Plain], register: str) -> None:
    plugin, other = cls("a"), cls("b")
    for name, member in (("a", plugin), ("b", other)):
        (bus if register == "bus" else bus.pm).register(member, name)  # type: ignore[attr-defined]
    manager = bus.pm
    assert [item.plugin.name for item in manager.hook.before_train.get_hookimpls()] == ["a", "b"]
    assert manager.hook.before_train.get_hookimpls()[0].plugin is plugin
    assert manager.get_canonical_name(plugin) == manager.get_name(plugin) == "a"
    assert [caller.name for caller in manager.get_hookcallers(plugin) or ()] == ["before_train"]
    assert manager.has_plugin("a")
    bus.unregister("a")
    assert [item.plugin for item in manager.hook.before_train.get_hookimpls()] == [other]
    assert manager.get_hookcallers(plugin) is None
    assert manager.get_canonical_name(plugin) == f"{__name__}.{cls.__name__}"


def test_subset_caller_leaves_out_the_removed_plugins(bus: HookBus) -> None:
    plugins = [Plain("a"), Plain("b"), Plain("c")]
    for plugin in plugins:
        bus.register(plugin, plugin.name)
    bus.pm.subset_hook_caller("before_train", remove_plugins=[plugins[0], plugins[2]])(run=None, model=None)
    assert heard == ["b"]


def test_caller_passes_arguments_under_the_names_of_other_frameworks(bus: HookBus) -> None:
    class Ported(Hook):
        def before_train_iter(self, runner: str, batch_idx: int, data_batch: str) -> None:
            heard.append(f"{runner} {batch_idx} {data_batch}")

    bus.register(Ported())
    bus.pm.hook.before_train_iter(run="run", step=0, batch_idx=3, batch="batch", model=None)
    assert heard == ["run 3 batch"]


def test_subset_caller_rejects_plugins_that_are_compared_by_value(bus: HookBus) -> None:
    bus.register(Equal("a"), "a")
    bus.register(Equal("b"), "b")
    with pytest.raises(HookError, match="defines __eq__, and pluggy would remove all plugins that are equal to it"):
        bus.pm.subset_hook_caller("before_train", remove_plugins=[bus.hooks["a"]])


def test_spec_class_declares_its_marked_points(bus: HookBus) -> None:
    class Specs:
        @hookspec(unit="iter")
        def after_render(self, image: object) -> None: ...

        def helper(self) -> None: ...

    bus.pm.add_hookspecs(Specs)
    assert (bus.points["after_render"].args, bus.points["after_render"].unit) == (("image",), "iter")
    assert "helper" not in bus.points


def test_spec_module_declares_its_marked_functions(bus: HookBus) -> None:
    def after_render(run: object, image: object) -> None:
        """An image was rendered."""

    module = ModuleType("specs")
    module.after_render = hookspec(after_render)  # type: ignore[attr-defined]
    bus.pm.add_hookspecs(module)
    point = bus.points["after_render"]
    assert (point.args, point.doc, point.types) == (("image",), "An image was rendered.", ("object",))
    with pytest.raises(PointError, match="contains no function marked with @hookspec"):
        bus.pm.add_hookspecs(ModuleType("empty"))


@pytest.mark.parametrize("option", ["historic", "firstresult"])
def test_spec_with_an_option_that_points_do_not_support_is_refused(bus: HookBus, option: str) -> None:
    class Specs:
        @pluggy.HookspecMarker("hookbus")(**{option: True})  # type: ignore[call-overload, untyped-decorator]
        def after_render(self, image: object) -> None: ...

    with pytest.raises(PointError, match=f"after_render: {option} of pluggy is not supported by points"):
        bus.declare_from(Specs)
    assert "after_render" not in bus.points


def test_pending_check_reports_methods_without_a_point(bus: HookBus) -> None:
    class Draws(Hook):
        def on_draw(self, run: Any) -> None: ...

    bus.register(Draws())
    with pytest.raises(RegistrationError, match="unknown point on_draw"):
        bus.pm.check_pending()
    bus.declare("on_draw")
    bus.pm.check_pending()


def test_optional_implementation_may_have_no_point(bus: HookBus) -> None:
    class Draws:
        @pluggy.HookimplMarker("hookbus")(optionalhook=True, specname="on_draw")
        def draw(self, run: Any) -> None:
            heard.append("draw")

    bus.register(Draws())
    bus.pm.check_pending()
    with bus.run():
        pass
    bus.declare("on_draw")()
    assert heard == ["draw"]
