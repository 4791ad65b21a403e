"""Nested batches on another device, and nested outputs detached from the autograd graph."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from hookbus.data.batches import detach_tree, move_to_device
from hookbus.errors import LoopError


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


@dataclass
class Record:
    image: Any
    label: Any


@dataclass(frozen=True, slots=True)
class FrozenRecord:
    image: Any
    label: Any
    mask: Any = field(init=False, default=None)


@dataclass
class Checked(Record):
    count: InitVar[int] = 0

    def __post_init__(self, count: int) -> None:
        self.total = self.image + count


@attrs.frozen
class AttrsRecord:
    image: Any
    label: Any


class Tagged(dict[str, Any]):
    tag = ""


class TaggedList(list[Any]):
    tag = ""


class Table(Mapping[str, Any]):
    """Mapping that is built from a dict."""

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Keyword(Table):
    """Mapping that cannot be built from a dict."""

    def __init__(self, *, size: int) -> None:
        super().__init__({"x": torch.zeros(size)})


class TestTypes:
    META = torch.device("meta")

    @pytest.mark.parametrize(
        "make",
        [Record, FrozenRecord, lambda image, label: Checked(image, label, 2), AttrsRecord],
        ids=["dataclass", "frozen with slots", "__post_init__", "attrs"],
    )
    def test_fields_of_dataclasses_are_moved(self, make: Any) -> None:
        x = torch.ones(2)
        record = make(x, "cat")
        (moved, other), _ = move_to_device(([record, 1], {"record": record}), self.META)

        assert (type(moved), moved.image.device, moved.label, other) == (type(record), self.META, "cat", 1)
        assert record.image is x

    def test_fields_that_are_no_arguments_of_init_are_moved(self) -> None:
        record = FrozenRecord(torch.ones(2), 1)
        object.__setattr__(record, "mask", torch.ones(2))

        assert move_to_device(record, self.META).mask.device == self.META

    def test_attributes_that_are_no_fields_are_moved(self) -> None:
        assert move_to_device(Checked(torch.ones(2), 1, 3), self.META).total.device == self.META

    def test_fields_without_a_value_stay_without_one(self) -> None:
        record = Record(torch.ones(2), 1)
        del record.label

        assert not hasattr(move_to_device(record, self.META), "label")

    def test_mappings_and_lists_keep_their_type_and_attributes(self) -> None:
        tagged, numbers = Tagged(x=torch.ones(2)), TaggedList([torch.ones(2)])
        tagged.tag = numbers.tag = "train"
        default = defaultdict(list, x=[torch.ones(2)])
        batch = [tagged, numbers, default, UserDict(x=torch.ones(2)), OrderedDict(x=torch.ones(2))]
        moved = move_to_device(batch, self.META)

        assert [type(item) for item in moved] == [Tagged, TaggedList, defaultdict, UserDict, OrderedDict]
        assert [moved[0].tag, moved[1].tag, moved[2].default_factory] == ["train", "train", list]
        assert {moved[0]["x"].device, moved[1][0].device, moved[2]["x"][0].device} == {self.META}
        assert {moved[3]["x"].device, moved[4]["x"].device} == {self.META}
        assert {item["x"].device.type for item in (batch[0], batch[3], batch[4])} == {"cpu"}

    def test_mapping_that_is_built_from_a_dict_keeps_its_type(self) -> None:
        moved = move_to_device(Table({"x": torch.ones(2)}), self.META)

        assert (type(moved), moved["x"].device) == (Table, self.META)

    def test_packed_sequence_is_moved(self) -> None:
        moved = move_to_device(pack_sequence([torch.ones(3), torch.ones(2)]), self.META)

        assert (type(moved), moved.data.device) == (PackedSequence, self.META)

    def test_mapping_that_cannot_be_rebuilt_is_an_error(self) -> None:
        with pytest.raises(LoopError, match=r"batch: a Keyword cannot be rebuilt with other tensors, got TypeError: "):
            move_to_device({"inputs": Keyword(size=2)}, self.META)

    def test_value_without_tensors_is_returned_unchanged(self) -> None:
        keyword, record = Keyword(size=0), Record(1, ["a"])
        keyword._items["x"] = "text"
        moved = move_to_device((keyword, record, {"a": [1]}), self.META)

        assert moved[0] is keyword
        assert moved[1] is record


def test_fields_of_dataclasses_are_detached() -> None:
    x = torch.ones(1, requires_grad=True) * 2
    record: Any = detach_tree([FrozenRecord(x, x + 1)])[0]

    assert not record.image.requires_grad
    assert record.label.item() == 3.0
