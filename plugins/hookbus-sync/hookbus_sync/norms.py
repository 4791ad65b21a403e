"""State of normalization layers."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["get_norm_states"]

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
