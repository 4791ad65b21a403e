"""Tests of the recording bus."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, every, hookimpl
from hookbus.testing import Event, RecordingBus


class Counting(Hook):
    """Count every second iteration."""

    count = 0

    @hookimpl(when=every(2))
    def after_train_iter(self) -> None:
        self.count += 1


def test_recording_bus_records_events_and_calls() -> None:
    bus: Any = RecordingBus([Counting(name="good")])
    for i in range(2):
        bus.emit("after_train_iter", batch_idx=i, outputs={"loss": 0.5})
    assert bus.emitted_points == ["after_train_iter", "after_train_iter"]
    expected = {"step": 1, "batch_idx": 0, "batch": None, "model": None, "outputs": {"loss": 0.5}, "loss": 0.5}
    assert bus.events[0] == Event("after_train_iter", expected)
    assert [event["step"] for event in bus.get_arguments("after_train_iter")] == [1, 2]
    assert bus.get_arguments("before_epoch") == []
    assert bus.calls_made == [("good", "after_train_iter")]


def test_recording_bus_uses_the_given_order() -> None:
    bus: Any = RecordingBus([Counting(name="a", priority=90), Counting(name="b")], order="ascending")
    bus.emit("after_train_iter")
    bus.emit("after_train_iter")
    assert bus.calls_made == [("b", "after_train_iter"), ("a", "after_train_iter")]


def test_recording_bus_records_points_declared_later() -> None:
    bus: Any = RecordingBus([Counting()])
    after_render = bus.declare("after_render", args=("image",))
    bus.declare("after_draw")
    bus.on("after_render", name="frame")(lambda image: None)
    after_render(image="one")
    assert bus.events == [Event("after_render", {"image": "one"})]
    assert bus.calls_made == [("frame", "after_render")]
