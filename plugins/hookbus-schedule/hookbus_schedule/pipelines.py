"""Construction of transform pipelines, and their replacement in datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

from hookbus import Run, resolve_import
from hookbus.data import iter_datasets
from hookbus.errors import ConfigError
from hookbus_schedule.milestones import Milestone


class Compose:
    """Sequence of transforms.

    Args:
        steps: Transforms; each receives the output of the previous one.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = list(steps)

    def __call__(self, sample: Any) -> Any:
        """Return the output of the last transform."""
        for step in self.steps:
            sample = step(sample)
        return sample


def build_pipeline(setting: Any) -> Any:
    """Build a pipeline from a setting.

    Args:
        setting: A callable; an import string `package.module:name` of a callable; a mapping of `type`, an import string
            of a factory, and its arguments; a list of these; or None.

    Returns:
        Callable, or None for None.

    Raises:
        ValueError: If the result is not callable.
    """
    if isinstance(setting, (list, tuple)):
        return Compose([build_pipeline(item) for item in setting])
    if isinstance(setting, Mapping) and isinstance(setting.get("type"), str):
        pipeline = resolve_import(setting["type"])(**{key: value for key, value in setting.items() if key != "type"})
    else:
        pipeline = resolve_import(setting)
    if pipeline is None or callable(pipeline):
        return pipeline
    raise ValueError(
        f"must be a pipeline, got {setting!r}. Set a callable, an import string package.module:name, or a list."
    )


class DatasetSwitch(ABC):
    """Change of a dataset at milestones; called in each process that reads the dataset.

    The state of the dataset is a function of epoch and iteration. A dataset that an earlier run of the same process has
    changed is therefore restored before the milestone, and a loop may read a different dataset in each epoch.

    Args:
        stages: Pairs (milestone, value).
    """

    attribute_names: ClassVar[tuple[str, ...]]
    """Supported attributes of a dataset, of which one is required."""
    error_message: ClassVar[str]
    """Error message for a dataset without any of the attributes, with the fields `dataset` and `names`."""

    def __init__(self, stages: Sequence[tuple[Milestone, Any]]) -> None:
        self._stages = stages
        self._dataset: Any = None  # dataset of the last call
        self._reached: tuple[bool, ...] = ()  # which milestones the dataset has passed

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        """Apply the change for the given position, if it is not yet applied to the dataset."""
        reached = tuple(milestone.is_reached(epoch, iteration) for milestone, _ in self._stages)
        if dataset is not self._dataset or reached != self._reached:
            self._dataset, self._reached = dataset, reached
            values = [value for (_, value), is_reached in zip(self._stages, reached, strict=True) if is_reached]
            for holder, name in self.find_attributes(dataset):
                self.apply(holder, name, values)

    def find_attributes(self, dataset: Any) -> list[tuple[Any, str]]:
        """Return the pairs (object, attribute name) to change.

        Args:
            dataset: A dataset, a wrapper of datasets, or a loader.

        Raises:
            ConfigError: If there is none.
        """
        datasets = iter_datasets(dataset)
        holders = [candidate for candidate in datasets if self.is_supported(candidate)]
        if not holders:
            kind, names = type(datasets[-1]).__name__, " or ".join(self.attribute_names)
            raise ConfigError(self.error_message.format(dataset=kind, names=names))
        # Only the outermost holder: the outer pipeline transforms the samples of the inner one.
        inner = {id(candidate) for outer in holders for candidate in iter_datasets(outer)[1:]}
        return [pair for holder in holders if id(holder) not in inner for pair in self.get_attributes(holder)]

    def is_supported(self, dataset: Any) -> bool:
        """Return whether the dataset has one of the attributes."""
        return any(hasattr(dataset, name) for name in self.attribute_names)

    def get_attributes(self, dataset: Any) -> list[tuple[Any, str]]:
        """Return the pairs (object, attribute name) to change in a dataset that has one of the attributes."""
        return [(dataset, next(name for name in self.attribute_names if hasattr(dataset, name)))]

    @abstractmethod
    def apply(self, holder: Any, name: str, values: Sequence[Any]) -> None:
        """Apply the changes of the milestones that have been reached.

        Args:
            holder: Object that has the attribute.
            name: Name of the attribute.
            values: Values of these milestones, in the order of the stages.
        """


