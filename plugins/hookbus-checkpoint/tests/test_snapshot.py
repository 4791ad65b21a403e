"""Copies of checkpoints: the same bytes in the file, and memory that is used again."""

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
from torch.distributed.tensor import Shard, distribute_tensor

from hookbus_checkpoint.snapshot import NOWHERE, Snapshot, memory_of


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def shared_memory() -> dict[str, Any]:
    weight = torch.arange(12.0).reshape(3, 4)
    return {"whole": weight, "row": weight[1], "column": weight[:, 2], "turned": weight.T, "again": weight}


def shared_objects() -> dict[str, Any]:
    betas, names = (0.9, 0.999), ["a", "b"]
    return {"groups": [{"betas": betas, "names": names}, {"betas": betas, "names": names}], "size": torch.Size([2, 3])}


def module_state() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.append(nn.Linear(3, 2))
    return {"state": model.state_dict()}


def odd_tensors() -> dict[str, Any]:
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


@pytest.mark.parametrize("make", [shared_memory, shared_objects, module_state, odd_tensors, plain_values])
def test_a_copy_makes_the_same_file(make: Any) -> None:
    checkpoint, snapshot = make(), Snapshot()

    for _ in range(2):
        assert saved(snapshot.take(checkpoint)) == saved(checkpoint)


def test_a_copy_stays_as_it_is_when_the_original_changes() -> None:
    weight, names = torch.ones(3), ["a"]
    copy = Snapshot().take({"weight": weight, "names": names, "array": (array := bytearray(b"a"))})
    weight.zero_()
    names.append("b")
    array.append(0)

    assert torch.equal(copy["weight"], torch.ones(3))
    assert (copy["names"], copy["array"]) == (["a"], bytearray(b"a"))


def test_the_second_copy_allocates_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    snapshot = Snapshot()
    first = {memory_of(each) for each in snapshot.take(dict(model.state_dict())).values()}
    assert snapshot.allocated == 2 * (16 + 4) * 4

    second = {memory_of(each) for each in snapshot.take(dict(model.state_dict())).values()}
    assert second == first
    assert snapshot.allocated == 2 * (16 + 4) * 4


def test_memory_that_is_no_longer_needed_is_given_back() -> None:
    snapshot = Snapshot()
    for length in range(1, 100):
        snapshot.take({"history": torch.zeros(length)})

    assert snapshot.allocated == 99 * 4


class TestLater:
    def test_only_what_may_wait_is_left_for_later(self) -> None:
        weight, buffer = torch.ones(2), torch.ones(2)
        snapshot = Snapshot()
        copy = snapshot.take({"deep": {"weight": weight}, "buffer": buffer, "again": weight[:1]}, later=[weight])
        weight.fill_(2)
        buffer.fill_(2)
        snapshot.finish()

        assert copy["deep"]["weight"].tolist() == [1, 1]  # "again" was not to be left, and is the same memory
        assert copy["again"].tolist() == [1]
        assert copy["buffer"].tolist() == [1, 1]

    def test_it_makes_the_same_file(self) -> None:
        checkpoint = {"a": shared_memory(), "b": module_state()}
        tensors = [*checkpoint["a"].values(), *checkpoint["b"]["state"].values()]
        snapshot = Snapshot()
        for later in (tensors, tensors[::2], tensors[:2], [checkpoint["a"], *tensors[:2]]):
            copy = snapshot.take(checkpoint, later)
            snapshot.finish()
            assert saved(copy) == saved(checkpoint)

    def test_nothing_of_it_is_copied_before(self) -> None:
        weight = torch.ones(2)
        snapshot = Snapshot()
        copy = snapshot.take({"weight": weight}, later=[weight])
        weight.fill_(2)
        snapshot.finish()
        weight.fill_(3)

        assert copy["weight"].tolist() == [2, 2]

    def test_that_it_stayed_the_same_is_seen_bit_for_bit(self) -> None:
        weight = torch.tensor([1.0, float("nan")])
        snapshot = Snapshot()
        snapshot.take({"weight": weight}, later=[weight])
        snapshot.finish()
        assert snapshot.stayed()

        weight.data[0] = torch.nextafter(weight[0], torch.tensor(2.0))
        assert not snapshot.stayed()

    def test_the_originals_are_let_go_of_once_nobody_asks(self) -> None:
        memory = np.ones(3, dtype=np.float32)
        weight, seen, snapshot = torch.from_numpy(memory), weakref.ref(memory), Snapshot()
        copy = snapshot.take({"weight": weight}, later=[weight])
        snapshot.finish()
        del memory, weight
        assert seen() is not None

        snapshot.forget()
        assert seen() is None
        assert copy["weight"].tolist() == [1, 1, 1]


def test_the_values_of_what_is_no_view_of_memory_are_copied() -> None:
    conjugate, sparse = torch.tensor([1 + 2j]).conj(), torch.eye(2).to_sparse()
    copy = Snapshot().take({"conjugate": conjugate, "sparse": sparse}, later=[conjugate, sparse])

    assert copy["conjugate"].tolist() == [1 - 2j]
    assert torch.equal(copy["sparse"].to_dense(), torch.eye(2))


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.eye(2).to_sparse(), torch.tensor([1j]).conj()])
def test_what_is_no_view_of_memory_shares_none(tensor: Tensor) -> None:
    assert memory_of(tensor) == NOWHERE


def test_a_tensor_that_is_spread_over_processes_is_copied_and_stays_spread() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        weight = distribute_tensor(torch.arange(6.0).reshape(3, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
        copy = Snapshot().take({"weight": weight, "again": weight})
        weight.add_(1)

        assert (copy["weight"].device_mesh, copy["weight"].placements) == (weight.device_mesh, weight.placements)
        assert copy["weight"].full_tensor().tolist() == [[0, 1], [2, 3], [4, 5]]
        assert copy["again"] is copy["weight"]
    finally:
        dist.destroy_process_group()
