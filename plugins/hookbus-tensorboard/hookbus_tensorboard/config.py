"""Configuration of the hook."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hookbus.writers import WriterConfig


class TensorBoardConfig(WriterConfig):
    """Configuration of `TensorBoardHook`."""

    log_dir: Path | None = Field(
        default=None,
        description=(
            "Directory of the event files; "
            "a relative path is below the work directory. Default: a directory below the log directory of the run."
        ),
    )
    log_graph: bool = Field(default=False, description="Trace the model with the first batch and log its graph.")
    log_images: bool = Field(
        default=False,
        description="Log the input images of the model. Images from other hooks are always logged.",
    )
    image_interval: int = Field(default=1000, gt=0, description="Log input images every N iterations.")
    max_images: int = Field(default=8, gt=0, description="Maximum number of input images per batch.")
    log_weights: bool = Field(default=False, description="Log histograms of the weights.")
    log_gradients: bool = Field(default=False, description="Log histograms of the gradients.")
    histogram_interval: int = Field(default=1000, gt=0, description="Log histograms every N optimizer steps.")
