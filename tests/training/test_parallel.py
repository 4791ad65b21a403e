from __future__ import annotations

import pytest
from torch import nn
from torch.nn import functional

from hookbus import Trainer
from hookbus._training.parallel import DDPSteps, build_steps, train_shard_for
from hookbus.data.samplers import TrainShard
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.unwrap import unwrap_ddp
from hookbus.errors import ConfigError
from tests.toys import net, trainer


class SecondOfTwo(Collectives):
    """Rank 1 of 2, without communication."""

    def __init__(self) -> None:
        self.rank, self.world_size = 1, 2


def test_single_process_uses_no_wrapper() -> None:
    single = trainer()

    assert type(single.steps) is not DDPSteps
    assert single.steps.model is single.model
    assert single.train_shard is None


def test_rank_reads_its_shard_unless_the_strategy_is_none() -> None:
    assert train_shard_for("ddp", SecondOfTwo()) == TrainShard(1, 2)
    assert train_shard_for("none", SecondOfTwo()) is None
    assert train_shard_for("ddp", Collectives()) is None


def test_model_is_not_wrapped_if_the_strategy_is_none() -> None:
    model = net()
    settings = {"optimizer": None, "loss_fn": functional.cross_entropy, "step_fn": None, "accumulate": 1}
    more = {"precision": "fp32", "clip_grad_norm": None, "device": None}

    assert build_steps("none", SecondOfTwo(), model, None, **settings, **more).model is model


def test_unknown_strategy_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"distributed: expected one of 'ddp', .*, got 'dpp'\. Did you mean 'ddp'"):
        Trainer(net(), distributed="dpp", work_dir=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_agree_every_is_an_integer_of_at_least_1(count: object) -> None:
    with pytest.raises(ConfigError, match=rf"agree_every: expected an integer >= 1, got {count!r}\."):
        Trainer(net(), agree_every=count, work_dir=None)  # type: ignore[arg-type]


def test_model_without_a_wrapper_is_returned_unchanged() -> None:
    model = nn.Sequential(nn.Linear(1, 1))

    assert unwrap_ddp(model) is model
    assert unwrap_ddp(None) is None
