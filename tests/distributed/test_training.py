"""Training with multiple ranks: equivalence with a single process, gradient averaging, and custom loops."""

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
    report({"weights": toys.flat_weights(trainer.model), "steps": run.steps_done, "iters": run.iters_done,
            "epochs": run.epochs_done, "length": run.epoch_length})
"""


def train(launch: Launch, ranks: int, hosts: int = 1, **settings: Any) -> dict[int, Any]:
    """Train the toy model and return the reports by rank."""
    return launch(TRAINING, ranks=ranks, hosts=hosts, environment={"SETTINGS": json.dumps(settings)}).reports


class TestTwoRanksWithHalfTheBatchSize:
    # Each optimizer step uses the same samples, and the mean of two means of equal size is the mean of all samples.

    @pytest.mark.parametrize(
        "settings",
        [
            pytest.param({"epochs": 25}, marks=pytest.mark.exhaustive),
            pytest.param({"epochs": 25, "clip_grad_norm": 0.05}, marks=pytest.mark.exhaustive),
            {"epochs": 50, "clip_grad_norm": 0.05, "accumulate": 2},
        ],
        ids=str,
    )
    def test_weights_match_those_of_one_rank_after_100_steps(self, settings: dict[str, Any], launch: Launch) -> None:
        one = train(launch, 1, batch_size=16, **settings)[0]
        two = train(launch, 2, batch_size=8, **settings)

        assert one["steps"] == 100
        assert two[0] == two[1]
        assert {key: two[0][key] for key in ("steps", "iters", "epochs", "length")} == {
            key: one[key] for key in ("steps", "iters", "epochs", "length")
        }
        assert two[0]["weights"] == pytest.approx(one["weights"], rel=0, abs=1e-12)


@pytest.mark.parametrize("settings", [{"limit_train_batches": 2}, {"overfit_batches": 2}, {"fast_dev_run": 2}], ids=str)
def test_limits_count_the_batches_of_each_rank(settings: dict[str, Any], launch: Launch) -> None:
    reports = train(launch, 2, epochs=3, **settings)
    epochs = 1 if "fast_dev_run" in settings else 3
    expected = {"epochs": epochs, "length": 2, "iters": 2 * epochs, "steps": 2 * epochs}
    assert [{name: reports[rank][name] for name in expected} for rank in (0, 1)] == [expected] * 2
    assert reports[0]["weights"] == reports[1]["weights"]


def test_two_hosts_train_the_same_weights_as_one_host_with_two_ranks(launch: Launch) -> None:
    one, two = train(launch, 2), train(launch, 2, hosts=2)

    assert two == one


MODEL_OF_HOOKS = """
    import toys, torch
    from torch.nn.parallel import DistributedDataParallel
    from hookbus import Hook

    class RecordModel(Hook):
        def __init__(self):
            super().__init__()
            self.results = {"unwrapped": True, "averaged": []}

        def before_train(self, run, model):
            unwrapped = type(model) is torch.nn.Sequential and run.model is model and run.get("model") is model
            self.results["unwrapped"] &= unwrapped
            self.results["step model"] = type(run.trainer.steps.model).__name__
            self.weight = model[0].weight

        def before_train_iter(self, run, model):
            self.results["unwrapped"] &= model is run.model

        def after_backward(self, run):
            grads = run.ranks.all_gather("gradients", self.weight.grad.flatten().tolist())
            self.results["averaged"].append(grads[0] == grads[1])

        def before_val_iter(self, run, model):
            self.results["unwrapped"] &= model is run.model

    def fit(wrap):
        recorder, model = RecordModel(), toys.net()
        input_model = DistributedDataParallel(model) if wrap else model
        toys.trainer(input_model, hooks=[recorder], epochs=1, accumulate=2, val_loader=toys.loader()).fit()
        return recorder.results

    report([fit(False), fit(True)])
"""


def test_hooks_receive_the_unwrapped_model_and_gradients_average_once_per_step(launch: Launch) -> None:
    reports = launch(MODEL_OF_HOOKS).reports

    for results in (*reports[0], *reports[1]):
        assert results["unwrapped"]
        assert results["step model"] == "DistributedDataParallel"
        assert results["averaged"] == [False, True, False, True]


CUSTOM_LOOP = """
    import toys, torch
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler
    import torch.distributed as dist
    from hookbus import Hook, HookBus

    class Stop(Hook):
        def after_train_iter(self, run, model):
            self.model = type(model).__name__
            if RANK == 1 and run.iters_done == 6:
                run.request_stop("enough")

    dist.init_process_group("gloo")
    data, hook = toys.data(), Stop()
    loader = DataLoader(data, 8, sampler=DistributedSampler(data))
    model = DistributedDataParallel(toys.net())
    optimizer = toys.sgd(model)
    bus = HookBus([hook])
    with bus.run(model=model, optimizer=optimizer, epochs=5, work_dir="custom", seed=1) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(batch[0]), batch[1])
                loss.backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
            bus.emit("after_train_epoch")
    report([run.outcome, run.iters_done, run.epochs_done, run.stop_reasons, hook.model, run.work_dir.path.name, run.id])
    dist.destroy_process_group()
"""


def test_custom_loop_with_its_own_process_group_stops_on_all_ranks(launch: Launch) -> None:
    reports = launch(CUSTOM_LOOP).reports

    assert reports[0] == reports[1]
    assert reports[0][:-1] == ["stopped", 6, 1, ["stop: enough on rank 1"], "Sequential", "custom"]


CHECK = """
    import toys
    from worker import report

    trainer = toys.trainer(train_loader=toys.loader(8, count=56), val_loader=toys.loader(8, count=56))
    report(trainer.check())
"""


def test_check_counts_training_batches_per_rank_and_validation_batches_of_all_ranks(launch: Launch) -> None:
    reports = launch(CHECK).reports

    # 7 batches of 8 samples: the ranks share those of the last one.
    assert [reports[rank][1:3] for rank in (0, 1)] == [["train: 4 batches per rank", "val: 7 batches"]] * 2


FEW_SAMPLES = """
    import toys
    from hookbus.errors import LoopError

    try:
        toys.trainer(train_loader=toys.loader(8, count=1)).fit()
    except LoopError as error:
        report(str(error))
"""


def test_fewer_samples_than_processes_are_reported(launch: Launch) -> None:
    message = "The training loader has too few samples for 2 processes, got 1 batch in total. Use fewer processes or"
    assert all(report.startswith(message) for report in launch(FEW_SAMPLES, ranks=2).reports.values())
