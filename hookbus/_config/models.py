"""pydantic models of a run file and its sections."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from hookbus._config.complete import complete_settings, describe_hook
from hookbus._config.diagnostics import find_settings_problems, sort_by_location, to_yaml_terms
from hookbus._config.document import Document, Path
from hookbus._config.hooks import build_hook, hide_declared_settings
from hookbus._config.interpolation import dump_resolved, show_references
from hookbus._config.restored import merge_restored
from hookbus._run.known_secrets import hide_repeated
from hookbus._run.tokens import to_token_limit
from hookbus._run.work_dir import check_resume
from hookbus._utils.batch_limits import find_dev_run_problem, find_limit_problem
from hookbus._utils.known_keys import LIMITS, suggest_type
from hookbus._utils.packages import cached_lookups
from hookbus._utils.plugin_entries import get_publishing_package
from hookbus._utils.redaction import redact
from hookbus._utils.settings import (
    ALL_SETTINGS,
    SettingsModel,
    iter_deprecated_settings,
    missing_key_message,
    report_settings,
    warn_caller,
)
from hookbus._utils.values import format_value, shorten
from hookbus.bus import HookBus
from hookbus.errors import (
    MAX_ERROR_LINES,
    ConfigError,
    PluginError,
    PluginNotFoundError,
    RegistrationError,
    omit_hints,
)
from hookbus.hook import Hook


class Section(SettingsModel):
    """Base model of the sections. Unknown keys and values of another type are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class Component(SettingsModel):
    """An object that is built by name: a type and its settings."""

    # The keys of a component depend on its factory, which validates them, see `hookbus._config.factories`.
    model_config = ConfigDict(extra="allow", frozen=True, strict=True, ser_json_inf_nan="constants")

    type: str = Field(description="An entry point, or an import string such as my_module:factory.")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings without the type."""
        return dict(self.model_extra or {})


class SchedulerConfig(Component):
    """A learning-rate scheduler: a class of torch.optim.lr_scheduler, or an import string."""

    interval: Literal["epoch", "step"] = Field(
        default="epoch", description="Unit after which the scheduler is stepped."
    )
    monitor: str | None = Field(default=None, description="Metric that the scheduler requires.")


class DatasetConfig(Component):
    """A dataset that is built by name."""

    batch_size: int = Field(default=32, ge=1, description="Number of samples per batch.")


class LoaderConfig(Section):
    """Options of `torch.utils.data.DataLoader`."""

    num_workers: int = Field(
        default=0, ge=0, description="Number of loader worker processes; 0 loads in the main process."
    )
    pin_memory: bool = Field(default=False, description="Copy batches to page-locked memory.")
    drop_last: bool = Field(default=False, description="Drop the last training batch if it is incomplete.")
    shuffle: bool = Field(default=True, description="Reshuffle the training samples in every epoch.")
    persistent_workers: bool = Field(default=False, description="Keep worker processes alive between epochs.")
    prefetch_factor: int | None = Field(
        default=None, ge=1, description="Number of batches that each worker prefetches."
    )


class DDPConfig(Section):
    """Options of `torch.nn.parallel.DistributedDataParallel`."""

    find_unused_parameters: bool = Field(default=False, description="Detect parameters that do not receive a gradient.")
    forward_sync_buffers: bool = Field(
        default=True, description="Broadcast the buffers of rank 0 before each forward pass."
    )


class FSDP2Config(Section):
    """Options of FSDP2, which shards the parameters across ranks."""

    wrap: list[str] = Field(default=[], description="Class names of modules to shard separately.")
    mesh: list[int] | None = Field(
        default=None,
        description="Shape of the device mesh: [shards] or [replicas, shards]. Default: one shard per rank.",
    )


def _check_batch_limit(value: object) -> object:
    if problem := find_limit_problem(value):
        raise ValueError(problem)
    return value


def _check_dev_run(value: object) -> object:
    if problem := find_dev_run_problem(value):
        raise ValueError(problem)
    return value


BatchLimit = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)], BeforeValidator(_check_batch_limit)
]
"""Number of batches as an int, or a fraction of all batches as a float."""

DevRun = Annotated[bool | Annotated[int, Field(ge=0)], BeforeValidator(_check_dev_run)]
"""Whether a run is a trial of one epoch, or its number of batches."""


def _parse_tokens(value: object) -> object:
    """Return a whole number such as 2e9, which YAML reads as text, as an integer; any other value unchanged."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    return to_token_limit(value)


