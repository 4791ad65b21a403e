"""Tests of custom points, declared by name or by a spec class."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hookbus import Hook, HookBus, every, hookimpl
from hookbus._events.markers import hookspec
from hookbus.errors import PointError, RegistrationError
from tests import toys


@pytest.fixture
def seen() -> list[str]:
    return []


def test_declared_point_is_emitted_by_its_function_or_by_emit(seen: list[str]) -> None:
    bus: Any = HookBus()
    after_render = bus.declare("after_render", args=("image",), doc="An image was rendered.")
    assert (after_render.__name__, after_render.__doc__) == ("after_render", "An image was rendered.")

    class Render(Hook):
        def after_render(self, run: Any, image: str) -> None:
            seen.append(image)

    bus.register(Render())
    after_render(image="one")
    bus.emit("after_render", image="two")
    after_render()
    assert seen == ["one", "two", None]
    with pytest.raises(PointError, match="after_render: unknown argument 'imgae'. Did you mean 'image'?"):
        after_render(imgae="three")


def test_declared_points_support_schedules_and_validation(seen: list[str]) -> None:
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

    class Misspelled(Hook):
        def after_drwa(self) -> None: ...

    with pytest.raises(RegistrationError, match="unknown point after_drwa. Did you mean 'after_draw'"):
        bus.register(Misspelled())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("after_epoch", {}, "'after_epoch': the point is already declared. Choose another name."),
        ("after_step", {}, "'after_step' is reserved for an alias, an action"),
        ("train_step", {}, "'train_step' is reserved for an alias, an action"),
        ("after render", {}, "invalid name of a point or argument, got 'after render'"),
        ("after_render", {"args": ("run",)}, "after_render: reserved argument run"),
        ("after_render", {"unit": "iters"}, "after_render: unknown unit 'iters'. Did you mean 'iter'?"),
    ],
)
def test_invalid_declaration_does_not_modify_the_bus(name: str, options: dict[str, Any], message: str) -> None:
    bus: Any = HookBus()
    before = dict(bus.points)
    with pytest.raises(PointError) as caught:
        bus.declare(name, **options)
    assert message in str(caught.value)
    assert bus.points == before


class Drawing:
    @hookspec(unit="epoch")
    def after_draw(self, image: str | None = None, *, tag: str = "") -> None:
        """An image was rendered."""

    def after_erase(self, run: Any, image: str) -> None: ...


def test_spec_method_declares_its_point_and_returns_a_typed_function() -> None:
    bus, seen = HookBus(), []
    after_draw, after_erase = bus.declare(Drawing.after_draw), bus.declare(Drawing.after_erase)
    bus.on("after_draw", when=every(1))(lambda image, tag: seen.append((image, tag)))
    bus.on("after_erase", name="erase")(lambda image: seen.append(image))
    assert (after_draw.__name__, after_draw.__doc__) == ("after_draw", "An image was rendered.")
    assert bus.points["after_draw"].unit == "epoch"
    after_draw("one", tag="a")
    after_draw()
    cast(Any, after_erase)("two")
    assert seen == [("one", "a"), (None, None), "two"]
    with pytest.raises(
        PointError, match=r"after_draw\(run, image, tag\): expected at most 2 positional arguments, got 3"
    ):
        cast(Any, after_draw)(1, 2, 3)


def test_spec_method_may_be_declared_again_only_if_it_is_identical() -> None:
    class Other:
        def after_draw(self, figure: Any = None) -> None: ...

    bus = HookBus()
    bus.declare_from(Drawing)
    bus.declare(Drawing.after_draw)
    with pytest.raises(PointError, match="'after_draw': the point is already declared"):
        bus.declare(Other.after_draw)


class Rendering:
    @hookspec(unit="epoch")
    def before_render(self, image=None): ...  # type: ignore[no-untyped-def]

    @hookspec
    def after_epoch(self, image): ...  # type: ignore[no-untyped-def]


def test_spec_class_declares_only_new_points(seen: list[str]) -> None:
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


def test_spec_class_with_a_reserved_name_raises() -> None:
    class Spec:
        def train_step(self) -> None: ...

    with pytest.raises(PointError, match="'train_step' is reserved for an alias, an action"):
        HookBus().declare_from(Spec)


# -- points declared after the registration --------------------------------------------------------------------


class Renderer(Hook):
    """Hook with methods for points that are not declared yet, between two points of a training."""

    def __init__(self, seen: list[str], name: str) -> None:
        super().__init__(name=name)
        self.seen = seen

    def before_train(self) -> None:
        self.seen.append(f"{self.name} before_train")

    def densify(self, points: int) -> None:
        self.seen.append(f"{self.name} densify {points}")

    @hookimpl(specname="on_render", when=every(2))
    def render(self) -> None:
        self.seen.append(f"{self.name} render")


def test_methods_of_registered_hooks_become_listeners(seen: list[str]) -> None:
    bus: Any = HookBus([Renderer(seen, "a"), Renderer(seen, "b")])
    densify = bus.declare("densify", args=("points",))
    bus.declare("on_render", unit="iter")
    densify(points=5)
    for _ in range(2):
        bus.emit("before_train_iter")
        bus.emit("on_render")
        bus.emit("after_train_iter")
    assert seen == ["a before_train", "b before_train", "a densify 5", "b densify 5", "a render", "b render"][2:]
    assert list(bus.hooks) == ["a", "b"]
    bus.unregister("a")
    densify(points=6)
    assert seen[-1] == "b densify 6"


def test_point_declared_during_a_run_reaches_the_hooks(seen: list[str]) -> None:
    class Declares(Hook):
        def before_run(self, run: Any) -> None:
            run.bus.declare("densify", args=("points",))

    class Densifies(Hook):
        def densify(self, points: int) -> None:
            seen.append(f"densify {points}")

    bus: Any = HookBus([Declares(), Densifies()])
    with bus.run():
        bus.emit("densify", points=1)
    assert seen == ["densify 1"]


class Unmatched(Hook):
    def on_render(self, run: Any) -> None: ...


def test_method_that_is_unmatched_when_the_run_begins_is_an_error() -> None:
    bus: Any = HookBus([Unmatched()])
    with pytest.raises(
        RegistrationError, match=r"hook 'unmatched' .*unknown point on_render.*bus.declare\('on_render'"
    ):
        bus.run().__enter__()
    with pytest.raises(RegistrationError, match="unknown point on_render"):
        toys.trainer(Unmatched(), epochs=1).check()
    with pytest.raises(RegistrationError, match="unknown point on_render"):
        toys.trainer(Unmatched(), epochs=1).fit()
    bus.declare("on_render")
    with bus.run():
        pass


def test_unmatched_hook_registered_during_a_run_is_refused() -> None:
    bus: Any = HookBus()
    with bus.run(epochs=1):
        with pytest.raises(RegistrationError, match="unknown point on_render"):
            bus.register(Unmatched())
        assert bus.hooks == {}


def test_declaration_that_a_registered_hook_contradicts_changes_nothing(seen: list[str]) -> None:
    bus: Any = HookBus([Renderer(seen, "a")])
    with pytest.raises(RegistrationError, match=r"densify\(points.*unknown argument 'points'.*densify\(run, cloud\)"):
        bus.declare("densify", args=("cloud",))
    assert "densify" not in bus.points
    bus.emit("before_train")
    assert seen == ["a before_train"]


def test_function_for_an_undeclared_point_is_refused_at_once() -> None:
    with pytest.raises(RegistrationError, match="unknown point densify"):
        HookBus().on("densify")(lambda: None)
