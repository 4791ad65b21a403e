"""Tests of the writer interface and of the services that emit the `log_*` points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.testing import RecordingBus
from hookbus.writers.writer import Writer


@pytest.fixture
def bus() -> Any:
    bus: Any = RecordingBus()
    bus.current.clock.steps_done = 7
    return bus


def get_events(bus: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(event.point, dict(event.arguments)) for event in bus.events]


def test_writer_emits_one_event_per_record(bus: Any) -> None:
    image, values = torch.zeros(3, 2, 2), torch.ones(4)
    writer = bus.current.get("writer")
    writer.write_scalar("train/lr", torch.tensor(0.5), step=3)
    writer.write_image("val/image", image, step=3, caption="a cat")
    writer.write_histogram("weights", values, step=4)
    writer.write_text("note", "hello", step=5)
    writer.write_config({"seed": 1})
    writer.write_artifact(Path("model.pth"), "best")
    writer.close()
    assert get_events(bus) == [
        ("log_scalars", {"values": {"train/lr": 0.5}, "step": 3}),
        ("log_images", {"tag": "val/image", "images": image, "step": 3, "caption": "a cat"}),
        ("log_histograms", {"tag": "weights", "values": values, "step": 4}),
        ("log_text", {"tag": "note", "text": "hello", "step": 5}),
        ("log_config", {"config": {"seed": 1}}),
        ("log_artifact", {"path": Path("model.pth"), "name": "best"}),
    ]
    assert type(bus.get_arguments("log_scalars")[0]["values"]["train/lr"]) is float


def test_visualizer_has_the_methods_of_a_summary_writer(bus: Any) -> None:
    batch, figure = torch.zeros(2, 3, 4, 4), object()
    visualizer = bus.current.get("visualizer")
    visualizer.add_scalar("loss", torch.tensor([0.25]), 1, walltime=0.0)
    visualizer.add_scalars("loss", {"train": 0.5, "val": torch.tensor(0.75)}, 2)
    visualizer.add_image("image", batch[0], 3, dataformats="CHW")
    visualizer.add_images("images", batch, 4)
    visualizer.add_figure("plot", figure, 5, close=True)
    visualizer.add_histogram("weights", batch, 6, bins="auto")
    visualizer.add_text("note", "hello", 7)
    assert [event.point for event in bus.events] == [
        *("log_scalars", "log_scalars", "log_images", "log_images", "log_figure", "log_histograms", "log_text")
    ]
    assert [arguments["values"] for arguments in bus.get_arguments("log_scalars")] == [
        {"loss": 0.25},
        {"loss/train": 0.5, "loss/val": 0.75},
    ]
    single, multiple = bus.get_arguments("log_images")
    assert torch.equal(single["images"], batch[0])
    assert [tuple(image.shape) for image in multiple["images"]] == [(3, 4, 4), (3, 4, 4)]
    assert [event.arguments["step"] for event in bus.events] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "record",
    [
        lambda run: run.get("writer").write_scalar("a", 1.0),
        lambda run: run.get("writer").write_image("a", None),
        lambda run: run.get("writer").write_histogram("a", None),
        lambda run: run.get("writer").write_text("a", "b"),
        lambda run: run.get("visualizer").add_scalar("a", 1.0),
        lambda run: run.get("visualizer").add_text("a", "b"),
    ],
)
def test_step_defaults_to_the_current_step(bus: Any, record: Any) -> None:
    record(bus.current)
    assert [event.arguments["step"] for event in bus.events] == [7]


def test_only_scalars_images_and_configuration_are_abstract() -> None:
    class Small(Writer):
        def write_scalar(self, name: str, value: Any, step: int) -> None: ...
        def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None: ...
        def write_config(self, config: Mapping[str, Any]) -> None: ...

    small = Small()
    small.write_histogram("a", None, 1)
    small.write_text("a", "b", 1)
    small.write_artifact(Path("a"))
    small.close()
    small.close()
    for missing in ("write_scalar", "write_image", "write_config"):
        body = {name: lambda *_: None for name in ("write_scalar", "write_image", "write_config") if name != missing}
        with pytest.raises(TypeError, match=missing):
            type("Partial", (Writer,), body)()
