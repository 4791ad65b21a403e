"""Distributed validation: each sample is evaluated once, and the results equal those of a single process."""

from __future__ import annotations

import json
from collections import Counter
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from hookbus._training.eval_metrics import build_metrics
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

WORLD_SIZE = 3

SAMPLE_COUNTS = [0, 1, WORLD_SIZE - 1, WORLD_SIZE, WORLD_SIZE + 1, 5, 7, 11, 13, 29]
"""Sample counts: none, one, around the world size, and primes that leave an uneven last round of batches."""


def run_single_process(script: str) -> Any:
    """Run a script in this process and return the value that it reports."""
    reports: list[Any] = []
    exec(dedent(script), {"report": reports.append, "RANK": 0})
    return json.loads(json.dumps(reports[0]))  # the types that a launch returns: keys are strings, tuples are lists


EVALUATION = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from hookbus import Hook, Trainer
    from hookbus.errors import LoopError

    class RecordIds(Hook):
        def before_val_epoch(self):
            self.batches = []

        def after_val_iter(self, run, batch, batch_idx):
            assert batch_idx == len(self.batches)
            self.batches.append(batch[0][:, 0].tolist())
            run.log(first=batch[0][0, 0])

    class SineModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.1, 0.3]))

        def forward(self, x):
            return (x * self.weight).sin()

    def build_loader(count, batch_size):
        ids = torch.arange(count)
        return DataLoader(TensorDataset(torch.stack([ids, ids / 7], 1), ids % 2), batch_size)

    def build_trainer(loader, *hooks, **options):
        model = SineModel()
        return Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy, val_loader=loader,
            hooks=hooks, default_hooks=False, work_dir=None, device="cpu", **options
        )
"""

UNEVEN_COUNTS = """
    def largest(outputs, targets):
        return outputs.abs().max()

    def evaluate(count, batch_size):
        recorder = RecordIds()
        try:
            trainer = build_trainer(build_loader(count, batch_size), recorder, metrics=["accuracy", largest])
            result = dict(trainer.validate())
        except LoopError as error:
            result = str(error)
        return result, recorder.batches

    report([evaluate(count, size) for count in COUNTS for size in (1, 2)])
"""


def test_each_sample_is_evaluated_once_and_results_match_a_single_process(launch: Launch) -> None:
    script = EVALUATION + UNEVEN_COUNTS.replace("COUNTS", str(SAMPLE_COUNTS))
    single, distributed = run_single_process(script), launch(script, ranks=WORLD_SIZE).reports

    cases = [(count, size) for count in SAMPLE_COUNTS for size in (1, 2)]
    for case, (count, size) in enumerate(cases):
        (expected, batches), results = single[case], [distributed[rank][case] for rank in range(WORLD_SIZE)]
        assert [ids for _, ids in results] == [batches[rank::WORLD_SIZE] for rank in range(WORLD_SIZE)]
        evaluated = Counter(sample for _, ids in results for batch in ids for sample in batch)
        assert evaluated == Counter(range(count))
        metrics = results[0][0]
        assert all(rank_metrics == metrics for rank_metrics, _ in results)
        if not count:
            assert metrics == expected
            assert expected.startswith("val_loader: expected at least one batch, got none.")
            continue
        assert metrics["val/accuracy"] == expected["val/accuracy"]
        assert metrics.keys() == expected.keys() == {f"val/{n}" for n in ("accuracy", "loss", "largest", "first")}
        for name, value in expected.items():
            # A sum of n positive floats has a relative error below n * 2**-53; both sides are such sums.
            assert abs(metrics[name] - value) <= count * 2**-52 * value, (name, count, size)


WHOLE_DATASET = """
    from hookbus_eval import DistEvalHook

    def order_dependent(outputs, targets):
        return float((outputs[:, 0] * torch.arange(len(outputs))).sum())

    def count_samples(model, loader):
        return {"samples": sum(len(batch) for batch, _ in loader)}

    loaders = {"a": build_loader(7, 2), "b": build_loader(1, 2)}
    by_steps = build_trainer(None, DistEvalHook(dataloader=loaders, metrics={"order_dependent": order_dependent}))
    by_function = build_trainer(None, DistEvalHook(dataloader=loaders, test_fn=count_samples))
    report([dict(by_steps.validate()), dict(by_function.validate())])