class TrainingConfig(Section):
    """Limit and options of the training loop."""

    # A limit may be null, as in the configuration that a run writes.
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [limit], "properties": {limit: {"not": {"type": "null"}}}} for limit in LIMITS]
        }
    )

    epochs: int | None = Field(default=None, ge=1, description="Limit in epochs.")
    iterations: int | None = Field(default=None, ge=1, description="Limit in iterations, instead of epochs.")
    tokens: Annotated[int | None, BeforeValidator(_parse_tokens)] = Field(
        default=None, ge=1, description="Limit in tokens of all ranks, such as 2e9, instead of epochs."
    )
    batch_tokens: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "Number of tokens of a batch: the name of a key or attribute of the batch, or an import string of a "
            "function of the batch. Default: tokens are not counted."
        ),
    )
    accumulate: int = Field(default=1, ge=1, description="Number of micro-batches per optimizer step.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="fp32, or autocast to bf16 or fp16.")
    clip_grad_norm: float | None = Field(default=None, gt=0, description="Maximum norm of all gradients together.")
    distributed: Literal["ddp", "fsdp2", "none"] = Field(
        default="ddp",
        description=(
            "Strategy of distributed training: ddp replicates the model, fsdp2 shards it, none leaves model and data "
            "unchanged."
        ),
    )
    ddp: DDPConfig = Field(default=DDPConfig(), description="Options of DistributedDataParallel.")
    fsdp2: FSDP2Config = Field(default=FSDP2Config(), description="Options of FSDP2.")
    agree_every: int = Field(
        default=1, ge=1, description="Number of iterations between two synchronizations of requests across ranks."
    )
    validate_first: bool = Field(default=False, description="Run a sanity-check validation before training.")
    hook_budget: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share of an iteration that the hooks may take; a warning lists the hooks if they take more.",
    )
    limit_train_batches: BatchLimit = Field(
        default=1.0,
        description="Training batches per epoch and rank: an int is a number, a float a fraction, and 0 disables them.",
    )
    limit_val_batches: BatchLimit = Field(default=1.0, description="Batches of each validation loader, likewise.")
    limit_test_batches: BatchLimit = Field(default=1.0, description="Batches of each test loader, likewise.")
    overfit_batches: BatchLimit = Field(
        default=0.0,
        description="Number or fraction of the first batches, which are the same in every epoch, without shuffling.",
    )
    fast_dev_run: DevRun = Field(
        default=False,
        description=(
            "Train one epoch of one batch, or of this number of batches, without files, checkpoints and early stopping."
        ),
    )

    @model_validator(mode="after")
    def _validate_limit(self) -> TrainingConfig:
        # Two limits would be ambiguous: it is unclear which of them ends the run.
        if sum(getattr(self, limit) is not None for limit in LIMITS) != 1:
            raise ValueError("exactly one limit is required. Set one of epochs, iterations and tokens.")
        if self.tokens is not None and self.batch_tokens is None:
            raise ValueError("tokens: the run counts no tokens. Set batch_tokens as well.")
        return self


class LoadFrom(Section):
    """Initial weights."""

    path: str = Field(min_length=1, description="A checkpoint, or a file with a bare state dict.")
    weights: Literal["raw", "averaged"] = Field(default="raw", description="Weights to load: raw or averaged.")
    strict: bool = Field(
        default=True, description="Require all keys to match; if false, mismatches are skipped with a warning."
    )


COMPLETE = "defaults: false  # complete: pyproject.toml and HOOKBUS_* variables have no effect\n"
"""Line of a run file to which no defaults of the project and of the environment are added."""

HOOK_MESSAGE_PATTERN = re.compile(r"\w+: ([^\s:]+): (.*)", re.DOTALL)
"""Pattern of a hook's message about a setting: `EMAHook: momentum: ...`."""


