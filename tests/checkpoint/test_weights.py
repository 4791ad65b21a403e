"""Weights: loading into a model, comparison without loading, names with and without prefixes of wrappers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.checkpoint.weights import check_compatible, load_into, matching_weights
from hookbus.errors import CheckpointError
from hookbus.testing import fingerprint


class Residual(nn.Module):
    """Module of a user whose only child is named `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Converting(nn.Linear):
    """Layer whose hook renames the keys of old files."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.calls: list[str] = []
        self.register_load_state_dict_pre_hook(self._rename)

    def _rename(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        self.calls.append(next(iter(state.values())).device.type)
        if f"{prefix}kernel" in state:
            state[f"{prefix}weight"] = state.pop(f"{prefix}kernel")


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def to_meta(state: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.as_tensor(value).to("meta") for name, value in state.items()}


class TestCheckCompatible:
    def test_check_does_not_modify_the_model(self) -> None:
        model = make_model()
        before = fingerprint(model.state_dict())
        check_compatible(model, to_meta(model.state_dict()))
        assert fingerprint(model.state_dict()) == before

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            (
                {"0.weight": torch.ones(9, 9)},
                "size mismatch for 0.weight: the file contains [9, 9], the model contains [3, 2].",
            ),
            ({"more": torch.ones(1)}, 'Unexpected key(s) in state_dict: "more".'),
        ],
    )
    def test_mismatch_is_reported(self, change: dict[str, Any], problem: str) -> None:
        model = make_model()
        with pytest.raises(CheckpointError) as caught:
            check_compatible(model, to_meta({**model.state_dict(), **change}))
        assert str(caught.value) == f"The weights do not match the model: {problem}"

    def test_missing_keys_are_reported(self) -> None:
        state = make_model().state_dict()
        del state["0.bias"]
        with pytest.raises(CheckpointError, match=r'Missing key\(s\) in state_dict: "0.bias".$'):
            check_compatible(make_model(), to_meta(state))

    def test_files_of_old_versions_of_torch_are_compatible(self) -> None:
        state = to_meta({n: v for n, v in make_model().state_dict().items() if "batches" not in n})
        check_compatible(make_model(), state)
        scalar = nn.Module()
        scalar.register_buffer("count", torch.tensor(1.0))
        check_compatible(scalar, {"count": torch.ones(1)})

    def test_lazy_layer_accepts_every_shape(self) -> None:
        check_compatible(nn.LazyLinear(3), to_meta(nn.Linear(2, 3).state_dict()))

    def test_code_that_loads_state_is_not_executed(self) -> None:
        layer = Converting()
        model = nn.Sequential(layer, nn.Linear(2, 2))
        renamed = {name.replace("0.weight", "0.kernel"): value for name, value in model.state_dict().items()}
        check_compatible(model, to_meta(renamed))
        assert layer.calls == []
        with pytest.raises(CheckpointError, match='Unexpected.*"1.more"'):
            check_compatible(model, to_meta({**renamed, "1.more": torch.ones(1)}))


class TestConvertedState:
    def test_hook_of_a_layer_is_called_once_with_the_values(self) -> None:
        layer = Converting()
        load_into(layer, {"kernel": torch.full((2, 2), 3.0), "bias": torch.zeros(2)})
        assert layer.weight.tolist() == [[3, 3], [3, 3]]
        assert layer.calls == ["cpu"]

    def test_keys_that_a_hook_renames_are_not_ignored_without_strict(self) -> None:
        matching, *_ = matching_weights(Converting(), {"kernel": torch.ones(2, 2)})
        assert list(matching) == ["kernel"]


def build_plain() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), Residual(nn.Linear(2, 2)))


def build_compiled_blocks() -> nn.Module:
    model = build_plain()
    model[1] = torch.compile(model[1], backend="eager")  # type: ignore[index]
    return model


WRAPPED = {
    "plain": build_plain,
    "compiled block": build_compiled_blocks,
    "parallel": lambda: nn.DataParallel(build_plain()),
    "compiled parallel of a compiled block": lambda: torch.compile(
        nn.DataParallel(build_compiled_blocks()), backend="eager"
    ),
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(WRAPPED, WRAPPED)))
def test_names_match_with_and_without_prefixes_of_wrappers(source: str, target: str) -> None:
    torch.manual_seed(0)
    weights, model = WRAPPED[source]().state_dict(), WRAPPED[target]()
    check_compatible(model, weights)
    load_into(model, weights)
    assert [value.tolist() for value in model.state_dict().values()] == [value.tolist() for value in weights.values()]


def test_module_of_the_user_named_module_is_not_a_wrapper() -> None:
    inner = nn.Linear(1, 1, bias=False)
    model = Residual(inner)
    load_into(model, {"module.weight": torch.tensor([[5.0]])})
    assert inner.weight.item() == 5
    load_into(model, {"module.module.weight": torch.tensor([[6.0]])})  # of DataParallel
    assert inner.weight.item() == 6
    both = nn.Sequential()
    both.add_module("module", nn.Linear(1, 1, bias=False))
    both.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    load_into(both, {"module.module.weight": torch.tensor([[7.0]]), "module.weight": torch.tensor([8.0])})
    assert (both.module.weight.item(), both.weight.item()) == (7, 8)
