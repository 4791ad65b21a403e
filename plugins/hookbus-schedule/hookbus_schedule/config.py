"""Configuration of the schedule hooks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from hookbus import HookConfig
from hookbus_schedule.pipelines import build_pipeline


class SchedulerConfig(BaseModel):
    """A scheduler: an object, or a type with its arguments. Keys without a field are arguments of the type."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, arbitrary_types_allowed=True)

    type: str | None = Field(default=None, description="Name in torch.optim.lr_scheduler, or package.module:name.")
    # Of any type, because schedulers have no common base class.
    scheduler: Any = Field(default=None, description="An existing scheduler object.")
    interval: Literal["step", "epoch"] | None = Field(
        default=None, description="Interval of the steps; default: `interval` of the hook."
    )
    monitor: str | None = Field(default=None, description="Metric to pass to `step` after each validation.")
    parameter: Literal["lr", "momentum"] = Field(
        default="lr", description="Hyperparameter to schedule; momentum is beta1 of Adam."
    )
    optimizer: str | None = Field(
        default=None,
        description="Name of an optimizer of the run, or service that provides it; default: the only optimizer.",
    )

    @model_validator(mode="after")
    def _validate_source(self) -> Self:
        if (self.type is None) == (self.scheduler is None):
            number = "neither" if self.type is None else "both"
            raise ValueError(f"a scheduler requires either type or scheduler, got {number}. Set one of them.")
        if self.monitor is not None and self.interval is not None:
            raise ValueError(
                f"interval: no effect with `monitor`, got {self.interval!r}, because the scheduler is stepped after "
                "each validation. Remove one of them."
            )
        if self.scheduler is not None and (self.model_extra or self.parameter != "lr" or self.optimizer is not None):
            raise ValueError(
                "scheduler: an object cannot be combined with arguments, parameter or optimizer. Remove these keys, or "
                "set type instead of scheduler."
            )
        return self


class ParamSchedulerConfig(HookConfig):
    """Schedulers and the interval of their steps."""

    schedulers: list[SchedulerConfig] = Field(
        default=[], description="Schedulers; default: the scheduler of a custom loop (`bus.run(scheduler=...)`)."
    )
    interval: Literal["step", "epoch"] = Field(
        default="epoch", description="Interval of the steps: after each optimizer step, or after each epoch."
    )

    @field_validator("schedulers", mode="before")
    @classmethod
    def _to_list(cls, value: Any) -> Any:
        # A single scheduler needs no list, and a bare object is shorthand for {"scheduler": object}.
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        return [item if isinstance(item, (dict, SchedulerConfig)) else {"scheduler": item} for item in items]


def replace_null(value: object) -> object:
    """Return 0 for False and None, and any other value unchanged."""
    # An explicit null differs from an omitted key: it disables the phase instead of selecting the default.
    return 0 if value is False or value is None else value


Length = Annotated[int, BeforeValidator(replace_null)]
OtherLength = Annotated[int | None, BeforeValidator(replace_null)]
"""Length of a phase of the training, with null and false for none; and the same in another unit, omitted by default."""


class ExclusiveConfig(HookConfig):
    """Config with pairs of settings, in different units, of which one can be set."""

    exclusive: ClassVar[tuple[tuple[str, str], ...]]

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        for key, other in self.exclusive:
            if all(name in self.model_fields_set and getattr(self, name) is not None for name in (key, other)):
                raise ValueError(f"{key}: cannot be combined with {other}. Remove one of them.")
        return self


class FinalPhaseConfig(ExclusiveConfig):
    """Length of the final phase of a training."""

    exclusive: ClassVar[tuple[tuple[str, str], ...]] = (("num_last_iters", "num_last_epochs"),)

    num_last_epochs: Length = Field(default=15, ge=0, description="Length of the final phase in epochs; 0: none.")
    num_last_iters: OtherLength = Field(
        default=None, ge=0, description="Length of the final phase in iterations, instead of epochs."
    )


