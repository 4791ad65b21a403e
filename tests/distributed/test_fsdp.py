"""FSDP2 with one process; tests/distributed tests it with multiple processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus._run.weights import Weights
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.fsdp import apply_fsdp, broadcast_buffers, unsharded, validate_mesh
from hookbus.distributed.sharding import is_sharded, sharding_of, to_full_tensors
from hookbus.errors import ConfigError
from tests.sharded_models import single_process_group
from tests.torch_versions import requires_torch

CPU = torch.device("cpu")


class Block(nn.Sequential):
    """Module class that is sharded separately."""


@pytest.fixture(autouse=True)
def process_group(tmp_path: Path) -> Iterator[None]:
    with single_process_group(tmp_path):
        yield


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(nn.Linear(3, 4), Block(nn.Linear(4, 4))), nn.BatchNorm1d(4), nn.Linear(4, 1))


def sharded(model: nn.Module, optimizer: Any = None, **options: Any) -> nn.Module:
    apply_fsdp(model, optimizer, Collectives(), CPU, **options)
    return model


def fsdp_modules(model: nn.Module) -> list[str]:
    """Return the names of the modules to which `fully_shard` was applied."""
    from torch.distributed.fsdp import FSDPModule

    return [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]


def test_every_parameter_is_sharded_and_the_names_are_unchanged() -> None:
    names = list(build_model().state_dict())
    model = sharded(build_model())

    assert list(model.state_dict()) == names
    assert all(map(is_sharded, model.parameters()))
    assert not any(map(is_sharded, model.buffers()))
    assert fsdp_modules(model) == [""]


def test_modules_of_the_named_classes_are_sharded_separately() -> None:
    assert fsdp_modules(sharded(build_model(), wrap=["Block"])) == ["", "0", "0.1"]
    assert fsdp_modules(sharded(build_model(), wrap=["Block", "BatchNorm1d"])) == ["", "0", "0.1", "1"]


def test_unknown_class_name_raises_before_the_model_is_modified() -> None:
    model = build_model()

    with pytest.raises(ConfigError, match=r"fsdp2\.wrap: the model has no module 'Blok'\. Did you mean 'Block'\?"):
        sharded(model, wrap=["Blok"])
    assert sharding_of(model) is None


@pytest.mark.parametrize(
    ("mesh", "processes", "shape"), [(None, 4, (4,)), ([4], 4, (4,)), ([2, 2], 4, (2, 2)), ([1, 3], 3, (1, 3))]
)
def test_mesh_shape_matches_the_processes(mesh: list[int] | None, processes: int, shape: tuple[int, ...]) -> None:
    assert validate_mesh(mesh, processes) == shape


@pytest.mark.parametrize("mesh", [[3], [2, 3], [4, 1, 1], [], [-2, -2, 1]])
def test_mesh_for_another_number_of_processes_raises(mesh: list[int]) -> None:
    message = r"fsdp2\.mesh: the product must be the number of processes \(4\), got \[.*\]\. Set \[4\]"
    with pytest.raises(ConfigError, match=message):
        validate_mesh(mesh, 4)


class TestOptimizer:
    @requires_torch("distributed: fsdp2")
    def test_optimizer_steps_the_sharded_parameters(self) -> None:
        model, reference = build_model(), build_model()
        optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}])
        other = torch.optim.SGD(
            [{"params": reference[0].parameters(), "lr": 0.5}, {"params": reference[2].parameters()}]
        )
        sharded(model, optimizer, wrap=["Block"])
        for trained, updates in ((model, optimizer), (reference, other)):
            trained(torch.ones(2, 3)).sum().backward()
            updates.step()

        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.001]
        for name, value in reference.state_dict().items():
            actual = model.state_dict()[name]
            assert torch.equal(actual.full_tensor() if is_sharded(actual) else actual, value), name

    def test_optimizer_with_state_raises(self) -> None:
        model = build_model()
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

        with pytest.raises(ConfigError, match="the optimizer must not have executed steps"):
            sharded(model, optimizer)


@requires_torch("distributed: fsdp2")
class TestGathered:
    def test_parameters_are_full_inside_and_sharded_outside(self) -> None:
        model = sharded(build_model(), wrap=["Block"])
        with unsharded(model):
            assert not any(map(is_sharded, model.parameters()))
            with torch.no_grad():
                model(torch.ones(2, 3))
            assert not any(map(is_sharded, model.parameters()))

        assert all(map(is_sharded, model.parameters()))

    def test_forward_pass_outside_uses_modified_parameters(self) -> None:
        model = sharded(build_model(), wrap=["Block"]).eval()
        batch = torch.ones(2, 3)
        with torch.no_grad(), unsharded(model):
            before = model(batch)
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
            assert before.any()
            assert not model(batch).any()

    def test_parameters_are_sharded_again_after_an_error(self) -> None:
        model = sharded(build_model())

        with pytest.raises(ZeroDivisionError), unsharded(model):
            raise ZeroDivisionError
        assert all(map(is_sharded, model.parameters()))

    def test_unsharded_model_is_not_modified(self) -> None:
        with unsharded(build_model()), unsharded(None):
            pass


def test_full_weights_are_loaded_into_a_sharded_model() -> None:
    model, reference = sharded(build_model(), wrap=["Block"]), build_model()
    weights = Weights(lambda: model)
    raw = {name: value + 1 for name, value in reference.state_dict().items()}
    weights.load(raw, None)

    state = to_full_tensors(dict(model.state_dict()))
    assert all(torch.equal(state[name], value) for name, value in raw.items())


def test_broadcast_of_buffers_does_not_modify_those_of_rank_0() -> None:
    model = build_model()
    model.register_buffer("flags", torch.tensor([True, False]))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    broadcast_buffers(model)

    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    broadcast_buffers(nn.Linear(1, 1))
