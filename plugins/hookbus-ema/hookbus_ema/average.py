"""Averages of weights: update, exchange with the weights of the model, and state. Depends on PyTorch only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_ema import tensors


class WeightAverage:
    """Average of the weights of a model over its optimizer steps. Subclasses define the weights of an update.

    An update changes the average a of each floating-point weight w in place: a <- a + alpha * (w - a). The average
    starts at the current weights.

    * An update allocates no memory.
    * Shared tensors are averaged once.
    * Frozen tensors are averaged as well, which does not change them, so they may be unfrozen at any time.
    * Averages have at least 32 bits, because small updates would be rounded away in lower precision.
    * Tensors that cannot be averaged are copied: integer, fp8 and quantized tensors, for example.
    * Tensors that cannot be copied in place, such as expanded ones, are those of the model.
    * Each rank averages its local shards of sharded tensors (FSDP2), without communication.

    Args:
        weights: A module, or tensors by name. The tensors are referenced, not copied: they must be changed in place, as
            optimizers do.
        update_buffers: Whether the floating-point buffers of a module are averaged; otherwise an update copies them.
        device: Device of the averages; default the device of each weight.

    Attributes:
        unaveraged: Reasons for which parameters, and buffers with `update_buffers`, cannot be averaged, by name.
        steps: Number of the last update; 0 before the first.
    """

    def __init__(
        self,
        weights: nn.Module | Mapping[str, Tensor],
        *,
        update_buffers: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self.steps = 0
        named = tensors.get_tensors(weights)
        # By identity: tied weights appear under several names but are updated once.
        self._weights = list({id(tensor): tensor for tensor in named.values()}.values())
        index = {id(tensor): i for i, tensor in enumerate(self._weights)}
        self._indices = {name: index[id(tensor)] for name, tensor in named.items()}
        self._averages = [tensors.init_average(weight, device) for weight in self._weights]
        self._raw: list[Tensor] | None = None
        buffers = {id(buffer) for buffer in weights.buffers()} if isinstance(weights, nn.Module) else set()
        self._partition(buffers, update_buffers)
        # Integer buffers, such as counters, are never meant to be averaged.
        excluded = {id(t) for t in self._weights if id(t) in buffers and not (update_buffers and tensors.is_inexact(t))}
        reasons = {name: tensors.describe_unaveraged(t) for name, t in named.items() if id(t) not in excluded}
        self.unaveraged = {name: reason for name, reason in reasons.items() if reason}

    def _partition(self, buffers: set[int], update_buffers: bool) -> None:
        """Partition the tensors into averaged parameters, averaged buffers, and copied tensors."""
        self._copied_pairs: list[tuple[Tensor, Tensor]] = []
        parameters: list[tuple[Tensor, Tensor]] = []
        averaged_buffers: list[tuple[Tensor, Tensor]] = []
        for average, weight in zip(self._averages, self._weights, strict=True):
            is_buffer = id(weight) in buffers
            if tensors.can_be_averaged(weight) and (update_buffers or not is_buffer):
                # Buffers are separate because an overlapped update must not read them during a forward.
                (averaged_buffers if is_buffer else parameters).append((average, weight))
            elif tensors.can_be_copied(weight):
                self._copied_pairs.append((average, weight))
        self._parameter_groups = tensors.build_groups(parameters)
        self._buffer_groups = tensors.build_groups(averaged_buffers)

    def averages_model(self, model: nn.Module) -> bool:
        """Whether the averaged tensors are the current tensors of a model, by name and identity."""
        named = tensors.get_tensors(model)
        return named.keys() == self._indices.keys() and all(
            self._weights[i] is named[name] for name, i in self._indices.items()
        )

    def transfer_from(self, other: WeightAverage) -> list[str]:
        """Copy the steps of another average, and its averages of the tensors that both average.

        Args:
            other: The other average.

        Returns:
            Sorted names of the remaining averaged tensors, whose averages start at their current values.
        """
        known = dict(zip(map(id, other._weights), other._averages, strict=True))
        with torch.no_grad():
            for weight, average in zip(self._weights, self._averages, strict=True):
                if id(weight) in known and tensors.can_be_copied(weight):
                    average.copy_(known[id(weight)])
        self.steps = other.steps
        known |= {id(weight): average for average, weight in self._copied_pairs}
        return sorted(name for name, i in self._indices.items() if id(self._weights[i]) not in known)

    # -- updating --------------------------------------------------------------------------------

    def get_alpha(self, step: int) -> float:
        """Return the weight of the current weights in an update, from 1, in [0, 1]."""
        raise NotImplementedError

    def update(self, step: int | None = None) -> None:
        """Update the average. Must be called once after each step or epoch that it covers.

        Args:
            step: Number of the update, from 1; default the number of the last update plus 1.

        Raises:
            RuntimeError: If the averages are in the model, inside `applied`.
        """
        if self._raw is not None:
            raise RuntimeError(
                "The averaged weights are in the model, so an update would average them with themselves. Train and "
                "update outside of `applied()`."
            )
        self.wait()
        self.steps = self.steps + 1 if step is None else step
        alpha = self.get_alpha(self.steps)
        with torch.no_grad():
            for average, buffer in self._copied_pairs:
                average.copy_(buffer)
            for group in self._buffer_groups:
                self._update_group(group, alpha)
        self._update_average(alpha)

    def wait(self) -> None:
        """Block until no update is in progress. A no-op here: `update` is synchronous."""

    def close(self) -> None:
        """Release threads; the average remains usable. A no-op here: no thread is used."""

    def _update_average(self, alpha: float) -> None:
        """Update the averages of the parameters, which do not change before the next optimizer step."""
        with torch.no_grad():
            for group in self._parameter_groups:
                self._update_group(group, alpha)

    def _update_group(self, group: tensors.Group, alpha: float) -> None:
        """Update averages of the same device and type."""
        group.update(alpha)

    # -- reading ---------------------------------------------------------------------------------

    def averaged(self) -> dict[str, Tensor]:
        """Return the averages under the names of the state dict. Tensors are references, not copies."""
        self.wait()
        return {name: self._averages[i] for name, i in self._indices.items()}

    def raw(self) -> dict[str, Tensor] | None:
        """Return the raw weights while the averages are in the model; None while the model contains the raw weights."""
        return None if self._raw is None else {name: self._raw[i] for name, i in self._indices.items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager inside which the model contains the averages. Restores the raw weights on exit, bit-exact.

        Changes to the tensors of the model inside the context are lost. A nested context is a no-op.
        """
        if self._raw is not None:
            yield
            return
        self.wait()
        raw = [
            weight.detach().clone() if tensors.can_be_copied(weight) else weight.detach() for weight in self._weights
        ]
        self._raw = raw
        try:
            self._copy_to_model(self._averages)
            yield
        finally:
            self._copy_to_model(raw)
            self._raw = None

    def keep(self, changed: Iterable[Tensor]) -> None:
        """Copy tensors of the model into their averages, inside `applied`, whose end discards them otherwise.

        Args:
            changed: Tensors of the model, such as recomputed statistics.
        """
        index = {id(weight): i for i, weight in enumerate(self._weights)}
        with torch.no_grad():
            for tensor in changed:
                self._averages[index[id(tensor)]].copy_(tensor)

    def _copy_to_model(self, values: list[Tensor]) -> None:
        copyable = [tensors.can_be_copied(weight) for weight in self._weights]
        targets, sources = (list(map(tensors.to_local, compress(part, copyable))) for part in (self._weights, values))
        # `torch._foreach_copy_` raises on an empty list.
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume: `steps`, and `averaged` as references."""
        return {"steps": self.steps, "averaged": self.averaged()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`. The weights of the model are not modified.

        Sharded averages accept full tensors as well.

        Args:
            state: The state.

        Raises:
            ValueError: If names or shapes differ from those of the weights. The message lists all of them, and the
                averages are unchanged.
        """
        own, saved = self.averaged(), state["averaged"]
        mismatched = [name for name in own if name not in saved or saved[name].shape != own[name].shape]
        mismatched += [name for name in saved if name not in own]
        if mismatched:
            raise ValueError(
                "averages do not match the weights; missing, unexpected or of another shape: "
                f"{', '.join(mismatched)}. Load averages of a model with the same tensors."
            )
        with torch.no_grad():
            for name, average in own.items():
                if tensors.can_be_copied(average):
                    average.copy_(tensors.shard_like(average, saved[name]))
        self.steps = state["steps"]
