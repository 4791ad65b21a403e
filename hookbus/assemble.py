"""From a run file to a Trainer: model, data, optimizer, scheduler, loss by their names."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from hookbus import discovery
from hookbus._yaml import Path
from hookbus.config import Component, RunConfig
from hookbus.data import Splits
from hookbus.errors import ConfigError, HookbusError, PluginError, did_you_mean
from hookbus.rng import seed_everything

if TYPE_CHECKING:
    from hookbus.loop import Trainer

__all__ = ["DATASETS_GROUP", "MODELS_GROUP", "trainer_from_config"]

MODELS_GROUP = "hookbus.models"
DATASETS_GROUP = "hookbus.datasets"


def trainer_from_config(cls: type[Trainer], config: RunConfig, *, overwrite: bool = False) -> Trainer:
    """Build everything that a run file names.

    Args:
        cls: the Trainer class.
        config: the checked run file.
        overwrite: a run that is in the work directory is removed.

    Raises:
        ConfigError: something cannot be built; all mistakes are listed, with their places.
    """
    seed_everything(config.seed)
    parts = _Parts(config)
    splits = parts.dataset()
    model = parts.model(splits)
    loss_fn = parts.loss()
    optimizer = parts.optimizer(model)
    scheduler = parts.scheduler(optimizer)
    hooks = parts.hooks()
    scores = parts.scores()
    loaders = parts.loaders(splits)
    if parts.problems:
        raise ConfigError(parts.problems)
    assert model is not None
    assert config.training is not None
    return cls(
        model,
        optimizer,
        loss_fn,
        **loaders,
        scheduler=scheduler,
        scheduler_interval=config.scheduler.interval if config.scheduler else "epoch",
        scheduler_monitor=config.scheduler.monitor if config.scheduler else None,
        epochs=config.training.epochs,
        iterations=config.training.iterations,
        work_dir=config.work_dir,
        hooks=hooks,
        default_hooks=config.default_hooks,
        order=config.order,
        metrics=scores,
        accumulate=config.training.accumulate,
        precision=config.training.precision,
        clip_grad_norm=config.training.clip_grad_norm,
        validate_first=config.training.validate_first,
        device=config.device,
        seed=config.seed,
        resume=config.resume,
        load_from=config.load_from.path if config.load_from else None,
        load_weights=config.load_from.weights if config.load_from else "raw",
        overwrite=overwrite,
        config=config,
    )


class _Parts:
    """Builds the parts of a run file one by one, and keeps what is wrong with each."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.problems: list[str] = []
        for name in ("model", "dataset", "training"):
            if getattr(config, name) is None:
                self._wrong((), f"a training needs the section {name}, which is not there.")

    def dataset(self) -> Splits | None:
        """The data sets."""
        section = self.config.dataset
        if section is None:
            return None
        factory = self._offered(("dataset",), section, DATASETS_GROUP, "data set")
        found = self._call(("dataset",), factory, section.settings)
        return None if found is None else _splits(found)

    def model(self, splits: Splits | None) -> nn.Module | None:
        """The model; told the shape of the data and the number of classes where it wants to know."""
        section = self.config.model
        if section is None:
            return None
        factory = self._offered(("model",), section, MODELS_GROUP, "model")
        told = {"input_shape": splits.input_shape, "num_classes": splits.num_classes} if splits else {}
        known = _parameters(factory) if factory is not None else {}
        extra = {k: v for k, v in told.items() if v is not None and k in known and k not in section.settings}
        model = self._call(("model",), factory, section.settings, **extra)
        if model is not None and not isinstance(model, nn.Module):
            self._wrong(("model", "type"), f"it gives a {type(model).__name__}, not a torch.nn.Module.")
            return None
        return model

    def loss(self) -> Callable[..., Any] | None:
        """The loss function; None where the model returns its loss."""
        section = self.config.loss
        if section is None:
            return None
        name, settings = (section, {}) if isinstance(section, str) else (section.type, section.settings)
        path: Path = ("loss",) if isinstance(section, str) else ("loss", "type")
        found = self._named(path, name, functional, "a loss of torch.nn.functional")
        if inspect.isclass(found):
            found = self._call(("loss",), found, settings)
        elif found is not None and settings and self._accepts(("loss",), found, settings):
            found = functools.partial(found, **settings)
        return found  # type: ignore[no-any-return]

    def optimizer(self, model: nn.Module | None) -> Any:
        """The optimizer of all parameters."""
        section = self.config.optimizer
        cls = self._named(("optimizer", "type"), section.type, torch.optim, "an optimizer of torch.optim")
        parameters = list(model.parameters()) if model is not None else [nn.Parameter(torch.zeros(1))]
        return self._call(("optimizer",), cls, section.settings, parameters)

    def scheduler(self, optimizer: Any) -> Any:
        """The learning-rate scheduler."""
        section = self.config.scheduler
        if section is None or optimizer is None:
            return None
        schedulers = torch.optim.lr_scheduler
        cls = self._named(("scheduler", "type"), section.type, schedulers, "a scheduler of torch.optim.lr_scheduler")
        return self._call(("scheduler",), cls, section.settings, optimizer)

    def hooks(self) -> list[Any]:
        """The hooks of the file."""
        try:
            return self.config.build_hooks()
        except ConfigError as error:
            self.problems += error.problems
            return []

    def scores(self) -> Any:
        """What validations measure: accuracy for the default loss, unless the file says otherwise."""
        from hookbus.scores import scores_from

        metrics = self.config.metrics
        if metrics is None:
            metrics = ["accuracy"] if self.config.loss == "cross_entropy" else []
        try:
            return scores_from(metrics)
        except ConfigError as error:
            for problem in error.problems:
                self._wrong(("metrics",), problem.removeprefix("metrics: "))
            return {}

    def loaders(self, splits: Splits | None) -> dict[str, Any]:
        """A loader for each split."""
        section = self.config.dataset
        if splits is None or section is None:
            return {}
        options = self.config.loader.model_dump(exclude={"shuffle", "drop_last"})
        training = {"shuffle": self.config.loader.shuffle, "drop_last": self.config.loader.drop_last}
        if not options["num_workers"]:
            options.pop("prefetch_factor")
            options.pop("persistent_workers")
        found = {}
        for name, split in (("train", splits.train), ("val", splits.val), ("test", splits.test)):
            own = training if name == "train" else {}
            if split is not None:
                found[f"{name}_loader"] = self._loader(split, section.batch_size, {**options, **own})
        return found

    def _loader(self, split: Any, batch_size: int, options: dict[str, Any]) -> Any:
        if isinstance(split, Mapping):
            return {name: self._loader(each, batch_size, options) for name, each in split.items()}
        if isinstance(split, DataLoader) or not hasattr(split, "__getitem__"):
            return split
        return DataLoader(split, batch_size=batch_size, **options)

    def _offered(self, path: Path, section: Component, group: str, kind: str) -> Callable[..., Any] | None:
        """The factory that a type names: an entry point of the group, or a path."""
        try:
            if ":" in section.type:
                found = _imported(section.type)
            else:
                found = discovery.load(discovery.find(section.type, group, kind))
        except (PluginError, ConfigError) as error:
            self._wrong((*path, "type"), str(error))
            return None
        return found  # type: ignore[no-any-return]

    def _named(self, path: Path, name: str, home: Any, kind: str) -> Any:
        """Something that torch has under a name, or that a path names."""
        if ":" in name or "." in name:
            try:
                return _imported(name)
            except ConfigError as error:
                self._wrong(path, str(error))
                return None
        found = getattr(home, name, None)
        if found is None or name.startswith("_") or not callable(found):
            known = [n for n, each in vars(home).items() if callable(each) and not n.startswith("_")]
            near = did_you_mean(name, known)
            near = near if "Did you mean" in near else ""
            self._wrong(path, f"{name!r} is not {kind}.{near} One of your own is named by its path, my_module:{name}.")
            return None
        return found

    def _call(
        self, path: Path, factory: Callable[..., Any] | None, settings: Mapping[str, Any], *first: Any, **extra: Any
    ) -> Any:
        """Call a factory with the settings of its section; what it refuses is a mistake in that section."""
        if factory is None or not self._accepts(path, factory, settings):
            return None
        try:
            return factory(*first, **settings, **extra)
        except HookbusError as error:
            self._wrong(path, str(error))
        except Exception as error:
            self._wrong(path, f"it cannot be built: {type(error).__name__}: {error}")
        return None

    def _accepts(self, path: Path, factory: Callable[..., Any], settings: Mapping[str, Any]) -> bool:
        known = _parameters(factory)
        if "**" in known:
            return True
        unknown = [key for key in settings if key not in known]
        for key in unknown:
            problem = f"unknown key.{did_you_mean(key, [*known, 'type'])}"
            self.problems.append(self.config.problem((*path, key), problem, at_key=True))
        return not unknown

    def _wrong(self, path: Path, message: str) -> None:
        self.problems.append(self.config.problem(path, message))


def _splits(found: Any) -> Splits:
    if isinstance(found, Splits):
        return found
    if isinstance(found, Mapping):
        return Splits(**{key: found[key] for key in ("train", "val", "test") if key in found})
    if isinstance(found, (tuple, list)):
        return Splits(*found)
    return Splits(found)


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keywords that a factory takes; "**" where it takes any."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {"**": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}
    return {"**" if p.kind is p.VAR_KEYWORD else name: p for name, p in parameters.items()}


def _imported(path: str) -> Any:
    """What `my_module:name` (or `my_module.name`) names; modules beside the script are found as well."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError([f"{path!r} cannot be imported: {error}."]) from None
