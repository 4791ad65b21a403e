"""Tests of the declaration of points by spec classes."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import Hook, HookBus, hookimpl
from hookbus._events.markers import hookspec
from hookbus._events.points import POINT_ALIASES, Point, check_point, parse_points
from hookbus.errors import PointError, RegistrationError
from hookbus.lifecycle import POINTS


class Rendering:
    """Spec class of another package."""

    @hookspec(unit="epoch")
    def before_render(self, run, image: int | None = None):  # type: ignore[no-untyped-def]
        """An image is about to be rendered.

        It may be changed.
        """

    @hookspec
    def after_render(self, runner, image, data_batch):  # type: ignore[no-untyped-def]
        """It was rendered."""

    def _helper(self) -> None: ...

    constant = 3


def test_spec_class_declares_its_public_methods() -> None:
    points = parse_points(Rendering)
    doc = "An image is about to be rendered.\n\nIt may be changed."
    assert points == {
        "before_render": Point("before_render", ("image",), "epoch", doc, ("int",)),
        "after_render": Point("after_render", ("image",), None, "It was rendered.", ("Any",)),
    }


@pytest.mark.parametrize("annotation", [int, "int", "int | None"])
def test_argument_type_is_shown_without_none(annotation: object) -> None:
    class Spec:
        def after_render(self, image): ...  # type: ignore[no-untyped-def]

    Spec.after_render.__annotations__["image"] = annotation
    assert parse_points(Spec)["after_render"].types == ("int",)


@pytest.mark.parametrize("signature", ["self, *args", "self, **kwargs"])
def test_spec_with_args_or_kwargs_raises(signature: str) -> None:
    namespace: dict[str, type] = {}
    exec(f"class Spec:\n    def after_render({signature}): ...", namespace)
    with pytest.raises(PointError, match="Name every argument of the point after_render"):
        parse_points(namespace["Spec"])


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (Point("after render", (), None, "", ()), "invalid name of a point or argument, got 'after render'"),
        (Point("_render", (), None, "", ()), "invalid name of a point or argument, got '_render'"),
        (Point("class", (), None, "", ()), "invalid name of a point or argument, got 'class'"),
        (Point("after_render", ("1st",), None, "", ("Any",)), "invalid name of a point or argument, got '1st'"),
        (Point("after_render", ("run",), None, "", ("Any",)), "after_render: reserved argument run"),
        (Point("after_render", ("data_batch",), None, "", ("Any",)), "reserved argument data_batch"),
        (Point("after_render", ("self",), None, "", ("Any",)), "reserved argument self"),
        (Point("after_render", ("a", "a"), None, "", ("Any", "Any")), "duplicate argument"),
        (Point("before_step", (), None, "", ()), "'before_step' is reserved for an alias, an action"),
        (Point("after_render", (), "epochs", "", ()), "unknown unit 'epochs'. Did you mean 'epoch'?"),  # type: ignore[arg-type]
    ],
)
def test_invalid_point_raises_with_the_reason(point: Point, message: str) -> None:
    with pytest.raises(PointError) as caught:
        check_point(point, taken=POINT_ALIASES)
    assert message in str(caught.value)


def test_valid_custom_point_is_accepted() -> None:
    check_point(Point("after_render", ("image", "seconds"), "seconds", "", ("Any", "Any")), taken=POINT_ALIASES)


seen: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    seen.clear()


class Mixin:
    """Class without a base method, which may precede or follow `Hook`."""

    def before_train(self, run: Any) -> None:
        seen.append((type(self).__name__, "before_train"))

    def after_epoch(self, epoch: Any) -> None:
        seen.append((type(self).__name__, epoch))


class Before(Mixin, Hook):
    pass


class After(Hook, Mixin):
    def after_epoch(self, epoch: Any) -> None:
        super().after_epoch(epoch)


@pytest.mark.parametrize("name", [*POINTS, *POINT_ALIASES])
def test_every_point_has_a_base_method_that_accepts_any_arguments(name: str) -> None:
    assert getattr(Hook(), name)("run", 1, data_batch=None) is None


def test_base_methods_are_no_listeners() -> None:
    bus = HookBus([Hook()])
    assert {name for name in POINTS if bus.table.listeners(name, bus.current)} == set()
    assert bus.calls.get("after_forward") is None
    assert Hook().get_triggered_stages() == []


def test_listener_calls_its_base_method_with_the_arguments_of_other_trainers() -> None:
    class Ported(Hook):
        def before_run(self, runner: Any) -> None:
            super().before_run(runner)
            seen.append("before_run")

        def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            super().after_train_iter(runner, batch_idx, data_batch, outputs=outputs)
            seen.append(batch_idx)

    bus = HookBus([hook := Ported()])
    bus.fire("before_run", mode="train")
    bus.fire("after_train_iter", batch_idx=3)
    assert seen == ["before_run", 3]
    assert hook.get_triggered_stages() == ["before_run", "after_train_iter"]


@pytest.mark.parametrize("cls", [Before, After])
def test_order_of_the_base_classes_does_not_matter(cls: type[Hook]) -> None:
    bus = HookBus([hook := cls()])
    bus.fire("before_train")
    bus.fire("after_epoch", epoch=2)
    assert seen == [(cls.__name__, "before_train"), (cls.__name__, 2)]
    assert hook.get_triggered_stages() == ["before_train", "after_epoch"]


def test_hooks_with_two_hook_classes_call_both() -> None:
    class First(Hook):
        def before_train(self, run: Any) -> None:
            seen.append("first")
            super().before_train(run)

    class Second(Hook):
        def before_train(self, run: Any) -> None:
            seen.append("second")
            super().before_train(run)

    class Both(First, Second):
        pass

    HookBus([Both()]).fire("before_train")
    assert seen == ["first", "second"]


def test_marked_methods_of_a_later_class_keep_their_options() -> None:
    class Marked:
        @hookimpl(priority=7)
        def before_train(self, run: Any) -> None: ...

    class Listens(Hook, Marked):
        pass

    assert "7  listens  (@hookimpl)" in str(HookBus([Listens()]).explain())


def test_listener_of_a_later_class_is_validated() -> None:
    class Wrong:
        def before_train(self, nothing: Any) -> None: ...

    class Listens(Hook, Wrong):
        pass

    with pytest.raises(RegistrationError, match="unknown argument 'nothing'"):
        HookBus([Listens()])
