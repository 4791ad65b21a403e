"""Copies of checkpoints, which are written while training continues. Usable without hookbus.

Storages are copied, not tensors: tensors that share memory, and objects that occur more than once, do so in the copy as
well. The written file is therefore byte-identical to one that is written synchronously.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Memory = tuple[int, torch.device]
"""Address of the storage of a tensor, and its device."""

NO_MEMORY: Memory = (0, torch.device("meta"))
"""Memory of a tensor that is not a strided view of a storage."""

PLAIN_TYPES = frozenset({Tensor, nn.Parameter})
"""Types of tensors that are fully defined by their storage, shape, strides and dtype."""

IMMUTABLE_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose values are shared by a checkpoint and its copy."""


def get_memory(tensor: Tensor) -> Memory:
    """Return the memory that a tensor is a view of, which is equal for tensors that share it.

    Returns:
        The memory, or `NO_MEMORY` for empty, sparse, quantized, conjugated and negated tensors, and for tensors of a
        subclass, such as sharded ones.
    """
    # A subclass may wrap other tensors and have no storage itself, and a view of the storage would lose its type.
    if type(tensor) not in PLAIN_TYPES:
        return NO_MEMORY
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return NO_MEMORY
    # Empty storages share the address 0.
    address = tensor.untyped_storage().data_ptr()
    return (address, tensor.device) if address else NO_MEMORY


class Snapshot:
    """Copy checkpoints into memory that is reused, so that the second copy allocates nothing.

    Tensors of a subclass are cloned into new memory each time; of sharded ones the local shard, without communication.
    """

    def __init__(self) -> None:
        # Memory of the latest complete copy, by size in bytes.
        self._buffers: dict[int, list[Tensor]] = {}
        self._start(())

    def take(self, checkpoint: dict[str, Any], deferred: Iterable[Tensor | dict[Any, Any]] = ()) -> dict[str, Any]:
        """Copy a checkpoint to CPU memory. Overwrites the previous copy.

        Args:
            checkpoint: Nested dicts, lists, tuples and sets of built-in types and tensors.
            deferred: Tensors of the checkpoint, and dicts of them, that `finish` copies. A tensor that shares memory
                with a tensor that is not deferred is copied with that one.

        Returns:
            The copy. Deferred values are the originals until `finish` is called.
        """
        self._start(deferred)
        copy: dict[str, Any] = self._copy(checkpoint)
        if not self._pending:
            self.finish()
        return copy

    def finish(self) -> None:
        """Copy the deferred values into the copy that `take` returned."""
        # `_copied` starts here: memory that was copied in `take` may change afterwards.
        self._copied.clear()
        self._deferred.clear()
        for target, key, original in self._pending:
            target[key] = self._copy(original)
        # Released here, on the writer thread, because the training waits for the start of the next copy.
        for container in (self._pending, self._copies, self._targets):
            container.clear()
        self._buffers = self._used

    def release_originals(self) -> None:
        """Release the original tensors. `is_unchanged` must not be called afterwards."""
        self._copied.clear()

    def is_unchanged(self) -> bool:
        """Whether the memory that `finish` copied is bitwise unchanged since."""
        return all(torch.equal(_view_as_int64(target), _view_as_int64(source.cpu())) for target, source in self._copied)

    @property
    def allocated_bytes(self) -> int:
        """Size of the reused memory in bytes."""
        return sum(size * len(buffers) for size, buffers in self._buffers.items())

    def _start(self, deferred: Iterable[Any]) -> None:
        self._used: dict[int, list[Tensor]] = {}
        self._free = {size: list(memory) for size, memory in self._buffers.items()}
        self._deferred = {id(value) for value in deferred}
        # Deferred values: the dict of the copy, the key, and the original.
        self._pending: list[tuple[dict[Any, Any], Any, Any]] = []
        # Pairs of target and source memory, as bytes.
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._targets: dict[Memory, Tensor] = {}
        # By id of the original. The checkpoint keeps the originals alive, so ids are not reused.
        self._copies: dict[int, Any] = {}

    def _copy(self, value: Any) -> Any:
        """Copy a value. The same object results in the same copy."""
        if type(value) in IMMUTABLE_TYPES:
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copy_value(value)
        return self._copies[id(value)]

    def _copy_value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._copy_dict(value)
        if isinstance(value, Tensor):
            copy = self._copy_tensor(value.detach()).requires_grad_(value.requires_grad)
            return nn.Parameter(copy, value.requires_grad) if isinstance(value, nn.Parameter) else copy
        if isinstance(value, (list, tuple, set)):
            return type(value)(
                value if IMMUTABLE_TYPES.issuperset(map(type, value)) else [self._copy(item) for item in value]
            )
        return bytearray(value) if isinstance(value, bytearray) else value

    def _copy_dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        # `dict.copy` keeps the type, such as the OrderedDict of a state dict.
        copy = value.copy()
        for key, item in value.items():
            if id(item) in self._deferred:
                self._pending.append((copy, key, item))
            elif type(item) not in IMMUTABLE_TYPES:
                copy[key] = self._copy(item)
        # The state dict of a module has the attribute `_metadata`.
        if getattr(value, "__dict__", None):
            vars(copy).update(self._copy(vars(value)))
        return copy

    def _copy_tensor(self, tensor: Tensor) -> Tensor:
        memory = get_memory(tensor)
        if memory == NO_MEMORY:
            return tensor.clone().cpu()
        if memory not in self._targets:
            self._targets[memory] = self._copy_storage(tensor)
        storage = self._targets[memory].untyped_storage()
        return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _copy_storage(self, tensor: Tensor) -> Tensor:
        source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        # Pinned memory makes the copy from the device faster.
        target = self._allocate(source.numel(), pinned=tensor.is_cuda)
        target.copy_(source)
        self._copied.append((target, source))
        return target

    def _allocate(self, size: int, *, pinned: bool) -> Tensor:
        free = self._free.get(size)
        memory = free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._used.setdefault(size, []).append(memory)
        return memory


def _view_as_int64(memory: Tensor) -> Tensor:
    """View memory as 64-bit integers, which compare several times faster, if its size is a multiple of 8 bytes."""
    return memory if memory.numel() % 8 else memory.view(torch.int64)


def iter_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a nested checkpoint."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, (list, tuple, set)):
            stack += item