class YOLOXLrUpdaterConfig(FinalPhaseConfig):
    """Quadratic warm-up, cosine decay, and a constant learning rate in the final phase."""

    exclusive = (*FinalPhaseConfig.exclusive, ("warmup_iters", "warmup_epochs"), ("min_lr", "min_lr_ratio"))

    warmup_epochs: Length = Field(default=5, ge=0, description="Length of the warm-up in epochs; 0: no warm-up.")
    warmup_iters: OtherLength = Field(
        default=None, ge=0, description="Length of the warm-up in iterations, instead of epochs."
    )
    min_lr_ratio: float = Field(
        default=0.05, ge=0, le=1, description="Final learning rate as a fraction of the initial learning rate."
    )
    min_lr: float | None = Field(default=None, ge=0, description="Final learning rate, instead of a fraction.")
    by_epoch: bool = Field(
        default=False, description="Change the learning rate once per epoch, instead of at each iteration."
    )

    @model_validator(mode="after")
    def _validate_units(self) -> Self:
        if self.by_epoch and (self.num_last_iters is not None or self.warmup_iters is not None):
            raise ValueError(
                "by_epoch: requires lengths in epochs, got warmup_iters or num_last_iters. Set warmup_epochs and "
                "num_last_epochs."
            )
        return self


class YOLOXModeSwitchConfig(FinalPhaseConfig):
    """Length of the final phase and the transforms that it skips."""

    skip_type_keys: list[str] = Field(
        default=["Mosaic", "RandomAffine", "MixUp"],
        min_length=1,
        description="Types of the transforms to skip in the final phase.",
    )


class PipelineSwitchConfig(HookConfig):
    """Data pipeline and the epoch or iteration from which it is used."""

    switch_epoch: int | None = Field(
        default=None, ge=0, description="Number of epochs before the pipeline is switched."
    )
    switch_iter: int | None = Field(
        default=None, ge=0, description="Number of iterations before the pipeline is switched, instead of epochs."
    )
    switch_pipeline: Annotated[Any, AfterValidator(build_pipeline)] = Field(
        default=None, description="New pipeline: a callable, an import string package.module:name, or a list of these."
    )

    @model_validator(mode="after")
    def _validate_required(self) -> Self:
        if (self.switch_epoch is None) == (self.switch_iter is None):
            number = "neither" if self.switch_epoch is None else "both"
            raise ValueError(
                f"switch_epoch: requires either switch_epoch or switch_iter, got {number}. Set one of them."
            )
        if self.switch_pipeline is None:
            raise ValueError("switch_pipeline: required, but missing. Set a callable, package.module:name, or a list.")
        return self


class FreezeConfig(ExclusiveConfig):
    """Modules to freeze and the duration."""

    exclusive = (("until_iter", "until_epoch"),)

    modules: list[str] = Field(
        min_length=1, examples=[["0"]], description="Names of modules or parameters; * matches any characters."
    )
    until_epoch: int | None = Field(default=None, ge=1, description="Unfreeze after N epochs; default: never.")
    until_iter: int | None = Field(default=None, ge=1, description="Unfreeze after N iterations, instead of epochs.")
    keep_statistics: bool = Field(
        default=True, description="Keep the running statistics of frozen normalization layers unchanged as well."
    )


class AccumulationConfig(HookConfig):
    """Number of micro-batches per optimizer step, by epoch or iteration."""

    schedule: dict[int, int] = Field(
        examples=[{1: 1, 2: 2}],
        description="Number of micro-batches per optimizer step, by the first epoch or iteration that uses it.",
    )
    unit: Literal["epoch", "iter"] = Field(
        default="epoch", description="Unit of the schedule: epochs or iterations, counted from 1."
    )

    @field_validator("schedule")
    @classmethod
    def _validate_schedule(cls, value: dict[int, int]) -> dict[int, int]:
        if not value:
            raise ValueError("must not be empty. Set it to a mapping such as {1: 1, 5: 4}.")
        if any(number < 1 for pair in value.items() for number in pair):
            raise ValueError(f"keys and values must be at least 1, got {value!r}.")
        return dict(sorted(value.items()))
