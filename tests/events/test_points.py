"""Tests of the declaration of points by spec classes."""

from __future__ import annotations

import pytest

from hookbus._events.markers import hookspec
from hookbus._events.points import POINT_ALIASES, Point, check_point, parse_points
from hookbus.errors import PointError


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
