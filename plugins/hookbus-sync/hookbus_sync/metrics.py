"""Numbers of training that are those of all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hookbus import Hook, Run
from hookbus.errors import MetricError
from hookbus.windows import wide
from hookbus_sync.config import SyncMetricsConfig

__all__ = ["SyncMetricsHook"]


class SyncMetricsHook(Hook):
    """Puts the mean over the processes in the place of what each has found in an iteration.

    Whoever records or reads means of training then has the same numbers everywhere. Nothing waits for the device.
    """

    Config = SyncMetricsConfig
    makes_requests = False
    config: SyncMetricsConfig

    def after_train_iter(self, run: Run, outputs: Any, loss: Any) -> None:
        """Exchange the numbers of this iteration, unless it was left out.

        Raises:
            MetricError: the iteration did not give a number of that name.
        """
        if run.ranks.world_size == 1 or (outputs is None and loss is None):
            return
        given = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        found = given if loss is None else {**given, "loss": loss}
        values = torch.stack([self._number(found, name) for name in self.config.metrics])
        means = run.ranks.reduce("sync: numbers of the iteration", values) / run.ranks.world_size
        run.log(dict(zip(self.config.metrics, means, strict=True)))

    def _number(self, found: Mapping[str, Any], name: str) -> Tensor:
        if name not in found:
            raise MetricError(
                f"hook {self.name!r}: the iteration gave no {name!r}. It gave: {', '.join(map(str, found))}. Name what "
                "the step returns."
            )
        return wide(torch.as_tensor(found[name]).detach().reshape(()))
