"""Construction of a Trainer from a run file or a configuration: model, data, optimizer, scheduler and loss by name."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from hookbus._config.factories import Factories, accepted_keywords
from hookbus._config.load import parse_config
from hookbus._config.models import RunConfig
from hookbus._training.lr_scheduler import LRSchedulerStepper
from hookbus._training.steps import iter_parameters
from hookbus._utils.imports import describe_error
from hookbus._utils.packages import cached_lookups
from hookbus._utils.redaction import hide_in_message, redact
from hookbus._utils.values import format_value
from hookbus.data.resumable_loader import Splits
from hookbus.data.rng import seed_everything
from hookbus.errors import ConfigError, HookbusError

if TYPE_CHECKING:
    from hookbus.trainer.setup import TrainerSetup

TrainerType = TypeVar("TrainerType", bound="TrainerSetup")
P = ParamSpec("P")
T = TypeVar("T")

CONFIG_ARGUMENTS = ("work_dir", "seed", "device", "resume", "report", "order", "default_hooks")
"""Arguments that are keys of a run file."""

NOT_IN_CONFIG = frozenset({"overwrite"})
"""Arguments that a run file cannot contain, and that are accepted in addition to a configuration."""


EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "dataset": (
        "datasets as a tuple (train, val, test), a mapping with these keys, or hookbus.Splits",
        lambda value: value is not None,
    ),
    "model": ("a torch.nn.Module", lambda value: isinstance(value, nn.Module)),
    "loss": ("a callable", callable),
    "optimizer": ("an optimizer", lambda value: hasattr(value, "param_groups")),
    "scheduler": ("a scheduler with a step() method", lambda value: callable(getattr(value, "step", None))),
}
"""Description and predicate of the objects that the factory of a section should return."""


@cached_lookups()
def trainer_from_file(
    cls: type[TrainerType], path: str | os.PathLike[str], overrides: Iterable[str] = (), *, overwrite: bool = False
) -> TrainerType:
    """Build the trainer of a run file.

    Raises:
        ConfigError: If the file is invalid, or if an object cannot be found or built. The error lists all problems
            with their locations. Nothing is built from an invalid file.
    """
    return cls(**build_arguments(*parse_config(path, overrides)), overwrite=overwrite)


def build_arguments(config: RunConfig, problems: list[str]) -> dict[str, Any]:
    """Build the objects of a configuration.

    Raises:
        ConfigError: If there are problems, or if an object cannot be found or built. All problems are listed.
    """
    factories = Factories(config)
    if problems or factories.problems:
        raise ConfigError(config.sort_problems([*problems, *factories.problems]))
    # Before the model is built, so that its initial weights are reproducible.
    seed_everything(config.seed)
    parts = _TrainerBuilder(config, factories)
    if factories.problems:
        raise ConfigError(config.sort_problems(factories.problems))
    assert parts.model is not None
    assert config.training is not None
    return {
        "model": parts.model,
        "optimizer": parts.optimizer,
        "loss_fn": parts.loss,
        **parts.loaders,
        "scheduler": parts.scheduler,
        "scheduler_interval": config.scheduler.interval if config.scheduler else "epoch",
        "scheduler_monitor": config.scheduler.monitor if config.scheduler else None,
        **config.training.model_dump(),
        **{name: getattr(config, name) for name in CONFIG_ARGUMENTS},
        "hooks": factories.hooks,
        "metrics": factories.metrics,
        "load_from": config.load_from.path if config.load_from else None,
        "load_weights": config.load_from.weights if config.load_from else "raw",
        "load_strict": config.load_from.strict if config.load_from else True,
        "config": config,
    }


class _TrainerBuilder:
    """Build the objects of a run file and collect the error messages."""

    def __init__(self, config: RunConfig, factories: Factories) -> None:
        self._config, self._factories = config, factories
        self._add_problem = factories.add_problem
        splits = self._build_splits()
        self.model = self._build_model(splits)
        self.loss = self._build_loss()
        self.optimizer = self._build_optimizer()
        self.scheduler = self._build_scheduler()
        self.loaders = self._build_loaders(splits)

    def _build_splits(self) -> Splits | None:
        assert self._config.dataset is not None
        value = self._build("dataset", self._config.dataset.settings)
        try:
            return None if value is None else _to_splits(value)
        except TypeError:
            self._report_type("dataset", value)
            return None

    def _build_model(self, splits: Splits | None) -> nn.Module | None:
        """Build the model. Pass the input shape and the number of classes if its factory accepts them."""
        factory, section = self._factories.model, self._config.model
        assert factory is not None
        assert section is not None
        shape_arguments = {"input_shape": splits.input_shape, "num_classes": splits.num_classes} if splits else {}
        known = accepted_keywords(factory)
        extra = {k: v for k, v in shape_arguments.items() if v is not None and k in known and k not in section.settings}
        return self._build("model", section.settings, **extra)  # type: ignore[no-any-return]

    def _build_loss(self) -> Any:
        """Return the loss function, or None if the model returns its loss."""
        value, section = self._factories.loss, self._config.loss
        settings = {} if section is None or isinstance(section, str) else section.settings
        if inspect.isclass(value):
            return self._build("loss", settings)
        return functools.partial(value, **settings) if value is not None and settings else value

    def _build_optimizer(self) -> Any:
        """Build the optimizer of all parameters, those of the loss function included."""
        # Without a model, a dummy parameter shows whether the settings of the optimizer are valid.
        parameters = [nn.Parameter(torch.zeros(1))] if self.model is None else [*iter_parameters(self.model, self.loss)]
        return self._build("optimizer", self._config.optimizer.settings, parameters)

    def _build_scheduler(self) -> Any:
        section = self._config.scheduler
        if section is None or self.optimizer is None:
            return None
        value = self._build("scheduler", section.settings, self.optimizer)
        try:
            LRSchedulerStepper(value, section.interval, section.monitor).dry_run(1)
        except ConfigError as error:
            self._add_problem(("scheduler", "type"), str(error).removeprefix("scheduler_monitor: "))
        return value

    def _build_loaders(self, splits: Splits | None) -> dict[str, Any]:
        """Build a loader for each available split."""
        if splits is None:
            return {}
        if splits.train is None:
            self._add_problem(("dataset", "type"), "its training dataset is missing. Return a dataset for 'train'.")
        value = {"train": splits.train, "val": splits.val, "test": splits.test, "predict": splits.predict}
        return {f"{name}_loader": self._build_loader(name, split) for name, split in value.items() if split is not None}

    def _build_loader(self, name: str, split: Any) -> Any:
        if isinstance(split, Mapping):
            return {key: self._build_loader(f"{name} {key!r}", dataset) for key, dataset in split.items()}
        if isinstance(split, DataLoader) or not hasattr(split, "__getitem__"):
            if not hasattr(split, "__iter__"):
                self._report_type("dataset", split, f"its {name} data should be")
            return split
        assert self._config.dataset is not None
        try:
            return DataLoader(split, batch_size=self._config.dataset.batch_size, **self._loader_options(name, split))
        except Exception as error:
            self._add_problem(("dataset",), f"cannot create a loader of its {name} data: {describe_error(error)}.")
            return None

    def _loader_options(self, name: str, split: Any) -> dict[str, Any]:
        options = self._config.loader.model_dump()
        # The DataLoader rejects `shuffle` for iterable datasets.
        if name != "train" or isinstance(split, IterableDataset):
            options.pop("shuffle")
        if name != "train":
            options.pop("drop_last")
        # The DataLoader rejects these options without workers.
        if not options["num_workers"]:
            options.pop("prefetch_factor")
            options.pop("persistent_workers")
        return options

    def _build(self, section: str, settings: Mapping[str, Any], *first: Any, **extra: Any) -> Any:
        """Call the factory of a section. Report an error and return None if it fails or returns another type."""
        try:
            value = getattr(self._factories, section)(*first, **settings, **extra)
        except HookbusError as error:
            self._report_factory_error(section, settings, str(error))
        except (Exception, SystemExit) as error:
            self._report_factory_error(section, settings, describe_error(error), "cannot be built: {}.")
        else:
            if EXPECTED[section][1](value):
                return value
            self._report_type(section, value)
        return None

    def _report_type(self, section: str, value: object, verb: str = "should return") -> None:
        got = "None" if value is None else f"a {type(value).__name__}"
        self._add_problem((section, "type"), f"{verb} {EXPECTED[section][0]}, got {got}.")

    def _report_factory_error(
        self, section: str, settings: Mapping[str, Any], cause: str, template: str = "{}"
    ) -> None:
        """Report the error of a factory at the argument that the message names, else at a text, else at the type."""
        shown = redact(settings)
        cause = hide_in_message(cause, settings, shown)
        keys = [key for key in settings if re.search(rf"\b{re.escape(key)}\b", cause)]
        texts = [] if keys else _find_texts_for_numbers(getattr(self._factories, section), settings)
        if len(texts) == 1:
            value = format_value(shown[texts[0]])
            self._add_problem((section, texts[0]), f"should be a number, got {value} ({cause}).")
            return
        place = keys[0] if len(keys) == 1 else "type"
        self._add_problem((section, place), template.format(cause.removeprefix(f"{place}: ")))


def _find_texts_for_numbers(factory: Callable[..., Any], settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that are texts where a factory has numbers as defaults, such as `lr: 0,01`."""
    accepted = accepted_keywords(factory)
    texts = [key for key, value in settings.items() if isinstance(value, str) and key in accepted]
    return [key for key in texts if type(accepted[key].default) in (int, float)]


