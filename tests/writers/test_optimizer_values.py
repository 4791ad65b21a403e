"""Values of parameter groups by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus.writers import get_group_names, get_optimizer_values, name_optimizer_values
from hookbus.writers.optimizer_values import find_equal_names


def make_groups(*groups: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"params": [nn.Parameter(torch.zeros(1))], **group} for group in groups]


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ([{}], [""]),
        ([{}, {}], ["0", "1"]),
        ([{"name": "head"}], ["head"]),
        ([{"name": "head"}, {}, {"name": "backbone"}], ["head", "1", "backbone"]),
        ([{"name": "a"}, {"name": "a"}, {"name": "b"}], ["0", "1", "b"]),
        ([{"name": "1"}, {}], ["0", "1"]),
        ([{"name": 7}], ["7"]),
    ],
)
def test_groups_have_their_names_else_their_indices(groups: list[dict[str, Any]], names: list[str]) -> None:
    assert get_group_names(torch.optim.SGD(make_groups(*groups), lr=0.1)) == names


def test_equal_names_are_found() -> None:
    groups = make_groups({"name": "a"}, {"name": "b"}, {"name": "a"}, {}, {})
    assert find_equal_names(torch.optim.SGD(groups, lr=0.1)) == ["a"]


@pytest.mark.parametrize(
    ("build", "momentum", "decay"),
    [
        (lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.5, weight_decay=0.25), [0.5], [0.25]),
        (lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.75, 0.9), weight_decay=0.5), [0.75], [0.5]),
        (lambda groups: torch.optim.RMSprop(groups, lr=0.1, momentum=0.25), [0.25], [0]),
        (lambda groups: torch.optim.Adagrad(groups, lr=0.1), [None], [0]),
    ],
    ids=["SGD", "AdamW", "RMSprop", "Adagrad"],
)
def test_momentum_is_the_setting_of_the_optimizer_or_its_first_beta(build: Any, momentum: Any, decay: Any) -> None:
    optimizer = build(make_groups({}))
    assert get_optimizer_values(optimizer) == [0.1]
    assert get_optimizer_values(optimizer, "momentum") == momentum
    assert get_optimizer_values(optimizer, "weight_decay") == decay


def test_values_are_named_by_value_optimizer_and_group() -> None:
    assert name_optimizer_values([0.5], [""]) == {"lr": 0.5}
    assert name_optimizer_values([0.5, 0.25], ["0", "head"]) == {"lr/0": 0.5, "lr/head": 0.25}
    assert name_optimizer_values([0.5], [""], "momentum", "G") == {"momentum/G": 0.5}
    assert name_optimizer_values([0.5, None], ["a", "1"], "weight_decay", "G") == {"weight_decay/G/a": 0.5}


def test_optimizer_that_is_missing_has_no_values() -> None:
    assert get_optimizer_values(None) == get_group_names(None) == []


def test_tensor_is_copied() -> None:
    rate = torch.tensor(0.5)
    rates = get_optimizer_values(torch.optim.SGD(make_groups({}), lr=rate))
    rate.fill_(9)
    assert name_optimizer_values(rates, [""]) == {"lr": 0.5}
