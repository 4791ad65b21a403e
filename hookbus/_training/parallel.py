"""Distributed training of one model: DistributedDataParallel (DDP) or fully sharded data parallel (FSDP2).

With DDP, each rank has a replica of the model and gradients are averaged. With FSDP2, parameters are sharded, see
`hookbus.distributed.fsdp`. Only training calls the DDP wrapper. Hooks and evaluation use the unwrapped model, whose
forward contains no collective, so that ranks may evaluate different numbers of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hookbus._training.steps import Steps
from hookbus._utils.torch_versions import require_torch
from hookbus.data.samplers import TrainShard
from hookbus.distributed.fsdp import apply_fsdp, broadcast_buffers
from hookbus.errors import ConfigError, LoopError, suggest_names

if TYPE_CHECKING:
    import torch

    from hookbus._run.run import Run
    from hookbus.distributed.collectives import Collectives

Distributed = Literal["ddp", "fsdp2", "none"]


def check_distributed(strategy: str) -> None:
    """Validate the name of a strategy for distributed training.

    Raises:
        ConfigError: If the strategy is unknown.
    """
    if strategy not in get_args(Distributed):
        names = ", ".join(map(repr, get_args(Distributed)))
        hint = suggest_names(strategy, get_args(Distributed))
        raise ConfigError(f"distributed: expected one of {names}, got {strategy!r}.{hint}")


def build_steps(
    strategy: str, ranks: Collectives, model: nn.Module, ddp: Mapping[str, Any] | None, **settings: Any
) -> Steps:
    """Build the steps of a Trainer, and wrap the model if the strategy requires it.

    Args:
        strategy: "ddp"; "fsdp2" for a model that is sharded already; or "none". A single process needs no wrapper.
        ranks: The ranks of the run.
        model: The model. A DistributedDataParallel is used as it is.
        ddp: Options of torch's DistributedDataParallel.
        settings: Arguments of `Steps`.
    """
    if ranks.world_size == 1 or strategy == "none":
        return Steps(model, **settings)
    if _has_trainable_parameters(settings["loss_fn"]) and (strategy == "fsdp2" or settings["step_fn"] is not None):
        cause = 'distributed="fsdp2"' if strategy == "fsdp2" else "step_fn"
        raise ConfigError(
            f"loss_fn: the gradients of its parameters are not averaged over ranks with {cause}. Make the loss "
            "function a part of the model, which then returns the loss."
        )
    if strategy == "fsdp2":
        return FSDPSteps(model, **settings)
    if isinstance(model, DistributedDataParallel):
        return DDPSteps(model.module, model, **settings)
    return DDPSteps(model, _wrap_ddp(model, settings["device"], **(ddp or {})), **settings)


def _has_trainable_parameters(loss_fn: object) -> bool:
    return isinstance(loss_fn, nn.Module) and any(parameter.requires_grad for parameter in loss_fn.parameters())


def _wrap_ddp(module: nn.Module, device: torch.device, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module, device_ids=None if device.type == "cpu" else [device], **options)


def maybe_apply_fsdp(
    strategy: str,
    ranks: Collectives,
    model: nn.Module,
    optimizer: Any,
    device: torch.device,
    fsdp2: Mapping[str, Any] | None,
) -> None:
    """Shard the model in place if the strategy is "fsdp2" and there are multiple ranks.

    Raises:
        ConfigError: If an option is invalid, or torch is too old.
    """
    if strategy == "fsdp2" and ranks.world_size > 1:
        require_torch("distributed: fsdp2")
        # A factory is called after sharding, so its optimizer receives the sharded parameters without an exchange.
        instance = optimizer if hasattr(optimizer, "param_groups") else None
        apply_fsdp(model, instance, ranks, device, **(fsdp2 or {}))


def train_shard_for(strategy: str, ranks: Collectives) -> TrainShard | None:
    """Return the shard of the training data of this rank, or None if the rank reads all data.

    With the strategy "none", the user is responsible for sharding the data.
    """
    return None if ranks.world_size == 1 or strategy == "none" else TrainShard(ranks.rank, ranks.world_size)


class DDPSteps(Steps):
    """Steps of a DDP model; gradients are averaged over ranks once per optimizer step.

    Args:
        model: The unwrapped model.
        wrapper: The same model in DistributedDataParallel.
        settings: Arguments of `Steps`.
    """

    def __init__(self, model: nn.Module, wrapper: DistributedDataParallel, **settings: Any) -> None:
        super().__init__(wrapper, **settings)
        self._unwrapped_model, self._wrapper = model, wrapper
        self._unwrapped_loss, self._loss_wrapper = self.loss_fn, self.loss_fn
        if _has_trainable_parameters(self.loss_fn):
            # Its parameters have gradients of their own, which are averaged like those of the model.
            self._loss_wrapper = self.loss_fn = _wrap_ddp(self.loss_fn, self.device)  # type: ignore[arg-type]

    def forward_backward(self, run: Run, batch: Any, weight: float) -> dict[str, Any]:
        """Compute forward and backward; gradients are averaged in the last micro-batch before the optimizer step."""
        if run.accumulated + 1 >= self.accumulate:
            return super().forward_backward(run, batch, weight)
        # Gradients accumulate locally and are all-reduced once, instead of once per micro-batch.
        with self._wrapper.no_sync(), getattr(self._loss_wrapper, "no_sync", nullcontext)():
            return super().forward_backward(run, batch, weight)

    def prepare_eval(self, _ranks: Collectives) -> None:
        """Copy the buffers of rank 0, so that the evaluated model is the model that is saved."""
        # In training, DDP does the same before each forward of the wrapper, which evaluation does not call.
        if self._wrapper.broadcast_buffers:
            broadcast_buffers(self._unwrapped_model)

    def eval_step(self, run: Run, batch: Any) -> dict[str, Any]:
        """Evaluate one batch with the unwrapped model."""
        # A forward of the wrapper may broadcast buffers, and would deadlock if another rank has fewer batches.
        with self.local():
            return super().eval_step(run, batch)

    def predict_step(self, run: Run, batch: Any) -> dict[str, Any]:
        """Return the outputs of the unwrapped model."""
        with self.local():
            return super().predict_step(run, batch)

    @contextmanager
    def local(self) -> Iterator[None]:
        """Context manager in which the steps use the unwrapped model, whose gradients are not averaged."""
        self.model, self.loss_fn = self._unwrapped_model, self._unwrapped_loss
        try:
            yield
        finally:
            self.model, self.loss_fn = self._wrapper, self._loss_wrapper


class FSDPSteps(Steps):
    """Steps of a model with sharded parameters. Its buffers are replicated and copied from rank 0, as in DDP."""

    def forward_backward(self, run: Run, batch: Any, weight: float) -> dict[str, Any]:
        """Compute forward and backward with the buffers of rank 0; every backward reduces the gradients."""
        broadcast_buffers(self.model)
        return super().forward_backward(run, batch, weight)

    def local(self) -> AbstractContextManager[None]:
        """Raise, because each forward pass gathers the parameters.

        Raises:
            LoopError: Always.
        """
        raise LoopError(
            "run.sandbox(local=True): the parameters are sharded, so that each step communicates, got fsdp2. Use "
            'distributed="ddp", or a single process.'
        )

    def prepare_eval(self, _ranks: Collectives) -> None:
        """Copy the buffers of rank 0, so that the evaluated model is the model that is saved."""
        broadcast_buffers(self.model)
