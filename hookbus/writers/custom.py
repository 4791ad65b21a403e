"""Hook of a writer class that has no `WriterHook` of its own, such as `type: my_module:MyWriter` in a run file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookbus._utils.arguments import split_settings
from hookbus._utils.known_keys import explain_unknown_key
from hookbus.errors import ConfigError
from hookbus.hook import snake_case, validate_config
from hookbus.writers.hook import WriterHook
from hookbus.writers.metric_recorder import WriterConfig
from hookbus.writers.writer import Writer

if TYPE_CHECKING:
    from hookbus._run.run import Run


class CustomWriterHook(WriterHook):
    """Write the records of a run through a writer class.

    Args:
        writer: Class of the writer. The parameters of its `__init__` are settings.
        settings: Settings of the writer, and those of `WriterConfig`.

    Raises:
        ConfigError: If the class has abstract methods, or if a setting is unknown, missing or invalid.
    """

    def __init__(self, writer: type[Writer], settings: Mapping[str, Any]) -> None:
        _check_class(writer)
        parameters = inspect.signature(writer).parameters
        own, common, unknown = split_settings(settings, parameters, WriterConfig.model_fields)
        known = [*parameters, *WriterConfig.model_fields]
        problems = [f"{key}: unknown key.{explain_unknown_key(key, known)}" for key in unknown]
        problems += [f"{name}: required, but missing." for name in _find_missing(parameters, own)]
        if problems:
            raise ConfigError(f"{writer.__name__}: {problem}" for problem in problems)
        super().__init__(validate_config(self.Config, common, {}, writer.__name__))
        self._writer, self._settings = writer, own
        if self.config.instance_name is None:
            self._name = snake_case(writer.__name__)

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """Return a function that creates the writer."""
        return lambda: self._writer(**self._settings)


def _check_class(writer: type[Writer]) -> None:
    """Raise if a writer class cannot be instantiated."""
    missing = sorted(getattr(writer, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(
            [
                f"{writer.__name__}: abstract method{'s' * (len(missing) > 1)} of hookbus.Writer: "
                f"{', '.join(missing)}. Define {'them' if len(missing) > 1 else 'it'}."
            ]
        )


def _find_missing(parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the required parameters that the settings do not contain."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [name for name, p in parameters.items() if p.default is p.empty and p.kind not in optional]
    return [name for name in required if name not in settings]
