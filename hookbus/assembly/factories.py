"""What do the names of a run file stand for? Models, data sets, optimizers, losses. Found here, built in `assemble`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from hookbus import discovery
from hookbus._imports import import_path, nearest
from hookbus._packages import DATASETS_GROUP, MODELS_GROUP
from hookbus.config import RunConfig
from hookbus.errors import ConfigError, PluginError, did_you_mean
from hookbus.runfile.sections import Component
from hookbus.runfile.yaml import Path
from hookbus.training.scores import Score, called_twice, scores_from

__all__ = ["Factories", "Factory", "keywords_of"]

Factory = Callable[..., Any]


class Factories:
    """Finds everything that a run file names, and sees that it takes the keys of its section. Nothing is built.

    Attributes:
        problems: what is wrong, complete sentences with their places.
        dataset, model, loss, optimizer, scheduler: what the section names; None where there is none.
        scores: what validations measure: accuracy for the default loss, unless the file says otherwise.
        hooks: the hooks of the file.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.problems: list[str] = []
        for name in ("model", "dataset", "training"):
            if config.lacks(name):
                self._wrong((), f"a training needs the section {name}, which is not there.")
        self.dataset = self._offered("dataset", config.dataset, DATASETS_GROUP, "data set")
        self.model = self._offered("model", config.model, MODELS_GROUP, "model")
        self.optimizer = self._of_torch("optimizer", config.optimizer, torch.optim, "an optimizer of torch.optim")
        schedulers = torch.optim.lr_scheduler
        self.scheduler = self._of_torch(
            "scheduler", config.scheduler, schedulers, "a scheduler of torch.optim.lr_scheduler"
        )
        self.loss = self._of_torch("loss", config.loss, functional, "a loss of torch.nn.functional")
        self.scores = self._scores()
        self.hooks = self._hooks()
        self._check_device()

    def _offered(self, section: str, given: Component | None, group: str, kind: str) -> Factory | None:
        """What an installed package offers under a name, or what a path names."""
        if given is None:
            return None
        try:
            path = ":" in given.type
            found = import_path(given.type) if path else discovery.load(discovery.find(given.type, group, kind))
        except (PluginError, ImportError) as error:
            self._wrong((section, "type"), str(error))
            return None
        return self._taking(section, found, given)

    def _of_torch(self, section: str, given: Component | str | None, home: Any, kind: str) -> Factory | None:
        """What torch has under a name, or what a path names."""
        if given is None:
            return None
        name, path = (given, (section,)) if isinstance(given, str) else (given.type, (section, "type"))
        if ":" in name or "." in name:
            try:
                return self._taking(section, import_path(name), given)
            except ImportError as error:
                self._wrong(path, str(error))
                return None
        found = getattr(home, name, None)
        if name.startswith("_") or not callable(found):
            hint = nearest(name, (each for each, value in vars(home).items() if callable(value) and each[0] != "_"))
            own = f"One of your own is named by its path, my_module:{name}."
            self._wrong(path, f"{name!r} is not {kind}.{hint} {own}")
            return None
        return self._taking(section, found, given)

    def _taking(self, section: str, found: Any, given: Component | str) -> Factory | None:
        """What was found; told are the keys of the section that it does not take."""
        if not callable(found):
            self._wrong((section, "type"), f"it names {found!r}, which cannot be called.")
            return None
        known = keywords_of(found)
        if isinstance(given, Component) and "**" not in known:
            for key in (key for key in given.settings if key not in known):
                problem = f"unknown key.{did_you_mean(key, [*known, *type(given).model_fields])}"
                self.problems.append(self._config.problem((section, key), problem, at_key=True))
        return found  # type: ignore[no-any-return]

    def _scores(self) -> dict[str, Score]:
        metrics = self._config.metrics
        if metrics is None:
            metrics = ["accuracy"] if self._config.loss == "cross_entropy" else []
        items = metrics.items() if isinstance(metrics, dict) else enumerate(metrics)
        found: dict[str, Score] = {}
        for key, metric in items:
            try:
                scores = scores_from([metric] if isinstance(key, int) else {key: metric})
            except ConfigError as error:
                for problem in error.problems:
                    self._wrong(("metrics", key), problem.removeprefix("metrics: "))
                continue
            for name in scores.keys() & found.keys():
                self._wrong(("metrics", key), called_twice(name))
            found |= scores
        return found

    def _hooks(self) -> list[Any]:
        try:
            return self._config.checked_hooks()
        except ConfigError as error:
            self.problems += error.problems
            return []

    def _check_device(self) -> None:
        device = self._config.device
        try:
            torch.empty(0, device=None if device == "auto" else device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            self._wrong(("device",), f"{device!r} cannot be used here: {reason}. auto takes what there is.")

    def _wrong(self, path: Path, message: str) -> None:
        self.problems.append(self._config.problem(path, message))


def keywords_of(factory: Factory) -> Mapping[str, inspect.Parameter]:
    """The keywords that a factory takes; "**" where it takes any."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C
        return {"**": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}
    return {"**" if p.kind is p.VAR_KEYWORD else name: p for name, p in parameters.items()}
