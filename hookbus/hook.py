"""The base class `Hook`, its configuration `HookConfig`, and the named priorities."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, SupportsIndex, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from hookbus._events.conditions import as_condition
from hookbus._events.markers import IMPL_ATTRIBUTE
from hookbus._events.points import POINT_ALIASES, HookUnit, Unit, get_static_method
from hookbus._events.schedule_parser import parse_schedule
from hookbus._events.schedules import Schedule
from hookbus._utils.detached_copies import copy_detached, dump_detached, load_detached
from hookbus._utils.packages import get_entry_point_name
from hookbus._utils.redaction import dump_model, redact
from hookbus._utils.settings import SettingsModel, format_validation_error, warn_of_settings
from hookbus.base_listeners import BaseListeners
from hookbus.errors import ConfigError, HookError, format_error, suggest_names
from hookbus.lifecycle import POINTS
from hookbus.needs import Needs

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.writers.planned_file import PlannedFile

__all__ = ["BaseHook", "Direction", "Hook", "HookConfig", "OnError", "Priority", "snake_case", "validate_config"]


OtherHook = TypeVar("OtherHook")

Direction = Literal["greater", "less"]
"""Whether greater or smaller values of a metric are better."""

OnError = Literal["raise", "warn", "disable"]
"""Policy for exceptions of a hook."""

Ranks = Literal["all", "main"]
"""Ranks on which a hook runs."""


class Priority(IntEnum):
    """Named priorities. Lower values run outermost. Any integer is a valid priority."""

    HIGHEST = 0
    VERY_HIGH = 10
    HIGH = 30
    ABOVE_NORMAL = 40
    NORMAL = 50
    BELOW_NORMAL = 60
    LOW = 70
    VERY_LOW = 90
    LOWEST = 100


MAX_INSTANCE_NAME = 200
"""Maximum number of characters of an instance name, which hooks may use in file names."""

_PRIORITY = {"anyOf": [{"type": "integer"}, {"enum": list(Priority.__members__)}, {"type": "null"}]}


class HookConfig(SettingsModel):
    """Base configuration of all hooks. Subclass it to add settings.

    Instances are immutable. Unknown keys and values of another type (`"50"` for an integer) raise a validation error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    instance_key: ClassVar[str] = "name"
    """Key that contains the instance name; override it if the hook uses `name` for another setting."""

    frequency_error: ClassVar[str] = ""
    """Reason and fix of a hook that does not support `frequency`; `{value}` is replaced by the invalid value."""

    when_error: ClassVar[str] = ""
    """Reason and fix of a hook that does not support `when`."""

    effective_with: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Settings without effect unless one of the others is set: `(("log_path", "log_to_file"),)`. A setting that differs
    from its default is refused then."""

    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_INSTANCE_NAME,
        description="Instance name. Default: the entry point or the class name.",
    )
    priority: Annotated[int | None, WithJsonSchema(_PRIORITY)] = Field(
        default=None, description="Nesting level: lower values run outermost."
    )
    enabled: bool = Field(default=True, description="Whether to register the hook.")
    when: Annotated[Schedule | None, WithJsonSchema({"type": "string"})] = Field(
        default=None,
        description="Schedule that replaces the one of the scheduled listeners, such as every(50) & between(1, 1000).",
    )
    frequency: int | None = Field(
        default=None, ge=1, description="Interval between calls, in the unit of the hook (iterations, steps or epochs)."
    )
    on_error: OnError | None = Field(
        default=None, description="Action when the hook raises an exception. Default: set by the hook class."
    )

    @cached_property
    def set_fields_json(self) -> str:
        """Explicitly set fields as JSON, with secrets redacted. Objects of other types are converted by `str`."""
        return json.dumps(redact(dump_model(self, mode="python", exclude_unset=True)))

    def is_default(self, setting: str) -> bool:
        """Return whether a setting equals its default, written out or not; False if it is no setting of the hook."""
        field = type(self).model_fields.get(setting)
        return field is not None and bool(getattr(self, setting) == field.get_default(call_default_factory=True))

    @property
    def instance_name(self) -> str | None:
        """Configured instance name, or None if it is not set."""
        name: str | None = getattr(self, self.instance_key)
        return name

    @field_validator("priority", mode="before")
    @classmethod
    def _parse_priority(cls, value: object) -> object:
        if isinstance(value, str):
            if value not in Priority.__members__:
                raise ValueError(f"unknown priority level, got {value!r}.{suggest_names(value, Priority.__members__)}")
            return int(Priority[value])
        # Strict validation of `int` rejects members of an IntEnum.
        return int(value) if isinstance(value, Priority) else value

    @field_validator("frequency", "when")
    @classmethod
    def _refuse_unsupported(cls, value: Any, info: ValidationInfo) -> Any:
        reason = cls.when_error if info.field_name == "when" else cls.frequency_error.replace("{value}", str(value))
        if reason and value not in (None, 1):
            raise ValueError(f"not supported, got {value!r}: {reason}")
        return value

    @model_validator(mode="after")
    def _refuse_ineffective_settings(self) -> Self:
        for setting, *others in self.effective_with:
            if not self.is_default(setting) and not any(getattr(self, other) for other in others):
                required = " or ".join(f"`{other}`" for other in others)
                raise ValueError(
                    f"{setting}: no effect without {required}, got {getattr(self, setting)!r}. Set {required}, or "
                    f"remove `{setting}`."
                )
        return self

    @field_serializer("when")
    def _serialize_schedule(self, value: Schedule | None) -> str | None:
        return None if value is None else repr(value)

    @field_validator("when", mode="before")
    @classmethod
    def _parse_schedule(cls, value: object) -> object:
        if value is None or isinstance(value, Schedule):
            return value
        if (condition := as_condition(value)) is not None:
            return condition
        if not isinstance(value, str):
            interval = value if isinstance(value, int) else 50
            raise ValueError(f"expected a schedule as a string, got {value!r}. Set every({interval!r}) or similar.")
        try:
            return parse_schedule(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


class Hook(BaseListeners):
    """Base class of hooks. A method with the name of a point is called at that point.

    Attributes:
        Config: Pydantic model of the settings.
        priority: Default priority; overridden by the config and by the `priority` passed at registration.
        observer: Whether the hook only observes the run. By default, exceptions of an observer are logged as warnings
            instead of ending the run.
        unit: Unit in which the setting `frequency` counts: `"iter"` (default), `"step"` or `"epoch"`.
        ranks: `"all"` (default), or `"main"` for hooks that run on rank 0 only.
        schedules_validation: Whether the hook schedules validations. The Trainer then runs none on its own.
        validates_before_train: Whether the hook requests a validation at `before_train` of a new run, which
            `hookbus plan` lists; a property if it depends on the settings.
        schedules_accumulation: Whether the hook changes the number of micro-batches per optimizer step.
        schedules_learning_rate: Whether the hook sets the learning rate. It is refused in the training of another
            trainer that schedules it as well; a property if it depends on the settings.
        averages_weights: Whether the hook provides averaged weights. If an earlier hook does so as well, the results of
            its validations have its name, such as `val/<hook>/loss`.
        makes_requests: Whether the hook may request a validation, a save or a stop. In distributed training, requests
            are synchronized across ranks at every boundary if any hook may make requests. Observers are excluded.
        records_means: Whether the hook writes the means of training on its own schedule, through `run.request_record`.
            These records are emitted at `log_scalars` as well, for hooks that observe them.
        skips_iterations: Whether the hook may request to skip an iteration on a subset of the ranks.
        stops_training: Whether the hook exists to stop the training early, by its metrics. A `fast_dev_run` omits it,
            and all hooks that write files.
        requires_work_dir: Whether the hook requires a work directory, unless one of its `output_paths` is set. A
            training without one is refused.
        state_version: Version of the format of `state_dict()`. Increment it when the format changes, and
            override `migrate_state`.
        state_schema: Check of the state in a checkpoint, built with the functions of `hookbus.checkpoint.schema`.
        config: Validated settings.
        name: Instance name, the key of the state of the hook in checkpoints.
        run: Current run.
    """

    Config: ClassVar[type[HookConfig]] = HookConfig
    priority: int = Priority.NORMAL
    observer: ClassVar[bool] = False
    unit: HookUnit = "iter"
    ranks: ClassVar[Ranks] = "all"
    schedules_validation: ClassVar[bool] = False
    validates_before_train: bool = False
    schedules_accumulation: ClassVar[bool] = False
    schedules_learning_rate: bool = False
    averages_weights: ClassVar[bool] = False
    makes_requests: ClassVar[bool] = True
    records_means: ClassVar[bool] = False
    skips_iterations: ClassVar[bool] = False
    stops_training: ClassVar[bool] = False
    requires_work_dir: ClassVar[bool] = False
    state_version: ClassVar[int] = 1
    state_schema: ClassVar[Callable[[Any, str], None] | None] = None

    _hookbus_configured: ClassVar[bool] = True  # implements `hookbus._events.checks.ConfiguredPlugin`
    _config: HookConfig | None = None
    _name: str | None = None
    _run: Run | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that `Config` is a subclass of `HookConfig`.

        Raises:
            HookError: If it is not.
        """
        super().__init_subclass__(**options)
        if not (isinstance(cls.Config, type) and issubclass(cls.Config, HookConfig)):
            raise HookError(
                f"{cls.__name__}.Config: should be a subclass of hookbus.HookConfig, got {cls.Config!r}. Define "
                "class Config(HookConfig) with one field for each setting."
            )

    def __init__(self, config: Mapping[str, Any] | HookConfig | None = None, **settings: Any) -> None:
        """Build the hook from keyword arguments, a mapping, or an instance of its config class.

        Raises:
            ConfigError: If a setting is unknown or invalid. The message lists all invalid settings.
        """
        self._config = validate_config(self.Config, config, settings, type(self).__name__)
        warn_of_settings(self, self._config)

    if TYPE_CHECKING:
        config: Any  # a variable for type checkers, so that subclasses can annotate it with their config class
    else:

        @property
        def config(self) -> Any:
            """Validated settings. Defaults if a subclass does not call `super().__init__()`."""
            if self._config is None:
                self._config = validate_config(self.Config, None, {}, type(self).__name__)
            return self._config

    @property
    def name(self) -> str:
        """Instance name: the configured name, the entry point, or the class name in snake case."""
        cls = type(self)
        return self._name or self.config.instance_name or get_entry_point_name(cls) or snake_case(cls.__name__)

    @property
    def run(self) -> Run:
        """Current run.

        Raises:
            RuntimeError: If the hook is not registered with a bus.
        """
        if self._run is None:
            raise RuntimeError(f"hook {self.name!r}: no run is available. Register the hook with a bus first.")
        return self._run

    @property
    def needs(self) -> Needs:
        """What the hook needs from a loop that is another trainer; a class attribute unless it depends on settings."""
        return Needs()

    @property
    def handles_incomplete_intervals(self) -> bool:
        """Whether an interval that is longer than the run has an effect, or is reported by the hook itself."""
        return False

    @property
    def lr_schedulers(self) -> Collection[Any]:
        """Learning-rate schedulers that the hook steps, whose base values `run.scale_learning_rates` multiplies."""
        return ()

    @property
    def best_metrics(self) -> Mapping[str, Direction | None]:
        """Metrics whose best checkpoint to keep, mapped to their direction. None infers the direction from the name."""
        return {}

    @property
    def required_metrics(self) -> Collection[str]:
        """Metrics that this hook reads from the results of every validation. Default: those of `best_metrics`.

        Names may have any form that `run.metrics` accepts: `val/accuracy`, `val_accuracy`, `accuracy`. `hookbus check`
        compares them with the metrics of a validation and reports unknown names before training starts.
        """
        return tuple(self.best_metrics)

    @property
    def requires_validation(self) -> bool:
        """Whether the hook has no effect without validations. Default: if it schedules them or requires their metrics.

        A training of a Trainer without validations is refused; a custom loop may emit the results itself.
        """
        return self.schedules_validation or bool(self.required_metrics)

    @property
    def output_paths(self) -> Mapping[str, str | os.PathLike[str] | None]:
        """Paths of the files that this hook writes, by the setting that contains them; None for one that is not set.

        Pass them to `hookbus.writers.resolve_output_path`. Relative paths are below the work directory, so that a
        training without one is refused; list a setting only if the hook writes to it.
        """
        return {}

    def planned_files(self, run: Run) -> Iterable[PlannedFile]:
        """Return the files that this hook will write, for `hookbus plan`. Override it; it must not modify anything.

        Args:
            run: A run that has not started, with `run.model`, `run.optimizer` and its limits set.

        Returns:
            Files, or patterns of files. Default: none are known.
        """
        return ()

    @property
    def provided_metrics(self) -> Collection[str] | None:
        """Metrics that this hook adds to the results of validations, for example by `run.log`. None allows any name."""
        return ()

    @property
    def validation_fn(self) -> Callable[[Run], Mapping[str, Any] | None] | None:
        """Function that runs the validations, or None (default) to use the validation of the run."""
        return None

    @property
    def runner(self) -> Run:
        """Alias of `run`."""
        return self.run

    def get_milestones(self, run: Run) -> Mapping[str, tuple[int, Unit]]:
        """Return the numbers of a run without which settings have no effect. Override it; it must not modify anything.

        A run that ends earlier is reported: before the training if its limit is known, else at its end. Settings that
        equal their default are not reported, because a default was not chosen for the length of the run.

        Args:
            run: The run, with its limits set.

        Returns:
            Required number and its unit by setting, such as `{"until_epoch": (6, "epoch")}` for a hook that changes
            something after the fifth epoch.
        """
        return {}

    def should_trigger(self, step: int) -> bool:
        """Return whether the listeners are due, by default at multiples of `frequency`.

        Override it to add a condition to the listeners at iterations, optimizer steps and epochs, except for those
        with `@hookimpl(frequency=False)`.

        Args:
            step: Index, from 0, of the iteration, batch, optimizer step or epoch that the point counts.
        """
        return (step + 1) % (self.config.frequency or 1) == 0

    def check(self, run: Run) -> None:
        """Check the requirements of the hook before the run starts. Override it; it must not modify anything.

        Called for every hook when a run starts, before `before_run`, and by `hookbus check`. The errors of all hooks
        are reported together.

        Args:
            run: The run, with `run.model`, `run.optimizer`, `run.train_loader` and its limits set.

        Raises:
            HookbusError: If a requirement is not met. State the fix in the message; the name of the hook is added.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to store in checkpoints, as built-in Python types and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""

    def migrate_state(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Convert a state of an older version to the current `state_version`. Override it when the version increases.

        Called before `check_state`, `restore_structure` and `load_state_dict`, which receive the converted state. It
        must not modify the hook. A state of a newer version is refused without a call.

        Args:
            state: State that `state_dict()` returned at that version. It may be modified.
            version: Version of the state, smaller than `state_version`.

        Returns:
            State of the current version.

        Raises:
            NotImplementedError: If states of that version are not supported, as by default: the run does not resume
                from the checkpoint. The message of the run names both versions.
        """
        raise NotImplementedError

    def check_state(self, state: dict[str, Any]) -> None:
        """Check a state of a checkpoint before anything of the run is restored. Default: by `state_schema`.

        Override it for checks that depend on more than the state; it must modify nothing.

        Called before `restore_structure` if the hook overrides that as well, and always after the structure of the
        model is rebuilt.

        Args:
            state: State that `state_dict()` returned when the checkpoint was saved, or whatever the file contains.

        Raises:
            Exception: If `load_state_dict` cannot restore the state: the run does not resume from the checkpoint.
        """
        if (check := type(self).state_schema) is not None:
            check(state, "state")

    def restore_structure(self, run: Run, state: dict[str, Any]) -> None:
        """Rebuild the modules and parameter groups that the hook adds during training. Override it if it adds any.

        Called before the state of model, optimizer and scheduler is loaded from a checkpoint, when a run resumes and
        when the weights of a checkpoint are loaded for a test. `load_state_dict` is called afterwards. What the hook
        has already changed in `before_run` must not be changed again.

        Args:
            run: The run, with `run.model` and `run.optimizer`.
            state: State that `state_dict()` returned when the checkpoint was saved.
        """

    def get_service(self, name: str) -> Any:
        """Return a service of the run, or None if the run does not provide it or the hook has no run yet.

        Args:
            name: Name of the service, see `run.get`.
        """
        return None if self._run is None else self._run.get(name)

    def find_others(self, run: Run, cls: type[OtherHook]) -> dict[str, OtherHook]:
        """Return the other hooks of a class in a run by name, such as those that a second instance conflicts with.

        Args:
            run: The run.
            cls: Class of the hooks; subclasses are included.
        """
        return {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, cls) and hook is not self}

    def check_unique(
        self,
        run: Run,
        effect: str,
        remedy: str = "Remove one of them.",
        *,
        setting: str = "",
        get_value: Callable[[Any], object] = lambda hook: True,
    ) -> None:
        """Check that no other hook of this class conflicts with this one. Call it in `check`.

        Args:
            run: The run.
            effect: What both hooks do, for the message: "writes to log.txt".
            remedy: What to do, for the message: "Set another `path`.".
            setting: Setting that causes the conflict, for the message.
            get_value: Function that returns what two hooks must not have in common, such as a path; None or False for a
                hook without a conflict. Default: only one hook of the class is valid.

        Raises:
            ConfigError: If another hook has the same value.
        """
        own = get_value(self)
        for name, other in self.find_others(run, type(self)).items():
            if own and get_value(other) == own:
                prefix = f"{setting}: " if setting else ""
                raise ConfigError([f"{prefix}hook {name!r} also {effect}. {remedy}"])

    def every_n_epochs(self, run: Run, n: int) -> bool:
        """Return whether the number of the current epoch, from 1, is a multiple of `n`.

        Args:
            run: The run.
            n: Interval; never due if it is not positive.
        """
        return n > 0 and run.current("epoch") % n == 0

    def every_n_iters(self, run: Run, n: int) -> bool:
        """Return whether the number of the current iteration, from 1, is a multiple of `n`.

        Args:
            run: The run.
            n: Interval; never due if it is not positive.
        """
        return n > 0 and run.current("iter") % n == 0

    every_n_train_iters = every_n_iters

    def is_last_epoch(self, run: Run) -> bool:
        """Return whether the current epoch is the last of the run; False if the limit is unknown.

        Args:
            run: The run.
        """
        return run.current("epoch") == run.limit("epoch")

    def is_last_iter(self, run: Run) -> bool:
        """Return whether the current iteration is the last of the run; False if the limit is unknown.

        Args:
            run: The run.
        """
        return run.current("iter") == run.limit("iter")

    def get_triggered_stages(self) -> list[str]:
        """Return the names of the points at which this hook listens, in the order of a run."""
        # Static lookup: `getattr` would evaluate properties, which may require a run.
        methods = {name: get_static_method(type(self), name) for name in dir(type(self))}
        marks = {name: getattr(method, IMPL_ATTRIBUTE, {}) for name, method in methods.items() if callable(method)}
        targets = {mark.get("specname") or name for name, mark in marks.items()}
        return [name for name in POINTS if name in {POINT_ALIASES.get(target, target) for target in targets}]

    def __getstate__(self) -> object:
        """Return the attributes to copy: all but the run and the name that a bus has assigned."""
        state = super().__getstate__()
        parts = state if isinstance(state, tuple) else (state, None)
        attributes = {name: value for name, value in (parts[0] or {}).items() if name not in ("_run", "_name")}
        return (attributes, parts[1]) if isinstance(state, tuple) else attributes

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle the hook without the run and the bus that it is registered with."""
        with self._explain_copy_errors():
            # The class stays outside of the data: cloudpickle pickles the classes of scripts, and a copy refers to it.
            return load_detached, (type(self), dump_detached(self, self.__getstate__()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the hook without the run and the bus that it is registered with."""
        with self._explain_copy_errors():
            return copy_detached(self, self.__getstate__(), memo)

    @contextmanager
    def _explain_copy_errors(self) -> Iterator[None]:
        try:
            yield
        except HookError:
            raise
        except Exception as error:
            is_active = self._run is not None and self._run.is_running
            fix = (
                "Copy it before or after the run" if is_active else "Define __getstate__ and __setstate__ in its class"
            )
            raise HookError(
                f"hook {self.name!r}: cannot be copied or pickled: {format_error(error)}. {fix}."
            ) from error

    def __repr__(self) -> str:
        settings = json.loads(self.config.set_fields_json)
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"


