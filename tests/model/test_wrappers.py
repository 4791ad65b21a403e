"""Modules around a module."""

from __future__ import annotations

import torch
from torch import nn

from hookbus.model.wrappers import inside_ddp, unwrapped


class Parallel(nn.Module):
    """As DistributedDataParallel wraps a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_the_module_inside_any_number_of_wrappers_is_found() -> None:
    model = nn.Linear(1, 1, bias=False)
    compiled = torch.compile(Parallel(model), backend="eager")
    assert unwrapped(compiled) is model
    assert unwrapped(Parallel(Parallel(model))) is model
    assert unwrapped(model) is model


def test_a_module_with_more_than_a_child_named_module_is_no_wrapper() -> None:
    model = nn.Linear(1, 1, bias=False)
    scaled = Parallel(model)
    scaled.scale = nn.Parameter(torch.ones(1))
    assert unwrapped(scaled) is scaled
    counting = Parallel(model)
    counting.register_buffer("count", torch.zeros(1))
    assert unwrapped(counting) is counting
    assert unwrapped(nn.Sequential(model)) is not model


def test_only_the_wrapper_of_torch_is_taken_off_for_hooks() -> None:
    model = nn.Linear(1, 1)
    ddp = type("DistributedDataParallel", (Parallel,), {})(model)
    assert inside_ddp(ddp) is model
    assert inside_ddp(model) is model
    assert inside_ddp(None) is None
    assert type(inside_ddp(Parallel(model))) is Parallel
