"""Checks at the start: class counts, labels, loaders, gradients and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookbus import Hook, Needs, Run, between, hookimpl, once
from hookbus.data import get_targets, loader_length
from hookbus.distributed import named_parameters, unwrap_model
from hookbus.errors import ConfigError, HookError, LoopError
from hookbus.evaluation import named_loaders
from hookbus_guards.classes import datasets_with_classes, find_heads, get_classes
from hookbus_guards.config import NumClassCheckConfig, StartupCheckConfig


class NumClassCheckHook(Hook):
    """Compare the class names of each dataset with every `num_classes` of the model, once, before the run.

    Wrappers of datasets and of the model are unwrapped. All mismatches are reported in one error.
    """

    Config = NumClassCheckConfig
    makes_requests = False
    needs = Needs(modules=True)
    config: NumClassCheckConfig

    def check(self, run: Run) -> None:
        """Compare the class counts.

        Raises:
            HookError: If the run has no model.
            ConfigError: If class counts differ, or class names are a string instead of a list.
        """
        if run.model is None:
            raise HookError("requires the model of the run, got None. Pass `model` to the run.")
        modules = find_heads(unwrap_model(run.model), self.config.exclude)
        problems = [
            problem
            for title, dataset in _iter_datasets(run, self.name)
            for problem in _find_mismatches(title, dataset, modules)
        ]
        if problems:
            raise ConfigError(problems)


def _iter_datasets(run: Run, hook: str) -> Iterator[tuple[str, Any]]:
    """Yield (label, dataset) for each dataset that declares classes; log a warning for loaders without any."""
    for mode, name, loader in _iter_loaders(run):
        title = f"the {mode} data{name}"
        datasets = datasets_with_classes(loader)
        if not datasets:
            run.logger.warning(
                "%s: %s declares no classes, so the class count is not checked. Set `classes` of the dataset to a list "
                "of names.",
                hook,
                title,
            )
        for dataset in datasets:
            yield title, dataset


def _find_mismatches(title: str, dataset: Any, modules: dict[str, tuple[Any, int]]) -> list[str]:
    classes = get_classes(dataset)
    owner = f"{title} ({type(dataset).__name__})"
    # A string has a length as well: "person" would pass as six classes.
    if isinstance(classes, (str, bytes)):
        return [f"the classes of {owner} must be a list of names, got {classes!r}. Set [{classes!r}]."]
    return [
        f"{owner} has {len(classes)} classes, but {name or 'the model'} ({type(module).__name__}) has num_classes "
        f"{number}. Make them equal, or add the module to `exclude`."
        for name, (module, number) in modules.items()
        if number != len(classes)
    ]


MAX_SHOWN = 5


class StartupCheckHook(Hook):
    """Check labels, loaders, gradients and the optimizer at the start of a training.

    Labels outside the class range, loaders without batches, and trainable parameters that are missing from the
    optimizer are errors. Parameters without gradient at the first optimizer step are logged as a warning.
    """

    Config = StartupCheckConfig
    makes_requests = False
    config: StartupCheckConfig
    _num_classes: int | None = None

    @property
    def needs(self) -> Needs:
        """What the enabled checks read."""
        config = self.config
        points = {"before_train_iter": config.labels, "before_optimizer_step": config.gradients}
        return Needs(
            points=[point for point, is_read in points.items() if is_read],
            gradients=["before_optimizer_step"] if config.gradients else (),
            batch=config.labels,
            optimizer=config.optimizer,
        )

    def check(self, run: Run) -> None:
        """Check the loaders and the optimizer.

        Raises:
            LoopError: If a loader has no batches.
            ConfigError: If a trainable parameter is missing from the optimizer.
        """
        if self.config.loaders:
            _check_loaders(run)
        if self.config.optimizer and run.model is not None and run.optimizer is not None:
            _check_optimizers(unwrap_model(run.model), run.optimizers.values())

    def before_train(self, run: Run) -> None:
        """Determine the number of classes."""
        self._num_classes = self._get_num_classes(run) if self.config.labels else None

    # Before the forward pass: CUDA losses report an invalid label only as a device-side assertion, after which the
    # process can no longer use the device.
    @hookimpl(when=lambda config: between(1, config.label_batches), frequency=False)
    def before_train_iter(self, run: Run, batch: Any) -> None:
        """Check the labels of the batch.

        Raises:
            LoopError: If a label is outside the class range.
        """
        if self._num_classes is None:
            return
        invalid = invalid_labels(get_targets(batch), self._num_classes, self.config.ignore_index)
        if invalid:
            raise LoopError(
                f"The batch of iteration {run.current('iter')} contains labels outside the valid class range 0 "
                f"to {self._num_classes - 1}, got {_format_items(invalid)}. Correct the labels, set `num_classes`, or "
                f"set `ignore_index` (currently {self.config.ignore_index})."
            )

    @hookimpl(when=once(), frequency=False)
    def before_optimizer_step(self, run: Run) -> None:
        """Log a warning for trainable parameters without gradient at the first optimizer step."""
        # With several optimizers, the parameters of the others have their gradients at other steps.
        if not self.config.gradients or run.model is None or len(run.optimizers) > 1:
            return
        parameters = named_parameters(unwrap_model(run.model))
        without = [name for name, parameter in parameters if parameter.requires_grad and parameter.grad is None]
        if without:
            run.logger.warning(
                "%s: %s trainable parameters have no gradient at the first optimizer step and are not trained: %s. Use "
                "them in the forward pass, or freeze them with requires_grad_(False).",
                self.name,
                len(without),
                _format_items(without),
            )

    def _get_num_classes(self, run: Run) -> int | None:
        """Return the configured number of classes, or the largest one of the model, or that of the training data."""
        if self.config.num_classes is not None:
            return self.config.num_classes
        heads = find_heads(unwrap_model(run.model)) if run.model is not None else {}
        declared = [get_classes(dataset) for dataset in datasets_with_classes(run.train_loader)]
        numbers = [number for _, number in heads.values()]
        numbers = numbers or [len(classes) for classes in declared if not isinstance(classes, str)]
        if not numbers:
            run.logger.info("%s: the number of classes is unknown, so labels are not checked.", self.name)
        # The largest: auxiliary heads, such as a region proposal head, have fewer classes than the labels.
        return max(numbers, default=None)


def _iter_loaders(run: Run) -> Iterator[tuple[str, str, Any]]:
    """Yield mode, quoted name and loader of each loader; the name is "" if the mode has a single loader."""
    for mode in ("train", "val", "test"):
        loaders = run.get(f"{mode}_loader")
        for name, loader in named_loaders(loaders) if loaders is not None else []:
            yield mode, f" {name!r}" if name else "", loader


def _check_loaders(run: Run) -> None:
    for mode, name, loader in _iter_loaders(run):
        if loader_length(loader) == 0:
            raise LoopError(
                f"The {mode}_loader{name} has no batches: the dataset is empty, or it is smaller than a batch and "
                "`drop_last` drops it. Pass a loader with at least one batch."
            )


def _check_optimizers(model: nn.Module, optimizers: Iterable[Any]) -> None:
    # By identity: comparing tensors with == compares their elements.
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    optimized = {id(parameter) for group in groups for parameter in group["params"]}
    missing = [
        name
        for name, parameter in named_parameters(model)
        if parameter.requires_grad and id(parameter) not in optimized
    ]
    if missing:
        raise ConfigError(
            [
                f"The optimizer is missing {len(missing)} trainable parameters of the model: "
                f"{_format_items(missing)}. Create the optimizer with model.parameters() after the last change of the "
                "model, or freeze these parameters with requires_grad_(False)."
            ]
        )


def _format_items(items: Sequence[Any]) -> str:
    shown = ", ".join(map(str, items[:MAX_SHOWN]))
    return shown if len(items) <= MAX_SHOWN else f"{shown} and {len(items) - MAX_SHOWN} more"


def invalid_labels(targets: Any, num_classes: int, ignore_index: int = -100) -> list[int]:
    """Return the labels outside the class range.

    Args:
        targets: Integer tensor of any shape; any other value contains no labels.
        num_classes: Number of classes; valid labels are 0 to `num_classes` - 1.
        ignore_index: Label that is always valid.

    Returns:
        Sorted distinct invalid labels.
    """
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dtype == torch.bool:
        return []
    invalid = ((targets < 0) | (targets >= num_classes)) & (targets != ignore_index)
    # `any` first: valid batches cost one device synchronization instead of a masked copy.
    return sorted(targets[invalid].unique().tolist()) if bool(invalid.any()) else []