class RunConfig(Section):
    """A validated run file."""

    work_dir: str = Field(
        default="runs/train", min_length=1, description="Output directory of the run. Alias: experiment_dir."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of all random number generators.")
    model: Component | None = Field(
        default=None, description="Model: an entry point of hookbus.models, or an import string."
    )
    dataset: DatasetConfig | None = Field(
        default=None, description="Dataset: an entry point of hookbus.datasets, or an import string."
    )
    optimizer: Component = Field(
        default=Component(type="AdamW", lr=0.001), description="Optimizer: a class of torch.optim, or an import string."
    )
    loss: str | Component | None = Field(
        default="cross_entropy", description="Loss: a function of torch.nn.functional, or an import string."
    )
    metrics: list[str] | dict[str, str] | None = Field(default=None, description="Metrics that validations compute.")
    scheduler: SchedulerConfig | None = Field(
        default=None, description="Learning-rate scheduler: a class of torch.optim.lr_scheduler, or an import string."
    )
    loader: LoaderConfig = Field(default=LoaderConfig(), description="Options of the data loaders.")
    training: TrainingConfig | None = Field(default=None, description="Limit and options of the training loop.")
    device: str = Field(default="auto", description="Device: auto, cpu, cuda, cuda:1, ...")
    resume: str = Field(
        default="never",
        description="Checkpoint to resume from: never, auto (the newest of the work directory), or a path.",
    )
    load_from: LoadFrom | None = Field(default=None, description="Initial weights: a path, or a mapping.")
    report: bool = Field(
        default=True, description="Write report.html into the work directory at the end of a training."
    )
    order: Literal["nested", "ascending"] = Field(default="nested", description="Order of the hooks by priority.")
    default_hooks: bool = Field(default=True, description="Add the default hooks.")
    hooks: list[dict[str, Any]] = Field(default=[], description="Hooks: a list, or a mapping of names to settings.")

    _document: Document = PrivateAttr(default_factory=lambda: Document("config"))
    _paths: list[Path] = PrivateAttr(default_factory=list)
    _comments: list[str] = PrivateAttr(default_factory=list)  # lines at the end of the YAML
    _invalid_sections: frozenset[str] = PrivateAttr(default=frozenset())
    _reported: set[str] = PrivateAttr(default_factory=set)  # warnings, because hooks are built more than once

    @field_validator("optimizer", "loss", mode="before")
    @classmethod
    def _add_default_type(cls, value: object, info: ValidationInfo) -> object:
        """Add the built-in default below the settings of a section without a type, or with the default type."""
        if not isinstance(value, Mapping):
            return value
        default = cls.model_fields[str(info.field_name)].default
        settings = {"type": default} if isinstance(default, str) else default.model_dump()
        return {**settings, **value} if value.get("type", settings["type"]) == settings["type"] else value

    @field_validator("model", "dataset", "optimizer", "scheduler", "metrics", mode="before")
    @classmethod
    def _reject_bare_name(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, str):
            name = shorten(value)
            own = f"a mapping, such as {{type: {name}}}"
            form = f"a list, such as [{name}], or a mapping" if info.field_name == "metrics" else own
            raise ValueError(f"should be {form}, got {format_value(value)}.")
        return value

    @field_validator("resume", mode="before")
    @classmethod
    def _validate_resume(cls, value: object) -> object:
        if problem := check_resume("resume", value):
            raise ValueError(problem.removeprefix("resume: "))
        return value

    @field_validator("default_hooks", mode="before")
    @classmethod
    def _validate_default_hooks(cls, value: object) -> object:
        if isinstance(value, (Mapping, list)):
            raise ValueError(
                f"should be true or false, got {format_value(redact(value))}. Write the settings of default hooks in "
                "hooks."
            )
        return value

    @field_validator("hooks", mode="before")
    @classmethod
    def _validate_hooks(cls, value: object) -> object:
        if not isinstance(value, (list, Mapping)):
            shown = shorten(value) if isinstance(value, str) else "logger"
            raise ValueError(
                f"should be a list, such as [{shown}], or a mapping, such as {{{shown}: {{priority: 50}}}}, got "
                f"{format_value(value)}."
            )
        return value

    @field_validator("load_from", mode="before")
    @classmethod
    def _expand_path(cls, value: object) -> object:
        if not isinstance(value, (str, Mapping, NoneType)):
            raise ValueError(f"should be a path, or a mapping with path and weights, got {format_value(value)}.")
        return {"path": value} if isinstance(value, str) else value

    @field_serializer("hooks", when_used="json")
    def _hide_declared_secrets(self, hooks: list[dict[str, Any]]) -> list[Any]:
        # As pydantic does for a field of the type SecretStr: the settings here are not validated.
        return [hide_declared_settings(settings) for settings in hooks]

    @model_serializer(mode="wrap", when_used="json")
    def _show_references(self, handler: SerializerFunctionWrapHandler) -> Any:
        return show_references(self.model_dump(), handler(self), self._document, self.to_document_path)

    def build_hooks(self) -> list[Any]:
        """Build the hooks in the order of the file.

        Hooks with `enabled: false` are included, because they replace default hooks.

        Returns:
            The hooks.

        Raises:
            ConfigError: If a hook is unknown or a setting is invalid. All errors are listed.
        """
        return [hook for hook, _ in self._build()]

    def build_valid_hooks(self) -> list[Any]:
        """Build the hooks and validate that a bus accepts them.

        Returns:
            The hooks, see `build_hooks`.

        Raises:
            ConfigError: If a hook is unknown, a setting is invalid, or a bus would reject the hook.
        """
        built, bus, problems = self._build(), HookBus(), []
        bus.pm.warns_of_deprecations = False  # the bus of the caller warns
        for hook, path in built:
            try:
                bus.register(hook)
            except RegistrationError as error:
                problems.append(self.format_problem(path, str(error)))
        # The caller registers the hooks on its own bus.
        for hook in bus.hooks.values():
            bus.unregister(hook)
        if problems:
            raise ConfigError(problems)
        return [hook for hook, _ in built]

    def format_problem(self, path: Path, message: str, *, at_key: bool = False) -> str:
        """Return a message with the location of a path in the run file."""
        return self._document.format_problem(path, message, at_key=at_key)

    def to_document_path(self, path: Path) -> Path:
        """Convert a path in the configuration to a path in the file."""
        paths = self._hook_paths()
        if path[:1] == ("hooks",) and len(path) > 1 and isinstance(path[1], int):
            return (*paths[path[1]], *path[2:])
        is_short_form = path == ("load_from", "path") and path not in self._document.value_locations
        return path[:1] if is_short_form else path

    def is_missing(self, section: str) -> bool:
        """Return whether the file does not contain a section. A section with errors counts as present."""
        return getattr(self, section) is None and section not in self._invalid_sections

    def sort_problems(self, problems: Iterable[str]) -> list[str]:
        """Return messages in the order of the file, without duplicates."""
        return sort_by_location(self._document, problems)

    def to_yaml(self) -> str:
        """Serialize the resolved configuration as a run file: overrides applied, every default of the core included.

        Secrets are replaced by references to the environment that they come from, else by `***`.

        Returns:
            YAML from which `load_config` creates an equal configuration, unless it contains `***`. It excludes the
            defaults of the project and of the environment, which are merged already.
        """
        raw, shown = self.model_dump(), redact(self.model_dump(mode="json"))
        text = dump_resolved(raw, hide_repeated(raw, shown), self._document, self.to_document_path)
        return f"{text}{COMPLETE}{''.join(self._comments)}"

    @cached_lookups()
    def resolve_for_run(self, hooks: Mapping[str, object], restored: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
        """Return the configuration that applies to a run: with its hooks and all their defaults.

        Args:
            hooks: Hooks of the run by instance name. Those that the file does not contain, such as default hooks, are
                added; in `to_yaml`, a comment names each one that no run file can contain.
            restored: Recorded sections of the run that is resumed, see `merge_restored`.

        Returns:
            The configuration, in which `default_hooks` is false, because it contains these hooks, and a message for
            each setting that has no effect.
        """
        settings = dict(zip(self._hook_paths(), self.hooks, strict=True))
        names = HookBus()
        own = {names.default_name(hook): (hook, path) for hook, path in self._build()}
        entries: list[tuple[dict[str, Any], Path]] = []
        comments: list[str] = []
        for name, hook in hooks.items():
            built, path = own.pop(name, (None, ("hooks", name)))
            described = settings[path] if type(built) is type(hook) else describe_hook(hook, name)
            if described is None:
                comments.append(f"# not in this file: the hook {json.dumps(name)}, which Python code registered\n")
            else:
                entries.append((complete_settings(described, hook), path))
        # Disabled hooks are not registered.
        entries += [(settings[path], path) for _, path in own.values()]
        fields, messages = merge_restored(self, restored)
        fields |= {"hooks": [entry for entry, _ in entries], "default_hooks": False}
        complete = self.model_copy(update=fields)
        complete._paths = [path for _, path in entries]
        complete._comments = comments
        return complete, messages

    def _build(self) -> list[tuple[Any, Path]]:
        """Return the hooks with their paths in the file."""
        built: list[tuple[Any, Path]] = []
        problems: list[str] = []
        with ExitStack() as stack:
            stack.enter_context(cached_lookups())
            for settings, path in zip(self.hooks, self._hook_paths(), strict=True):
                self._hide_overrides(settings, path)
                if len(problems) >= MAX_ERROR_LINES:
                    stack.enter_context(omit_hints())
                problems += [self.format_problem((*path, key), text) for key, text in find_settings_problems(settings)]
                try:
                    with report_settings(partial(self._warn_of_setting, path)):
                        built += [(hook, path) for hook in _build_entry(settings)]
                except ConfigError as error:
                    problems += [message for text in error.problems for message in self._hook_problem(path, text)]
                except PluginError as error:
                    if not (isinstance(error, PluginNotFoundError) and self._is_disabled_later(settings, path)):
                        problems.append(self._type_problem(path, settings, str(error)))
        problems += self._find_duplicate_names(built)
        if problems:
            raise ConfigError(self.sort_problems(problems))
        return built

    def warn_of_deprecated_settings(self) -> None:
        """Issue a warning for each deprecated setting of the sections. Hooks warn when they are built."""
        for path, text in iter_deprecated_settings(self):
            self._warn_of_setting((), path, text)

    def _warn_of_setting(self, parent: Path, path: Path, text: str) -> None:
        message = self.format_problem((*parent, *path), text, at_key=True)
        if message not in self._reported:
            self._reported.add(message)
            warn_caller(message)

    def _hide_overrides(self, settings: Mapping[str, Any], path: Path) -> None:
        """Hide the overrides whose value a hook declares as a secret."""
        if any(isinstance(location, str) for location in self._document.value_locations.values()):
            for key, shown in hide_declared_settings(settings).items():
                if shown != settings.get(key):
                    self._document.hide_override((*path, key))

    def _find_duplicate_names(self, built: list[tuple[Any, Path]]) -> Iterator[str]:
        """Yield a message for each hook whose instance name is already used."""
        names = set()
        for hook, path in built:
            if isinstance(hook, Hook) and hook.config.enabled:
                if hook.name in names:
                    yield self.format_problem(
                        path, f"duplicate hook name {format_value(hook.name)}. Set a unique name."
                    )
                names.add(hook.name)

    def _is_disabled_later(self, settings: Mapping[str, Any], path: Path) -> bool:
        """Return whether a layer or an override disables a hook that an earlier layer sets.

        Its package need not be installed, and its name is not a misspelling of another one.
        """
        if settings.get("enabled") is not False:
            return False
        locations = self._document.value_locations
        places = {type(location) for place, location in locations.items() if place[: len(path)] == path}
        return len(places) > 1 or any(place[: len(path)] == path for place in self._document.replaced)

    def _hook_paths(self) -> list[Path]:
        return self._paths or [("hooks", i) for i in range(len(self.hooks))]

    def _type_problem(self, path: Path, settings: Mapping[str, Any], problem: str) -> str:
        """Return a message about the type of a hook."""
        # The type may also be the key of a mapping of hooks, or the item of a list.
        type_path = (*path, "type")
        is_written = type_path in self._document.value_locations
        head, available, _ = problem.partition(" Available: ")
        if not is_written and isinstance(path[-1], str) and available:
            problem = f"{head} The name of an entry without `type` is its type.{suggest_type(settings)}"
        return self.format_problem(type_path if is_written else path, problem, at_key=not is_written)

    def _hook_problem(self, path: Path, problem: str) -> list[str]:
        """Add the location in the file to a message of a hook. Empty for values that could not be parsed."""
        match = HOOK_MESSAGE_PATTERN.fullmatch(problem)
        if match is None:
            return [self.format_problem(path, problem)]
        place = (*path, *(int(part) if part.isdigit() else part for part in match[1].split(".")))
        message = to_yaml_terms(match[2])
        if match[1] == ALL_SETTINGS and place not in self._document.key_locations:
            return [self.format_problem(path, message)]
        # The parser has already reported an invalid value.
        is_reported = place in self._document.invalid_paths
        return [] if is_reported else [self.format_problem(place, message, at_key=message.startswith("unknown key"))]


def _list_entry_hint(settings: Mapping[str, Any]) -> str:
    """Return a hint for an entry such as `- logger: {interval: 5}`, or for one with the keys of a single hook."""
    (name, inner), *_ = settings.items() or [("", "")]
    if len(settings) != 1 or not isinstance(inner, (Mapping, NoneType)):
        hint = suggest_type(settings)
        return hint if "..." not in hint else ""
    entry = ", ".join(["type: " + str(name), *(f"{key}: ..." for key in inner or ())])
    return f" In a list, write {{{shorten(entry)}}}."


def _build_entry(settings: Mapping[str, Any]) -> list[Any]:
    """Build the hook of an entry. Returns an empty list for a disabled hook whose package is not installed."""
    type_name = settings.get("type")
    if type_name is None:
        raise ConfigError(f"hook: type: {missing_key_message('type', settings)}{_list_entry_hint(settings)}")
    if not isinstance(type_name, str):
        raise ConfigError(f"hook: type: should be a name, got {format_value(type_name)}.")
    try:
        return [build_hook(settings)]
    except PluginNotFoundError:
        # A run file with `enabled: false` must work without the package.
        if settings.get("enabled") is False and get_publishing_package(type_name) is not None:
            return []
        raise
