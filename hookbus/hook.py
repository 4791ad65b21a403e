"""What a hook is: `Hook`, its configuration `HookConfig`, and the names of priorities."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, field_serializer, field_validator

from hookbus._packages import entry_point_of
from hookbus._schedule_text import parse
from hookbus._validation_errors import problems_of
from hookbus.errors import ConfigError, did_you_mean
from hookbus.lifecycle import ALIASES, POINTS
from hookbus.markers import IMPL_ATTRIBUTE
from hookbus.rules import Rule
from hookbus.when import Schedule

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["BaseHook", "Hook", "HookConfig", "OnError", "Priority", "snake_case", "validated"]

OnError = Literal["raise", "warn", "disable"]


class Priority(IntEnum):
    """Named depths: small is outermost. Any whole number works as well."""

    HIGHEST = 0
    VERY_HIGH = 10
    HIGH = 30
    ABOVE_NORMAL = 40
    NORMAL = 50
    BELOW_NORMAL = 60
    LOW = 70
    VERY_LOW = 90
    LOWEST = 100


_PRIORITY = {"anyOf": [{"type": "integer"}, {"enum": list(Priority.__members__)}, {"type": "null"}]}


class HookConfig(BaseModel):
    """The keys that every hook understands. Subclass it and add your own fields.

    Frozen, and strict: an unknown key is refused, and so is a value of another type ("50" is not 50).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    instance_key: ClassVar[str] = "name"
    """The key that holds the instance name; another where a hook needs `name` for something of its own."""

    no_frequency: ClassVar[str] = ""
    """Of a hook in which `frequency` means nothing: why, and what to say instead of the `{value}` that was given."""

    name: str | None = Field(
        default=None, min_length=1, description="The instance name; default the entry point or the class name."
    )
    priority: Annotated[int | None, WithJsonSchema(_PRIORITY)] = Field(
        default=None, description="Depth: small is outermost."
    )
    enabled: bool = Field(default=True, description="False leaves the hook out.")
    when: Annotated[Schedule | None, WithJsonSchema({"type": "string"})] = Field(
        default=None, description="Replaces the schedule of the scheduled listeners: every(50) & between(1, 1000)."
    )
    frequency: int | None = Field(default=None, ge=1, description="Due every this many of the hook's own unit.")
    on_error: OnError | None = Field(default=None, description="What a failure of the hook does; default its class's.")

    @cached_property
    def given_as_json(self) -> str:
        """The settings that were given, as JSON; what JSON does not know is there as text."""
        return json.dumps(self.model_dump(exclude_unset=True), default=str)

    @property
    def instance_name(self) -> str | None:
        """The instance name that was given."""
        name: str | None = getattr(self, self.instance_key)
        return name

    @field_validator("priority", mode="before")
    @classmethod
    def _level(cls, value: object) -> object:
        if isinstance(value, str):
            if value not in Priority.__members__:
                raise ValueError(f"{value!r} is not a level.{did_you_mean(value, Priority.__members__)}")
            return int(Priority[value])
        return int(value) if isinstance(value, Priority) else value

    @field_validator("frequency")
    @classmethod
    def _means_something(cls, value: int | None) -> int | None:
        if cls.no_frequency and value not in (None, 1):
            raise ValueError(cls.no_frequency.format(value=value))
        return value

    @field_serializer("when")
    def _as_text(self, value: Schedule | None) -> str | None:
        return None if value is None else repr(value)

    @field_validator("when", mode="before")
    @classmethod
    def _schedule(cls, value: object) -> object:
        if value is None or isinstance(value, Schedule):
            return value
        if not isinstance(value, str):
            shown = value if isinstance(value, int) else 50
            raise ValueError(f"{value!r} is not a schedule. Write it as a text, such as every({shown!r}).")
        try:
            return parse(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


class Hook:
    """A plugin object that listens. A method named like a point listens at that point.

    Attributes:
        Config: the pydantic model of the hook's settings.
        priority: the hook's depth; config and registration may override it.
        observer: True for hooks that only watch: their failures warn instead of ending the run.
        unit: "iter", "step" or "epoch": what the common key `frequency` counts.
        ranks: "all", or "main" for hooks that work on the main process only.
        schedules_validation: True for hooks that decide when to validate; the Trainer then leaves it to them.
        makes_requests: False for hooks that never ask for a validation, a save or a stop. Several processes compare
            such wishes at every boundary if a hook can have any; those of an observer are not expected.
        skips_iterations: True for hooks that may ask in one of several processes to leave an iteration out.
        needs_work_dir: True for hooks that can do nothing without a work directory.
        state_version: raise it when the layout of `state_dict()` changes.
        config: the validated settings.
        name: the instance name, the key of the hook's state in checkpoints.
        run: the current run.
    """

    Config: ClassVar[type[HookConfig]] = HookConfig
    priority: int = Priority.NORMAL
    observer: ClassVar[bool] = False
    unit: Literal["iter", "step", "epoch"] = "iter"
    ranks: ClassVar[Literal["all", "main"]] = "all"
    schedules_validation: ClassVar[bool] = False
    makes_requests: ClassVar[bool] = True
    skips_iterations: ClassVar[bool] = False
    needs_work_dir: ClassVar[bool] = False
    state_version: ClassVar[int] = 1

    _config: HookConfig | None = None
    _name: str | None = None
    _run: Run | None = None

    def __init__(self, config: Mapping[str, Any] | HookConfig | None = None, **settings: Any) -> None:
        """Build the hook from keywords, from a dict, or from its config object.

        Raises:
            ConfigError: a setting is unknown or has a wrong value; all of them are listed.
        """
        self._config = validated(self.Config, config, settings, type(self).__name__)

    @property
    def config(self) -> Any:
        """The validated settings; the defaults where `__init__` of this class was never called."""
        if self._config is None:
            self._config = validated(self.Config, None, {}, type(self).__name__)
        return self._config

    @property
    def name(self) -> str:
        """The instance name: as given, else the entry point's, else the class name in snake case."""
        cls = type(self)
        return self._name or self.config.instance_name or entry_point_of(cls) or snake_case(cls.__name__)

    @property
    def run(self) -> Run:
        """The current run.

        Raises:
            RuntimeError: the hook is on no bus.
        """
        if self._run is None:
            raise RuntimeError(f"hook {self.name!r} is not registered with a bus, so it has no run yet.")
        return self._run

    @property
    def keeps_best_of(self) -> Mapping[str, Rule | None]:
        """Metrics whose best checkpoint is to be kept, with their directions; None: what the name says."""
        return {}

    @property
    def needs_metrics(self) -> Collection[str]:
        """Metrics that this hook reads in the results of every validation; default those of `keeps_best_of`.

        Any spelling that `run.metrics` understands: `val/accuracy`, `val_accuracy`, `accuracy`. `hookbus check` looks
        for each of them among what a validation gives, so that a wrong name is told before anything is trained.
        """
        return tuple(self.keeps_best_of)

    @property
    def gives_metrics(self) -> Collection[str] | None:
        """Metrics that this hook adds to the results of validations, by `run.log` for example; None: any name."""
        return ()

    @property
    def validates_with(self) -> Callable[[Run], Mapping[str, Any] | None] | None:
        """Code of this hook's own that makes validations; None leaves them to the run."""
        return None

    @property
    def runner(self) -> Run:
        """The same as `run`."""
        return self.run

    def should_trigger(self, step: int) -> bool:
        """Override to decide whether the per-iteration listeners are due; `step` is the index from 0."""
        return True

    def check(self, run: Run) -> None:
        """Override to see that the hook can do its work in a run, before anything is done; nothing may be changed.

        Called when a run begins, before `before_run`, and by `hookbus check`, each time for all hooks, so that all that
        is wrong is told at once.

        Args:
            run: with all that it has: `run.model`, `run.optimizer`, `run.train_loader`, its limits.

        Raises:
            HookbusError: it cannot. The message says what would be right; the hook's name is added.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the hook: plain Python values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    def get_service(self, name: str) -> Any:
        """A service of the run, or None."""
        return self.run.get(name)

    def every_n_epochs(self, run: Run, n: int) -> bool:
        """Whether the number of the epoch in progress, from 1, is a multiple of `n`."""
        return n > 0 and run.clock.number("epoch") % n == 0

    def every_n_iters(self, run: Run, n: int) -> bool:
        """Whether the number of the iteration in progress, from 1, is a multiple of `n`."""
        return n > 0 and run.clock.number("iter") % n == 0

    every_n_train_iters = every_n_iters

    def is_last_epoch(self, run: Run) -> bool:
        """Whether the epoch in progress is the last of the run; False where the end is not known."""
        return run.clock.number("epoch") == run.clock.limit("epoch")

    def is_last_iter(self, run: Run) -> bool:
        """Whether the iteration in progress is the last of the run; False where the end is not known."""
        return run.clock.number("iter") == run.clock.limit("iter")

    def get_triggered_stages(self) -> list[str]:
        """The points at which this hook listens, in the order of a run."""
        methods = {name: inspect.getattr_static(type(self), name) for name in dir(type(self))}
        marks = {name: getattr(method, IMPL_ATTRIBUTE, {}) for name, method in methods.items() if callable(method)}
        named = {mark.get("specname") or name for name, mark in marks.items()}
        return [name for name in POINTS if name in {ALIASES.get(each, each) for each in named}]

    def __repr__(self) -> str:
        given = self.config.model_dump(exclude_unset=True)
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"


BaseHook = Hook
"""The same class under the name that the guide's examples use."""


def validated(
    model: type[HookConfig], config: Mapping[str, Any] | HookConfig | None, settings: Mapping[str, Any], owner: str
) -> HookConfig:
    """Validate settings against a config model. The caller's mapping is not changed.

    Values as they come from a file are judged as JSON (so a list may fill a tuple, a text a path);
    anything else strictly as Python objects.

    Args:
        model: the config model of the hook.
        config: a mapping, a ready config, or None.
        settings: more settings, as keywords.
        owner: whose settings these are, for the message.

    Raises:
        ConfigError: one sentence per wrong setting.
    """
    if isinstance(config, model) and not settings:
        return config
    given = config.model_dump(exclude_unset=True) if isinstance(config, HookConfig) else config
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError([f"{owner}: settings are keywords or a mapping of them, not {type(given).__name__}."])
    data = {**(given or {}), **settings}
    try:
        text = json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        text = None
    try:
        return model.model_validate(data) if text is None else model.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{owner}: {where}: {what}" for where, what in problems_of(error, model, data)) from None


def snake_case(name: str) -> str:
    """`GreetHook` becomes `greet`, `EMAHook` `ema`, `DetVisualizationHook` `det_visualization`."""
    stem = name.removesuffix("Hook") or name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", stem)
    return words.lower()
