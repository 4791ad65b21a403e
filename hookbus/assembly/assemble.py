"""From a run file to a Trainer: model, data, optimizer, scheduler, loss by their names."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from hookbus._imports import cause_of
from hookbus.assembly.factories import Factories, keywords_of
from hookbus.config import RunConfig, read_config
from hookbus.errors import ConfigError, HookbusError
from hookbus.runfile.yaml import Path
from hookbus.training.data import Splits
from hookbus.training.rng import seed_everything
from hookbus.training.scheduling import SchedulerSteps

if TYPE_CHECKING:
    from hookbus.loop import Trainer

__all__ = ["trainer_from_config", "trainer_from_file"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a section is for.

    Attributes:
        name: for messages.
        fits: whether something that was built is of this kind.
    """

    name: str
    fits: Callable[[Any], bool]


MODEL = Kind("a torch.nn.Module", lambda found: isinstance(found, nn.Module))
OPTIMIZER = Kind("an optimizer", lambda found: hasattr(found, "param_groups"))
SCHEDULER = Kind("a scheduler, which has a step()", lambda found: callable(getattr(found, "step", None)))
LOSS = Kind("something to call", callable)
DATA = Kind(
    "data sets as (train, val, test), as a mapping of these names, or as hookbus.Splits",
    lambda found: found is not None,
)


def trainer_from_file(
    cls: type[Trainer], path: str | os.PathLike[str], overrides: Iterable[str] = (), *, overwrite: bool = False
) -> Trainer:
    """Build everything that a run file names.

    Args:
        cls: the Trainer class.
        path: the run file.
        overrides: `a.b=value` and `~a.b`, as on the command line.
        overwrite: a run that is in the work directory is removed.

    Raises:
        ConfigError: the file does not hold, or something cannot be found or built; all mistakes are listed, with
            their places. Nothing is built of a file that has any.
    """
    config, problems = read_config(path, overrides)
    return _trainer(cls, config, problems, overwrite)


def trainer_from_config(cls: type[Trainer], config: RunConfig, *, overwrite: bool = False) -> Trainer:
    """The same for a configuration that was read already."""
    return _trainer(cls, config, [], overwrite)


def _trainer(cls: type[Trainer], config: RunConfig, problems: list[str], overwrite: bool) -> Trainer:
    factories = Factories(config)
    if problems or factories.problems:
        raise ConfigError(config.in_order([*problems, *factories.problems]))
    seed_everything(config.seed)
    parts = _Parts(config, factories)
    if parts.problems:
        raise ConfigError(config.in_order(parts.problems))
    assert parts.model is not None
    assert config.training is not None
    return cls(
        parts.model,
        parts.optimizer,
        parts.loss,
        **parts.loaders,
        scheduler=parts.scheduler,
        scheduler_interval=config.scheduler.interval if config.scheduler else "epoch",
        scheduler_monitor=config.scheduler.monitor if config.scheduler else None,
        **config.training.model_dump(),
        work_dir=config.work_dir,
        hooks=factories.hooks,
        default_hooks=config.default_hooks,
        order=config.order,
        metrics=factories.scores,
        device=config.device,
        seed=config.seed,
        resume=config.resume,
        load_from=config.load_from.path if config.load_from else None,
        load_weights=config.load_from.weights if config.load_from else "raw",
        load_strict=config.load_from.strict if config.load_from else True,
        overwrite=overwrite,
        config=config,
    )


