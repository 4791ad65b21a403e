"""Models without their wrappers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus.distributed.unwrap import (
    get_state_dict,
    named_modules,
    named_parameters,
    strip_wrappers,
    unwrap_ddp,
    unwrap_model,
)


class Wrapper(nn.Module):
    """Module with the structure of DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class FabricModule(nn.Module):
    """Module with the structure of the wrapper of Lightning Fabric, which registers the model twice."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward_module, self._original_module = module, strip_wrappers(module)


DDP = type("DistributedDataParallel", (Wrapper,), {})
OwnDDP = type("OwnDDP", (DDP,), {})


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


def test_module_inside_any_number_of_wrappers_is_returned() -> None:
    model = nn.Linear(1, 1, bias=False)
    for wrap in (DDP, OwnDDP, nn.DataParallel, FabricModule):
        assert unwrap_model(wrap(model)) is strip_wrappers(wrap(model)) is model
        assert strip_wrappers(compiled(wrap(wrap(model)))) is model
    assert unwrap_model(FabricModule(compiled(model))) is unwrap_model(model) is model
    assert unwrap_model(compiled(Wrapper(DDP(Wrapper(model))))) is model


def test_module_with_own_parameters_or_buffers_is_not_a_wrapper() -> None:
    model = nn.Linear(1, 1, bias=False)
    scaled = Wrapper(model)
    scaled.scale = nn.Parameter(torch.ones(1))
    assert unwrap_model(scaled) is scaled
    with_buffer = Wrapper(model)
    with_buffer.register_buffer("count", torch.zeros(1))
    assert unwrap_model(with_buffer) is with_buffer
    assert unwrap_model(nn.Sequential(model)) is not model


def test_names_contain_a_module_of_the_user_that_is_named_module() -> None:
    model = Wrapper(nn.Linear(1, 1))
    assert strip_wrappers(DDP(model)) is model
    assert [name for name, _ in named_parameters(model)] == list(get_state_dict(model)) == list(model.state_dict())


@pytest.mark.parametrize("wrap", [compiled, DDP, FabricModule, lambda module: FabricModule(DDP(compiled(module)))])
def test_names_have_no_prefixes_of_wrappers_inside_the_model(wrap: Any) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), wrap(Wrapper(nn.Linear(1, 1, bias=False))))
    for whole in (model, compiled(model)):
        assert [name for name, _ in named_parameters(whole)] == ["0.weight", "1.module.weight"]
        assert list(get_state_dict(whole)) == ["0.weight", "1.module.weight"]
        assert [name for name, _ in named_modules(whole)] == ["", "0", "1", "1.module"]


def test_only_distributed_data_parallel_is_removed_for_hooks() -> None:
    model = nn.Linear(1, 1)
    ddp = type("DistributedDataParallel", (Wrapper,), {})(model)
    assert unwrap_ddp(ddp) is model
    assert unwrap_ddp(model) is model
    assert unwrap_ddp(None) is None
    assert type(unwrap_ddp(Wrapper(model))) is Wrapper
