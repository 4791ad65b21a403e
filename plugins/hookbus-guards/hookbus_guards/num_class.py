"""The guard against a model with another number of classes than the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookbus import Hook, Run
from hookbus.errors import ConfigError, HookError
from hookbus.model.wrappers import unwrapped
from hookbus.training.evaluation import named_loaders
from hookbus_guards.classes import classes_of, declaring, heads
from hookbus_guards.config import NumClassCheckConfig

__all__ = ["NumClassCheckHook"]

KINDS = ("train", "val", "test")


class NumClassCheckHook(Hook):
    """Compares the class names of each data set with every `num_classes` in the model, once, before anything is done.

    Data sets are looked for through wrappers, and so is the model. All mismatches are in one error.
    """

    Config = NumClassCheckConfig
    makes_requests = False
    config: NumClassCheckConfig

    def check(self, run: Run) -> None:
        """Compare.

        Raises:
            ConfigError: numbers differ, or class names are a text instead of a list.
        """
        if run.model is None:
            raise HookError("it compares the data with the model: give model= to the run.")
        found = heads(unwrapped(run.model), self.config.exclude)
        problems = [
            problem for title, dataset in _datasets(run, self.name) for problem in _compare(title, dataset, found)
        ]
        if problems:
            raise ConfigError(problems)


def _datasets(run: Run, hook: str) -> Iterator[tuple[str, Any]]:
    """(what it is called, data set) of everything that declares classes; what declares none is reported."""
    for kind in KINDS:
        loaders = run.get(f"{kind}_loader")
        for name, loader in named_loaders(loaders) if loaders is not None else []:
            title = f"the {kind} data{f' {name!r}' if name else ''}"
            found = declaring(loader)
            if not found:
                run.logger.warning(
                    "%s: %s declares no classes, so their number is not checked. Give its data set `classes`, a list "
                    "of names.",
                    hook,
                    title,
                )
            for dataset in found:
                yield title, dataset


def _compare(title: str, dataset: Any, found: dict[str, tuple[Any, int]]) -> list[str]:
    classes = classes_of(dataset)
    owner = f"{title} ({type(dataset).__name__})"
    if isinstance(classes, (str, bytes)):
        return [f"the classes of {owner} are the text {classes!r}: write a list of names, [{classes!r}]."]
    return [
        f"{owner} has {len(classes)} classes, but {name or 'the model'} ({type(module).__name__}) has num_classes "
        f"{number}: make them equal, or put the module into exclude."
        for name, (module, number) in found.items()
        if number != len(classes)
    ]
