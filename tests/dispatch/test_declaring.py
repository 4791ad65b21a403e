"""Points of one's own, and those that are declared by a class."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import Hook, HookBus, every, hookimpl
from hookbus.errors import PointError, RegistrationError
from hookbus.markers import hookspec


@pytest.fixture
def seen() -> list[str]:
    return []


def test_a_declared_point_is_fired_by_the_function_that_declared_it_or_by_emit(seen: list[str]) -> None:
    bus: Any = HookBus()
    after_render = bus.declare("after_render", args=("image",), doc="A picture was drawn.")
    assert (after_render.__name__, after_render.__doc__) == ("after_render", "A picture was drawn.")

    class Render(Hook):
        def after_render(self, run: Any, image: str) -> None:
            seen.append(image)

    bus.register(Render())
    after_render(image="one")
    bus.emit("after_render", image="two")
    after_render()
    assert seen == ["one", "two", None]
    with pytest.raises(PointError, match="after_render has no argument 'imgae'. Did you mean 'image'?"):
        after_render(imgae="three")


def test_everything_holds_for_declared_points_too(seen: list[str]) -> None:
    bus: Any = HookBus()
    before, after = bus.declare("before_draw"), bus.declare("after_draw", unit="iter")

    class Draw(Hook):
        def before_draw(self) -> None:
            seen.append(f"before {self.name}")

        @hookimpl(when=every(2))
        def after_draw(self) -> None:
            seen.append(f"after {self.name}")

    bus.register(Draw(name="a", priority=10))
    bus.register(Draw(name="b", priority=90))
    for _ in range(2):
        bus.emit("before_train_iter")
        before()
        after()
        bus.emit("after_train_iter")
    assert seen == ["before a", "before b", "before a", "before b", "after b", "after a"]

    class Misspelt(Hook):
        def after_drwa(self) -> None: ...

    with pytest.raises(RegistrationError, match="after_drwa is not a point. Did you mean 'after_draw'"):
        bus.register(Misspelt())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("after_epoch", {}, "The point 'after_epoch' is declared already."),
        ("after_step", {}, "'after_step' is an alias or an action"),
        ("train_step", {}, "'train_step' is an alias or an action"),
        ("after render", {}, "'after render' cannot be the name of a point or argument"),
        ("after_render", {"args": ("run",)}, "after_render: run means something at every point"),
        ("after_render", {"unit": "iters"}, "after_render: 'iters' is not a unit. Did you mean 'iter'?"),
    ],
)
def test_a_point_that_cannot_be_declared_leaves_nothing_behind(
    name: str, options: dict[str, Any], message: str
) -> None:
    bus: Any = HookBus()
    before = dict(bus.points)
    with pytest.raises(PointError) as caught:
        bus.declare(name, **options)
    assert message in str(caught.value)
    assert bus.points == before


class Rendering:
    @hookspec(unit="epoch")
    def before_render(self, image=None): ...  # type: ignore[no-untyped-def]

    @hookspec
    def after_epoch(self, image): ...  # type: ignore[no-untyped-def]


def test_a_spec_class_declares_the_points_that_are_not_there_yet(seen: list[str]) -> None:
    bus: Any = HookBus()
    bus.declare_from(Rendering)
    bus.declare_from(Rendering)
    assert bus.points["after_epoch"].args == ("epoch", "model", "metrics")
    bus.on("before_render", when=every(2))(lambda run, image: seen.append(f"{run.epoch} {image}"))
    for _ in range(4):
        bus.emit("before_epoch")
        bus.emit("before_render", image="x")
        bus.emit("after_epoch")
    assert seen == ["1 x", "3 x"]


def test_a_spec_class_with_a_reserved_name_is_refused() -> None:
    class Spec:
        def train_step(self) -> None: ...

    with pytest.raises(PointError, match="'train_step' is an alias or an action"):
        HookBus().declare_from(Spec)
