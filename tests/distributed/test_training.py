from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TRAINING = """
    import json, os, toys
    settings = json.loads(os.environ["SETTINGS"])
    trainer = toys.trainer(**settings)
    run = trainer.fit()
    answer({"weights": toys.numbers(trainer.model), "steps": run.steps_done, "iters": run.iters_done,
            "epochs": run.epochs_done, "length": run.clock.epoch_length})
"""


def trained(launch: Launch, ranks: int, hosts: int = 1, **settings: Any) -> dict[int, Any]:
    return launch(TRAINING, ranks=ranks, hosts=hosts, environment={"SETTINGS": json.dumps(settings)}).answers


class TestTwoRanksWithHalfTheBatchEach:
    """Against one rank with the whole: the same samples go into each update, and the mean of two means is the mean."""

    @pytest.mark.parametrize(
        "settings",
        [
            {"epochs": 25},
            {"epochs": 25, "clip_grad_norm": 0.05},
            {"epochs": 50, "accumulate": 2},
        ],
        ids=str,
    )
    def test_the_weights_are_those_of_one_rank_after_100_steps(self, settings: dict[str, Any], launch: Launch) -> None:
        one = trained(launch, 1, batch_size=16, **settings)[0]
        two = trained(launch, 2, batch_size=8, **settings)

        assert one["steps"] == 100
        assert two[0] == two[1]
        assert {key: two[0][key] for key in ("steps", "iters", "epochs", "length")} == {
            key: one[key] for key in ("steps", "iters", "epochs", "length")
        }
        assert two[0]["weights"] == pytest.approx(one["weights"], rel=0, abs=1e-12)


def test_two_hosts_train_what_one_host_with_two_ranks_trains(launch: Launch) -> None:
    one, two = trained(launch, 2), trained(launch, 2, hosts=2)

    assert two == one


WHAT_HOOKS_SEE = """
    import toys, torch
    from torch.nn.parallel import DistributedDataParallel
    from hookbus import Hook

    class Watch(Hook):
        def __init__(self):
            super().__init__()
            self.seen = {"plain": True, "averaged": []}

        def before_train(self, run, model):
            inner = type(model) is torch.nn.Sequential and run.model is model and run.get("model") is model
            self.seen["plain"] &= inner
            self.seen["called"] = type(run.trainer.steps.model).__name__
            self.weight = model[0].weight

        def before_train_iter(self, run, model):
            self.seen["plain"] &= model is run.model

        def after_backward(self, run):
            grads = run.ranks.gather("gradients", self.weight.grad.flatten().tolist())
            self.seen["averaged"].append(grads[0] == grads[1])

        def before_val_iter(self, run, model):
            self.seen["plain"] &= model is run.model

    def fit(wrap):
        watch, model = Watch(), toys.net()
        given = DistributedDataParallel(model) if wrap else model
        toys.trainer(given, hooks=[watch], epochs=1, accumulate=2, val_loader=toys.loader()).fit()
        return watch.seen

    answer([fit(False), fit(True)])
"""


def test_hooks_see_the_model_itself_and_gradients_are_averaged_once_per_update(launch: Launch) -> None:
    answers = launch(WHAT_HOOKS_SEE).answers

    for seen in (*answers[0], *answers[1]):
        assert seen["plain"]
        assert seen["called"] == "DistributedDataParallel"
        assert seen["averaged"] == [False, True, False, True]
