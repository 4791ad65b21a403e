"""Lookup of the models, datasets, optimizers and losses of a run file. `hookbus.trainer.from_file` builds them."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

from hookbus import discovery
from hookbus._config.diagnostics import find_name_problem
from hookbus._config.document import Path
from hookbus._config.models import Component, RunConfig
from hookbus._run.status import read_status
from hookbus._training.eval_metrics import EvalMetric, build_metrics, duplicate_name_error
from hookbus._utils.imports import import_string, suggest_if_close
from hookbus._utils.known_keys import explain_unknown_key
from hookbus._utils.packages import DATASETS_GROUP, MODELS_GROUP
from hookbus._utils.values import format_value, shorten
from hookbus.checkpoint.load import resolve_path
from hookbus.errors import CheckpointError, ConfigError, PluginError

Factory = Callable[..., Any]


class Factories:
    """Look up every object that a run file refers to and validate the keys of its section. Nothing is built.

    Args:
        config: The run file.

    Attributes:
        problems: Error messages with their locations.
        dataset, model, loss, optimizer, scheduler: Factory of the section, or None if there is none.
        metrics: Metrics of validations. Default: accuracy if the loss is cross_entropy.
        hooks: Hooks of the file.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.problems: list[str] = []
        for name in ("model", "dataset", "training"):
            if config.is_missing(name):
                self.add_problem((), f"the section {name} is missing. Add it to the run file.")
        self.dataset = self._find("dataset", config.dataset, partial(_find_published, DATASETS_GROUP, "dataset"))
        self.model = self._find("model", config.model, partial(_find_published, MODELS_GROUP, "model"))
        self.optimizer = self._find("optimizer", config.optimizer, partial(_find_in_torch, torch.optim, "an optimizer"))
        schedulers = partial(_find_in_torch, torch.optim.lr_scheduler, "a scheduler")
        self.scheduler = self._find("scheduler", config.scheduler, schedulers)
        self.loss = self._find("loss", config.loss, partial(_find_in_torch, functional, "a loss"))
        self.metrics = self._build_metrics()
        self.hooks = self._build_hooks()
        self._check_device()
        self._check_paths()

    def _find(self, section: str, component: Component | str | None, look_up: Callable[[str], Any]) -> Factory | None:
        """Return the factory of a section: an import string, or a name that a function looks up."""
        if component is None:
            return None
        name, path = (component, (section,)) if isinstance(component, str) else (component.type, (section, "type"))
        try:
            factory = import_string(name) if ":" in name else look_up(name)
        except (PluginError, ImportError) as error:
            self.add_problem(path, str(error))
            return None
        return self._check_keywords(section, factory, component)

    def _check_keywords(self, section: str, factory: Any, component: Component | str) -> Factory | None:
        """Return the factory of a section and report the keys of the section that it does not accept."""
        if not callable(factory):
            self.add_problem((section, "type"), f"should refer to a callable, got {format_value(factory)}.")
            return None
        known = accepted_keywords(factory)
        if isinstance(component, Component) and "**" not in known:
            unknown = [key for key in component.settings if key not in known]
            for key in _find_misspelled_type(section, component, unknown) or unknown:
                problem = f"unknown key.{explain_unknown_key(key, [*known, *type(component).model_fields])}"
                self.add_problem((section, key), problem, at_key=True)
        return factory  # type: ignore[no-any-return]

    def _build_metrics(self) -> dict[str, EvalMetric]:
        configured = self._config.metrics
        if configured is None:
            configured = ["accuracy"] if self._config.loss == "cross_entropy" else []
        items = configured.items() if isinstance(configured, dict) else enumerate(configured)
        metrics: dict[str, EvalMetric] = {}
        for key, metric in items:
            try:
                built = build_metrics([metric] if isinstance(key, int) else {key: metric})
            except ConfigError as error:
                for problem in error.problems:
                    self.add_problem(("metrics", key), problem.removeprefix("metrics: "))
                continue
            for name in built.keys() & metrics.keys():
                self.add_problem(("metrics", key), duplicate_name_error(name))
            metrics |= built
        return metrics

    def _build_hooks(self) -> list[Any]:
        try:
            return self._config.build_valid_hooks()
        except ConfigError as error:
            self.problems += error.problems
            return []

    def _check_device(self) -> None:
        device = self._config.device
        try:
            # Only an allocation detects a device index or a backend that is not available.
            torch.empty(0, device=None if device == "auto" else device)
        except (RuntimeError, AssertionError) as error:
            reason = shorten(str(error).partition("\n")[0].rstrip("."), 200)
            self.add_problem(
                ("device",), f"{format_value(device)} cannot be used: {reason}. Set auto to use the available device."
            )

    def _check_paths(self) -> None:
        config = self._config
        if problem := find_name_problem(config.work_dir):
            self.add_problem(("work_dir",), problem)
        file = find_initial_file(config.resume, config.load_from.path if config.load_from else None, config.work_dir)
        if file is not None and (problem := find_file_problem(str(file[1]))):
            path: Path = ("load_from", "path") if file[0] == "load_from" else ("resume",)
            self.add_problem(config.to_document_path(path), problem)

    def add_problem(self, path: Path, message: str, *, at_key: bool = False) -> None:
        """Add an error message with the location of a path."""
        self.problems.append(self._config.format_problem(path, message, at_key=at_key))


def _find_published(group: str, kind: str, name: str) -> Any:
    """Return the object of an entry point."""
    return discovery.load_entry(discovery.find_entry(name, group, kind))


def _find_misspelled_type(section: str, component: Component, unknown: list[str]) -> list[str]:
    """Return the keys that misspell `type` in a section that got the default type.

    Nothing is known about its other keys.
    """
    default = RunConfig.model_fields[section].default
    if component.type != getattr(default, "type", default):
        return []
    return [key for key in unknown if suggest_if_close(key, ["type"])]


def _find_in_torch(namespace: ModuleType, kind: str, name: str) -> Any:
    """Return the object of a name in a module of torch, or of an import string."""
    if "." in name:
        return import_string(name)
    public = [key for key, value in vars(namespace).items() if callable(value) and key[0] != "_"]
    if name not in public:
        hint = suggest_if_close(name, public)
        advice = f"For your own, use an import string such as my_module:{shorten(name)}."
        raise PluginError(f"{format_value(name)} is not {kind} of {namespace.__name__}.{hint} {advice}")
    return getattr(namespace, name)


def accepted_keywords(factory: Factory) -> Mapping[str, inspect.Parameter]:
    """Return the keyword arguments that a factory accepts; the key "**" is present if it accepts any."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # builtins implemented in C may have no signature
        return {"**": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}
    return {"**" if p.kind is p.VAR_KEYWORD else name: p for name, p in parameters.items()}


def find_initial_file(
    resume: str | pathlib.Path, load_from: str | pathlib.Path | None, work_dir: str | pathlib.Path | None
) -> tuple[str, str | pathlib.Path] | None:
    """Return the key and the path of the file that a training starts from; None if there is none.

    Initial weights are not loaded if a run is continued.
    """
    if resume not in ("auto", "never"):
        return "resume", resume
    has_status = work_dir is not None and not find_name_problem(str(work_dir)) and read_status(pathlib.Path(work_dir))
    return None if load_from is None or (resume == "auto" and has_status) else ("load_from", load_from)


def find_file_problem(path: str) -> str:
    """Return the problem of a file that should be a checkpoint, or "" if it exists. The content is not read."""
    if problem := find_name_problem(path):
        return problem
    try:
        resolve_path(path)
    except CheckpointError as error:
        return str(error)
    return ""
