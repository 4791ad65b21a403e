from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

from hookbus_guards.classes import datasets_with_classes, find_heads, get_classes


class Data(list[Any]):
    """A dataset with attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__([0, 1])
        vars(self).update(attributes)


class Repeated:
    """A wrapper that declares default classes."""

    CLASSES = ("a", "b", "c")

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


class Head(nn.Module):
    def __init__(self, num_classes: Any) -> None:
        super().__init__()
        self.num_classes = num_classes


class VGG(Head):
    pass


class TestGetClasses:
    @pytest.mark.parametrize(
        "attributes",
        [
            {"metainfo": {"classes": ["cat"]}},
            {"metainfo": {"CLASSES": ["cat"]}, "classes": ["dog", "cow"]},
            {"classes": ["cat"], "CLASSES": ["dog", "cow"]},
            {"metainfo": {}, "CLASSES": ["cat"]},
        ],
    )
    def test_classes_are_read_from_each_supported_attribute(self, attributes: dict[str, Any]) -> None:
        assert get_classes(Data(**attributes)) == ["cat"]

    @pytest.mark.parametrize("attributes", [{}, {"metainfo": {}}, {"classes": 5}, {"metainfo": None}])
    def test_classes_are_none_if_the_dataset_declares_none(self, attributes: dict[str, Any]) -> None:
        assert get_classes(Data(**attributes)) is None

    def test_attributes_after_the_first_classes_are_not_read(self) -> None:
        class Lazy:
            metainfo: ClassVar[dict[str, Any]] = {"classes": ["cat"]}

            @property
            def classes(self) -> list[str]:
                raise RuntimeError("not loaded")

        assert get_classes(Lazy()) == ["cat"]


class TestDatasetsWithClasses:
    def test_innermost_dataset_overrides_classes_of_its_wrappers(self) -> None:
        inner, other = Data(classes=["x"]), Data(classes=["y"])

        assert datasets_with_classes(DataLoader(Repeated(Subset(inner, [0])), sampler=[0])) == [inner]  # type: ignore[arg-type]
        assert list(map(id, datasets_with_classes(ConcatDataset([inner, Subset(other, [0])])))) == [
            id(inner),
            id(other),
        ]

    def test_wrapper_is_used_if_no_dataset_inside_declares_classes(self) -> None:
        wrapper = Repeated(Data())

        assert datasets_with_classes(wrapper) == [wrapper]
        assert datasets_with_classes([torch.ones(2)]) == []


class TestFindHeads:
    def test_heads_are_modules_with_an_integer_class_count(self) -> None:
        model = nn.ModuleDict({"box": Head(6), "flag": Head(True), "text": Head("6"), "none": Head(None)})

        assert {name: number for name, (_, number) in find_heads(model).items()} == {"box": 6}

    def test_heads_are_excluded_by_suffix_of_the_name_or_by_class(self) -> None:
        model = nn.ModuleDict({"neck": nn.ModuleDict({"rpn_head": Head(1)}), "backbone": VGG(10), "head": Head(6)})

        assert list(find_heads(model, ["rpn_head", "VGG"])) == ["head"]
        assert list(find_heads(model)) == ["neck.rpn_head", "backbone", "head"]
