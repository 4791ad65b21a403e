"""What everybody wants to have looked at before an hour is wasted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from hookbus import Hook, Run, between, hookimpl, once
from hookbus.errors import ConfigError, LoopError
from hookbus.model.wrappers import unwrapped
from hookbus.training.evaluation import named_loaders
from hookbus.training.loaders import length_of
from hookbus.training.scores import targets_in
from hookbus_guards.classes import classes_of, declaring, heads
from hookbus_guards.config import StartupCheckConfig
from hookbus_guards.labels import wrong_labels

__all__ = ["StartupCheckHook"]

SHOWN = 5


class StartupCheckHook(Hook):
    """Looks at labels, loaders, gradients and the optimizer when a training begins.

    Labels that are no class, an empty loader and a parameter that the optimizer does not have are errors. A parameter
    that has no gradient at the first update is reported.
    """

    Config = StartupCheckConfig
    makes_requests = False
    config: StartupCheckConfig
    _num_classes: int | None = None

    def check(self, run: Run) -> None:
        """Look at what is there already.

        Raises:
            LoopError: a loader has no batch.
            ConfigError: the optimizer lacks a parameter.
        """
        if self.config.loaders:
            _check_loaders(run)
        if self.config.optimizer and run.model is not None and run.optimizer is not None:
            _check_optimizer(unwrapped(run.model), run.optimizer)

    def before_train(self, run: Run) -> None:
        """Find out how many classes there are."""
        self._num_classes = self._known_classes(run) if self.config.labels else None

    @hookimpl(when=lambda config: between(1, config.label_batches))
    def before_train_iter(self, run: Run, batch: Any) -> None:
        """Look at the labels, before a wrong one stops the device without a word.

        Raises:
            LoopError: a label is no class.
        """
        if self._num_classes is None:
            return
        wrong = wrong_labels(targets_in(batch), self._num_classes, self.config.ignore_index)
        if wrong:
            raise LoopError(
                f"The batch of iteration {run.clock.number('iter')} has labels that are no class: {_some(wrong)}. "
                f"There are {self._num_classes} classes, from 0 to {self._num_classes - 1}. Correct the data or "
                f"num_classes; ignore_index ({self.config.ignore_index}) is the label that means nothing."
            )

    @hookimpl(when=once())
    def before_optimizer_step(self, run: Run) -> None:
        """Look at the gradients of the first update."""
        if not self.config.gradients or run.model is None:
            return
        parameters = unwrapped(run.model).named_parameters()
        without = [name for name, parameter in parameters if parameter.requires_grad and parameter.grad is None]
        if without:
            run.logger.warning(
                "%s: %s parameters have no gradient at the first update, so they do not learn: %s. Use them in the "
                "forward, or freeze them by requires_grad_(False).",
                self.name,
                len(without),
                _some(without),
            )

    def _known_classes(self, run: Run) -> int | None:
        """As configured, else the largest number of the model, else that of the data; None where nobody knows."""
        if self.config.num_classes is not None:
            return self.config.num_classes
        numbers = [number for _, number in heads(unwrapped(run.model)).values()] if run.model is not None else []
        declared = [classes_of(each) for each in declaring(run.train_loader)]
        numbers = numbers or [len(classes) for classes in declared if not isinstance(classes, str)]
        if not numbers:
            run.logger.info("%s: nobody says how many classes there are, so labels are not checked.", self.name)
        return max(numbers, default=None)


def _check_loaders(run: Run) -> None:
    for kind in ("train", "val", "test"):
        loaders = run.get(f"{kind}_loader")
        for name, loader in named_loaders(loaders) if loaders is not None else []:
            if length_of(loader) == 0:
                raise LoopError(
                    f"The {kind}_loader{f' {name!r}' if name else ''} has no batch: the data set is empty, or it is "
                    "smaller than a batch and drop_last leaves nothing of it."
                )


def _check_optimizer(model: nn.Module, optimizer: Any) -> None:
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in known]
    if missing:
        raise ConfigError(
            [
                f"The optimizer does not have {len(missing)} parameters of the model, so they would never learn: "
                f"{_some(missing)}. Give it all of model.parameters(), made after the last change of the model, or "
                "freeze these by requires_grad_(False)."
            ]
        )


def _some(items: Sequence[Any]) -> str:
    shown = ", ".join(map(str, items[:SHOWN]))
    return shown if len(items) <= SHOWN else f"{shown} and {len(items) - SHOWN} more"
