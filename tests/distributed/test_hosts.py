"""Requests of one rank in a run whose loop belongs to another trainer, which carries them out on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCENARIOS = """
    from hookbus import Hook, HookBus
    from hookbus.testing import HostTask
    from tests.foreign_trainer import ForeignBridge, ForeignTrainer

    class Requester(Hook):
        '''Make a request after one iteration of rank 1.'''
        def __init__(self, name, iteration=3):
            super().__init__()
            self.request, self.iteration = name, iteration

        def after_train_iter(self, run):
            if RANK == 1 and run.iters_done == self.iteration:
                getattr(run, "request_" + self.request)("enough")

    class Calls(ForeignBridge):
        '''Record the iterations at which the trainer is called.'''
        capabilities = ForeignBridge.capabilities

        def record(self, name):
            calls.append([name, self.run.iters_done])

        def stop(self, reasons):
            self.record("stop")
            self.reasons = list(reasons)
            super().stop(reasons)

        def stop_epoch(self):
            self.record("stop_epoch")
            super().stop_epoch()

        def save(self, reasons):
            self.record("save")

        def validate(self):
            self.record("validate")
            super().validate()

    results = {}
    for name in ("stop", "stop_epoch", "save", "validation"):
        calls, task = [], HostTask()
        model = task.model()
        trainer = ForeignTrainer(model, task.optimizer(model), task.loss, epochs=2)
        bridge = Calls(HookBus([Requester(name)]), trainer)
        bridge.attach()
        trainer.fit(task.train_loader(), task.val_loader())
        run = bridge.run
        results[name] = {"calls": calls, "outcome": run.outcome, "iters": run.iters_done, "epochs": run.epochs_done,
                         "reasons": run.stop_reasons}
    report(results)
"""

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(module_launch: Launch) -> Results:
    """Results of the requests, by name and rank."""
    reports = module_launch(SCENARIOS).reports
    return {name: [reports[0][name], reports[1][name]] for name in reports[0]}


def test_stop_requested_on_one_rank_stops_both_after_the_same_iteration(results: Results) -> None:
    expected = {
        "calls": [["stop", 3]],
        "outcome": "stopped",
        "iters": 3,
        "epochs": 0,
        "reasons": ["requester: enough on rank 1"],
    }
    assert results["stop"] == [expected, expected]


@pytest.mark.parametrize(
    ("request_name", "calls", "iterations"),
    [
        ("stop_epoch", [["stop_epoch", 3]], 9),
        ("save", [["save", 3]], 12),
        ("validation", [["validate", 3]], 12),
    ],
)
def test_request_of_one_rank_is_carried_out_on_both(
    request_name: str, calls: list[Any], iterations: int, results: Results
) -> None:
    expected = {"calls": calls, "outcome": "finished", "iters": iterations, "epochs": 2, "reasons": []}
    assert results[request_name] == [expected, expected]
