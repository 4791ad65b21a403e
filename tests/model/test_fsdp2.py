"""Spreading a model over one process; over several it is in tests/distributed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.errors import ConfigError
from hookbus.model.fsdp2 import check_mesh, gathered, spread_model, take_main_buffers
from hookbus.model.layouts import is_spread, layout_of, whole
from hookbus.model.weights import Weights
from hookbus.ranks import Ranks
from tests.spread import one_process

CPU = torch.device("cpu")


class Block(nn.Sequential):
    """What is wrapped by itself."""


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    with one_process(tmp_path):
        yield


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(nn.Linear(3, 4), Block(nn.Linear(4, 4))), nn.BatchNorm1d(4), nn.Linear(4, 1))


def spread(model: nn.Module, optimizer: Any = None, **how: Any) -> nn.Module:
    spread_model(model, optimizer, Ranks(), CPU, **how)
    return model


def groups_of(model: nn.Module) -> list[str]:
    """The names of modules whose weights come together by themselves."""
    from torch.distributed.fsdp import FSDPModule

    return [name for name, each in model.named_modules() if isinstance(each, FSDPModule)]


def test_every_weight_is_spread_and_the_names_stay() -> None:
    names = list(made().state_dict())
    model = spread(made())

    assert list(model.state_dict()) == names
    assert all(map(is_spread, model.parameters()))
    assert not any(map(is_spread, model.buffers()))
    assert groups_of(model) == [""]


def test_named_modules_come_together_by_themselves() -> None:
    assert groups_of(spread(made(), wrap=["Block"])) == ["", "0", "0.1"]
    assert groups_of(spread(made(), wrap=["Block", "BatchNorm1d"])) == ["", "0", "0.1", "1"]


def test_a_name_that_no_module_has_is_refused_before_anything_is_changed() -> None:
    model = made()

    with pytest.raises(ConfigError, match=r"fsdp2\.wrap: the model has no module 'Blok'\. Did you mean 'Block'\?"):
        spread(model, wrap=["Blok"])
    assert layout_of(model) is None


@pytest.mark.parametrize(
    ("mesh", "processes", "shape"), [(None, 4, (4,)), ([4], 4, (4,)), ([2, 2], 4, (2, 2)), ([1, 3], 3, (1, 3))]
)
def test_processes_are_arranged(mesh: list[int] | None, processes: int, shape: tuple[int, ...]) -> None:
    assert check_mesh(mesh, processes) == shape


@pytest.mark.parametrize("mesh", [[3], [2, 3], [4, 1, 1], [], [-2, -2, 1]])
def test_a_mesh_for_other_processes_is_refused(mesh: list[int]) -> None:
    message = r"fsdp2\.mesh: the product must be the number of processes \(4\), got \[.*\]\. Set \[4\]"
    with pytest.raises(ConfigError, match=message):
        check_mesh(mesh, 4)


class TestAnOptimizerOfWholeWeights:
    def test_goes_on_with_the_spread_ones(self) -> None:
        model, twin = made(), made()
        optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}])
        other = torch.optim.SGD([{"params": twin[0].parameters(), "lr": 0.5}, {"params": twin[2].parameters()}])
        spread(model, optimizer, wrap=["Block"])
        for each, updates in ((model, optimizer), (twin, other)):
            each(torch.ones(2, 3)).sum().backward()
            updates.step()

        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.001]
        for name, value in twin.state_dict().items():
            found = model.state_dict()[name]
            assert torch.equal(found.full_tensor() if is_spread(found) else found, value), name

    def test_must_not_have_made_updates(self) -> None:
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

        with pytest.raises(ConfigError, match="the optimizer must not have executed steps"):
            spread(model, optimizer)


class TestGathered:
    def test_weights_are_whole_inside_and_spread_again_outside(self) -> None:
        model = spread(made(), wrap=["Block"])
        with gathered(model):
            assert not any(map(is_spread, model.parameters()))
            with torch.no_grad():
                model(torch.ones(2, 3))
            assert not any(map(is_spread, model.parameters()))

        assert all(map(is_spread, model.parameters()))

    def test_training_goes_on_with_what_changed_outside(self) -> None:
        model = spread(made(), wrap=["Block"]).eval()
        batch = torch.ones(2, 3)
        with torch.no_grad(), gathered(model):
            before = model(batch)
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
            assert before.any()
            assert not model(batch).any()

    def test_a_failure_leaves_the_weights_spread(self) -> None:
        model = spread(made())

        with pytest.raises(ZeroDivisionError), gathered(model):
            raise ZeroDivisionError
        assert all(map(is_spread, model.parameters()))

    def test_a_model_that_is_not_spread_stays_as_it_is(self) -> None:
        with gathered(made()), gathered(None):
            pass


def test_whole_weights_come_back_into_a_spread_model() -> None:
    model, twin = spread(made(), wrap=["Block"]), made()
    weights = Weights(lambda: model)
    raw = {name: value + 1 for name, value in twin.state_dict().items()}
    weights.load(raw, None)

    found = whole(dict(model.state_dict()))
    assert all(torch.equal(found[name], value) for name, value in raw.items())


def test_taking_the_buffers_of_the_main_process_leaves_its_own_as_they_are() -> None:
    model = made()
    model.register_buffer("flags", torch.tensor([True, False]))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    take_main_buffers(model)

    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    take_main_buffers(nn.Linear(1, 1))
