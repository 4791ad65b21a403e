"""Tests of deprecated points, actions and arguments: who is warned of what, once, and where."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pluggy
import pytest

from hookbus import Hook, HookBus, actionspec, deprecated, hookimpl, hookspec
from hookbus.errors import HookDeprecationWarning, HookWarning, PointError, RegistrationError

HERE = "module tests.utils.test_deprecations"


class RenderPoints:
    """Points of a package that replaces one point and one argument."""

    @deprecated(removed_in="acme-render 2.0", replacement="after_render")
    def after_frame(self, image: Any) -> None:
        """A frame was drawn."""

    @deprecated(removed_in="acme-render 3", replacement="image", argument="pixels")
    @deprecated(removed_in="acme-render 2.1", argument="dpi")
    @hookspec(unit="iter")
    def after_render(self, image: Any, pixels: Any, dpi: int) -> None:
        """An image was rendered."""


class Listens(Hook):
    """Hook that uses a deprecated point, a deprecated argument, and arguments that remain."""

    def after_frame(self, image: Any) -> None: ...

    def after_render(self, pixels: Any, image: Any) -> None: ...


class Samples(Hook):
    """Hook that implements an action."""

    def sample(self, prompts: Any) -> Any:
        return prompts


FRAME = "after_frame is deprecated and will be removed in acme-render 2.0. Use after_render instead."
PIXELS = "argument pixels of after_render is deprecated and will be removed in acme-render 3. Use image instead."
DPI = "argument dpi of after_render is deprecated and will be removed in acme-render 2.1. It has no replacement."


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield records


@pytest.fixture
def bus() -> Any:
    bus = HookBus()
    bus.declare_from(RenderPoints)
    return bus


def texts(records: list[warnings.WarningMessage]) -> list[str]:
    return [str(record.message) for record in records]


def test_hook_is_warned_of_each_use_once(bus: Any, caught: list[warnings.WarningMessage]) -> None:
    bus.register(Listens(name="mine"))
    for _ in range(2):
        bus.emit("after_frame")
        bus.emit("after_render")
    bus.declare("after_another")

    assert texts(caught) == [f"hook 'mine' ({HERE}): {FRAME}", f"hook 'mine' ({HERE}): {PIXELS}"]
    assert {record.category for record in caught} == {HookDeprecationWarning}


def test_each_hook_is_warned(bus: Any, caught: list[warnings.WarningMessage]) -> None:
    warnings.simplefilter("default")  # Python shows equal texts of one line once
    bus.register(Listens(name="a"))
    bus.register(Listens(name="b"))

    assert [text.partition(" (")[0] for text in texts(caught)] == ["hook 'a'", "hook 'a'", "hook 'b'", "hook 'b'"]


def test_hook_that_uses_nothing_deprecated_is_not_warned(bus: Any) -> None:
    class Current(Hook):
        def after_render(self, run: Any, image: Any) -> None: ...

    bus.register(Current())
    bus.emit("after_frame")


def test_warning_is_located_at_the_listener(bus: Any, caught: list[warnings.WarningMessage]) -> None:
    bus.register(Listens())

    assert caught[0].filename == __file__
    assert caught[0].lineno == Listens.after_frame.__code__.co_firstlineno


def test_functions_and_plain_plugins_are_warned(bus: Any, caught: list[warnings.WarningMessage]) -> None:
    class Plain:
        @hookimpl(specname="after_frame")
        def draw(self, run: Any) -> None: ...

    @bus.on("after_render")
    def show(dpi: int) -> None: ...

    bus.register(Plain(), name="plain")
    name = f"{__name__}.test_functions_and_plain_plugins_are_warned.<locals>.show"

    assert texts(caught) == [f"hook {name!r} ({HERE}): {DPI}", f"hook 'plain' ({HERE}): {FRAME}"]


def test_warning_that_is_an_error_registers_nothing(bus: Any) -> None:
    with pytest.raises(HookDeprecationWarning, match=r"hook 'mine' .*: after_frame is deprecated"):
        bus.register(Listens(name="mine"))

    assert bus.hooks == {}
    assert bus.calls.get("after_frame") is None


def test_point_of_a_registered_hook_is_declared_later(caught: list[warnings.WarningMessage]) -> None:
    bus = HookBus([Listens(name="mine")])
    assert caught == []
    bus.declare("after_frame", ["image"], deprecated=deprecated(removed_in="acme-render 2.0"))
    bus.declare("after_render", ["pixels", "image"])

    (text,) = texts(caught)
    assert text == (
        f"hook 'mine' ({HERE}): after_frame is deprecated and will be removed in acme-render 2.0. It has no "
        "replacement."
    )


def test_declaration_by_name_may_have_several_deprecations(caught: list[warnings.WarningMessage]) -> None:
    bus: Any = HookBus()
    removed = [
        deprecated(removed_in="acme-render 2.0", replacement="after_render"),
        deprecated(removed_in="acme-render 1.5", replacement="image", argument="pixels"),
    ]
    bus.declare("after_frame", ["image", "pixels"], doc="A frame was drawn.", deprecated=removed)

    @bus.on("after_frame", name="mine")
    def show(pixels: Any) -> None: ...

    assert texts(caught) == [
        f"hook 'mine' ({HERE}): {FRAME}",
        f"hook 'mine' ({HERE}): argument pixels of after_frame is deprecated and will be removed in acme-render "
        "1.5. Use image instead.",
    ]


def test_description_of_a_point_states_what_is_deprecated(bus: Any) -> None:
    assert bus.points["after_frame"].description == f"A frame was drawn. Note: {FRAME}"
    assert bus.points["after_render"].description == f"An image was rendered. Note: {PIXELS} Note: {DPI}"


def test_equal_declaration_with_a_deprecation_is_accepted_again(bus: Any) -> None:
    bus.declare(RenderPoints.after_render)
    with pytest.raises(PointError, match="'after_frame': the point is already declared"):
        bus.declare("after_frame", ["image"])


class TestActions:
    def test_hook_that_implements_a_deprecated_action_is_warned(self, caught: list[warnings.WarningMessage]) -> None:
        class Specs:
            @deprecated(removed_in="acme-sample 2.0", replacement="draw")
            @actionspec
            def sample(self, prompts: Any) -> Any: ...

        bus = HookBus()
        bus.declare_from(Specs)
        bus.register(Samples(name="mine"))

        assert texts(caught) == [
            f"hook 'mine' ({HERE}): sample is deprecated and will be removed in acme-sample 2.0. Use draw instead."
        ]

    def test_function_deprecates_an_argument_of_its_action(self, caught: list[warnings.WarningMessage]) -> None:
        @deprecated(removed_in="acme-sample 2.0", argument="prompts")
        def sample(run: Any, prompts: Any, count: int = 1) -> Any:
            return prompts * count

        bus = HookBus([Samples(name="mine")])
        draw = bus.declare_action(sample)

        assert texts(caught) == [
            f"hook 'mine' ({HERE}): argument prompts of sample is deprecated and will be removed in acme-sample 2.0. "
            "It has no replacement."
        ]
        assert draw("a", 3) == "a"

    def test_unknown_argument_is_an_error(self) -> None:
        @deprecated(removed_in="acme-sample 2.0", argument="promts")
        def sample(run: Any, prompts: Any) -> None: ...

        with pytest.raises(PointError, match=r"unknown deprecated argument, got 'promts'\. Did you mean 'prompts'\?"):
            HookBus().declare_action(sample)


class TestPluggyOptions:
    @pytest.mark.parametrize("category", [DeprecationWarning, HookDeprecationWarning])
    def test_warn_on_impl_warns_with_its_category(
        self, caught: list[warnings.WarningMessage], category: type[Warning]
    ) -> None:
        class Specs:
            @pluggy.HookspecMarker("hookbus")(warn_on_impl=category("Use after_render."))
            def after_frame(self, image: Any) -> None: ...

        bus = HookBus()
        bus.declare_from(Specs)
        bus.register(Listens(name="mine"))

        assert texts(caught) == [f"hook 'mine' ({HERE}): after_frame is deprecated: Use after_render."]
        assert caught[0].category is category

    def test_warn_on_impl_args_warns_of_arguments_that_are_taken(self, caught: list[warnings.WarningMessage]) -> None:
        class Specs:
            @pluggy.HookspecMarker("hookbus")(
                warn_on_impl_args={"pixels": FutureWarning("Take image"), "dpi": FutureWarning("It is constant")}
            )
            def after_render(self, image: Any, pixels: Any, dpi: int) -> None: ...

        bus = HookBus()
        bus.pm.add_hookspecs(Specs)
        bus.register(Listens(name="mine"))

        assert texts(caught) == [f"hook 'mine' ({HERE}): argument pixels of after_render is deprecated: Take image."]

    def test_value_that_is_no_warning_is_an_error(self) -> None:
        class Specs:
            @pluggy.HookspecMarker("hookbus")(warn_on_impl="gone soon")  # type: ignore[call-overload, untyped-decorator]
            def after_frame(self) -> None: ...

        with pytest.raises(PointError, match="after_frame: expected a warning in warn_on_impl .*, got 'gone soon'"):
            HookBus().declare_from(Specs)


class TestInvalid:
    @pytest.mark.parametrize("removed_in", ["", " ", 2.0])
    def test_version_is_required(self, removed_in: Any) -> None:
        with pytest.raises(ValueError, match="deprecated: invalid `removed_in`, got "):
            deprecated(removed_in=removed_in)

    def test_unknown_argument_is_an_error(self) -> None:
        notice = deprecated(removed_in="acme 2.0", argument="imgae")
        with pytest.raises(PointError, match=r"unknown deprecated argument, got 'imgae'\. Did you mean 'image'\?"):
            HookBus().declare("after_frame", ["image"], deprecated=notice)

    @pytest.mark.parametrize("notice", ["Use after_render.", True, [DeprecationWarning("gone")]])
    def test_other_objects_are_errors(self, notice: Any) -> None:
        with pytest.raises(PointError, match="bus.declare: invalid `deprecated`, got "):
            HookBus().declare("after_frame", deprecated=notice)

    def test_class_cannot_be_marked(self) -> None:
        with pytest.raises(PointError, match="@deprecated: expected the method of a spec class, got <class"):
            deprecated(removed_in="acme 2.0")(Listens)

    def test_listener_cannot_be_marked(self, bus: HookBus) -> None:
        class Marked(Hook):
            @deprecated(removed_in="acme 2.0")
            def after_train(self) -> None: ...

        with pytest.raises(RegistrationError, match="after_train: @deprecated has no effect on a listener"):
            bus.register(Marked())


def test_category_is_shown_by_default_and_filtered_with_hook_warnings() -> None:
    assert issubclass(HookDeprecationWarning, HookWarning)
    assert issubclass(HookDeprecationWarning, FutureWarning)
    assert not issubclass(HookDeprecationWarning, DeprecationWarning)
