"""Models without their wrappers."""

from __future__ import annotations

import torch
from torch import nn

from hookbus.distributed.unwrap import unwrap_ddp, unwrap_model


class Wrapper(nn.Module):
    """Wrapper with the structure of DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_module_inside_any_number_of_wrappers_is_returned() -> None:
    model = nn.Linear(1, 1, bias=False)
    compiled = torch.compile(Wrapper(model), backend="eager")
    assert unwrap_model(compiled) is model
    assert unwrap_model(Wrapper(Wrapper(model))) is model
    assert unwrap_model(model) is model


def test_module_with_own_parameters_or_buffers_is_not_a_wrapper() -> None:
    model = nn.Linear(1, 1, bias=False)
    scaled = Wrapper(model)
    scaled.scale = nn.Parameter(torch.ones(1))
    assert unwrap_model(scaled) is scaled
    with_buffer = Wrapper(model)
    with_buffer.register_buffer("count", torch.zeros(1))
    assert unwrap_model(with_buffer) is with_buffer
    assert unwrap_model(nn.Sequential(model)) is not model


def test_only_distributed_data_parallel_is_removed_for_hooks() -> None:
    model = nn.Linear(1, 1)
    ddp = type("DistributedDataParallel", (Wrapper,), {})(model)
    assert unwrap_ddp(ddp) is model
    assert unwrap_ddp(model) is model
    assert unwrap_ddp(None) is None
    assert type(unwrap_ddp(Wrapper(model))) is Wrapper