"""

TORCHMETRICS = """
    from torchmetrics import Metric, MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassPrecision, MulticlassRecall

    class AllReductions(Metric):
        def __init__(self):
            super().__init__()
            self.add_state("total", torch.tensor(0), "sum")
            self.add_state("least", torch.tensor(float("inf")), "min")
            self.add_state("level", torch.tensor(0.0), "mean")
            self.add_state("rows", [], None)
            self.add_state("joined", [], "cat")

        def update(self, outputs, targets):
            self.total += len(targets)
            self.least = torch.minimum(self.least, outputs.min())
            self.level = torch.tensor(3.0)
            self.rows += list(outputs)
            self.joined.append(targets)

        def compute(self):
            joined = torch.cat(self.joined) if isinstance(self.joined, list) else self.joined
            return {
                "total": self.total, "least": self.least, "level": self.level,
                "rows": torch.stack(self.rows).sum(), "joined": (joined * 10).sum(),
            }

    def evaluate(count):
        metrics = {
            "accuracy": MulticlassAccuracy(2, average="micro"), "auroc": MulticlassAUROC(2), "all": AllReductions(),
            "both": MetricCollection([MulticlassPrecision(2), MulticlassRecall(2)]),
        }
        trainer = build_trainer(build_loader(count, 2), metrics=metrics)
        return [dict(trainer.validate()), dict(trainer.validate())]

    report([evaluate(count) for count in (2, 3, 13)])
"""


def test_metric_function_receives_all_outputs_in_single_process_order(launch: Launch) -> None:
    single, distributed = run_single_process(EVALUATION + WHOLE_DATASET), launch(EVALUATION + WHOLE_DATASET).reports

    assert single[0].keys() == {"val/a/loss", "val/b/loss", "val/a/order_dependent", "val/b/order_dependent"}
    for rank in (0, 1):
        assert distributed[rank][0]["val/a/order_dependent"] == single[0]["val/a/order_dependent"]
        assert distributed[rank][0]["val/b/order_dependent"] == single[0]["val/b/order_dependent"] == 0.0
        assert distributed[rank][1] == single[1] == {"val/a/samples": 7.0, "val/b/samples": 1.0}


def test_torchmetrics_states_are_reduced_if_a_rank_has_no_samples(launch: Launch) -> None:
    single, distributed = run_single_process(EVALUATION + TORCHMETRICS), launch(EVALUATION + TORCHMETRICS).reports

    for rank in (0, 1):
        for expected, actual in zip(single, distributed[rank], strict=True):
            for validation in (0, 1):
                assert actual[validation] == pytest.approx(expected[validation], rel=1e-6)


TEST_AND_CUSTOM_LOOP = """
    import toys
    from hookbus import Hook, HookBus
    from hookbus_eval import EvalHook

    class CountSamples(Hook):
        samples = 0

        def after_val_iter(self, batch):
            self.samples += len(batch[0])

        after_test_iter = after_val_iter

    test_counter, val_counter, net = CountSamples(), CountSamples(), toys.net()
    trainer = toys.trainer(net, test_loader=toys.loader(3, 11), metrics=["accuracy"], hooks=[test_counter])
    accuracies = [trainer.test()["accuracy"]]
    bus = HookBus([EvalHook(dataloader=toys.loader(3, 11), metrics=["accuracy"], interval=1), val_counter])
    bus.action("val_step", lambda run, batch: {"output": run.model(batch[0])})
    with bus.run(model=net) as run:
        accuracies.append(run.validate()["accuracy"])
    report([accuracies, test_counter.samples, val_counter.samples])
