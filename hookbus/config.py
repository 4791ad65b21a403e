"""The run file: YAML with line numbers, overrides, and pydantic models. All mistakes are reported at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from hookbus import _yaml
from hookbus._yaml import Document
from hookbus.builder import construct, hook_class
from hookbus.errors import ConfigError, PluginError
from hookbus.hook import Hook, problems_of
from hookbus.overrides import apply_overrides

__all__ = ["Component", "LoaderConfig", "RunConfig", "SchedulerConfig", "TrainingConfig", "load_config"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Component(BaseModel):
    """Something that is built by name: a type, and settings for it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    type: str = Field(description="An entry point, or a path such as my_module:factory.")

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the type."""
        return dict(self.model_extra or {})


class SchedulerConfig(Component):
    """A learning-rate scheduler of torch.optim.lr_scheduler, or a path."""

    interval: Literal["epoch", "step"] = Field(default="epoch", description="When it is stepped.")
    monitor: str | None = Field(default=None, description="The metric that it needs, if it needs one.")


class DatasetConfig(Component):
    """A data set by name."""

    batch_size: int = Field(default=32, ge=1, description="Samples per batch.")


class LoaderConfig(_Section):
    """How batches are loaded: options of torch's DataLoader."""

    num_workers: int = Field(default=0, ge=0, description="Processes that load data; 0 loads in the training process.")
    pin_memory: bool = Field(default=False, description="Copy batches into page-locked memory.")
    drop_last: bool = Field(default=False, description="Leave out a last training batch that is not full.")
    shuffle: bool = Field(default=True, description="A new order of the training samples in every epoch.")
    persistent_workers: bool = Field(default=False, description="Keep the loading processes over epochs.")
    prefetch_factor: int | None = Field(default=None, ge=1, description="Batches that each process loads ahead.")


class TrainingConfig(_Section):
    """How long and how training runs."""

    epochs: int | None = Field(default=None, ge=1, description="The limit in epochs.")
    iterations: int | None = Field(default=None, ge=1, description="The limit in iterations, instead of epochs.")
    accumulate: int = Field(default=1, ge=1, description="Micro-batches per optimizer update.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="fp32, or autocast to a smaller type."
    )
    clip_grad_norm: float | None = Field(default=None, gt=0, description="The largest norm of all gradients together.")
    validate_first: bool = Field(default=False, description="One validation before training, which counts for nothing.")

    @model_validator(mode="after")
    def _one_limit(self) -> TrainingConfig:
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError("give one limit, either epochs or iterations.")
        return self


class LoadFrom(_Section):
    """Weights to start from."""

    path: str = Field(description="A checkpoint, or a file with a bare state dict.")
    weights: Literal["raw", "averaged"] = Field(default="raw", description="Which of its weights.")


class RunConfig(_Section):
    """A run file."""

    work_dir: str = Field(default="runs/train", description="Where the files of the run go. Also spelt experiment_dir.")
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
    load_from: LoadFrom | None = Field(default=None, description="Weights to start from: a path, or {path, weights}.")
    order: Literal["nested", "ascending"] = Field(default="nested", description="How priorities order the hooks.")
    default_hooks: bool = Field(default=True, description="Start from the default hooks.")
    hooks: list[dict[str, Any]] = Field(default=[], description="Hooks, as a list or as a mapping of name to settings.")

    _document: Document = PrivateAttr(default_factory=lambda: Document("config"))
    _places: list[_yaml.Path] = PrivateAttr(default_factory=list)

    @field_validator("load_from", mode="before")
    @classmethod
    def _path_alone(cls, value: object) -> object:
        return {"path": value} if isinstance(value, str) else value

    def build_hooks(self) -> list[Any]:
        """The hooks of the file, in its order; those with `enabled: false` as well, since they replace defaults.

        Raises:
            ConfigError: a hook is unknown or a setting does not hold; all mistakes are listed.
        """
        hooks, problems = [], []
        for settings, path in zip(self.hooks, self._hook_places(), strict=True):
            try:
                hooks.append(_build(settings))
            except ConfigError as error:
                problems += [self._hook_problem(path, problem) for problem in error.problems]
            except PluginError as error:
                problems.append(self.problem((*path, "type"), str(error)))
        if problems:
            raise ConfigError(problems)
        return hooks

    def problem(self, path: _yaml.Path, message: str, *, at_key: bool = False) -> str:
        """A complete sentence about a place of the run file."""
        return self._document.problem(path, message, at_key=at_key)

    def _hook_places(self) -> list[_yaml.Path]:
        return self._places or [("hooks", i) for i in range(len(self.hooks))]

    def _hook_problem(self, path: _yaml.Path, problem: str) -> str:
        """A hook's own sentence, `EMAHook: momentum: ...`, with its place in the file."""
        _, _, rest = problem.partition(": ")
        key, separator, message = rest.partition(": ")
        keys = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        if not separator or " " in key:
            return self._document.problem(path, problem)
        return self._document.problem((*path, *keys), message, at_key=message.startswith("unknown key"))


