"""Hooks that synchronize normalization layers and buffers; no-ops with a single process."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from torch import Tensor, nn

from hookbus import Hook, Needs, Run, hookimpl
from hookbus.distributed import unwrap_model
from hookbus_sync.buffer_sync import sync_tensors

NORM_LAYERS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def get_norm_states(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of all normalization layers by their name in the state dict of the model."""
    return {
        f"{name}.{inner}" if name else inner: value
        for name, module in model.named_modules()
        if isinstance(module, NORM_LAYERS)
        for inner, value in module.state_dict().items()
    }


class SyncHook(Hook):
    """Synchronize tensors of the model across ranks, after each training epoch and before each evaluation."""

    makes_requests = False
    needs = Needs(points=(("after_train_epoch", "before_val"),))

    def before_run(self, run: Run) -> None:
        """Log that the hook is a no-op with a single process."""
        if run.ranks.world_size == 1:
            tensors = {} if run.model is None else self.get_tensors(unwrap_model(run.model))
            run.logger.info("%s: no-op with a single process (%s tensors).", self.name, len(tensors))

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Synchronize the tensors, so that a checkpoint of the epoch contains the synchronized values."""
        self._sync(run)

    def before_val(self, run: Run) -> None:
        """Synchronize the tensors before they are evaluated."""
        self._sync(run)

    def before_test(self, run: Run) -> None:
        """Synchronize the tensors before they are evaluated."""
        self._sync(run)

    @abstractmethod
    def get_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the tensors to synchronize, by name."""

    def _sync(self, run: Run) -> None:
        if run.ranks.world_size > 1 and run.model is not None:
            sync_tensors(self.get_tensors(unwrap_model(run.model)), run.ranks)


class SyncNormHook(SyncHook):
    """Synchronize the state of normalization layers: running means and variances, and parameters.

    Means over the ranks; variances by the law of total variance.
    """

    needs = replace(SyncHook.needs, modules=True)

    def get_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the state of all normalization layers, by name."""
        return get_norm_states(model)


class SyncBuffersHook(SyncHook):
    """Synchronize all buffers of the model: means over the ranks; running variances by the law of total variance."""

    def get_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return all buffers, by name."""
        return dict(model.named_buffers())
