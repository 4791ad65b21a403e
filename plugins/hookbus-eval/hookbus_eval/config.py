"""Configuration of the evaluation hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ImportString, field_validator, model_validator

from hookbus import Direction, HookConfig, resolve_import
from hookbus.metrics import ambiguous_direction_message, infer_direction

RUN_LOADER = "val_loader"
DEFAULT_METRIC = "accuracy"


class EvalConfig(HookConfig):
    """Validation schedule, data, metrics, and the metric of the best checkpoint."""

    effective_with = (("efficient_test", "metrics"), ("metric", "save_best"), ("rule", "save_best"))

    dataloader: Any = Field(
        default=RUN_LOADER,
        description="Validation data: the name of a service, a loader, or a mapping of name to one of these.",
    )
    interval: int = Field(default=1, ge=1, description="Validate every N epochs (or iterations).")
    by_epoch: bool = Field(default=True, description="Whether start, interval and milestones count epochs.")
    start: int = Field(default=0, ge=0, description="First epoch (or iteration) after which to validate.")
    save_best: bool = Field(
        default=True, description="Whether the checkpoint hook keeps the best checkpoint by `metric`."
    )
    metric: str = Field(default=DEFAULT_METRIC, description="Metric of the best checkpoint.")
    rule: Direction | None = Field(
        default=None, description="Which value is better; default: inferred from the name of the metric."
    )
    metrics: list[Any] | dict[str, Any] = Field(
        default=[],
        description="Additional metrics: accuracy, functions (outputs, targets), torchmetrics objects.",
    )
    efficient_test: bool = Field(
        default=False, description="Average functions over batches instead of calling them once with all outputs."
    )
    test_fn: Annotated[ImportString[Callable[..., Any]] | None, BeforeValidator(resolve_import)] = Field(
        default=None, description="Function (model, loader) that replaces the validation and returns results by name."
    )
    dynamic_intervals: list[tuple[int, int]] = Field(
        default=[], description="(milestone, interval) pairs: the interval applies from this epoch (or iteration) on."
    )
    at_end: bool = Field(
        default=True, description="Also validate when the run reaches its limit, whether or not the interval is due."
    )
    before_train: bool = Field(default=False, description="Run a sanity-check validation before training.")

    @field_validator("dataloader")
    @classmethod
    def _check_dataloader(cls, value: Any) -> Any:
        for loader in value.values() if isinstance(value, Mapping) else (value,):
            # Objects with `__getitem__` alone are iterable as well: Python's sequence protocol.
            if not (isinstance(loader, (str, Iterable)) or hasattr(loader, "__getitem__")):
                raise ValueError(
                    f"must be a data loader, got {loader!r}. Set the name of a service, a loader, or a mapping of name "
                    "to one of these."
                )
            # A list of names would pass as a loader whose batches are strings.
            if isinstance(loader, (list, tuple)) and any(isinstance(batch, str) for batch in loader):
                raise ValueError(
                    f"a list of names is not a data loader, got {loader!r}. Set a mapping of name to loader for "
                    "multiple datasets."
                )
        return value

    @field_validator("dynamic_intervals")
    @classmethod
    def _check_milestones(cls, value: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if any(number < 1 for pair in value for number in pair):
            raise ValueError(f"milestones and intervals must be at least 1, got {value!r}.")
        if any(earlier >= later for (earlier, _), (later, _) in pairwise(value)):
            raise ValueError(f"milestones must be in ascending order, got {value!r}.")
        return value

    @model_validator(mode="after")
    def _check_direction(self) -> Self:
        if self.save_best and self.rule is None and infer_direction(self.metric) is None:
            raise ValueError(f"rule: {ambiguous_direction_message(self.metric, 'Set `rule` to greater or less')}")
        return self

    @model_validator(mode="after")
    def _check_test_fn(self) -> Self:
        if self.test_fn is not None and self.metrics:
            raise ValueError("metrics: has no effect together with `test_fn`. Remove `metrics` or `test_fn`.")
        return self

    @property
    def replaces_validation(self) -> bool:
        """Whether the hook replaces the validation of the run."""
        is_run_loader = isinstance(self.dataloader, str) and self.dataloader == RUN_LOADER
        return not is_run_loader or bool(self.metrics) or self.test_fn is not None
