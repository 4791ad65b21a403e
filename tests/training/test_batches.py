"""Nested values with tensors in them, on a device or without their graphs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookbus.training.batches import detached, move


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class TestMove:
    META = torch.device("meta")

    class Batch:
        """Like what tokenizers return."""

        def __init__(self, device: str = "cpu") -> None:
            self.device = device

        def to(self, device: torch.device) -> TestMove.Batch:
            return TestMove.Batch(device.type)

    def test_moves_every_tensor_and_whatever_can_be_moved(self) -> None:
        x = torch.zeros(2)
        moved = move({"x": x, "more": [x, (x, "text", 3)], "own": self.Batch(), "none": None}, self.META)

        assert (moved["x"].device, moved["more"][0].device, moved["more"][1][0].device) == (self.META,) * 3
        assert moved["more"][1][1:] == ("text", 3)
        assert moved["own"].device == "meta"
        assert moved["none"] is None
        assert x.device.type == "cpu"

    def test_tuples_with_names_keep_them(self) -> None:
        moved = move(Pair(torch.zeros(1), torch.ones(1)), self.META)

        assert isinstance(moved, Pair)
        assert moved.second.device == self.META


class TestDetached:
    def test_tensors_hold_no_graph_however_deep_they_lie(self) -> None:
        x = torch.ones(1, requires_grad=True) * 2
        found: Any = detached({"x": x, "pair": Pair(x, x + 1), "deep": [(x, "text", 3)]})

        assert not any(each.requires_grad for each in (found["x"], *found["pair"], found["deep"][0][0]))
        assert isinstance(found["pair"], Pair)
        assert [found["x"].item(), found["pair"].second.item(), found["deep"][0][0].item()] == [2.0, 3.0, 2.0]
        assert found["deep"][0][1:] == ("text", 3)

    def test_one_without_a_graph_is_the_same(self) -> None:
        x = torch.ones(1)

        assert detached(x) is x