"""


def test_batches_of_tests_and_custom_loops_are_sharded(launch: Launch) -> None:
    reports = launch(TEST_AND_CUSTOM_LOOP).reports
    (expected, other), _, _ = reports[0]

    assert expected == other == reports[1][0][0] == reports[1][0][1]
    for counter in (1, 2):  # batches of 3, 3, 3 and 2 samples, assigned round-robin
        assert [reports[rank][counter] for rank in (0, 1)] == [6, 5]


class TestModel:
    def test_evaluated_model_has_the_buffers_of_the_saved_model(self, launch: Launch) -> None:
        # Each rank updates its batch norm statistics on its own batches, so they differ until they are synchronized.
        script = """
            import toys
            from torch import nn
            from torch.nn.functional import cross_entropy

            net = nn.Sequential(nn.BatchNorm1d(4), toys.net())
            inputs, targets = toys.data(11)[:]
            run = toys.trainer(net.double(), val_loader=toys.loader(3, 11)).fit()
            net.eval()
            report([run.metrics.results["val/loss"], float(cross_entropy(net(inputs), targets))])
        """
        completed = launch(script)

        loss, saved = completed.reports[0]
        assert loss == pytest.approx(saved, rel=1e-12)
        assert completed.reports[1][0] == loss

    def test_independent_models_are_evaluated_on_all_samples(self, launch: Launch) -> None:
        script = """
            import toys
            from hookbus import Hook

            class CountSamples(Hook):
                samples = 0

                def after_val_iter(self, batch):
                    self.samples += len(batch[0])

            counter = CountSamples()
            toys.trainer(val_loader=toys.loader(3, 11), hooks=[counter], distributed="none").validate()
            report(counter.samples)
        """
        assert launch(script).reports == {0: 11, 1: 11}


class TestResultsOfTheLoop:
    def test_differing_results_are_replaced_by_those_of_rank_0_with_a_warning(self, launch: Launch) -> None:
        script = """
            from hookbus import HookBus

            bus = HookBus()
            with bus.run(validate=lambda: {"score": 1.0 + RANK, "same": 2.0}) as run:
                report([dict(run.validate()), dict(run.validate())])
        """
        completed = launch(script)

        assert completed.reports[0] == completed.reports[1] == [{"val/score": 1.0, "val/same": 2.0}] * 2
        assert completed.output(0).count("Validation results differ across ranks") == 1
        assert "the values of rank 0 are used: val/score is 1, 2." in completed.output(0)

    def test_loader_that_is_already_sharded_is_read_fully_with_a_warning(self, launch: Launch) -> None:
        script = """
            import toys, torch

            torch.manual_seed(0)
            batches = list(toys.loader(3, 11))
            shard = batches[RANK::2]
            trainer = toys.trainer(val_loader=shard, metrics=["accuracy"])
            report([dict(trainer.validate()), dict(toys.trainer(val_loader=batches, metrics=["accuracy"]).validate())])
        """
        completed = launch(script)

        sharded, replicated = completed.reports[0]
        assert completed.reports[1][0] == sharded == pytest.approx(replicated, rel=1e-12)
        warning = "The evaluation loader (list) cannot be sharded: each of the 2 ranks reads all of its"
        assert warning in completed.output(0)


def test_metric_without_combine_is_rejected_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class CountMetric:
        def update(self, outputs: Any, targets: Any) -> None: ...
        def compute(self) -> float: ...
        def reset(self) -> None: ...

    monkeypatch.setenv("WORLD_SIZE", "2")

    message = r"CountMetric does not define how to combine its state over 2 processes. Add a method combine\(ranks\)"
    with pytest.raises(ConfigError, match=message):
        build_metrics([CountMetric()])


WORKERS = """
    import multiprocessing, os

    import toys
    from hookbus import Hook
    from torch.utils.data import DataLoader

    class WorkerIds:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return toys.data()[index][0], 1, os.getpid()

    class RecordWorkers(Hook):
        def __init__(self):
            super().__init__()
            self.validations = []

        def before_val_epoch(self, run):
            self.validations.append(set())

        def after_val_iter(self, run, batch):
            self.validations[-1] |= set(batch[2].tolist())

    def step(model, batch):
        return toys.functional.cross_entropy(model(batch[0]), batch[1])

    recorder = RecordWorkers()
    loader = DataLoader(WorkerIds(), batch_size=2, num_workers=1, persistent_workers=PERSISTENT)
    toys.trainer(epochs=3, val_loader=loader, step_fn=step, hooks=[recorder]).fit()
    report([[len(workers) for workers in recorder.validations], len(set().union(*recorder.validations)),
            len(multiprocessing.active_children())])
"""


@pytest.mark.parametrize(("persistent", "workers"), [(True, 1), (False, 3)])
def test_persistent_workers_serve_all_validations_and_exit_with_the_run(
    persistent: bool, workers: int, launch: Launch
) -> None:
    reports = launch(WORKERS.replace("PERSISTENT", str(persistent))).reports

    assert reports == {rank: [[1, 1, 1], workers, 0] for rank in (0, 1)}
