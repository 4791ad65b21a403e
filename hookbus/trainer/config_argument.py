"""A configuration in place of the arguments of a Trainer: `Trainer(load_config("run.yaml"))`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import nn

from hookbus._config.load import parse_config
from hookbus._config.models import RunConfig
from hookbus.errors import ConfigError
from hookbus.trainer.from_file import build_arguments

P = ParamSpec("P")
T = TypeVar("T")

NOT_IN_CONFIG = frozenset({"overwrite"})
"""Arguments that a run file cannot contain, and that are accepted in addition to a configuration."""


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
    return not has_modules and any(key in RunConfig.model_fields or key == "experiment_dir" for key in value)


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
