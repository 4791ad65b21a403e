"""The settings of the hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ImportString, field_validator, model_validator

from hookbus import HookConfig, imported
from hookbus.rules import Rule, infer_rule, undecided

__all__ = ["EvalConfig"]

RUNS_OWN = "val_loader"


class EvalConfig(HookConfig):
    """When to validate, on which data, what is measured, and whether the best is kept."""

    dataloader: Any = Field(
        default=RUNS_OWN, description="The data: the name of a service, a loader, or a mapping of name to one of these."
    )
    interval: int = Field(default=1, ge=1, description="Validate every this many epochs (or iterations).")
    by_epoch: bool = Field(default=True, description="Whether start, interval and milestones count epochs.")
    start: int = Field(default=0, ge=0, description="The first epoch (or iteration) after which it is due.")
    save_best: bool = Field(default=True, description="Whether the checkpoint hook keeps the best by `metric`.")
    metric: str = Field(default="accuracy", description="The metric whose best is kept.")
    rule: Rule | None = Field(default=None, description="Which score is better; default what the metric's name says.")
    metrics: list[Any] | dict[str, Any] = Field(
        default=[],
        description="What is measured besides: accuracy, functions (outputs, targets), torchmetrics objects.",
    )
    efficient_test: bool = Field(
        default=False, description="Average functions over batches, instead of calling them once with all outputs."
    )
    test_fn: Annotated[ImportString[Callable[..., Any]] | None, BeforeValidator(imported)] = Field(
        default=None, description="A function (model, loader) that returns results by name, in place of the validation."
    )
    dynamic_intervals: list[tuple[int, int]] = Field(
        default=[], description="(milestone, interval) pairs: from this epoch (or iteration) on, this interval."
    )
    before_train: bool = Field(default=False, description="One validation before training, which counts for nothing.")

    @field_validator("dataloader")
    @classmethod
    def _gives_batches(cls, value: Any) -> Any:
        for each in value.values() if isinstance(value, Mapping) else (value,):
            if not (isinstance(each, (str, Iterable)) or hasattr(each, "__getitem__")):
                raise ValueError(f"{each!r} is neither the name of a service, nor a loader, nor a mapping of these.")
            if isinstance(each, (list, tuple)) and any(isinstance(name, str) for name in each):
                raise ValueError(f"{each!r}: several data sets are a mapping of a name of yours to each.")
        return value

    @field_validator("dynamic_intervals")
    @classmethod
    def _ascending(cls, value: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if any(number < 1 for pair in value for number in pair):
            raise ValueError(f"{value!r}: milestones and intervals are at least 1.")
        if any(earlier >= later for (earlier, _), (later, _) in pairwise(value)):
            raise ValueError(f"{value!r}: milestones must ascend.")
        return value

    @model_validator(mode="after")
    def _known_direction(self) -> Self:
        if self.best_metric is not None and self.rule is None and infer_rule(self.metric) is None:
            raise ValueError(f"rule: {undecided(self.metric, 'say rule')}")
        return self

    @model_validator(mode="after")
    def _measured_by_one(self) -> Self:
        if self.test_fn is not None and self.metrics:
            raise ValueError("metrics: test_fn measures by itself, so metrics has no effect: leave one of them out.")
        return self

    @property
    def best_metric(self) -> str | None:
        """The metric whose best is asked for; None where nothing was said about it."""
        said = self.model_fields_set & {"save_best", "metric", "rule"}
        return self.metric if self.save_best and said else None

    @property
    def brings_validation(self) -> bool:
        """Whether the run's own validation is replaced."""
        is_runs_own = isinstance(self.dataloader, str) and self.dataloader == RUNS_OWN
        return not is_runs_own or bool(self.metrics) or self.test_fn is not None
