"""Tests of the validation of checkpoint contents."""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookbus.checkpoint.load import load_file
from hookbus.checkpoint.plain_data import to_plain_data, validate_plain_data
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointCorruptedError, CheckpointError


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

    def test_jagged_tensor_is_accepted_if_torch_loads_it(self) -> None:
        jagged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
        torch.save(jagged, file := io.BytesIO())
        file.seek(0)
        try:
            torch.load(file, weights_only=True)
        except pickle.UnpicklingError:  # torch 2.15
            with pytest.raises(CheckpointError, match=r"\['a'\]: invalid type NestedTensor"):
                validate_plain_data({"a": jagged}, "checkpoint")
        else:
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


def nest(depth: int) -> list[Any]:
    """Return a list with a number of levels."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def save(path: Path, content: Any) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=True)
    return path


def test_nesting_is_limited_exactly(tmp_path: Path) -> None:
    load_file(save(tmp_path / "a.pth", {"a": nest(63)}))
    with pytest.raises(CheckpointCorruptedError, match="expected at most 64 levels of nesting"):
        load_file(save(tmp_path / "b.pth", {"a": nest(64)}))


def test_very_deep_nesting_is_refused(tmp_path: Path) -> None:
    # Protocol 2: 100,000 empty lists on the stack, each appended to the one before; the pickler would recurse.
    path = save(tmp_path / "a.pth", {"a": 1})
    replace_pickle(path, b"\x80\x02}X\x01\x00\x00\x00a" + b"]" * 100_000 + b"a" * 99_999 + b"s.")
    with pytest.raises(CheckpointCorruptedError, match="expected at most 64 levels of nesting"):
        load_file(path)


def test_list_that_contains_itself_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pth", {"a": 1})
    replace_pickle(path, b"\x80\x02}X\x01\x00\x00\x00a]q\x00h\x00as.")
    with pytest.raises(CheckpointCorruptedError, match="expected at most 64 levels of nesting"):
        load_file(path)


@pytest.mark.slow
def test_exponential_number_of_shared_lists_is_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(CheckpointCorruptedError, match="expected at most 5000000 containers"):
        load_file(save(tmp_path / "a.pth", {"a": value}))


def test_attribute_that_replaces_a_method_is_refused(tmp_path: Path) -> None:
    state: Any = OrderedDict(w=torch.ones(1))
    state.update = 3
    with pytest.raises(CheckpointCorruptedError, match="got an attribute 'update' of a OrderedDict"):
        load_file(save(tmp_path / "a.pth", {"state_dict": state}))


def test_versions_of_modules_are_accepted(tmp_path: Path) -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    loaded = load_file(save(tmp_path / "a.pth", {"state_dict": state}))
    assert loaded["state_dict"]._metadata == state._metadata  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*no valid sidecar")
def test_tensor_without_data_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pth", {"a": [torch.ones(10**12, device="meta")]})
    assert read_checkpoint(path, map_location="meta")["a"][0].shape == (10**12,)
    with pytest.raises(CheckpointCorruptedError, match=r"tensors with data, got shape \(1000000000000,\)"):
        read_checkpoint(path)


def replace_pickle(path: Path, pickled: bytes) -> None:
    """Replace the pickle in a file of `torch.save`."""
    writer = torch._C.PyTorchFileWriter(str(path))
    writer.write_record("data.pkl", pickled, len(pickled))
    writer.write_record("byteorder", "little", 6)
    writer.write_end_of_file()
