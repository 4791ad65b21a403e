"""Tests of the event bus without a run, hooks and the points of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookbus import every, hookimpl
from hookbus._events.actions import actionspec
from hookbus._events.bus import EventBus
from hookbus._events.ordering import Listener
from hookbus._events.points import Point, Unit, counted, parse_points
from hookbus._events.table import PointEffects
from hookbus.errors import PointError


class Rendering:
    """Points of a renderer."""

    def before_render(self, image: object = None) -> None:
        """Start of an image."""

    @counted("iter")
    def after_render(self, image: object = None) -> None:
        """End of an image."""


class Actions:
    """Actions of a renderer."""

    @actionspec
    def render(self, run, scene):  # type: ignore[no-untyped-def]
        """Render a scene."""


class Count:
    """Counters of a run, and their view from every point."""

    unit: Unit = "iter"

    def __init__(self) -> None:
        self.images = 0
        self.clock = self

    def current(self, unit: Unit | None) -> int:
        return self.images

    def count_seconds(self) -> None: ...

    def get_counter(self, unit: Unit) -> tuple[str, int, int]:
        return "images", 0, 0

    def is_counted(self, unit: Unit | None) -> bool:
        return True

    def range(self, unit: Unit | None) -> tuple[int, int]:
        return self.images, self.images

    def counts(self, unit: Unit) -> bool:
        return True

    def limit(self, unit: Unit | None) -> None: ...

    def next_limit_change(self, unit: Unit, number: int) -> None: ...


class Renderer:
    """Run of a renderer."""

    is_running = pending = False

    def __init__(self) -> None:
        self.clock = Count()

    def runs_on_this_rank(self, plugin: object) -> bool:
        return True

    def receives(self, hook: str, target: str) -> bool:
        return True

    def record_opening(self, listener: Listener) -> Callable[..., Any]:
        return listener.call

    def on_hooks_changed(self) -> None: ...

    def release(self, name: str, plugin: object) -> None: ...


class RenderBus(EventBus):
    """Bus of a renderer, which counts images at `after_render`."""

    def __init__(self) -> None:
        super().__init__(
            order="nested",
            points=parse_points(Rendering),
            actions=Actions,
            effects=PointEffects(
                prologue=lambda point, run: ["_clock.images += 1"] if point == "after_render" else [],
                epilogue=lambda point, run: [],
                default_arguments=lambda point: {"image": "blank"},
                namespace=lambda run: {"blank": "a blank image"},
                counter_view=lambda clock, point, run: clock,
                non_aborting=(),
            ),
            emitter_wrapper=lambda point, emitter, run: emitter,
            find_alias=lambda name: None,
        )
        self.current = Renderer()


class Frame:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl(when=every(2))
    def after_render(self, run: Renderer, image: object) -> None:
        self.seen.append((run.clock.images, image))


def test_event_bus_calls_listeners_of_its_points() -> None:
    bus, frame = RenderBus(), Frame()
    bus.register(frame)
    for image in ("one", "two", None, None):
        bus.emit("before_render", image=image)
        bus.emit("after_render", image=image)
    assert frame.seen == [(2, "two"), (4, "a blank image")]
    assert bus.points["after_render"] == Point("after_render", ("image",), "iter", "End of an image.", ("object",))
    assert bus.actions == {"render": ("scene",)}


def test_event_bus_knows_no_point_of_training() -> None:
    with pytest.raises(PointError, match="Unknown point 'before_train'"):
        RenderBus().emit("before_train")
