"""Trial steps with multiple ranks leave no trace either."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.torch_versions import requires_torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has its own time limit

TRAINING = """
    import json, os, toys
    from hookbus import Hook
    from hookbus.distributed.sharding import to_full_tensors

    class Try(Hook):
        def after_train_iter(self, run):
            if run.iters_done == 3:
                with run.sandbox() as trial:
                    for batch in trial.batches():
                        run.optimizer.param_groups[0]["lr"] *= 2
                        trial.train_step(batch)

    def train(hooks):
        trainer = toys.trainer(hooks=hooks, epochs=2, batch_size=8, **json.loads(os.environ["SETTINGS"]))
        run = trainer.fit()
        state = to_full_tensors(dict(trainer.model.state_dict()))
        return [{name: tensor.tolist() for name, tensor in state.items()}, run.steps_done, run.samples_done]

    report([train([Try()]), train([])])
"""


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"accumulate": 2}, id="ddp"),
        pytest.param(
            {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}},
            id="fsdp2",
            marks=requires_torch("distributed: fsdp2"),
        ),
    ],
)
def test_training_with_trial_steps_is_bitwise_the_same(launch: Launch, settings: dict[str, Any]) -> None:
    for with_trial, without in launch(TRAINING, environment={"SETTINGS": json.dumps(settings)}).reports.values():
        assert with_trial == without


LOCAL = """
    import toys
    from hookbus import Hook

    class Try(Hook):
        def before_train(self, run):
            with run.sandbox(local=True) as trial:
                # Only one rank trains, which would block in a collective call.
                if run.ranks.rank == 1:
                    for batch in trial.batches(batch_size=3):
                        trial.train_step(batch)

    def train(hooks):
        trainer = toys.trainer(hooks=hooks, epochs=2, batch_size=8, accumulate=2)
        run = trainer.fit()
        return [{name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()}, run.steps_done]

    report([train([Try()]), train([])])
"""


def test_local_steps_do_not_communicate(launch: Launch) -> None:
    for with_trial, without in launch(LOCAL).reports.values():
        assert with_trial == without


RESIZED = """
    import toys
    from hookbus import Hook

    class Resize(Hook):
        def before_train(self, run):
            run.set_batch_size(run.max_batch_size // 2)
            self.length = run.epoch_length

    hook = Resize()
    run = toys.trainer(hooks=[hook], epochs=1, batch_size=2).fit()
    report([run.max_batch_size, hook.length, run.iters_done])
"""


def test_largest_batch_size_is_that_of_the_samples_of_a_rank(launch: Launch) -> None:
    assert set(map(tuple, launch(RESIZED).reports.values())) == {(32, 2, 2)}