def _to_splits(value: Any) -> Splits:
    """Convert the return value of a dataset factory to `Splits`."""
    if isinstance(value, Splits):
        return value
    if isinstance(value, Mapping):
        return Splits(**value)
    if isinstance(value, (tuple, list)):
        return Splits(*value)
    return Splits(value)


def accept_config(init: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Decorate a constructor so that a configuration as the argument `model` provides all arguments.

    Raises:
        ConfigError: If the configuration is invalid, or if it is combined with other arguments.
    """

    @functools.wraps(init)
    def build(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
        first = args[0] if args else kwargs.get("model")
        if is_config(first):
            others = {name: value for name, value in kwargs.items() if name != "model"}
            return init(self, **_to_arguments(first, args[1:], others))  # type: ignore[call-arg]
        return init(self, *args, **kwargs)

    return build


def is_config(value: object) -> bool:
    """Return whether a value is a configuration, loaded or as a mapping, instead of named models."""
    if not isinstance(value, Mapping):
        return isinstance(value, RunConfig)
    has_modules = any(isinstance(part, nn.Module) for part in value.values())
    keys = {*RunConfig.model_fields, "experiment_dir", "defaults"}
    return not has_modules and not keys.isdisjoint(value)


def _to_arguments(config: Any, positional: tuple[Any, ...], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a Trainer that a configuration determines."""
    refused = [repr(name) for name in others if name not in NOT_IN_CONFIG]
    if refused or positional:
        extra = ", ".join(refused) or f"{len(positional)} further arguments"
        raise ConfigError(
            f"Trainer: a configuration contains all arguments, got {extra} in addition. Set them in the "
            "configuration, such as load_config(path, ['training.epochs=3']), and register objects by "
            "trainer.register_hook and trainer.register_service."
        )
    loaded, problems = (config, []) if isinstance(config, RunConfig) else parse_config(config)
    return {**build_arguments(loaded, problems), **others}
