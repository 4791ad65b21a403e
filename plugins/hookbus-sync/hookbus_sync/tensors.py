"""Statistics and buffers that belong together on all processes; with one process there is nothing to synchronise."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from hookbus import Hook, Run
from hookbus.distributed import world_size
from hookbus.errors import ConfigError
from hookbus.weights import unwrapped
from hookbus_sync.norms import norm_states

__all__ = ["SyncBuffersHook", "SyncNormHook"]


class SyncHook(Hook):
    """Says what it would synchronise."""

    def before_run(self, run: Run) -> None:
        """Say that there is nothing to do.

        Raises:
            ConfigError: there are several processes.
        """
        if world_size() > 1:
            raise ConfigError(
                [
                    f"hook {self.name!r}: this version synchronises nothing over {world_size()} processes. Leave the "
                    "hook out, or use torch.nn.SyncBatchNorm, which shares its statistics at every forward."
                ]
            )
        found = {} if run.model is None else self.tensors(unwrapped(run.model))
        run.logger.info("%s: one process, so there is nothing to synchronise (%s tensors).", self.name, len(found))

    @abstractmethod
    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """What belongs together on all processes, by name."""


class SyncNormHook(SyncHook):
    """The state of normalisation layers is to be the same on all processes when it is judged."""

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The state of all normalisation layers, by name."""
        return norm_states(model)


class SyncBuffersHook(SyncHook):
    """Buffers are to be the same on all processes when they are judged."""

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """All buffers with fractions, by name; whole numbers such as counters are no means."""
        return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
