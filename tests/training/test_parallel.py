from __future__ import annotations

import pytest
from torch import nn
from torch.nn import functional

from hookbus import Trainer
from hookbus.errors import ConfigError
from hookbus.model.wrappers import inside_ddp
from hookbus.ranks import Ranks
from hookbus.training.parallel import DDPSteps, make_steps, part_of
from hookbus.training.train_shard import Part
from tests.toys import net, trainer


class Two(Ranks):
    """As on the second of two ranks, where nobody is asked anything."""

    def __init__(self) -> None:
        self.rank, self.world_size = 1, 2


def test_one_process_needs_no_wrapper() -> None:
    made = trainer()

    assert type(made.steps) is not DDPSteps
    assert made.steps.model is made.model
    assert made.part is None


def test_a_rank_reads_its_part_unless_the_loaders_see_to_it_themselves() -> None:
    assert part_of("ddp", Two()) == Part(1, 2)
    assert part_of("none", Two()) is None
    assert part_of("ddp", Ranks()) is None


def test_a_model_that_nobody_wraps_is_trained_as_it_is() -> None:
    model = net()
    settings = {"optimizer": None, "loss_fn": functional.cross_entropy, "step_fn": None, "accumulate": 1}
    more = {"precision": "fp32", "clip_grad_norm": None, "device": None, "on_update": None}

    assert make_steps("none", Two(), model, None, **settings, **more).model is model


def test_an_unknown_way_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"distributed: 'dpp' is no way to train\. Did you mean 'ddp'\?"):
        Trainer(net(), distributed="dpp", work_dir=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_agree_every_is_a_number_of_iterations(count: object) -> None:
    with pytest.raises(ConfigError, match=rf"agree_every: expected an integer >= 1, got {count!r}\."):
        Trainer(net(), agree_every=count, work_dir=None)  # type: ignore[arg-type]


def test_a_model_without_wrapper_is_what_hooks_see() -> None:
    model = nn.Sequential(nn.Linear(1, 1))

    assert inside_ddp(model) is model
    assert inside_ddp(None) is None