class _Parts:
    """Builds the parts of a run file, and keeps what is wrong with each."""

    def __init__(self, config: RunConfig, factories: Factories) -> None:
        self._config, self._factories = config, factories
        self.problems: list[str] = []
        splits = self._splits()
        self.model = self._model(splits)
        self.loss = self._loss()
        self.optimizer = self._optimizer()
        self.scheduler = self._scheduler()
        self.loaders = self._loaders(splits)

    def _splits(self) -> Splits | None:
        assert self._config.dataset is not None
        found = self._build("dataset", self._config.dataset.settings, DATA)
        try:
            return None if found is None else _splits_of(found)
        except TypeError:
            self._wrong(("dataset", "type"), f"it gives {_shown(found)}, not {DATA.name}.")
            return None

    def _model(self, splits: Splits | None) -> nn.Module | None:
        """The model; told the shape of the data and the number of classes where it wants to know."""
        factory, section = self._factories.model, self._config.model
        assert factory is not None
        assert section is not None
        told = {"input_shape": splits.input_shape, "num_classes": splits.num_classes} if splits else {}
        known = keywords_of(factory)
        extra = {k: v for k, v in told.items() if v is not None and k in known and k not in section.settings}
        return self._build("model", section.settings, MODEL, **extra)  # type: ignore[no-any-return]

    def _loss(self) -> Any:
        """The loss function; None where the model returns its loss."""
        found, section = self._factories.loss, self._config.loss
        settings = {} if section is None or isinstance(section, str) else section.settings
        if inspect.isclass(found):
            return self._build("loss", settings, LOSS)
        return functools.partial(found, **settings) if found is not None and settings else found

    def _optimizer(self) -> Any:
        """The optimizer of all parameters; of a made-up one where there is no model, to see whether it can be built."""
        parameters = list(self.model.parameters()) if self.model is not None else [nn.Parameter(torch.zeros(1))]
        return self._build("optimizer", self._config.optimizer.settings, OPTIMIZER, parameters)

    def _scheduler(self) -> Any:
        section = self._config.scheduler
        if section is None or self.optimizer is None:
            return None
        found = self._build("scheduler", section.settings, SCHEDULER, self.optimizer)
        try:
            SchedulerSteps(found, section.interval, section.monitor).try_out(1)
        except ConfigError as error:
            self._wrong(("scheduler", "type"), str(error).removeprefix("scheduler_monitor: "))
        return found

    def _loaders(self, splits: Splits | None) -> dict[str, Any]:
        """A loader for each split that there is."""
        if splits is None:
            return {}
        if splits.train is None:
            self._wrong(("dataset", "type"), "it gives no data set to train on.")
        found = {"train": splits.train, "val": splits.val, "test": splits.test}
        return {f"{name}_loader": self._loader(name, split) for name, split in found.items() if split is not None}

    def _loader(self, name: str, split: Any) -> Any:
        if isinstance(split, Mapping):
            return {key: self._loader(f"{name} {key!r}", each) for key, each in split.items()}
        if isinstance(split, DataLoader) or not hasattr(split, "__getitem__"):
            if not hasattr(split, "__iter__"):
                self._wrong(("dataset", "type"), f"its {name} data are {_shown(split)}, not {DATA.name}.")
            return split
        assert self._config.dataset is not None
        try:
            return DataLoader(split, batch_size=self._config.dataset.batch_size, **self._options(name, split))
        except Exception as error:
            self._wrong(("dataset",), f"no loader can be made of its {name} data: {cause_of(error)}.")
            return None

    def _options(self, name: str, split: Any) -> dict[str, Any]:
        options = self._config.loader.model_dump()
        if name != "train" or isinstance(split, IterableDataset):
            options.pop("shuffle")
        if name != "train":
            options.pop("drop_last")
        if not options["num_workers"]:
            options.pop("prefetch_factor")
            options.pop("persistent_workers")
        return options

    def _build(self, section: str, settings: Mapping[str, Any], kind: Kind, *first: Any, **extra: Any) -> Any:
        """Call the factory of a section with its settings; None where it gives nothing of the kind, which is told."""
        try:
            found = getattr(self._factories, section)(*first, **settings, **extra)
        except HookbusError as error:
            self._refused(section, settings, str(error))
        except (Exception, SystemExit) as error:
            self._refused(section, settings, cause_of(error), "it cannot be built: {}.")
        else:
            if kind.fits(found):
                return found
            self._wrong((section, "type"), f"it gives {_shown(found)}, not {kind.name}.")
        return None

    def _refused(self, section: str, settings: Mapping[str, Any], cause: str, sentence: str = "{}") -> None:
        """A factory has raised: the place is the argument that it names, else the type."""
        named = [key for key in settings if re.search(rf"\b{re.escape(key)}\b", cause)]
        place = named[0] if len(named) == 1 else "type"
        self._wrong((section, place), sentence.format(cause.removeprefix(f"{place}: ")))

    def _wrong(self, path: Path, message: str) -> None:
        self.problems.append(self._config.problem(path, message))


def _splits_of(found: Any) -> Splits:
    """What a factory of data sets gives, in its one form."""
    if isinstance(found, Splits):
        return found
    if isinstance(found, Mapping):
        return Splits(**found)
    if isinstance(found, (tuple, list)):
        return Splits(*found)
    return Splits(found)


def _shown(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