def warn_shared_dataset(run: Run, hook: str, switch: DatasetSwitch) -> None:
    """Log a warning for validation and test loaders that share a changed dataset with training.

    Without worker processes the change applies to these loaders as well.
    """
    switched = {id(dataset) for dataset in iter_datasets(run.train_loader)} - {id(run.train_loader)}
    for mode in ("val", "test"):
        loaders = run.get(f"{mode}_loader")
        for loader in loaders.values() if isinstance(loaders, Mapping) else [] if loaders is None else [loaders]:
            shared = [item for item in iter_datasets(loader) if id(item) in switched and switch.is_supported(item)]
            if shared:
                run.logger.warning(
                    "%s: the %s loader shares the dataset %s with training, so the change applies to it as well. Pass "
                    "a separate dataset.",
                    hook,
                    mode,
                    type(shared[0]).__name__,
                )


class SwitchPipeline(DatasetSwitch):
    """Replacement of the pipeline of a dataset at milestones, whose values are the pipelines in chronological order."""

    attribute_names = ("pipeline", "transform", "transforms")
    error_message = (
        "The pipeline of {dataset} cannot be switched: neither the dataset nor a wrapper has an attribute {names}. "
        "Store the transforms in such an attribute."
    )

    def get_attributes(self, dataset: Any) -> list[tuple[Any, str]]:
        """Return the pairs (object, attribute name) to change in a dataset that has one of the attributes.

        Raises:
            ConfigError: If the attribute is a property without a setter.
        """
        (_, name), *_ = attributes = super().get_attributes(dataset)
        # torchvision's VisionDataset has `transform` and `transforms`; samples are read with `transforms`, which has a
        # reference to `transform` or replaces it.
        both = getattr(dataset, "transforms", None) if name == "transform" else None
        if hasattr(both, "transform"):
            attributes.append((both, "transform"))
        elif both is not None and dataset.transform is None:
            attributes = [(dataset, "transforms")]
        for holder, attribute in attributes:
            _check_settable(holder, attribute)
        return attributes

    def apply(self, holder: Any, name: str, values: Sequence[Any]) -> None:
        """Set the pipeline of the last milestone that has been reached; the original pipeline if there is none."""
        current, known = getattr(holder, name), _switched_pipelines.setdefault(holder, {})
        original, assigned = known.get(name, (current, current))
        # A pipeline that was not assigned here was set by the user in the meantime and is the new original.
        original = original if current is assigned else current
        pipeline = values[-1] if values else original
        if pipeline is not current:
            setattr(holder, name, pipeline)
        known[name] = original, pipeline


class SkipTypes(DatasetSwitch):
    """Omission of transforms of a dataset from milestones on, whose values are the types to skip.

    The types of overlapping phases are combined.
    """

    attribute_names = ("update_skip_type_keys",)
    error_message = (
        "{dataset} cannot skip transforms: neither the dataset nor a wrapper has a method {names}(keys). Add the "
        "method, or switch the whole pipeline with PipelineSwitchHook."
    )

    def apply(self, holder: Any, name: str, values: Sequence[Any]) -> None:
        """Set the types to skip; clear them before all milestones if an earlier run has set them."""
        # Without an earlier change this is a no-op before all milestones: types that the dataset itself skips are kept.
        if values or holder in _skipping_datasets:
            getattr(holder, name)(list(dict.fromkeys(key for keys in values for key in keys)))
            _skipping_datasets.add(holder) if values else _skipping_datasets.discard(holder)


# Per process and not per switch, because a later run uses new switches for the same datasets. Weak references, so that
# datasets of earlier runs are freed.
_skipping_datasets: WeakSet[Any] = WeakSet()
"""Datasets with types to skip."""
_switched_pipelines: WeakKeyDictionary[Any, dict[str, tuple[Any, Any]]] = WeakKeyDictionary()
"""Pairs (original pipeline, assigned pipeline) by object and attribute name."""


def _check_settable(holder: Any, name: str) -> None:
    attribute = getattr(type(holder), name, None)
    if isinstance(attribute, property) and attribute.fset is None:
        kind = type(holder).__name__
        raise ConfigError(
            f"The pipeline of {kind} cannot be switched: {name!r} is a property without a setter. Add a setter."
        )
