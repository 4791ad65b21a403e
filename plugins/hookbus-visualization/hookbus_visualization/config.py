"""The settings that hooks of pictures share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from hookbus import HookConfig, imported
from hookbus_visualization.boxes import BoxFormat
from hookbus_visualization.palette import rgb

__all__ = [
    "Backend",
    "DetVisualizationConfig",
    "FeatureMapConfig",
    "PictureConfig",
    "SampleConfig",
    "SegVisualizationConfig",
    "VisualizationConfig",
]

Backend = Literal["matplotlib", "pillow", "tensorboard"]


Function = Annotated[
    Callable[[Any, Any], Any],
    BeforeValidator(imported),
    PlainSerializer(lambda function: f"{function.__module__}:{function.__qualname__}"),
    WithJsonSchema({"type": "string"}),
]


class PictureConfig(HookConfig):
    """Where pictures go, and how images are read."""

    show: bool = Field(default=False, description="Whether each picture appears in a window, where there is a display.")
    save: bool = Field(default=True, description="Whether each picture becomes a PNG file, in a run with a work_dir.")
    out_dir: str | None = Field(
        default=None,
        min_length=1,
        description="The folder of the files; a relative one is below the visualization directory of the run. Default "
        "a folder there with the name of the hook.",
    )
    backend: Backend = Field(
        default="matplotlib",
        description="Who arranges the pictures of a record: matplotlib; pillow, which is faster and is taken where "
        "matplotlib is not installed; or tensorboard: every picture by itself goes to those who record pictures.",
    )
    parse: Function | None = Field(
        default=None,
        description="A function of (batch, outputs), or its dotted path, that returns a mapping with any of inputs, "
        "images, targets and predictions, one of each per sample. Default they are looked for under the usual keys.",
    )
    mean: tuple[float, ...] | None = Field(
        default=None,
        strict=False,
        description="The mean by which float images were normalized, one number or one per channel; added again.",
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        default=None, strict=False, description="The standard deviation likewise; multiplied again."
    )
    value_range: tuple[float, float] | None = Field(
        default=None,
        strict=False,
        description="Black and white of float images. Default 0 and 1; an image that goes beyond is stretched.",
    )

    @model_validator(mode="after")
    def _fits(self) -> PictureConfig:
        for name in ("mean", "std"):
            given = getattr(self, name)
            if given is not None and len(given) not in (1, 3, 4):
                raise ValueError(f"{name} has {len(given)} numbers. Give one, or one per channel: 3 or 4.")
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError(f"value_range is [black, white], so {list(self.value_range)} leaves nothing in between.")
        return self


class SampleConfig(PictureConfig):
    """Which samples are drawn, and what of them."""

    interval: int = Field(default=500, ge=1, description="Draw at every this many iterations of training.")
    draw_gt: bool = Field(default=True, description="Whether the truth is drawn.")
    draw_pred: bool = Field(default=True, description="Whether the predictions are drawn.")
    max_samples: int = Field(default=16, ge=1, description="So many samples of a batch are drawn at most.")
    score_thr: float = Field(default=0.3, ge=0, le=1, description="Detections whose score is below this are not drawn.")


Content = Literal["predictions", "feature_maps", "attention", "cam", "gradients"]


class VisualizationConfig(SampleConfig):
    """What is drawn of a model that classifies, estimates numbers, or makes images of images."""

    content: tuple[Content, ...] = Field(
        default=("predictions",),
        strict=False,
        min_length=1,
        description="What is drawn: predictions, feature_maps, attention, cam (class activation; needs captum) and "
        "gradients (of the score of a class, in the input). All but the first call the model again, on the samples.",
    )
    class_names: tuple[str, ...] = Field(
        default=(), strict=False, description="The names of the classes, in their order."
    )
    layers: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Layers of feature_maps, by path or pattern. Default convolutions, or innermost layers where the "
        "model has none.",
    )
    max_features: int = Field(default=16, ge=1, description="So many channels of a layer are drawn at most.")
    cam_layer: str | None = Field(
        default=None, description="The layer of cam, by its path. Default the last convolution of the model."
    )
    target: Literal["predicted", "true"] = Field(
        default="predicted", description="The class whose score cam and gradients are about."
    )


Paint = Annotated[
    tuple[int, int, int],
    BeforeValidator(rgb),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),
]
"""A colour: a name, a hexadecimal number, or red, green and blue."""


class ClassConfig(SampleConfig):
    """What classes look like."""

    class_names: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="The names of the classes, in their order; a class without one has its number.",
    )
    palette: tuple[Paint, ...] = Field(
        default=(),
        strict=False,
        description="The colours of the classes, in their order: names, hexadecimal numbers, or red, green and blue. "
        "Default, and for classes behind its end, fixed ones; the first seven suit every kind of colour vision.",
    )


class DetVisualizationConfig(ClassConfig):
    """How boxes are written, and how they are drawn."""

    bbox_color: Paint | None = Field(
        default=None, description="One colour for all boxes, such as red or [255, 0, 0]. Default that of the class."
    )
    text_color: Paint | None = Field(
        default=None, description="One colour for all texts, likewise. Default one that can be read on its ground."
    )
    thickness: int = Field(default=2, ge=1, description="Of the lines, in pixels.")
    box_format: BoxFormat = Field(
        default="xyxy",
        description="How boxes are written: xyxy, two corners; xywh, a corner, width and height; cxcywh, the centre, "
        "width and height.",
    )
    normalized: bool = Field(
        default=False, description="Whether boxes are parts of the image from 0 to 1 rather than pixels."
    )


class SegVisualizationConfig(ClassConfig):
    """How segmented images are drawn."""

    opacity: float = Field(
        default=0.5, ge=0, le=1, description="Of the colours: 0 shows the image alone, 1 the colours alone."
    )
    show_edge: bool = Field(default=False, description="Whether a white line goes around each region.")
    ignore_index: Annotated[
        tuple[int, ...],
        BeforeValidator(lambda value: [value] if isinstance(value, int) else value),
        WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}),
    ] = Field(
        default=(255,),
        strict=False,
        description="The class, or classes, without a colour, such as what is not labelled or a background.",
    )
    legend: bool = Field(default=True, description="Whether the colours of the classes are explained.")


class FeatureMapConfig(PictureConfig):
    """Which layers are looked at, how often, and with which sample."""

    frequency: int | None = Field(default=None, ge=1, description="Draw every this many iterations; default 100.")
    max_features: int = Field(default=16, ge=1, description="So many channels of a layer are drawn at most.")
    sample_batch_idx: int = Field(
        default=0, ge=0, description="Which sample of the batch, from 0; the last of a batch that has fewer."
    )
    layers: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Layers by path or pattern (backbone.*). Default what visualize_features of the model returns, "
        "else its convolutions, or innermost layers where it has none: eight of them, evenly spread.",
    )
    input_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None,
        strict=False,
        description="The shape in which the model takes a sample, [C, H, W], where batches hold it in another one.",
    )
