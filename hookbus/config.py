"""The run file: YAML with line numbers, overrides, and pydantic models. All mistakes are reported at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator

from hookbus._validation_errors import AS_A_WHOLE, missing
from hookbus.bus import HookBus
from hookbus.discovery import package_publishing
from hookbus.errors import ConfigError, PluginError, PluginNotFound, RegistrationError
from hookbus.hook import Hook
from hookbus.runfile import yaml as _yaml
from hookbus.runfile.builder import build_hook
from hookbus.runfile.mistakes import document_of, hook_entries, in_order, in_yaml_words, sentences, settle_spelling
from hookbus.runfile.overrides import apply_overrides
from hookbus.runfile.sections import (
    Component,
    DatasetConfig,
    LoaderConfig,
    LoadFrom,
    SchedulerConfig,
    Section,
    TrainingConfig,
)
from hookbus.runfile.yaml import Document, Path
from hookbus.runs.workdir import checked_resume

__all__ = ["RunConfig", "load_config", "read_config"]

HOOK_PROBLEM = re.compile(r"\w+: ([^\s:]+): (.*)", re.DOTALL)
"""How a hook words what is wrong with a setting: `EMAHook: momentum: ...`."""


class RunConfig(Section):
    """A run file."""

    work_dir: str = Field(
        default="runs/train", min_length=1, description="Where the files of the run go. Also spelt experiment_dir."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="What every random stream follows from.")
    model: Component | None = Field(default=None, description="An entry point of hookbus.models, or a path.")
    dataset: DatasetConfig | None = Field(default=None, description="An entry point of hookbus.datasets, or a path.")
    optimizer: Component = Field(default=Component(type="AdamW", lr=0.001), description="Of torch.optim, or a path.")
    loss: str | Component | None = Field(default="cross_entropy", description="Of torch.nn.functional, or a path.")
    metrics: list[str] | dict[str, str] | None = Field(default=None, description="What validations measure.")
    scheduler: SchedulerConfig | None = Field(default=None, description="Of torch.optim.lr_scheduler, or a path.")
    loader: LoaderConfig = Field(default=LoaderConfig(), description="How batches are loaded.")
    training: TrainingConfig | None = Field(default=None, description="How long and how training runs.")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    resume: str = Field(default="never", description="never, auto, or a checkpoint.")
    load_from: LoadFrom | None = Field(default=None, description="Weights to start from: a path, or a mapping.")
    order: Literal["nested", "ascending"] = Field(default="nested", description="How priorities order the hooks.")
    default_hooks: bool = Field(default=True, description="Start from the default hooks.")
    hooks: list[dict[str, Any]] = Field(default=[], description="Hooks, as a list or as a mapping of name to settings.")

    _document: Document = PrivateAttr(default_factory=lambda: Document("config"))
    _places: list[Path] = PrivateAttr(default_factory=list)
    _broken: frozenset[str] = PrivateAttr(default=frozenset())

    @field_validator("model", "dataset", "optimizer", "scheduler", mode="before")
    @classmethod
    def _not_a_type_alone(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"should be a mapping, such as {{type: {value}}}, but it is {value!r}.")
        return value

    @field_validator("metrics", mode="before")
    @classmethod
    def _not_one_alone(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"should be a list, such as [{value}], or a mapping, but it is {value!r}.")
        return value

    @field_validator("resume", mode="before")
    @classmethod
    def _auto_never_or_a_file(cls, value: object) -> object:
        return checked_resume(value)

    @field_validator("hooks", mode="before")
    @classmethod
    def _list_or_mapping(cls, value: object) -> object:
        if not isinstance(value, (list, Mapping)):
            shown = value if isinstance(value, str) else "logger"
            raise ValueError(
                f"should be a list, such as [{shown}], or a mapping, such as {{{shown}: {{priority: 50}}}}, but it is "
                f"{value!r}."
            )
        return value

    @field_validator("load_from", mode="before")
    @classmethod
    def _path_alone(cls, value: object) -> object:
        if not isinstance(value, (str, Mapping, NoneType)):
            raise ValueError(f"should be a path, or a mapping with path and weights, but it is {value!r}.")
        return {"path": value} if isinstance(value, str) else value

    def build_hooks(self) -> list[Any]:
        """The hooks of the file, in its order; those with `enabled: false` as well, since they replace defaults.

        Raises:
            ConfigError: a hook is unknown or a setting does not hold; all mistakes are listed.
        """
        return [hook for hook, _ in self._built()]

    def checked_hooks(self) -> list[Any]:
        """As `build_hooks`, and what a bus would refuse is a mistake of the file as well.

        Raises:
            ConfigError: as `build_hooks`, or a hook listens in a way that it cannot.
        """
        built, bus, problems = self._built(), HookBus(), []
        for hook, path in built:
            try:
                bus.register(hook)
            except RegistrationError as error:
                problems.append(self.problem(path, str(error)))
        for hook in bus.hooks.values():
            bus.unregister(hook)
        if problems:
            raise ConfigError(problems)
        return [hook for hook, _ in built]

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> str:
        """A complete sentence about a place of the run file."""
        return self._document.problem(path, message, at_key=at_key)

    def lacks(self, section: str) -> bool:
        """Whether the file does not have a section; one with mistakes in it is there."""
        return getattr(self, section) is None and section not in self._broken

    def in_order(self, problems: Iterable[str]) -> list[str]:
        """Problems in the order of the file, each once."""
        return in_order(self._document, problems)

    def to_yaml(self) -> str:
        """The resolved configuration as a run file: overrides applied, every default of the core written out.

        `load_config` of it gives an equal configuration.
        """
        return _yaml.dump(self.model_dump())

    def _built(self) -> list[tuple[Any, Path]]:
        """The hooks, and where each stands."""
        built: list[tuple[Any, Path]] = []
        problems: list[str] = []
        for settings, path in zip(self.hooks, self._hook_places(), strict=True):
            try:
                built += [(hook, path) for hook in _hook_of(settings)]
            except ConfigError as error:
                problems += [told for each in error.problems for told in self._hook_problem(path, each)]
            except PluginError as error:
                problems.append(self._type_problem(path, str(error)))
        problems += self._names_taken(built)
        if problems:
            raise ConfigError(self.in_order(problems))
        return built

    def _names_taken(self, built: list[tuple[Any, Path]]) -> list[str]:
        """What is wrong where two hooks have the same instance name."""
        problems, names = [], set()
        for hook, path in built:
            if not isinstance(hook, Hook) or not hook.config.enabled:
                continue
            if hook.name in names:
                problems.append(self.problem(path, f"a second hook named {hook.name!r}. Give it a name of its own."))
            names.add(hook.name)
        return problems

    def _hook_places(self) -> list[Path]:
        return self._places or [("hooks", i) for i in range(len(self.hooks))]

    def _type_problem(self, path: Path, problem: str) -> str:
        """A sentence about the type of a hook, which may be written as the key of the hook, or as all there is."""
        written = (*path, "type")
        is_there = written in self._document.values
        return self.problem(written if is_there else path, problem, at_key=not is_there)

    def _hook_problem(self, path: Path, problem: str) -> list[str]:
        """A hook's own sentence with its place in the file; none about a value that could not be read."""
        found = HOOK_PROBLEM.fullmatch(problem)
        if found is None:
            return [self.problem(path, problem)]
        keys = tuple(int(part) if part.isdigit() else part for part in found[1].split("."))
        if keys == (AS_A_WHOLE,) and (*path, *keys) not in self._document.keys:
            return [self.problem(path, in_yaml_words(found[2]))]
        if self._document.is_refused((*path, *keys)):
            return []
        message = in_yaml_words(found[2])
        return [self.problem((*path, *keys), message, at_key=message.startswith("unknown key"))]


