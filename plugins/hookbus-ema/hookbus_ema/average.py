"""The arithmetic of a moving average of weights. Needs PyTorch and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["ExponentialMovingAverage"]


class ExponentialMovingAverage:
    """A moving average of the weights of a model.

    After the optimizer step number i (from 1) each floating-point weight w moves its average a, in place:

        a <- m * a + (1 - m) * w,    m = min(momentum, (1 + i) / (warm_up + i))

    The average starts at the weights as they are now. With `warm_up=0` this is, bit for bit, what
    `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(momentum)` computes. The ramp is the one of
    TensorFlow's `ExponentialMovingAverage(num_updates=...)`, where `warm_up` is 10.

    Everything an update needs is kept from one to the next: it allocates nothing. Shared tensors are averaged once.
    Frozen ones are averaged like the others, which leaves them as they are, so they may thaw at any time. Weights of
    less than 32 bits have averages of 32 bits, since small steps would be rounded away otherwise. Tensors that are not
    floating-point are copied. Of weights that are spread over processes (FSDP2), each process averages the part that it
    has, and nothing is sent.

    Args:
        weights: a module, or floating-point and other tensors by name. The tensors are held, not copied: they are to be
            changed in place, as optimizers do.
        momentum: the share of the old average that an update keeps, from 0 to 1.
        warm_up: slows down how the share grows to `momentum`; 0 for `momentum` from the first step on.
        update_buffers: whether a module's floating-point buffers are averaged; otherwise an update copies them.
        device: where the averages are; default next to their weights.

    Attributes:
        momentum, warm_up: as given.
        steps: the number of the optimizer step at the last update; 0 before the first.

    Raises:
        ValueError: momentum is outside of 0 to 1, or warm_up is negative.
    """

    def __init__(
        self,
        weights: nn.Module | Mapping[str, Tensor],
        momentum: float = 0.9999,
        *,
        warm_up: int = 100,
        update_buffers: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        if not 0 <= momentum <= 1 or warm_up < 0:
            raise ValueError(f"momentum is from 0 to 1 and warm_up at least 0, not {momentum!r} and {warm_up!r}.")
        self.momentum, self.warm_up, self.steps = momentum, warm_up, 0
        named = _tensors_of(weights)
        self._weights = list({id(tensor): tensor for tensor in named.values()}.values())
        place = {id(tensor): i for i, tensor in enumerate(self._weights)}
        self._places = {name: place[id(tensor)] for name, tensor in named.items()}
        self._averages = [_average_of(weight, device) for weight in self._weights]
        self._raw: list[Tensor] | None = None
        buffers = {id(buffer) for buffer in weights.buffers()} if isinstance(weights, nn.Module) else set()
        self._divide(buffers, update_buffers)

    def _divide(self, buffers: set[int], update_buffers: bool) -> None:
        """Tell apart what an update averages, and what it copies: buffers, and what is not floating-point."""
        pairs = list(map(_Pair, self._averages, self._weights))
        kept = set() if update_buffers else buffers
        averaged = [pair for pair in pairs if _is_floating(pair.weight) and id(pair.weight) not in kept]
        self._parameters = _groups(pair for pair in averaged if id(pair.weight) not in buffers)
        self._buffers = _groups(pair for pair in averaged if id(pair.weight) in buffers)
        self._copied = [pair for pair in pairs if not _is_floating(pair.weight) or id(pair.weight) in kept]

    def is_of(self, model: nn.Module) -> bool:
        """Whether the tensors of a model are those that are averaged."""
        named = _tensors_of(model)
        return named.keys() == self._places.keys() and all(
            self._weights[i] is named[name] for name, i in self._places.items()
        )

    def go_on_from(self, other: ExponentialMovingAverage) -> list[str]:
        """Take the averages of the tensors that another one averages as well, and its steps.

        Returns:
            The names of those whose average begins here instead, sorted.
        """
        known = dict(zip(map(id, other._weights), other._averages, strict=True))
        with torch.no_grad():
            for weight, average in zip(self._weights, self._averages, strict=True):
                if id(weight) in known:
                    average.copy_(known[id(weight)])
        self.steps = other.steps
        known |= {id(pair.weight): pair.average for pair in self._copied}
        return sorted(name for name, i in self._places.items() if id(self._weights[i]) not in known)

    # -- updating --------------------------------------------------------------------------------

    def momentum_at(self, step: int) -> float:
        """The share of the old average that the update of an optimizer step keeps; steps count from 1."""
        return min(self.momentum, (1 + step) / (self.warm_up + step))

    def update(self, step: int | None = None) -> None:
        """Move the average towards the weights. To be called once after each optimizer step that was made.

        Args:
            step: the number of the step, from 1; default the one after the last. Only the warm-up depends on it.

        Raises:
            RuntimeError: the averages are in the model, so there are no weights to average.
        """
        if self._raw is not None:
            raise RuntimeError(
                "The averaged weights are in the model right now, and averaging them with themselves would spoil them: "
                "train and update outside of `with applied():`."
            )
        self.wait()
        self.steps = self.steps + 1 if step is None else step
        share = 1 - self.momentum_at(self.steps)
        with torch.no_grad():
            for average, buffer in self._copied:
                average.copy_(buffer)
            for group in self._buffers:
                group.move(share)
        self._move(share)

    def wait(self) -> None:
        """Return once no update is running; here each has run when `update` returns."""

    def close(self) -> None:
        """End what runs besides; here nothing does. The average can be used afterwards."""

    def _move(self, share: float) -> None:
        """Average the parameters, which stay as they are until the next optimizer step."""
        with torch.no_grad():
            for group in self._parameters:
                group.move(share)

    # -- reading ---------------------------------------------------------------------------------

    def averaged(self) -> dict[str, Tensor]:
        """The averages by name, as the model's state dict names them. References: clone what is to stay."""
        self.wait()
        return {name: self._averages[i] for name, i in self._places.items()}

    def raw(self) -> dict[str, Tensor] | None:
        """The raw weights by name while the averages are in the model; None while the model holds the raw ones."""
        return None if self._raw is None else {name: self._raw[i] for name, i in self._places.items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the model holds the averages. Afterwards it holds, bit for bit, what it held before.

        Changes that are made to the model's tensors inside are lost. Inside of itself it does nothing.
        """
        if self._raw is not None:
            yield
            return
        self.wait()
        raw = [weight.detach().clone() for weight in self._weights]
        self._raw = raw
        try:
            self._put(self._averages)
            yield
        finally:
            self._put(raw)
            self._raw = None

    def _put(self, values: list[Tensor]) -> None:
        if not values:  # torch refuses an empty list
            return
        with torch.no_grad():
            torch._foreach_copy_([*map(_own_part, self._weights)], [*map(_own_part, values)])

    # -- keeping ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on exactly: `steps`, and `averaged` as references."""
        return {"steps": self.steps, "averaged": self.averaged()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. The weights of the model are left alone.

        Where averages are spread over processes, whole tensors will do as well.

        Raises:
            ValueError: names or shapes are not those of the weights; all that differ are listed, and nothing changes.
        """
        own, given = self.averaged(), state["averaged"]
        wrong = [name for name in own if name not in given or given[name].shape != own[name].shape]
        wrong += [name for name in given if name not in own]
        if wrong:
            raise ValueError(
                "The averages are not those of these weights. Missing, left over or of another shape: "
                f"{', '.join(wrong)}. They go with a model that has the same tensors."
            )
        with torch.no_grad():
            for name, average in own.items():
                average.copy_(_spread_like(average, given[name]))
        self.steps = state["steps"]


class _Pair(NamedTuple):
    average: Tensor
    weight: Tensor


class _Group(NamedTuple):
    """Tensors that one fused call updates.

    Attributes:
        averages, weights: in the same order.
        staged: where the weights are brought to the device and type of the averages; None where they have it already.
    """

    averages: list[Tensor]
    weights: list[Tensor]
    staged: list[Tensor] | None

    def move(self, share: float) -> None:
        """Add so much of the distance to the weights to the averages."""
        weights = self.weights
        if self.staged is not None:
            torch._foreach_copy_(self.staged, self.weights)
            weights = self.staged
        torch._foreach_lerp_(self.averages, weights, share)


def _groups(pairs: Iterable[_Pair]) -> list[_Group]:
    """Pairs by device and type: the fused call takes tensors of one kind only."""
    kinds: dict[Any, list[_Pair]] = {}
    for pair in pairs:
        own = _Pair(_own_part(pair.average), _own_part(pair.weight))
        kinds.setdefault((*_kind(own.average), *_kind(own.weight)), []).append(own)
    return [_group(alike) for alike in kinds.values()]


def _group(alike: list[_Pair]) -> _Group:
    averages, weights = [pair.average for pair in alike], [pair.weight for pair in alike]
    same = _kind(averages[0]) == _kind(weights[0])
    return _Group(averages, weights, None if same else [torch.empty_like(average) for average in averages])


def _kind(tensor: Tensor) -> tuple[torch.device, torch.dtype]:
    return tensor.device, tensor.dtype


def _own_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: of one that is spread over processes, the memory of its part."""
    to_local = getattr(tensor.detach(), "to_local", None)
    return tensor if to_local is None else to_local()


def _spread_like(average: Tensor, value: Tensor) -> Tensor:
    """A value as its average is spread over processes. Each has the whole value, so that nothing is sent."""
    if not hasattr(average, "device_mesh") or hasattr(value, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor  # takes long to import

    local = value.to(average.device)
    return distribute_tensor(local, average.device_mesh, average.placements, src_data_rank=None)  # type: ignore[attr-defined]


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _average_of(weight: Tensor, device: torch.device | str | None) -> Tensor:
    """An average that starts at a weight."""
    dtype = torch.promote_types(weight.dtype, torch.float32) if _is_floating(weight) else weight.dtype
    return weight.detach().to(weight.device if device is None else device, dtype, copy=True)


def _tensors_of(weights: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name; of a module the parameters and buffers in its state dict: the very objects, not views."""
    if not isinstance(weights, nn.Module):
        return dict(weights)
    own = {id(tensor) for tensor in (*weights.parameters(), *weights.buffers())}
    return {name: value for name, value in weights.state_dict(keep_vars=True).items() if id(value) in own}
