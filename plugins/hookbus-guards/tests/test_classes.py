from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

from hookbus_guards.classes import classes_of, declaring, heads


class Data(list[Any]):
    """A data set with some attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__([0, 1])
        vars(self).update(attributes)


class Repeated:
    """A wrapper with default classes of its own."""

    CLASSES = ("a", "b", "c")

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


class Head(nn.Module):
    def __init__(self, num_classes: Any) -> None:
        super().__init__()
        self.num_classes = num_classes


class VGG(Head):
    pass


class TestClassesOf:
    @pytest.mark.parametrize(
        "attributes",
        [
            {"metainfo": {"classes": ["cat"]}},
            {"metainfo": {"CLASSES": ["cat"]}, "classes": ["dog", "cow"]},
            {"classes": ["cat"], "CLASSES": ["dog", "cow"]},
            {"metainfo": {}, "CLASSES": ["cat"]},
        ],
    )
    def test_are_where_a_data_set_may_have_them(self, attributes: dict[str, Any]) -> None:
        assert classes_of(Data(**attributes)) == ["cat"]

    @pytest.mark.parametrize("attributes", [{}, {"metainfo": {}}, {"classes": 5}, {"metainfo": None}])
    def test_are_none_where_nothing_is_declared(self, attributes: dict[str, Any]) -> None:
        assert classes_of(Data(**attributes)) is None


class TestDeclaring:
    def test_looks_through_wrappers_whatever_they_say_themselves(self) -> None:
        inner, other = Data(classes=["x"]), Data(classes=["y"])

        assert declaring(DataLoader(Repeated(Subset(inner, [0])), sampler=[0])) == [inner]  # type: ignore[arg-type]
        assert [id(each) for each in declaring(ConcatDataset([inner, Subset(other, [0])]))] == [id(inner), id(other)]

    def test_takes_the_wrapper_where_nobody_inside_says_anything(self) -> None:
        wrapper = Repeated(Data())

        assert declaring(wrapper) == [wrapper]
        assert declaring([torch.ones(2)]) == []


class TestHeads:
    def test_are_modules_with_a_whole_number(self) -> None:
        model = nn.ModuleDict({"box": Head(6), "flag": Head(True), "text": Head("6"), "none": Head(None)})

        assert {name: number for name, (_, number) in heads(model).items()} == {"box": 6}

    def test_may_be_left_out_by_the_end_of_the_name_or_by_the_class(self) -> None:
        model = nn.ModuleDict({"neck": nn.ModuleDict({"rpn_head": Head(1)}), "backbone": VGG(10), "head": Head(6)})

        assert list(heads(model, ["rpn_head", "VGG"])) == ["head"]
        assert list(heads(model)) == ["neck.rpn_head", "backbone", "head"]
