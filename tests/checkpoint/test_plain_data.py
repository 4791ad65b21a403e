"""Tests of the validation of checkpoint contents."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookbus.checkpoint.plain_data import to_plain_data, validate_plain_data
from hookbus.errors import CheckpointError


class TaggedTensor(torch.Tensor):
    """Tensor subclass."""


def test_nested_builtin_types_and_tensors_are_accepted() -> None:
    weight = nn.Parameter(torch.ones(2))
    validate_plain_data({"a": [1, None, ({"b": OrderedDict(c=weight)},)], 2: {weight}, (3, "d"): Counter("e")}, "x")


class TestTensorSubclass:
    def test_subclass_that_torch_does_not_load_is_reported_with_its_path(self) -> None:
        tagged = torch.ones(2).as_subclass(TaggedTensor)
        for check in (validate_plain_data, to_plain_data):
            with pytest.raises(CheckpointError) as caught:
                check({"a": [tagged]}, "checkpoint")
            assert str(caught.value) == (
                "checkpoint['a'][0]: invalid type TaggedTensor. A checkpoint contains only built-in Python types and "
                "tensors, so that loading it executes no code. Convert the tensor with as_subclass(torch.Tensor), or "
                "allow the class in every process that loads the checkpoint: "
                "torch.serialization.add_safe_globals([TaggedTensor])."
            )

    def test_parameter_of_a_subclass_is_reported(self) -> None:
        with pytest.raises(CheckpointError, match=r"\['a'\]: invalid type TaggedTensor"):
            validate_plain_data({"a": nn.Parameter(torch.ones(2).as_subclass(TaggedTensor))}, "checkpoint")

    def test_subclass_that_the_process_allows_is_accepted(self) -> None:
        class AllowedTensor(torch.Tensor):
            pass

        AllowedTensor.__qualname__ = "AllowedTensor"
        globals()["AllowedTensor"] = AllowedTensor  # pickle finds classes by their names
        try:
            with torch.serialization.safe_globals([AllowedTensor]):
                validate_plain_data({"a": torch.ones(2).as_subclass(AllowedTensor)}, "checkpoint")
        finally:
            del globals()["AllowedTensor"]

    def test_jagged_tensor_that_torch_loads_is_accepted(self) -> None:
        jagged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
        validate_plain_data({"a": jagged}, "checkpoint")


def test_object_in_an_attribute_of_a_dict_is_reported() -> None:
    state = nn.Linear(2, 2).state_dict()
    validate_plain_data(state, "state_dict")  # with the attribute `_metadata`
    state._metadata["own"] = object  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"state_dict: the attribute \['_metadata'\]\['own'\]: invalid type type"):
        validate_plain_data(state, "state_dict")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": object()}, "['a']: invalid type object"),
        ({"a": 1, "b": [1, object()]}, "['b'][1]: invalid type object"),
        ([1, {"a": {2.5: object()}}], "[1]['a'][2.5]: invalid type object"),
        ({(1, object): 1}, "[1]: invalid type type"),
        ({np.int64(1): 1}, ": invalid type int64"),
        ({"lr": np.float32(1)}, "['lr']: invalid type float32"),
    ],
)
def test_object_of_another_type_is_reported_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        validate_plain_data(value, "checkpoint")
    message = str(caught.value)
    assert message.startswith("checkpoint")
    assert path in message


def test_numpy_scalars_are_converted_in_new_containers() -> None:
    weight = torch.ones(2)
    state = {"groups": [{"lr": np.float64(0.5), "betas": (np.float32(0.5), 1)}], "state": {0: {"step": weight}}}

    plain = to_plain_data(state, "optimizer")

    assert plain == {"groups": [{"lr": 0.5, "betas": (0.5, 1)}], "state": {0: {"step": weight}}}
    assert type(plain["groups"][0]["lr"]) is type(plain["groups"][0]["betas"][0]) is float
    assert plain["state"][0]["step"] is weight
    assert plain["state"][0] is not state["state"][0]  # modifying a checkpoint must not modify the optimizer


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"groups": [{"lr": object()}]}, "['groups'][0]['lr']: invalid type object"),
        ({"state": {0: {"step": 1, "seen": np.ones(2)}}}, "['state'][0]['seen']: invalid type ndarray"),
        ({"state": {0: {object: 1}}}, "['state'][0]: the key <class 'object'>: invalid type type"),
        ({"lr": (1.0, np.sqrt)}, "['lr'][1]: invalid type ufunc"),
    ],
)
def test_object_of_another_type_in_a_state_is_reported_with_its_path(state: Any, path: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        to_plain_data(state, "checkpoint['optimizer']")
    assert str(caught.value).startswith("checkpoint['optimizer']" + path)
