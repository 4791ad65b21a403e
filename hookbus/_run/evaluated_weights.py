"""Weights that a hook puts into the model for a validation without being a provider of averages.

A hook may exchange the weights by itself: in a context of `run.around_validation`, or in listeners of a validation. A
best file then contains the exchanged weights, which achieved the score, and the weights of training under a key of
their own, from which a run resumes. The exchanged weights are copied only inside a validation that improves the best
results, and only the tensors that have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookbus._utils.values import get_tensor_version
from hookbus.distributed.fsdp import unshard
from hookbus.distributed.unwrap import get_state_dict

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookbus.distributed.collectives import Collectives

EVALUATED = "evaluated"
"""Name of the weights in `BestResult.weights`: `state_dict` of the best file contains them."""

FIX = "Exchange weights in a context of run.around_validation, or register averaged weights with run.weights.provide."
OTHER_STRUCTURE = (
    "The weights were exchanged for a validation and have other names or shapes than those of training: best files "
    "contain the weights of training, not those of the scores."
)
RESTORED = (
    "The weights were written during a validation, but are those of training when its results are known: if other "
    "weights achieved the scores, best files do not contain them."
)


class EvaluatedWeights:
    """Exchanged weights of the latest validation.

    Args:
        model: Function that returns the model, or None if the run has no model.

    Attributes:
        is_watching: Whether the validation in progress may have a best file.
    """

    def __init__(self, model: Callable[[], nn.Module | None]) -> None:
        self._model = model
        self.is_watching = False
        self._reference: WeightsReference | None = None
        self._includes_all = self._has_contexts = False
        self._captured: dict[str, Tensor] = {}

    @property
    def may_capture(self) -> bool:
        """Whether the weights of the validation in progress are recorded, and none of them were copied yet."""
        return self._reference is not None and not self._captured

    @property
    def is_captured(self) -> bool:
        """Whether exchanged weights were copied that are not saved yet."""
        return bool(self._captured)

    def record(self, *, includes_all: bool, has_contexts: bool) -> None:
        """Record the weights before hooks exchange them: no copy, no device synchronization.

        Args:
            includes_all: Whether the model contains averaged weights, so that each of its tensors may differ from those
                of training.
            has_contexts: Whether contexts of hooks follow, which are in effect until the results are known.
        """
        model = self._model() if self.is_watching else None
        self._reference = None if model is None else WeightsReference(get_state_dict(model))
        self._includes_all, self._has_contexts = includes_all, has_contexts

    def discard_record(self) -> None:
        """Release the references to the recorded weights at the end of the validation."""
        self._reference = None

    def capture(self, ranks: Collectives) -> str:
        """Copy the weights in the model if they were exchanged. A collective call.

        Returns:
            Warning that best files do not contain the weights of the scores, "" if they do.
        """
        model, reference = self._model(), self._reference
        assert model is not None
        assert reference is not None
        state = get_state_dict(model)  # reshards an FSDP2 model, whose shards are copied
        try:
            if not reference.has_structure_of(state):
                return f"{OTHER_STRUCTURE} {FIX}"
            # The shards of one rank may be unchanged.
            changes = ranks.all_gather("exchanged weights", reference.find_changes(state))
            changed = {name for own in changes for name in own}
            names = [name for name in state if name in changed]
            if not names:
                # A context may write the weights of training, as an average does before its start.
                return f"{RESTORED} {FIX}" if reference.was_written(state) and not self._has_contexts else ""
            self._captured = _copy(state, [*_get_tensors(state)] if self._includes_all else names)
            return ""
        finally:
            unshard(model)

    def select(self, raw: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the copied weights that differ from those of training, by name; empty if none were exchanged.

        Args:
            raw: Weights of training by name.
        """
        return {name: value for name, value in self._captured.items() if not _is_equal(value, raw.get(name))}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set the exchanged weights to those of the checkpoint from which a run resumes."""
        self._captured = dict(weights)

    def release(self) -> None:
        """Release the copied weights after the saves that a validation has requested."""
        self._captured = {}


class WeightsReference:
    """Tensors of a state dict at one time, to find those that have changed since. References, not copies.

    Floating-point tensors are compared by norm and sum: writing through `Tensor.data` does not change their version,
    and writing the same values does. All others are compared by version and memory.

    Args:
        state: State dict.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._shapes = _get_shapes(state)
        self._tensors = _get_tensors(state)
        self._versions = {name: get_tensor_version(tensor) for name, tensor in self._tensors.items()}
        self._sums = {name: _summarize(tensor) for name, tensor in self._tensors.items()}

    def has_structure_of(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state dict has the recorded names and shapes."""
        return _get_shapes(state) == self._shapes

    def was_written(self, state: Mapping[str, Any]) -> bool:
        """Return whether a tensor of a state dict has been written, also with its recorded values."""
        return any(get_tensor_version(tensor) != self._versions[n] for n, tensor in _get_tensors(state).items())

    def find_changes(self, state: Mapping[str, Any]) -> list[str]:
        """Return the names of the tensors of a state dict whose values are not the recorded ones."""
        return [name for name, tensor in _get_tensors(state).items() if self._has_changed(name, tensor)]

    def _has_changed(self, name: str, tensor: Tensor) -> bool:
        before = self._sums[name]
        if before is None:
            return get_tensor_version(tensor) != self._versions[name]
        return not _is_identical(before, _summarize(tensor))


def _get_shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "shape", None) for name, value in state.items()}


def _get_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a state dict, of a sharded one the local shards; without uninitialized ones."""
    from torch import Tensor
    from torch.nn.parameter import is_lazy

    from hookbus.distributed.sharding import get_local

    return {n: get_local(value) for n, value in state.items() if isinstance(value, Tensor) and not is_lazy(value)}


def _summarize(tensor: Tensor) -> Tensor | None:
    """Return the norm and the sum of a tensor, on its device; None if it does not consist of floating-point numbers."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return None
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return None
    # In 64 bits, which distinguish an average from weights that are close to it.
    dtype = torch.float32 if tensor.device.type == "mps" else torch.float64
    return torch.stack([torch.linalg.vector_norm(tensor, dtype=dtype), tensor.sum(dtype=dtype)])


def _is_identical(first: Tensor, second: Tensor | None) -> bool:
    """Return whether two sums are bitwise equal, also those of tensors with NaN."""
    import torch

    if second is None or first.dtype != second.dtype or first.device != second.device:
        return False
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def _copy(state: Mapping[str, Any], names: Iterable[str]) -> dict[str, Tensor]:
    """Return copies of tensors; names of the same memory have one copy, as in the model."""
    from hookbus.distributed.sharding import is_sharded

    copies: dict[object, Tensor] = {}
    keys: dict[str, object] = {}
    for name in names:
        tensor = state[name].detach()
        address = get_tensor_version(tensor)[1]
        keys[name] = (address, tensor.shape, tensor.stride()) if address and not is_sharded(tensor) else name
        if keys[name] not in copies:
            copies[keys[name]] = tensor.clone()
    return {name: copies[key] for name, key in keys.items()}


def _is_equal(value: Tensor, other: Any) -> bool:
    """Return whether two full tensors are equal; sharded ones are not compared, which would need communication."""
    import torch

    from hookbus.distributed.sharding import is_sharded

    if is_sharded(value) or getattr(other, "shape", None) != value.shape or other.dtype != value.dtype:
        return False
    return torch.equal(value, other.to(value.device))
