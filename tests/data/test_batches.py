"""Nested batches on another device, and nested outputs detached from the autograd graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookbus.data.batches import detach_tree, move_to_device


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class TestMove:
    META = torch.device("meta")

    class Batch:
        """Batch with a method `to`, such as BatchEncoding of transformers."""

        def __init__(self, device: str = "cpu") -> None:
            self.device = device

        def to(self, device: torch.device) -> TestMove.Batch:
            return TestMove.Batch(device.type)

    def test_tensors_and_objects_with_a_method_to_are_moved(self) -> None:
        x = torch.zeros(2)
        moved = move_to_device({"x": x, "more": [x, (x, "text", 3)], "own": self.Batch(), "none": None}, self.META)

        assert (moved["x"].device, moved["more"][0].device, moved["more"][1][0].device) == (self.META,) * 3
        assert moved["more"][1][1:] == ("text", 3)
        assert moved["own"].device == "meta"
        assert moved["none"] is None
        assert x.device.type == "cpu"

    def test_named_tuples_keep_their_type(self) -> None:
        moved = move_to_device(Pair(torch.zeros(1), torch.ones(1)), self.META)

        assert isinstance(moved, Pair)
        assert moved.second.device == self.META


class TestDetached:
    def test_nested_tensors_are_detached(self) -> None:
        x = torch.ones(1, requires_grad=True) * 2
        outputs: Any = detach_tree({"x": x, "pair": Pair(x, x + 1), "deep": [(x, "text", 3)]})

        assert not any(tensor.requires_grad for tensor in (outputs["x"], *outputs["pair"], outputs["deep"][0][0]))
        assert isinstance(outputs["pair"], Pair)
        assert [outputs["x"].item(), outputs["pair"].second.item(), outputs["deep"][0][0].item()] == [2.0, 3.0, 2.0]
        assert outputs["deep"][0][1:] == ("text", 3)

    def test_tensor_without_a_graph_is_returned_unchanged(self) -> None:
        x = torch.ones(1)

        assert detach_tree(x) is x