BaseHook = Hook
"""Alias of `Hook`."""


def validate_config(
    model: type[HookConfig], config: Mapping[str, Any] | HookConfig | None, settings: Mapping[str, Any], owner: str
) -> HookConfig:
    """Validate settings against a config model. The mapping is not modified.

    Settings that can be serialized as JSON are validated in the JSON mode of pydantic (a list is accepted for a tuple,
    a string for a path). All others are validated in strict mode as Python objects.

    Args:
        model: Config model of the hook.
        config: A mapping, an instance of the model, or None.
        settings: Further settings, which override those of `config`.
        owner: Name of the owner of the settings, for error messages.

    Returns:
        Validated settings.

    Raises:
        ConfigError: If a setting is invalid, with one message per setting.
    """
    if isinstance(config, model) and not settings:
        return config
    values = config.model_dump(exclude_unset=True) if isinstance(config, HookConfig) else config
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError([f"{owner}: invalid settings, got {type(values).__name__}. Pass keywords or a mapping."])
    data = {**(values or {}), **settings}
    try:
        # Strict models accept the types of a run file (a list for a tuple) in the JSON mode of pydantic only. Python
        # objects such as a callable have no JSON representation and are validated as they are.
        text = json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        text = None
    try:
        return model.model_validate(data) if text is None else model.model_validate_json(text)
    except ValidationError as error:
        problems = format_validation_error(error, model, data)
        raise ConfigError(f"{owner}: {setting}: {message}" for setting, message in problems) from None


def snake_case(name: str) -> str:
    """Convert a class name to snake case without the suffix `Hook`.

    `GreetHook` becomes `greet`, `EMAHook` becomes `ema`, `DetVisualizationHook` becomes `det_visualization`.
    """
    stem = name.removesuffix("Hook") or name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", stem)
    return words.lower()
