import io
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from hookbus import Hook, Trainer
from hookbus._run.requests import Request
from hookbus._run.run import Run
from hookbus.checkpoint.state import write_checkpoint

from .toys import ProvideConsole

os.environ.pop("COLUMNS", None)  # set by pytest-xdist; it would change the width of the output


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Check that a test leaves the logger unchanged and no thread running."""
    logger = logging.getLogger("hookbus")
    before, threads = (list(logger.handlers), logger.level), set(threading.enumerate())
    yield
    assert (list(logger.handlers), logger.level) == before
    assert set(threading.enumerate()) <= threads


class Terminal(io.StringIO):
    """Terminal that stores its output and sets an event on each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


class SaveAt(Hook):
    """Write a checkpoint after the given iterations."""

    def __init__(self, output_dir: Path, *iterations: int) -> None:
        super().__init__()
        self.output_dir, self.iterations = output_dir, iterations

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done in self.iterations:
            run.request_save(saver=self)

    def plan(self, run: Run, requests: list[Request]) -> Path:
        self.output_dir.mkdir(parents=True, exist_ok=True)
        return self.output_dir / f"{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        write_checkpoint(self.plan(run, []), checkpoint, run.iters_done)
        return False


class Values(nn.Module):
    """Model whose loss is the value in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.sum() + 0 * self.weight.sum()


class UnsizedLoader:
    """Loader without a length."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.tensor([value]) for value in self.values])


@pytest.fixture
def terminal() -> Terminal:
    """Return the terminal behind `on_terminal`."""
    return Terminal()


@pytest.fixture
def on_terminal(terminal: Terminal) -> ProvideConsole:
    """Return a hook that provides a terminal of 100 columns."""
    return ProvideConsole(
        Console(file=terminal, force_terminal=True, force_interactive=True, width=100, highlight=False)
    )


@pytest.fixture(scope="session")
def save_at() -> type[SaveAt]:
    """Return the hook class that writes checkpoints at iterations: `save_at(directory, 3, 7)`."""
    return SaveAt


@pytest.fixture(scope="session")
def unsized_loader() -> type[UnsizedLoader]:
    """Return the class of a loader without a length: `unsized_loader([1.0, 2.0])`."""
    return UnsizedLoader


@pytest.fixture(scope="session")
def trainer() -> Callable[..., Trainer]:
    """Return a factory of Trainers whose loss is the value in the batch: `trainer(hook, losses=[1.0, 2.0])`.

    With `halving=True`, each optimizer step halves the learning rate, which starts at 0.1.
    """

    def build(*hooks: object, losses: list[float] | None = None, halving: bool = False, **options: Any) -> Trainer:
        model = Values()
        options.setdefault("epochs", None if "iterations" in options else 1)
        options.setdefault("train_loader", [torch.tensor([value]) for value in losses or ()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if halving:
            options["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
            options["scheduler_interval"] = "step"
        options = {"optimizer": optimizer, "work_dir": None, **options}
        return Trainer(model, hooks=hooks, default_hooks=False, **options)

    return build
