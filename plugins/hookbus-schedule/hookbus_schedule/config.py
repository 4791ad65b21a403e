"""The settings of the hooks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, field_validator, model_validator

from hookbus import HookConfig
from hookbus_schedule.pipelines import pipeline_from

__all__ = [
    "AccumulationConfig",
    "FreezeConfig",
    "ParamSchedulerConfig",
    "PipelineSwitchConfig",
    "SchedulerConfig",
    "YOLOXLrUpdaterConfig",
    "YOLOXModeSwitchConfig",
]


class SchedulerConfig(BaseModel):
    """One scheduler: an object, or a type and what it takes; keys that are not listed here go to the type."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, arbitrary_types_allowed=True)

    type: str | None = Field(default=None, description="A name of torch.optim.lr_scheduler, or package.module:name.")
    scheduler: Annotated[Any, SkipValidation] = Field(default=None, description="A scheduler that is there already.")
    interval: Literal["step", "epoch"] | None = Field(
        default=None, description="When it is stepped; default the hook's."
    )
    monitor: str | None = Field(default=None, description="The metric that it is stepped with, after each validation.")
    parameter: Literal["lr", "momentum"] = Field(
        default="lr", description="What it changes; momentum is beta1 of Adam."
    )
    optimizer: str | None = Field(
        default=None, description="The service whose groups it changes; default the run's own."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.type is None) == (self.scheduler is None):
            raise ValueError("a scheduler is either a type with its settings, or a scheduler object: give one of them.")
        if self.scheduler is not None and (self.model_extra or self.parameter != "lr" or self.optimizer is not None):
            raise ValueError("scheduler: an object has its settings and its optimizer already: leave the others out.")
        return self


class ParamSchedulerConfig(HookConfig):
    """Which schedulers are stepped, and when."""

    schedulers: list[SchedulerConfig] = Field(
        default=[], description="The schedulers; none means that of a loop of one's own (bus.run(scheduler=...))."
    )
    interval: Literal["step", "epoch"] = Field(
        default="epoch", description="When they are stepped: after each optimizer update, or after each epoch."
    )

    @field_validator("schedulers", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """One or several; a bare object stands for {scheduler: object}."""
        given = list(value) if isinstance(value, (list, tuple)) else [value]
        return [each if isinstance(each, (dict, SchedulerConfig)) else {"scheduler": each} for each in given]


def off(value: object) -> object:
    """A length that somebody wrote as false or null is 0: it wins over the default."""
    return 0 if value is False or value is None else value


class LastPartConfig(HookConfig):
    """How long the last part of a training is."""

    num_last_epochs: int = Field(default=15, ge=0, description="So many epochs are the last ones; 0 for none.")
    num_last_iters: int | None = Field(default=None, ge=0, description="The same in iterations, instead of epochs.")

    @field_validator("num_last_epochs", "num_last_iters", mode="before")
    @classmethod
    def _none(cls, value: object) -> object:
        return off(value)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.num_last_iters is not None and "num_last_epochs" in self.model_fields_set:
            raise ValueError("num_last_iters: it says the same as num_last_epochs in another unit: give one of them.")
        return self


class YOLOXLrUpdaterConfig(LastPartConfig):
    """A quadratic warm-up, a cosine, and a constant rate for the last part."""

    warmup_epochs: int = Field(default=5, ge=0, description="The rate rises in so many epochs; 0 for no warm-up.")
    warmup_iters: int | None = Field(default=None, ge=0, description="The same in iterations, instead of epochs.")
    min_lr_ratio: float = Field(default=0.05, ge=0, le=1, description="The last rate, as a share of the first.")
    min_lr: float | None = Field(default=None, ge=0, description="The last rate itself, instead of a share.")
    by_epoch: bool = Field(default=False, description="Whether the rate changes once per epoch, not at each iteration.")

    @field_validator("warmup_epochs", "warmup_iters", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return off(value)

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        given = self.model_fields_set
        for one, other in (("warmup_iters", "warmup_epochs"), ("min_lr", "min_lr_ratio")):
            if {one, other} <= given:
                raise ValueError(f"{one}: it says the same as {other} in another way: give one of them.")
        if self.by_epoch and (self.num_last_iters is not None or self.warmup_iters is not None):
            raise ValueError("by_epoch: a rate that changes once per epoch is counted in epochs, not in iterations.")
        return self


class YOLOXModeSwitchConfig(LastPartConfig):
    """When strong augmentation ends, and what belongs to it."""

    skip_type_keys: list[str] = Field(
        default=["Mosaic", "RandomAffine", "MixUp"], min_length=1, description="The transforms that are left out then."
    )


class PipelineSwitchConfig(HookConfig):
    """When the data set gets another pipeline, and which."""

    switch_epoch: int | None = Field(default=None, ge=0, description="So many epochs keep the first pipeline.")
    switch_iter: int | None = Field(default=None, ge=0, description="The same in iterations, instead of epochs.")
    switch_pipeline: Annotated[Any, SkipValidation] = Field(
        default=None, description="The other one: a callable, a path package.module:name, or a list of steps."
    )

    @field_validator("switch_pipeline", mode="after")
    @classmethod
    def _callable(cls, value: Any) -> Any:
        return pipeline_from(value)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.switch_epoch is None) == (self.switch_iter is None):
            raise ValueError("switch_epoch: say when to switch, by switch_epoch or by switch_iter.")
        if self.switch_pipeline is None:
            raise ValueError("switch_pipeline: required, but not given.")
        return self


class FreezeConfig(HookConfig):
    """What is frozen, and for how long."""

    modules: list[str] = Field(
        min_length=1, examples=[["0"]], description="Names of modules or parameters, with * for anything."
    )
    until_epoch: int | None = Field(default=None, ge=1, description="They thaw after so many epochs; default never.")
    until_iter: int | None = Field(default=None, ge=1, description="The same in iterations, instead of epochs.")
    keep_statistics: bool = Field(
        default=True, description="Whether the running statistics of frozen normalisation layers stand still as well."
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.until_epoch is not None and self.until_iter is not None:
            raise ValueError("until_iter: it says the same as until_epoch in another unit: give one of them.")
        return self


class AccumulationConfig(HookConfig):
    """How many micro-batches make an update, from when on."""

    schedule: dict[int, int] = Field(
        examples=[{1: 1, 2: 2}], description="Micro-batches per update by the number it begins with."
    )
    unit: Literal["epoch", "iter"] = Field(
        default="epoch", description="What these numbers, from 1, count: epochs or iterations."
    )

    @field_validator("schedule")
    @classmethod
    def _counts(cls, value: dict[int, int]) -> dict[int, int]:
        if not value:
            raise ValueError("say from when on how many, such as {1: 1, 5: 4}.")
        if any(number < 1 for pair in value.items() for number in pair):
            raise ValueError(f"{value!r}: numbers of epochs or iterations, and counts, are at least 1.")
        return dict(sorted(value.items()))