def load_config(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """Read and check a run file.

    Args:
        source: the file, or its content as a mapping, which is not changed.
        overrides: `a.b=value` sets, `~a.b` deletes, in order.

    Raises:
        ConfigError: the file does not hold; all mistakes are listed, each with file, line and column.
    """
    document = _document_of(source)
    if isinstance(document.data, Mapping):
        document.problems += apply_overrides(document, overrides)
    elif not document.problems:
        document.problems.append(document.problem((), "a run file is a mapping of keys to values."))
    if not isinstance(document.data, Mapping):
        raise ConfigError(document.problems)
    data, places = _normalized(document)
    config, problems = _validated(document, data)
    if config is not None:
        config._document, config._places = document, places
        try:
            config.build_hooks()
        except ConfigError as error:
            problems += error.problems
    if document.problems or problems:
        raise ConfigError(_sorted([*document.problems, *problems]))
    assert config is not None
    return config


def _document_of(source: str | Path | Mapping[str, Any]) -> Document:
    if isinstance(source, Mapping):
        return Document("config", data=json.loads(json.dumps(dict(source))))
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: the run file cannot be read: {error.strerror}."]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: the run file is not UTF-8 text: {error.reason} at byte {error.start}."]) from None
    return _yaml.read(text, str(path))


def _normalized(document: Document) -> tuple[dict[str, Any], list[_yaml.Path]]:
    """Accepted spellings turned into the one that the models know; hooks as a list, with their places."""
    data = dict(document.data)
    if "experiment_dir" in data and "work_dir" not in data:
        data["work_dir"] = data.pop("experiment_dir")
        document.values[("work_dir",)] = document.values.get(("experiment_dir",), (1, 1))
    hooks, places = data.get("hooks"), []
    if isinstance(hooks, Mapping):
        named = [(name, settings) for name, settings in hooks.items() if settings is not None]
        data["hooks"] = [
            {"type": name, "name": name, **settings} if isinstance(settings, Mapping) else settings
            for name, settings in named
        ]
        places = [("hooks", name) for name, _ in named]
    elif isinstance(hooks, list):
        data["hooks"] = [{"type": each} if isinstance(each, str) else each for each in hooks]
        places = [("hooks", i) for i in range(len(hooks))]
    elif hooks is None:
        data.pop("hooks", None)
    return data, list(places)


def _validated(document: Document, data: dict[str, Any]) -> tuple[RunConfig | None, list[str]]:
    """The config, and what is wrong. With mistakes elsewhere, the hooks alone, so that theirs are found too."""
    try:
        return RunConfig.model_validate_json(json.dumps(data)), []
    except ValidationError as error:
        problems = [_sentence(document, place, message) for place, message in _located(error)]
    try:
        hooks = RunConfig.model_validate_json(json.dumps({"hooks": data.get("hooks", [])}))
    except ValidationError:
        return None, problems
    return hooks, problems


def _located(error: ValidationError) -> list[tuple[_yaml.Path, str]]:
    named = problems_of(error, RunConfig)
    return [(tuple(each["loc"]), message) for each, (_, message) in zip(error.errors(), named, strict=True)]


def _sentence(document: Document, path: _yaml.Path, message: str) -> str:
    known: _yaml.Path = ()
    value: Any = document.data
    for key in path:  # pydantic names the branch of a union as well, which is no place in the file
        inside = value if isinstance(value, (Mapping, list)) else {}
        is_here = key in inside if isinstance(inside, Mapping) else isinstance(key, int) and key < len(inside)
        if not is_here:
            if key == path[-1] and "required" in message:
                known = (*known, key)
            continue
        known, value = (*known, key), inside[key]  # type: ignore[index]
    return document.problem(known, message, at_key="unknown key" in message)


def _build(settings: Mapping[str, Any]) -> Any:
    given = dict(settings)
    kind = given.pop("type", None)
    if not isinstance(kind, str):
        raise ConfigError(["hook: type: required, but not given."])
    return construct(hook_class(kind), given)


def _sorted(problems: list[str]) -> list[str]:
    """In the order of the file."""

    def place(problem: str) -> tuple[str, int, int]:
        name, line, column, *_ = [*problem.split(":", 3), "", "", ""]
        return (name, int(line), int(column)) if line.isdigit() and column.isdigit() else ("~", 0, 0)

    return sorted(dict.fromkeys(problems), key=place)


def is_active(hook: object) -> bool:
    """Whether a hook takes part: `enabled: false` leaves it out."""
    return not isinstance(hook, Hook) or bool(hook.config.enabled)
