"""Copies of the tensors in a checkpoint, so that it can be written while training goes on. Usable without hookbus.

Memory is copied by storage, not by tensor: what shares memory, or is one object in several places, is so in the copy as
well, and the file is the one that would have been written at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NOWHERE", "Snapshot", "memory_of"]

Memory = tuple[int, torch.device]
"""Where the memory of a tensor begins, and on which device it is."""

NOWHERE: Memory = (0, torch.device("meta"))
"""The memory of a tensor that is no plain view of any."""

HAVE_NOTHING_TO_COPY = frozenset({type(None), bool, int, float, complex, str, bytes})


def memory_of(tensor: Tensor) -> Memory:
    """Which memory a tensor is a view of: the same for two that share it; `NOWHERE` for one that is no such view."""
    if hasattr(tensor, "device_mesh"):  # spread over processes: a part of it is here, and it has no memory of its own
        return NOWHERE
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return NOWHERE
    begin = tensor.untyped_storage().data_ptr()
    return (begin, tensor.device) if begin else NOWHERE


class Snapshot:
    """Copies checkpoints into memory that is kept from one to the next: the second one allocates nothing new.

    Of a tensor that is spread over processes, this one's part is copied, into new memory each time; nothing is sent.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[Tensor]] = {}
        self._copying = _Copying({}, set())

    def take(self, checkpoint: dict[str, Any], later: Iterable[Tensor | dict[Any, Any]] = ()) -> dict[str, Any]:
        """The same checkpoint with copies of its tensors, on the CPU; the copy before is overwritten.

        Args:
            checkpoint: dicts, lists, tuples and sets of plain values and tensors.
            later: tensors of the checkpoint, and dicts of them, that are left for `finish` to copy. A tensor that
                shares memory with one that is not left is copied with that.
        """
        self._copying = _Copying(self._kept, {id(each) for each in later})
        copy: dict[str, Any] = self._copying.copy(checkpoint)
        if not self._copying.left:
            self.finish()
        return copy

    def finish(self) -> None:
        """Put copies of what `take` has left for later into the copy that it has returned."""
        self._copying.finish()
        self._kept = self._copying.used

    def forget(self) -> None:
        """It will not be asked whether they stayed: let go of the originals."""
        self._copying.copied.clear()

    def stayed(self) -> bool:
        """Whether the memory that `finish` has copied is now what it was then, bit for bit."""
        return all(torch.equal(_words(target), _words(source.cpu())) for target, source in self._copying.copied)

    @property
    def allocated(self) -> int:
        """Bytes that are kept."""
        return sum(size * len(kept) for size, kept in self._kept.items())


class _Copying:
    """One copy in the making.

    Attributes:
        used: the memory it has used, by size.
        left: tensors that are still to be copied: the dict of the copy, the key, and the original.
        copied: memory, as bytes, that `finish` has copied: target and source.
    """

    def __init__(self, kept: dict[int, list[Tensor]], later: set[int]) -> None:
        self.used: dict[int, list[Tensor]] = {}
        self.left: list[tuple[dict[Any, Any], Any, Any]] = []
        self.copied: list[tuple[Tensor, Tensor]] = []
        self._free = {size: list(each) for size, each in kept.items()}
        self._later = later
        self._targets: dict[Memory, Tensor] = {}
        self._made: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        """A copy of a value, the same one for the same object."""
        if type(value) in HAVE_NOTHING_TO_COPY:
            return value
        if id(value) not in self._made:
            self._made[id(value)] = self._new(value)
        return self._made[id(value)]

    def finish(self) -> None:
        """Copy what is left."""
        self.copied.clear()
        self._later.clear()
        for place, key, original in self.left:
            place[key] = self.copy(original)
        for done in (self.left, self._made, self._targets):
            done.clear()  # here rather than when the next copy begins, which training waits for

    def _new(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._new_dict(value)
        if isinstance(value, Tensor):
            made = self._new_tensor(value.detach()).requires_grad_(value.requires_grad)
            return nn.Parameter(made, value.requires_grad) if isinstance(value, nn.Parameter) else made
        if isinstance(value, (list, tuple, set)):
            return type(value)(value if _have_nothing_to_copy(value) else [self.copy(each) for each in value])
        return bytearray(value) if isinstance(value, bytearray) else value

    def _new_dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = value.copy()
        for key, each in value.items():
            if id(each) in self._later:
                self.left.append((made, key, each))
            elif type(each) not in HAVE_NOTHING_TO_COPY:
                made[key] = self.copy(each)
        if getattr(value, "__dict__", None):  # the `_metadata` of a module's state dict
            vars(made).update(self.copy(vars(value)))
        return made

    def _new_tensor(self, tensor: Tensor) -> Tensor:
        memory = memory_of(tensor)
        if memory == NOWHERE:
            return tensor.clone().cpu()
        if memory not in self._targets:
            self._targets[memory] = self._target(tensor)
        storage = self._targets[memory].untyped_storage()
        return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _target(self, tensor: Tensor) -> Tensor:
        source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        target = self._memory(source.numel(), pinned=tensor.is_cuda)
        target.copy_(source)
        self.copied.append((target, source))
        return target

    def _memory(self, size: int, *, pinned: bool) -> Tensor:
        free = self._free.get(size)
        memory = free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self.used.setdefault(size, []).append(memory)
        return memory


def _have_nothing_to_copy(values: Iterable[Any]) -> bool:
    return HAVE_NOTHING_TO_COPY.issuperset(map(type, values))


def _words(memory: Tensor) -> Tensor:
    """The same bytes in units that are compared several times faster, where their number allows for it."""
    return memory if memory.numel() % 8 else memory.view(torch.int64)
