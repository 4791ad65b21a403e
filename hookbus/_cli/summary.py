"""Summary of the model of a run file, by the hook `model_summary` of a plugin package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hookbus import discovery
from hookbus._utils.imports import describe_error
from hookbus.data.batches import move_to_device
from hookbus.errors import LoopError
from hookbus.trainer.checking import read_first_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from hookbus._run.run import Run
    from hookbus.trainer.trainer import Trainer

HOOK = "model_summary"
"""Entry point of the hook."""


class Summarizer(Protocol):
    """What the command calls of the hook."""

    def print_summary(self, run: Run, batch: Any, console: Console) -> None:
        """Print the summary of the model of a run."""

    def to_dict(self, run: Run, batch: Any) -> Mapping[str, Any]:
        """Return the summary of the model of a run as built-in Python types."""


def find_summarizer(trainer: Trainer, max_depth: int | None) -> Summarizer:
    """Return the hook of the trainer that summarizes models, or a new one.

    Args:
        trainer: The trainer.
        max_depth: Number of levels to list. Default: None, for that of the hook.

    Raises:
        PluginNotFoundError: If no installed package publishes the hook. The message names the package to install.
        ConfigError: If the number of levels is invalid.
    """
    cls = discovery.load_entry(discovery.find_entry(HOOK))
    registered = [hook for hook in trainer.bus.hooks.values() if isinstance(hook, cls)]
    if max_depth is not None or not registered:
        registered = [cls() if max_depth is None else cls(max_depth=max_depth)]
    summarizer: Summarizer = registered[0]
    return summarizer


def read_example(trainer: Trainer) -> Any:
    """Return the first training batch on the device of the trainer, None if there is none.

    Raises:
        LoopError: If the loader cannot be read.
    """
    try:
        return move_to_device(read_first_batch(trainer, trainer.train_loader), trainer.device)
    except Exception as error:
        raise LoopError(f"The train_loader cannot be read: {describe_error(error)}.") from error
