from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookbus.checkpoints.plain import check_plain, plain_state
from hookbus.errors import CheckpointError


class Tagged(torch.Tensor):
    """A tensor of a type of its own."""


def test_plain_values_and_tensors_pass_however_deep_they_are() -> None:
    weight = nn.Parameter(torch.ones(2))
    tagged = torch.ones(2).as_subclass(Tagged)
    check_plain({"a": [1, None, ({"b": OrderedDict(c=weight)},)], 2: {tagged}, (3, "d"): Counter("e")}, "checkpoint")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": object()}, "['a'] is a object"),
        ({"a": 1, "b": [1, object()]}, "['b'][1] is a object"),
        ([1, {"a": {2.5: object()}}], "[1]['a'][2.5] is a object"),
        ({(1, object): 1}, "[1] is a type"),
        ({np.int64(1): 1}, " is a int64"),
        ({"lr": np.float32(1)}, "['lr'] is a float32"),
    ],
)
def test_what_is_not_plain_is_named_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_plain(value, "checkpoint")
    message = str(caught.value)
    assert message.startswith("checkpoint")
    assert place in message


def test_numbers_of_numpy_become_those_of_python_in_containers_of_their_own() -> None:
    weight = torch.ones(2)
    state = {"groups": [{"lr": np.float64(0.5), "betas": (np.float32(0.5), 1)}], "state": {0: {"step": weight}}}

    found = plain_state(state, "optimizer")

    assert found == {"groups": [{"lr": 0.5, "betas": (0.5, 1)}], "state": {0: {"step": weight}}}
    assert type(found["groups"][0]["lr"]) is type(found["groups"][0]["betas"][0]) is float
    assert found["state"][0]["step"] is weight
    assert found["state"][0] is not state["state"][0]  # whoever changes a checkpoint changes no optimizer


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"groups": [{"lr": object()}]}, "['groups'][0]['lr'] is a object"),
        ({"state": {0: {"step": 1, "seen": np.ones(2)}}}, "['state'][0]['seen'] is a ndarray"),
        ({"state": {0: {object: 1}}}, "['state'][0]: the key <class 'object'> is a type"),
        ({"lr": (1.0, np.sqrt)}, "['lr'][1] is a ufunc"),
    ],
)
def test_what_is_not_plain_in_a_state_is_named_with_its_place(state: Any, place: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        plain_state(state, "checkpoint['optimizer']")
    assert str(caught.value).startswith("checkpoint['optimizer']" + place)
