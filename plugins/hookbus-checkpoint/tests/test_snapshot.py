"""Copies of checkpoints: byte-identical files, and reused memory."""

from __future__ import annotations

import io
import weakref
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hookbus_checkpoint.snapshot import NO_MEMORY, Snapshot, get_memory


def serialize(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def shared_memory() -> dict[str, Any]:
    weight = torch.arange(12.0).reshape(3, 4)
    return {"whole": weight, "row": weight[1], "column": weight[:, 2], "transposed": weight.T, "alias": weight}


def shared_objects() -> dict[str, Any]:
    betas, names = (0.9, 0.999), ["a", "b"]
    return {"groups": [{"betas": betas, "names": names}, {"betas": betas, "names": names}], "size": torch.Size([2, 3])}


def module_state() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.append(nn.Linear(3, 2))
    return {"state": model.state_dict()}


def special_tensors() -> dict[str, Any]:
    return {
        "scalar": torch.tensor(3.5),
        "nothing": torch.empty(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "parameter": nn.Parameter(torch.ones(2)),
        "frozen": nn.Parameter(torch.ones(2), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "nan": torch.tensor([float("nan"), float("-inf")]),
    }


def plain_values() -> dict[str, Any]:
    return {
        "counter": Counter("abca"),
        "ordered": OrderedDict(b=1, a=2),
        "bytes": b"raw",
        "array": bytearray(b"raw"),
        "set": {"one"},
        "nested": [({"deep": [None, True, 1, 2.0]},)],
    }


@pytest.mark.parametrize(
    "build_checkpoint", [shared_memory, shared_objects, module_state, special_tensors, plain_values]
)
def test_copy_results_in_a_byte_identical_file(build_checkpoint: Any) -> None:
    checkpoint, snapshot = build_checkpoint(), Snapshot()

    for _ in range(2):
        assert serialize(snapshot.take(checkpoint)) == serialize(checkpoint)


def test_copy_is_independent_of_the_original() -> None:
    weight, names = torch.ones(3), ["a"]
    copy = Snapshot().take({"weight": weight, "names": names, "array": (array := bytearray(b"a"))})
    weight.zero_()
    names.append("b")
    array.append(0)

    assert torch.equal(copy["weight"], torch.ones(3))
    assert (copy["names"], copy["array"]) == (["a"], bytearray(b"a"))


def test_second_copy_allocates_no_memory() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    snapshot = Snapshot()
    first = {get_memory(tensor) for tensor in snapshot.take(dict(model.state_dict())).values()}
    assert snapshot.allocated_bytes == 2 * (16 + 4) * 4

    second = {get_memory(tensor) for tensor in snapshot.take(dict(model.state_dict())).values()}
    assert second == first
    assert snapshot.allocated_bytes == 2 * (16 + 4) * 4


def test_unused_memory_is_released() -> None:
    snapshot = Snapshot()
    for length in range(1, 100):
        snapshot.take({"history": torch.zeros(length)})

    assert snapshot.allocated_bytes == 99 * 4


class TestDeferred:
    def test_tensor_with_memory_of_a_copied_tensor_is_not_deferred(self) -> None:
        weight, buffer = torch.ones(2), torch.ones(2)
        snapshot = Snapshot()
        copy = snapshot.take({"deep": {"weight": weight}, "buffer": buffer, "alias": weight[:1]}, deferred=[weight])
        weight.fill_(2)
        buffer.fill_(2)
        snapshot.finish()

        assert copy["deep"]["weight"].tolist() == [1, 1]  # "alias" is not deferred and shares the memory
        assert copy["alias"].tolist() == [1]
        assert copy["buffer"].tolist() == [1, 1]

    def test_deferred_copy_results_in_a_byte_identical_file(self) -> None:
        checkpoint = {"a": shared_memory(), "b": module_state()}
        tensors = [*checkpoint["a"].values(), *checkpoint["b"]["state"].values()]
        snapshot = Snapshot()
        for deferred in (tensors, tensors[::2], tensors[:2], [checkpoint["a"], *tensors[:2]]):
            copy = snapshot.take(checkpoint, deferred)
            snapshot.finish()
            assert serialize(copy) == serialize(checkpoint)

    def test_deferred_tensor_is_copied_by_finish(self) -> None:
        weight = torch.ones(2)
        snapshot = Snapshot()
        copy = snapshot.take({"weight": weight}, deferred=[weight])
        weight.fill_(2)
        snapshot.finish()
        weight.fill_(3)

        assert copy["weight"].tolist() == [2, 2]

    def test_change_of_one_bit_is_detected(self) -> None:
        weight = torch.tensor([1.0, float("nan")])
        snapshot = Snapshot()
        snapshot.take({"weight": weight}, deferred=[weight])
        snapshot.finish()
        assert snapshot.is_unchanged()

        weight.data[0] = torch.nextafter(weight[0], torch.tensor(2.0))
        assert not snapshot.is_unchanged()

    def test_originals_are_released(self) -> None:
        memory = np.ones(3, dtype=np.float32)
        weight, reference, snapshot = torch.from_numpy(memory), weakref.ref(memory), Snapshot()
        copy = snapshot.take({"weight": weight}, deferred=[weight])
        snapshot.finish()
        del memory, weight
        assert reference() is not None

        snapshot.release_originals()
        assert reference() is None
        assert copy["weight"].tolist() == [1, 1, 1]


def test_tensors_without_strided_memory_are_copied_by_value() -> None:
    conjugate, sparse = torch.tensor([1 + 2j]).conj(), torch.eye(2).to_sparse()
    copy = Snapshot().take({"conjugate": conjugate, "sparse": sparse}, deferred=[conjugate, sparse])

    assert copy["conjugate"].tolist() == [1 - 2j]
    assert torch.equal(copy["sparse"].to_dense(), torch.eye(2))


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.eye(2).to_sparse(), torch.tensor([1j]).conj()])
def test_tensors_without_strided_memory_share_none(tensor: Tensor) -> None:
    assert get_memory(tensor) == NO_MEMORY


def test_copy_of_a_sharded_tensor_is_sharded() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        weight = DTensor.from_local(torch.arange(6.0).reshape(3, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
        copy = Snapshot().take({"weight": weight, "alias": weight})
        weight.add_(1)

        assert (copy["weight"].device_mesh, copy["weight"].placements) == (weight.device_mesh, weight.placements)
        assert copy["weight"].full_tensor().tolist() == [[0, 1], [2, 3], [4, 5]]
        assert copy["alias"] is copy["weight"]
    finally:
        dist.destroy_process_group()


class WrappingTensor(torch.Tensor):
    """Tensor without a storage that wraps another tensor, as quantized weights of libraries do."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = [arg.inner if isinstance(arg, WrappingTensor) else arg for arg in args]
        result = function(*inner, **(kwargs or {}))
        return WrappingTensor(result) if isinstance(result, Tensor) else result


def test_tensor_of_a_subclass_without_storage_is_copied_with_its_type() -> None:
    weight = WrappingTensor(torch.ones(2))
    copy = Snapshot().take({"weight": weight, "alias": weight, "parameter": nn.Parameter(weight)})
    weight.inner.add_(1)

    assert type(copy["weight"]) is type(copy["parameter"]) is WrappingTensor
    assert copy["weight"].inner.tolist() == copy["parameter"].inner.tolist() == [1, 1]
    assert isinstance(copy["parameter"], nn.Parameter)
    assert copy["alias"] is copy["weight"]
