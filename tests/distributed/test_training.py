from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

TRAINING = """
    import json, os, toys
    settings = json.loads(os.environ["SETTINGS"])
    trainer = toys.trainer(**settings)
    run = trainer.fit()
    answer({"weights": toys.numbers(trainer.model), "steps": run.steps_done, "iters": run.iters_done,
            "epochs": run.epochs_done, "length": run.clock.epoch_length})
"""


def trained(launch: Launch, ranks: int, **settings: Any) -> dict[int, Any]:
    return launch(TRAINING, ranks=ranks, environment={"SETTINGS": json.dumps(settings)}).answers


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
