"""What stays until the next update: told from what does not, and watched while it is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus
from hookbus.run import Run
from hookbus.state import collect
from hookbus_checkpoint.stable import Stable


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run with an update behind it, whose model has parameters and buffers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    with HookBus().run(model=model, optimizer=optimizer, iterations=1) as run:
        yield run


def names_of(found: list[Any], checkpoint: dict[str, Any]) -> list[str]:
    known = {id(value): name for name, value in checkpoint["state_dict"].items()}
    return [known[id(each)] for each in found if id(each) in known]


def test_parameters_and_states_stay_and_buffers_do_not(run: Run) -> None:
    checkpoint = collect(run)

    found = Stable().find(checkpoint, run)

    assert names_of(found, checkpoint) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [each for each in found if isinstance(each, dict)] == [checkpoint["optimizer"]["state"], checkpoint["rng"]]


def test_without_an_optimizer_nobody_tells_of_updates() -> None:
    with HookBus().run(model=nn.Linear(1, 1), iterations=1) as run:
        assert Stable().find(collect(run), run) == []


def test_a_model_that_has_grown_is_looked_through_again(run: Run) -> None:
    stable = Stable()
    stable.find(collect(run), run)
    assert run.model is not None
    run.model.append(nn.PReLU())

    checkpoint = collect(run)

    assert names_of(stable.find(checkpoint, run), checkpoint)[-1] == "2.weight"


def test_a_change_of_a_weight_is_noticed_from_the_moment_of_the_save(run: Run) -> None:
    stable = Stable()
    stable.find(collect(run), run)
    stable.watch_weights()
    assert run.model is not None
    with torch.no_grad():
        run.model[0].weight.add_(1)

    stable.watch_states()

    assert not stable.stayed()


def test_a_change_of_the_optimizers_state_is_noticed_while_it_is_copied(run: Run) -> None:
    stable = Stable()
    stable.find(collect(run), run)
    stable.watch_weights()
    stable.watch_states()
    assert run.optimizer is not None
    next(iter(run.optimizer.state.values()))["momentum_buffer"].zero_()

    assert not stable.stayed()


def test_what_stays_and_a_buffer_that_moves_are_no_change(run: Run) -> None:
    stable = Stable()
    stable.find(collect(run), run)
    stable.watch_weights()
    stable.watch_states()
    assert run.model is not None
    run.model(torch.ones(4, 2))

    assert stable.stayed()
