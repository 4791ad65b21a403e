"""Pipelines of transforms: from what a configuration says, and into a data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import ImportString, TypeAdapter, ValidationError

from hookbus.errors import ConfigError
from hookbus.training.loaders import datasets_in
from hookbus_schedule.border import Border

__all__ = ["Compose", "SkipTypes", "Switch", "SwitchPipeline", "pipeline_from"]


class Compose:
    """Transforms, one after the other.

    Args:
        steps: each takes what the one before returned.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = list(steps)

    def __call__(self, sample: Any) -> Any:
        """The sample after all of them."""
        for step in self.steps:
            sample = step(sample)
        return sample


def pipeline_from(given: Any) -> Any:
    """The callable that a setting stands for.

    Args:
        given: a callable, `package.module:name` of one, a mapping {type: path, and what it takes}, a list of these; or
            None.

    Raises:
        ValueError: it stands for nothing that can be called.
    """
    if isinstance(given, (list, tuple)):
        return Compose([pipeline_from(each) for each in given])
    if isinstance(given, Mapping) and isinstance(given.get("type"), str):
        found = _imported(given["type"])(**{key: value for key, value in given.items() if key != "type"})
    else:
        found = _imported(given) if isinstance(given, str) else given
    if found is None or callable(found):
        return found
    raise ValueError(f"{given!r} is no pipeline: give a callable, a path package.module:name, or a list of these.")


def _imported(path: str) -> Any:
    try:
        return TypeAdapter(ImportString[Any]).validate_python(path)
    except ValidationError as error:
        raise ValueError(f"{path!r} cannot be imported: {error.errors()[0]['msg']}") from None


class Switch(ABC):
    """From a border on, a data set is another one. Called in each process that reads.

    Args:
        border: where that begins.
    """

    names: ClassVar[tuple[str, ...]]
    """Attributes of a data set, one of which it must have."""
    wanted: ClassVar[str]
    """What cannot be done without them, and what would help."""

    def __init__(self, border: Border) -> None:
        self._border = border
        self._done = False

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        """Switch, where it is time and not done yet."""
        if not self._done and self._border.reached(epoch, iteration):
            self._done = True
            for each, name in self.check(dataset):
                self.change(each, name)

    def check(self, dataset: Any) -> list[tuple[Any, str]]:
        """The data sets that are to be changed, with the name of their attribute; not those inside of one of them.

        Raises:
            ConfigError: there is none.
        """
        inside = datasets_in(dataset)
        found = [each for each in inside if self._name(each) is not None]
        if not found:
            kind, names = type(inside[-1]).__name__, " or ".join(self.names)
            raise ConfigError([self.wanted.format(dataset=kind, names=names)])
        inner = {id(each) for outer in found for each in datasets_in(outer)[1:]}
        return [(each, str(self._name(each))) for each in found if id(each) not in inner]

    def _name(self, dataset: Any) -> str | None:
        return next((name for name in self.names if hasattr(dataset, name)), None)

    @abstractmethod
    def change(self, dataset: Any, name: str) -> None:
        """Change one data set by means of its attribute."""


class SwitchPipeline(Switch):
    """From a border on, a data set has another pipeline.

    Args:
        border: where that begins.
        pipeline: the other one.
    """

    names = ("pipeline", "transform")
    wanted = (
        "The pipeline of {dataset} cannot be switched: neither it nor a wrapper around it has an attribute {names}. "
        "Let it read its transforms from there."
    )

    def __init__(self, border: Border, pipeline: Any) -> None:
        super().__init__(border)
        self._pipeline = pipeline

    def change(self, dataset: Any, name: str) -> None:
        """Give it the other one."""
        setattr(dataset, name, self._pipeline)


class SkipTypes(Switch):
    """From a border on, a data set leaves some transforms out.

    Args:
        border: where that begins.
        keys: the types of these transforms.
    """

    names = ("update_skip_type_keys",)
    wanted = (
        "{dataset} cannot be told to leave transforms out: neither it nor a wrapper around it has a method "
        "{names}(keys). Give it one, or switch the whole pipeline with PipelineSwitchHook."
    )

    def __init__(self, border: Border, keys: Sequence[str]) -> None:
        super().__init__(border)
        self._keys = list(keys)

    def change(self, dataset: Any, name: str) -> None:
        """Tell it the types."""
        getattr(dataset, name)(self._keys)
