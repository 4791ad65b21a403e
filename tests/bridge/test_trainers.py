"""Tests with each other trainer that is installed: examples of the documentation, and the tables of what works."""

from __future__ import annotations

import importlib
import inspect
import logging
import random
import re
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from releasing.projects import find_bridges
from torch import Tensor
from torch.utils.data import DataLoader

from docs.generating.bridges import compare
from docs.generating.common_keys import REQUIRED_SETTINGS
from docs.generating.packages import hook_classes
from hookbus import HookBus
from hookbus.errors import HookbusError
from hookbus.testing import HostAdapter, HostTask
from tests.conformance.test_plugins import NEEDS, WORKING
from tests.pages import ROOT, Reader

HOOKS = hook_classes()
SETTINGS: dict[str, dict[str, Any]] = {"checkpoint": {"best_metric": "loss"}, "freeze": {"modules": ["*layers.0"]}}
"""Settings for the model and the results of the task."""
LACKING = NEEDS.keys() - {"dist_sampler_seed"}  # the adapters pass the training loader that it requires
PAGE = ROOT / "docs/bridges.md"


def find_installed() -> list[str]:
    """Return the installed packages with a trainer that can be imported."""
    entries = [entry for entry in entry_points(group="hookbus.bridges") if find_spec(entry.name.partition(".")[0])]
    names = {entry.dist.name for entry in entries if entry.dist is not None}
    return [package for package in find_bridges(ROOT) if package in names]


INSTALLED = find_installed()


def load_adapters(package: str) -> Iterator[HostAdapter]:
    """Yield the adapters of a package, one per trainer."""
    path = ROOT / "plugins" / package / "tests/adapter.py"
    spec = spec_from_file_location(f"adapter_of_{package.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and hasattr(cls, "train") and hasattr(cls, "capabilities"):
            yield cls()


class DrawnOrder(HostTask):
    """Task whose loaders draw their order from the global RNG, as those of most users do."""

    def train_loader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.train_data(), self.batch_size, shuffle=True)

    def val_loader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.val_data(), self.batch_size)


def train_in_process(number: int, adapter: HostAdapter, directory: Path, epochs: int, **options: Any) -> Tensor:
    """Train with the random numbers of a process, and return the weights."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(number)
    hooks = [HOOKS["checkpoint"]({"save_best": False})] if options["checkpoints"] == "hookbus" else []
    result = adapter.train(HookBus(hooks), DrawnOrder(epochs=epochs), directory, **options)
    return torch.cat([weight.detach().flatten() for weight in result.model.parameters()])


def find_tabs() -> dict[str, str]:
    """Return the content of each tab of the page that installs a package, by the name of the package."""
    tabs = re.findall(r'^=== ".+"\n((?:(?: {4}.*)?\n)+)', PAGE.read_text(), re.MULTILINE)
    return {match[1]: textwrap.dedent(tab) for tab in tabs if (match := re.search(r"pip install (hookbus-\w+)", tab))}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, from which examples import the files that they write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_page_has_a_tab_for_each_package() -> None:
    assert sorted(find_tabs()) == sorted(find_bridges(ROOT))


@pytest.mark.parametrize("package", INSTALLED)
def test_tab_of_the_page_runs(package: str, directory: Path) -> None:
    (directory / "tab.md").write_text(find_tabs()[package])
    Reader(directory / "tab.md").follow()


@pytest.mark.parametrize("package", INSTALLED)
def test_readme_runs(package: str, directory: Path) -> None:
    Reader(ROOT / "plugins" / package / "README.md").follow()


@pytest.mark.parametrize("package", INSTALLED)
def test_hook_that_knows_no_trainer_works(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/examples/hookbus-hello")
    hello: Any = importlib.import_module("hookbus_hello")
    for adapter in load_adapters(package):
        caplog.clear()
        hook, task = hello.HelloHook(interval=5), HostTask()
        with caplog.at_level(logging.INFO, "hookbus"):
            adapter.train(HookBus([hook]), task, tmp_path / type(adapter).__name__)

        first, second = (float(torch.stack(task.losses[start : start + 5]).mean()) for start in (0, 5))
        assert "with 83 weights!" in caplog.text  # 6 * 8 + 8 + 8 * 3 + 3
        assert f"hello again: loss {first:.4f} after 5 steps" in caplog.text
        assert f"hello again: loss {second:.4f} after 10 steps" in caplog.text
        assert hook.count == 2


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")  # Lightning, when it resumes
@pytest.mark.parametrize("package", INSTALLED)
def test_resume_in_a_new_process_equals_the_uninterrupted_training(package: str, tmp_path: Path) -> None:
    for adapter in load_adapters(package):
        for owner in adapter.capabilities.checkpoints:
            directory = tmp_path / type(adapter).__name__ / owner
            expected = train_in_process(1, adapter, directory / "whole", epochs=2, checkpoints=owner)
            train_in_process(1, adapter, directory / "parts", epochs=1, checkpoints=owner)
            resumed = train_in_process(2, adapter, directory / "parts", epochs=2, checkpoints=owner, resume=True)
            assert torch.equal(resumed, expected), directory.name


@pytest.mark.slow
@pytest.mark.exhaustive  # `make bridges` runs it
@pytest.mark.parametrize("name", sorted(HOOKS))
@pytest.mark.parametrize("package", INSTALLED)
def test_hook_works_in_a_trainer_or_is_refused_as_the_page_states(package: str, name: str, tmp_path: Path) -> None:
    for adapter in load_adapters(package):
        hook = HOOKS[name]({**REQUIRED_SETTINGS.get(name, {}), **WORKING.get(name, {}), **SETTINGS.get(name, {})})
        mode, report = compare(hook, adapter.capabilities)
        reason = "|".join(map(re.escape, report.problems))
        with pytest.raises(HookbusError, match=reason or None) if reason or name in LACKING else nullcontext():
            adapter.train(HookBus([hook]), HostTask(), tmp_path / type(adapter).__name__, checkpoints=mode)
