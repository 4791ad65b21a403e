"""Configs of the image hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from hookbus import HookConfig, resolve_import
from hookbus_visualization.boxes import BoxFormat
from hookbus_visualization.palette import parse_color

Backend = Literal["matplotlib", "pillow", "tensorboard"]

T = TypeVar("T")
Items = Annotated[tuple[T, ...], Field(strict=False)]
"""Items of one type. Not strict, because YAML and JSON have lists only, and the base config is strict."""
MaxFeatures = Annotated[int, Field(ge=1, description="Maximum number of channels to render per layer.")]

ParseFunction = Annotated[
    Callable[[Any, Any], Any],
    BeforeValidator(resolve_import),
    PlainSerializer(lambda function: f"{function.__module__}:{function.__qualname__}"),
    WithJsonSchema({"type": "string"}),
]


class ImageConfig(HookConfig):
    """Output of images, and conversion of input images to pixels."""

    effective_with = (("out_dir", "save"),)

    show: bool = Field(default=False, description="Whether to open each image in a window, if a display is available.")
    save: bool = Field(default=True, description="Whether to save each image as a PNG file, in a run with a work_dir.")
    out_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Directory of the PNG files; a relative path is below the visualization directory of the run. "
        "Default: a subdirectory with the name of the hook.",
    )
    backend: Backend = Field(
        default="matplotlib",
        description="Layout of the images of a record: matplotlib; pillow, which is faster and is used if matplotlib "
        "is not installed; or tensorboard, which logs every image separately.",
    )
    parse: ParseFunction | None = Field(
        default=None,
        description="Function of (batch, outputs), or its import string, that returns a mapping with any of inputs, "
        "images, targets and predictions, one value per sample. Default: the values under the usual keys.",
    )
    mean: Items[float] | None = Field(
        default=None,
        description="Mean that was subtracted from float images, one number or one per channel; it is added again.",
    )
    std: Items[Annotated[float, Field(gt=0)]] | None = Field(
        default=None,
        description="Standard deviation that float images were divided by, one number or one per channel; images are "
        "multiplied by it again.",
    )
    value_range: Annotated[tuple[float, float], Field(strict=False)] | None = Field(
        default=None,
        description="Values of black and white in float images. Default: 0 and 1; an image with values outside that "
        "range is rescaled to its minimum and maximum.",
    )

    @model_validator(mode="after")
    def _check_normalization(self) -> ImageConfig:
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, 3, 4):
                raise ValueError(
                    f"`{name}` must contain 1, 3 or 4 numbers, got {len(values)}. Set one number, or one per channel."
                )
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError(f"`value_range` must be [black, white] with black < white, got {list(self.value_range)}.")
        return self


class SampleConfig(ImageConfig):
    """Selection of samples, and of the values that are drawn for each sample."""

    interval: int = Field(default=500, ge=1, description="Interval in training iterations at which samples are drawn.")
    draw_gt: bool = Field(default=True, description="Whether to draw the ground truth.")
    draw_pred: bool = Field(default=True, description="Whether to draw the predictions.")
    max_samples: int = Field(default=16, ge=1, description="Maximum number of samples to visualize per batch.")
    score_thr: float = Field(default=0.3, ge=0, le=1, description="Minimum score of a detection to be drawn.")


Content = Literal["predictions", "feature_maps", "attention", "cam", "gradients"]


CONTENT_OF_SETTINGS: dict[str, tuple[Content, ...]] = {
    "layers": ("feature_maps",),
    "max_features": ("feature_maps",),
    "cam_layer": ("cam",),
    "target": ("cam", "gradients"),
}
"""Content that a setting of the `visualization` hook applies to."""


class VisualizationConfig(SampleConfig):
    """Content of the `visualization` hook, for classification, regression and image-to-image models."""

    content: Items[Content] = Field(
        default=("predictions",),
        min_length=1,
        description="Content to render: predictions, feature_maps, attention, cam (class activation maps; requires "
        "captum) and gradients (of a class score with respect to the input). All except predictions run an additional "
        "forward pass on the samples.",
    )
    class_names: Items[str] = Field(default=(), strict=False, description="Names of the classes, by class index.")
    layers: Items[str] = Field(
        default=(),
        description="Layers of feature_maps, by path or pattern. Default: the convolutions, or the innermost layers if "
        "the model has none.",
    )
    max_features: MaxFeatures = 16
    cam_layer: str | None = Field(
        default=None, description="Path of the layer of cam. Default: the last convolution of the model."
    )
    target: Literal["predicted", "true"] = Field(
        default="predicted", description="Class whose score cam and gradients explain."
    )

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        for setting, contents in CONTENT_OF_SETTINGS.items():
            if not self.is_default(setting) and not {*contents} & {*self.content}:
                raise ValueError(
                    f"{setting}: no effect with content {', '.join(self.content)}, got {getattr(self, setting)!r}. Add "
                    f"{' or '.join(contents)} to `content`, or remove `{setting}`."
                )
        return self


ColorSetting = Annotated[
    tuple[int, int, int],
    BeforeValidator(parse_color),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),
]
"""A color: a name, a hexadecimal code, or red, green and blue."""


class ClassConfig(SampleConfig):
    """Names and colors of the classes."""

    class_names: Items[str] = Field(
        default=(),
        description="Names of the classes, by class index; a class without a name is shown as its index.",
    )
    palette: Items[ColorSetting] = Field(
        default=(),
        description="Colors of the classes, by class index: names, hexadecimal codes, or red, green and blue. Classes "
        "beyond the end of the palette have the default colors; the first seven default colors are distinguishable "
        "with color blindness.",
    )


class DetVisualizationConfig(ClassConfig):
    """Format and style of boxes."""

    bbox_color: ColorSetting | None = Field(
        default=None, description="Color of all boxes, such as red or [255, 0, 0]. Default: the color of the class."
    )
    text_color: ColorSetting | None = Field(
        default=None,
        description="Color of all texts, such as red or [255, 0, 0]. Default: black or white by contrast.",
    )
    thickness: int = Field(default=2, ge=1, description="Line width in pixels.")
    box_format: BoxFormat = Field(
        default="xyxy",
        description="Format of the boxes: xyxy, two corners; xywh, a corner, width and height; cxcywh, the center, "
        "width and height.",
    )
    normalized: bool = Field(
        default=False, description="Whether box coordinates are fractions of the image size instead of pixels."
    )


class SegVisualizationConfig(ClassConfig):
    """Style of segmentation masks."""

    opacity: float = Field(
        default=0.5, ge=0, le=1, description="Opacity of the class colors: 0 shows the image only, 1 the colors only."
    )
    show_edge: bool = Field(default=False, description="Whether to draw a white boundary around each region.")
    ignore_index: Annotated[
        Items[int],
        BeforeValidator(lambda value: [value] if isinstance(value, int) else value),
        WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}),
    ] = Field(
        default=(255,),
        description="Class index, or class indices, without a color, such as unlabeled pixels or the background.",
    )
    legend: bool = Field(default=True, description="Whether to add a legend of the class colors.")


class FeatureMapConfig(ImageConfig):
    """Layers, interval and sample of the `feature_map` hook."""

    frequency: int | None = Field(
        default=None, ge=1, description="Interval in iterations at which feature maps are rendered. Default: 100."
    )
    max_features: MaxFeatures = 16
    sample_batch_idx: int = Field(
        default=0,
        ge=0,
        description="Index of the sample in the batch, from 0; the last sample if the batch is smaller.",
    )
    layers: Items[str] = Field(
        default=(),
        description="Layers by path or pattern (backbone.*). Default: the tensors returned by visualize_features of "
        "the model if it has that method; otherwise at most eight convolutions, or innermost layers if the model has "
        "no convolution, at equal distances.",
    )
    input_shape: Items[Annotated[int, Field(ge=1)]] | None = Field(
        default=None,
        description="Shape of one model input, [C, H, W], if samples in the batch have a different shape.",
    )
