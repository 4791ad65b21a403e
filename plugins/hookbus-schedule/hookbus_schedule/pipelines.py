"""Pipelines of transforms: from what a configuration says, and into a data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

from hookbus import Run, imported
from hookbus.errors import ConfigError
from hookbus.training.loaders import datasets_in
from hookbus_schedule.border import Border

__all__ = ["Compose", "SkipTypes", "Switch", "SwitchPipeline", "pipeline_from", "say_who_reads_along"]


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
        found = imported(given["type"])(**{key: value for key, value in given.items() if key != "type"})
    else:
        found = imported(given)
    if found is None or callable(found):
        return found
    raise ValueError(f"{given!r} is no pipeline: give a callable, a path package.module:name, or a list of these.")


class Switch(ABC):
    """From each border on, a data set is another one. Called in each process that reads.

    What a data set is follows from epoch and iteration alone: one that a run before this left switched, in the same
    process, is taken back where its time has not come, and a loop may read another one in each epoch.

    Args:
        borders: where that begins, in the order of time.
    """

    names: ClassVar[tuple[str, ...]]
    """Attributes of a data set, one of which it must have."""
    wanted: ClassVar[str]
    """What cannot be done without them, and what would help."""

    def __init__(self, borders: Sequence[Border]) -> None:
        self._borders = borders
        self._dataset: Any = None  # the one that was looked at last, and how far it was switched
        self._stage = 0

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        """Switch, where it is time and not done yet."""
        stage = sum(border.reached(epoch, iteration) for border in self._borders)
        if dataset is not self._dataset or stage != self._stage:
            self._dataset, self._stage = dataset, stage
            for each, name in self.check(dataset):
                self.change(each, name, stage)

    def check(self, dataset: Any) -> list[tuple[Any, str]]:
        """What is to be changed, with the name of its attribute; no data set inside of one that is.

        Raises:
            ConfigError: there is nothing.
        """
        inside = datasets_in(dataset)
        found = [each for each in inside if self.is_held_by(each)]
        if not found:
            kind, names = type(inside[-1]).__name__, " or ".join(self.names)
            raise ConfigError([self.wanted.format(dataset=kind, names=names)])
        inner = {id(each) for outer in found for each in datasets_in(outer)[1:]}
        return [place for each in found if id(each) not in inner for place in self.places(each)]

    def is_held_by(self, dataset: Any) -> bool:
        """Whether a data set has what is to be changed."""
        return any(hasattr(dataset, name) for name in self.names)

    def places(self, dataset: Any) -> list[tuple[Any, str]]:
        """Where this data set has what is to be changed."""
        return [(dataset, next(name for name in self.names if hasattr(dataset, name)))]

    @abstractmethod
    def change(self, holder: Any, name: str, stage: int) -> None:
        """Change it by means of its attribute, for the part of the training after so many borders."""


def say_who_reads_along(run: Run, hook: str, switch: Switch) -> None:
    """Tell which other loaders read what is switched: they are switched as well, where training has no workers."""
    switched = {id(each) for each in datasets_in(run.train_loader)} - {id(run.train_loader)}
    for kind in ("val", "test"):
        loaders = run.get(f"{kind}_loader")
        for loader in loaders.values() if isinstance(loaders, Mapping) else [] if loaders is None else [loaders]:
            along = [each for each in datasets_in(loader) if id(each) in switched and switch.is_held_by(each)]
            if along:
                run.logger.warning(
                    "%s: the %s data is the training data's own %s, so it is switched as well: give it a data set of "
                    "its own.",
                    hook,
                    kind,
                    type(along[0]).__name__,
                )


class SwitchPipeline(Switch):
    """From each border on, a data set has another pipeline.

    Args:
        stages: borders, and what begins there, in the order of time.
    """

    names = ("pipeline", "transform", "transforms")
    wanted = (
        "The pipeline of {dataset} cannot be switched: neither it nor a wrapper around it has an attribute {names}. "
        "Let it read its transforms from there."
    )

    def __init__(self, stages: Sequence[tuple[Border, Any]]) -> None:
        super().__init__([border for border, _ in stages])
        self._pipelines = [pipeline for _, pipeline in stages]

    def places(self, dataset: Any) -> list[tuple[Any, str]]:
        """Its attribute. One of torchvision has `transform` within its `transforms` as well, or instead of it.

        Raises:
            ConfigError: it can only be read.
        """
        (_, name), *_ = found = super().places(dataset)
        both = getattr(dataset, "transforms", None) if name == "transform" else None
        if hasattr(both, "transform"):
            found.append((both, "transform"))
        elif both is not None and dataset.transform is None:
            found = [(dataset, "transforms")]
        for holder, each in found:
            _see_that_it_can_be_set(holder, each)
        return found

    def change(self, holder: Any, name: str, stage: int) -> None:
        """Give it the one of this part; its own one before the first border."""
        now, known = getattr(holder, name), _switched.setdefault(holder, {})
        own, given = known.get(name, (now, now))
        own = own if now is given else now  # somebody else gave it another one since
        wanted = self._pipelines[stage - 1] if stage else own
        if wanted is not now:
            setattr(holder, name, wanted)
        known[name] = own, wanted


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
        super().__init__([border])
        self._keys = list(keys)

    def change(self, holder: Any, name: str, stage: int) -> None:
        """Tell it the types; none, where a run before this told it some."""
        if stage or holder in _told:
            getattr(holder, name)(self._keys if stage else [])
            _told.add(holder) if stage else _told.discard(holder)


_told: WeakSet[Any] = WeakSet()
_switched: WeakKeyDictionary[Any, dict[str, tuple[Any, Any]]] = WeakKeyDictionary()
"""What this process did: the data sets that leave something out; and by attribute the pipeline that was there first,
and the one that was put in its place."""


def _see_that_it_can_be_set(holder: Any, name: str) -> None:
    there = getattr(type(holder), name, None)
    if isinstance(there, property) and there.fset is None:
        kind = type(holder).__name__
        raise ConfigError([f"The pipeline of {kind} cannot be switched: {name!r} is a property without a setter."])
