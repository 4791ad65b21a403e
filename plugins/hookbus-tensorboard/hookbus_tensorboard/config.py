"""The settings of the hook."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hookbus.records.recording import WriterConfig

__all__ = ["TensorBoardConfig"]


class TensorBoardConfig(WriterConfig):
    """What is written, where, and how often."""

    log_dir: Path | None = Field(
        default=None, description="The directory of the event files; default one among the logs of the run."
    )
    log_graph: bool = Field(default=False, description="Whether the graph of the model is traced with the first batch.")
    log_images: bool = Field(
        default=False,
        description="Whether pictures that go into the model are recorded. Those that other hooks report always are.",
    )
    image_interval: int = Field(
        default=1000, gt=0, description="Input pictures are recorded every this many iterations."
    )
    max_images: int = Field(default=8, gt=0, description="At most so many input pictures at a time.")
    log_weights: bool = Field(default=False, description="Whether distributions of the weights are recorded.")
    log_gradients: bool = Field(default=False, description="Whether distributions of the gradients are recorded.")
    histogram_interval: int = Field(
        default=1000, gt=0, description="Distributions are recorded every this many updates."
    )
