import io
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from hookbus import Hook, Priority, Trainer
from hookbus.requests import Request
from hookbus.run import Run
from hookbus.state import write_checkpoint


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """No test may leave a handler, a level or a thread."""
    logger = logging.getLogger("hookbus")
    before, threads = (list(logger.handlers), logger.level), set(threading.enumerate())
    yield
    assert (list(logger.handlers), logger.level) == before
    assert set(threading.enumerate()) <= threads


class Terminal(io.StringIO):
    """A terminal that remembers everything, and tells when something was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def write(self, text: str) -> int:
        self.drawn.set()
        return super().write(text)


class OnConsole(Hook):
    """Gives a run its console before any other hook asks for one."""

    priority = Priority.HIGHEST

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def before_run(self, run: Run) -> None:
        run.provide("console", self.console)


class SaveAt(Hook):
    """Writes a checkpoint after some iterations."""

    def __init__(self, directory: Path, *iterations: int) -> None:
        super().__init__()
        self.directory, self.iterations = directory, iterations

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done in self.iterations:
            run.request_save(saver=self)

    def plan(self, run: Run, requests: list[Request]) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory / f"{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        write_checkpoint(self.plan(run, []), checkpoint, run.iters_done)
        return False


class Values(nn.Module):
    """A model whose loss is the value in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.sum() + 0 * self.weight.sum()


class Stream:
    """A loader that does not know how long it is."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.tensor([value]) for value in self.values])


@pytest.fixture
def terminal() -> Terminal:
    """The far end of `on_terminal`."""
    return Terminal()


@pytest.fixture
def on_terminal(terminal: Terminal) -> OnConsole:
    """A hook that gives a run a terminal of 100 columns."""
    return OnConsole(Console(file=terminal, force_terminal=True, force_interactive=True, width=100, highlight=False))


@pytest.fixture(scope="session")
def save_at() -> type[SaveAt]:
    """A hook that writes a checkpoint after some iterations: `save_at(directory, 3, 7)`."""
    return SaveAt


@pytest.fixture(scope="session")
def stream() -> type[Stream]:
    """A loader of unknown length: `stream([1.0, 2.0])`."""
    return Stream


@pytest.fixture(scope="session")
def trainer() -> Callable[..., Trainer]:
    """A Trainer whose loss at each iteration is the value in the batch: `trainer(hook, losses=[1.0, 2.0])`.

    With `halving=True` the learning rate, 0.1 at first, is half as large after each update.
    """

    def make(*hooks: object, losses: list[float] | None = None, halving: bool = False, **options: Any) -> Trainer:
        model = Values()
        options.setdefault("epochs", None if "iterations" in options else 1)
        options.setdefault("train_loader", [torch.tensor([value]) for value in losses or ()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if halving:
            options["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
            options["scheduler_interval"] = "step"
        options = {"optimizer": optimizer, "work_dir": None, **options}
        return Trainer(model, hooks=hooks, default_hooks=False, **options)

    return make
