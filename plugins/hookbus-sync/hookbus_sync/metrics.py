"""Training metrics averaged over the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hookbus import Hook, Needs, Run, hookimpl
from hookbus.errors import MetricError
from hookbus_sync.buffer_sync import to_widest_float
from hookbus_sync.config import SyncMetricsConfig


class SyncMetricsHook(Hook):
    """Replace step outputs of each iteration by their mean over the ranks.

    All hooks that log or read training means then use the same values on every rank. Averaging does not
    synchronize the device.
    """

    Config = SyncMetricsConfig
    makes_requests = False
    config: SyncMetricsConfig

    @property
    def needs(self) -> Needs:
        """The configured values: the loss, and outputs of the step."""
        names = set(self.config.metrics)
        return Needs(loss="loss" in names, outputs=bool(names - {"loss"}))

    @hookimpl(frequency=False)
    def after_train_iter(self, run: Run, outputs: Any, loss: Any) -> None:
        """Average the metrics of the iteration over the ranks, unless the iteration was skipped.

        Raises:
            MetricError: If the iteration returned no value of a configured name.
        """
        # A skipped iteration has neither outputs nor loss. Skips are synchronized, so no rank calls `all_reduce`.
        if run.ranks.world_size == 1 or (outputs is None and loss is None):
            return
        named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        values = named if loss is None else {**named, "loss": loss}
        stacked = torch.stack([self._get_scalar(values, name) for name in self.config.metrics])
        means = run.ranks.all_reduce("sync: metrics of the iteration", stacked) / run.ranks.world_size
        run.log(dict(zip(self.config.metrics, means, strict=True)))

    def _get_scalar(self, values: Mapping[str, Any], name: str) -> Tensor:
        if name not in values:
            raise MetricError(
                f"hook {self.name!r}: the iteration returned no {name!r}, got {', '.join(map(str, values))}. Set "
                "`metrics` to names that the step returns."
            )
        return to_widest_float(torch.as_tensor(values[name]).detach().reshape(()))