def load_config(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """Read and check a run file.

    Args:
        source: the file, or its content as a mapping, which is not changed.
        overrides: `a.b=value` sets, `~a.b` deletes, in order.

    Raises:
        ConfigError: the file does not hold; all mistakes are listed, each with file, line and column.
    """
    config, problems = read_config(source, overrides)
    if problems:
        raise ConfigError(problems)
    return config


def read_config(
    source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()
) -> tuple[RunConfig, list[str]]:
    """What of a run file holds, and what is wrong with it: for those who look for more mistakes.

    Args:
        source, overrides: as for `load_config`.

    Returns:
        The configuration without the sections and hooks that have mistakes, and a sentence for each mistake.

    Raises:
        ConfigError: there is nothing to look at: no file, no YAML, no mapping.
    """
    document = document_of(source)
    if isinstance(document.data, Mapping):
        settle_spelling(document)
        document.problems += apply_overrides(document, overrides)
    elif not document.problems:
        document.problems.append(document.problem((), "a run file is a mapping of keys to values."))
    if not isinstance(document.data, Mapping):
        raise ConfigError(document.problems)
    config, problems = _validated(document)
    try:
        config.build_hooks()
    except ConfigError as error:
        problems += error.problems
    return config, in_order(document, [*document.problems, *problems])


# -- inside ----------------------------------------------------------------------------------------


def _validated(document: Document) -> tuple[RunConfig, list[str]]:
    """The config, and what is wrong; what has mistakes is left out, so that the rest can be looked at."""
    data = dict(document.data)
    entries = hook_entries(document)
    if entries is not None:
        data["hooks"] = [entry for entry, _ in entries]
    problems: list[str] = []
    broken = {path[0] for path in document.refused if path}
    try:
        config = RunConfig.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problems = sentences(RunConfig, document, data, entries, error)
        places = [each["loc"] for each in error.errors()]
        wrong = {loc[1] for loc in places if loc[0] == "hooks" and len(loc) > 1}
        broken |= {loc[0] for loc in places}
        entries = [entry for i, entry in enumerate(entries or []) if i not in wrong]
        sound = {key: value for key, value in data.items() if key not in broken}
        hooks = {"hooks": [entry for entry, _ in entries]}
        config = RunConfig.model_validate_json(json.dumps({**sound, **hooks}))
    config._document, config._places = document, [path for _, path in entries or []]
    config._broken = frozenset(map(str, broken))
    return config, problems


def _as_an_entry(settings: Mapping[str, Any]) -> str:
    """How `- logger: {interval: 5}` is written; "" for what is nothing like it."""
    if len(settings) != 1:
        return ""
    (name, inner), *_ = settings.items()
    if not isinstance(inner, (Mapping, NoneType)):
        return ""
    return f" In a list it is written {{{', '.join(['type: ' + str(name), *(f'{key}: ...' for key in inner or ())])}}}."


def _hook_of(settings: Mapping[str, Any]) -> list[Any]:
    """The hook that an entry means; none where it is switched off and not even installed."""
    kind = settings.get("type")
    if kind is None:
        raise ConfigError([f"hook: type: {missing('type', settings)}{_as_an_entry(settings)}"])
    if not isinstance(kind, str):
        raise ConfigError([f"hook: type: should be a name, but it is {kind!r}."])
    try:
        return [build_hook(settings)]
    except PluginNotFound:
        if settings.get("enabled") is False and package_publishing(kind) is not None:
            return []
        raise
