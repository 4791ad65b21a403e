"""Guard against a model whose class count differs from the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookbus import Hook, Run
from hookbus.distributed import unwrap_model
from hookbus.errors import ConfigError, HookError
from hookbus.evaluation import named_loaders
from hookbus_guards.classes import datasets_with_classes, find_heads, get_classes
from hookbus_guards.config import NumClassCheckConfig

MODES = ("train", "val", "test")


class NumClassCheckHook(Hook):
    """Compare the class names of each dataset with every `num_classes` of the model, once, before the run.

    Wrappers of datasets and of the model are unwrapped. All mismatches are reported in one error.
    """

    Config = NumClassCheckConfig
    makes_requests = False
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
    for mode in MODES:
        loaders = run.get(f"{mode}_loader")
        for name, loader in named_loaders(loaders) if loaders is not None else []:
            title = f"the {mode} data{f' {name!r}' if name else ''}"
            datasets = datasets_with_classes(loader)
            if not datasets:
                run.logger.warning(
                    "%s: %s declares no classes, so the class count is not checked. Set `classes` of the dataset to a "
                    "list of names.",
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
