"""How several processes train one model.

Each has all of it, and torch's DistributedDataParallel averages gradients; or its weights are spread over them, see
`hookbus.model.fsdp2`. The wrapper of the former is called in training only. Hooks see the model itself, and so does
whoever judges it: nobody waits for the others there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hookbus.errors import ConfigError, did_you_mean
from hookbus.model.fsdp2 import spread_model, take_main_buffers
from hookbus.training.steps import Steps
from hookbus.training.train_shard import Part

if TYPE_CHECKING:
    import torch

    from hookbus.ranks import Ranks
    from hookbus.run import Run

__all__ = ["DDPSteps", "Distributed", "SpreadSteps", "check_distributed", "make_steps", "part_of", "spread_if_asked"]

Distributed = Literal["ddp", "fsdp2", "none"]


def check_distributed(kind: str) -> None:
    """See that there is such a way to train in several processes.

    Raises:
        ConfigError: there is not.
    """
    if kind not in get_args(Distributed):
        raise ConfigError([f"distributed: {kind!r} is no way to train.{did_you_mean(kind, get_args(Distributed))}"])


def make_steps(kind: str, ranks: Ranks, model: nn.Module, ddp: Mapping[str, Any] | None, **settings: Any) -> Steps:
    """The steps of a Trainer.

    Args:
        kind: "ddp"; "fsdp2" for a model that is spread already; "none" for one that nobody wraps. One process needs no
            wrapper.
        ranks: the processes.
        model: the model; one that is wrapped already stays as it is.
        ddp: options of torch's DistributedDataParallel.
        settings: of `Steps`.
    """
    if ranks.world_size == 1 or kind == "none":
        return Steps(model, **settings)
    if kind == "fsdp2":
        return SpreadSteps(model, **settings)
    if isinstance(model, DistributedDataParallel):
        return DDPSteps(model.module, model, **settings)
    devices = None if settings["device"].type == "cpu" else [settings["device"]]
    return DDPSteps(model, DistributedDataParallel(model, device_ids=devices, **(ddp or {})), **settings)


def spread_if_asked(
    kind: str, ranks: Ranks, model: nn.Module, optimizer: Any, device: torch.device, fsdp2: Mapping[str, Any] | None
) -> None:
    """Spread the weights of a model over several processes, if they are to train that way.

    Args:
        kind: "fsdp2"; for another one, and in one process, nothing is done.
        ranks: the processes.
        model: the model, on its device.
        optimizer: an optimizer; or what makes one later, or None.
        device: where the model is.
        fsdp2: options: `wrap` and `mesh`, see `hookbus.model.fsdp2.spread_model`.

    Raises:
        ConfigError: an option does not hold.
    """
    if kind == "fsdp2" and ranks.world_size > 1:
        made = optimizer if hasattr(optimizer, "param_groups") else None
        spread_model(model, made, ranks, device, **(fsdp2 or {}))


def part_of(kind: str, ranks: Ranks) -> Part | None:
    """Which part of the training data this process reads; None for all of it.

    Args:
        kind, ranks: as for `make_steps`.
    """
    return None if ranks.world_size == 1 or kind == "none" else Part(ranks.rank, ranks.world_size)


class DDPSteps(Steps):
    """Steps that average gradients over the processes, once per update.

    Args:
        bare: the model itself.
        wrapper: the same in DistributedDataParallel.
        settings: of `Steps`.
    """

    def __init__(self, bare: nn.Module, wrapper: DistributedDataParallel, **settings: Any) -> None:
        super().__init__(wrapper, **settings)
        self._bare, self._wrapper = bare, wrapper

    def propagate(self, run: Run, batch: Any, weight: float) -> dict[str, Any]:
        """Forward and backward; gradients are averaged with the micro-batch that makes the update."""
        if run.accumulated + 1 >= self.accumulate:
            return super().propagate(run, batch, weight)
        with self._wrapper.no_sync():
            return super().propagate(run, batch, weight)

    def begin_judging(self, _ranks: Ranks) -> None:
        """Take over the main rank's buffers, as every forward in training does: what is judged is what is saved."""
        if self._wrapper.broadcast_buffers:
            take_main_buffers(self._bare)

    def eval_step(self, run: Run, batch: Any) -> dict[str, Any]:
        """Judge one batch with the model itself: no other process is asked, so some may have fewer batches."""
        self.model = self._bare
        try:
            return super().eval_step(run, batch)
        finally:
            self.model = self._wrapper


class SpreadSteps(Steps):
    """Steps of a model whose weights are spread. Its buffers are not, and are those of the main process, as in DDP."""

    def propagate(self, run: Run, batch: Any, weight: float) -> dict[str, Any]:
        """Forward and backward, from the buffers of the main process; gradients come together in every backward."""
        take_main_buffers(self.model)
        return super().propagate(run, batch, weight)

    def begin_judging(self, _ranks: Ranks) -> None:
        """Take over the main process's buffers: what is judged is what is saved."""
        take_main_buffers(self.model)
