"""Validations of several processes against those of one: every sample once, counts exactly, sums within a bound."""

from __future__ import annotations

import json
from collections import Counter
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from hookbus.errors import ConfigError
from hookbus.training.scores import scores_from

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

WORLD = 3

COUNTS = [0, 1, WORLD - 1, WORLD, WORLD + 1, 5, 7, 11, 13, 29]
"""Nothing, one, a sample less than processes, as many, one more, and primes."""


def alone(script: str) -> Any:
    """What a script answers in one process: this one."""
    answers: list[Any] = []
    exec(dedent(script), {"answer": answers.append, "RANK": 0})
    return json.loads(json.dumps(answers[0]))


JUDGING = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from hookbus import Hook, Trainer
    from hookbus.errors import LoopError

    class Ids(Hook):
        def before_val_epoch(self):
            self.seen = []

        def after_val_iter(self, run, batch, batch_idx):
            assert batch_idx == len(self.seen)
            self.seen.append(batch[0][:, 0].tolist())
            run.log(first=batch[0][0, 0])

    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.1, 0.3]))

        def forward(self, x):
            return (x * self.weight).sin()

    def loader_of(count, batch_size):
        ids = torch.arange(count)
        return DataLoader(TensorDataset(torch.stack([ids, ids / 7], 1), ids % 2), batch_size)

    def trainer(loader, *hooks, **options):
        model = Bent()
        return Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy, val_loader=loader,
            hooks=hooks, default_hooks=False, work_dir=None, device="cpu", **options
        )
"""

EACH_ONCE = """
    def largest(outputs, targets):
        return outputs.abs().max()

    def judge(count, batch_size):
        ids = Ids()
        try:
            found = dict(trainer(loader_of(count, batch_size), ids, metrics=["accuracy", largest]).validate())
        except LoopError as error:
            found = str(error)
        return found, ids.seen

    answer([judge(count, size) for count in COUNTS for size in (1, 2)])
"""


def test_every_sample_is_judged_once_and_the_results_are_those_of_one_process(launch: Launch) -> None:
    script = JUDGING + EACH_ONCE.replace("COUNTS", str(COUNTS))
    of_one, together = alone(script), launch(script, ranks=WORLD).answers

    cases = [(count, size) for count in COUNTS for size in (1, 2)]
    for case, (count, size) in enumerate(cases):
        (expected, batches), found = of_one[case], [together[rank][case] for rank in range(WORLD)]
        assert [seen for _, seen in found] == [batches[rank::WORLD] for rank in range(WORLD)]
        assert Counter(each for _, seen in found for batch in seen for each in batch) == Counter(range(count))
        assert all(results == found[0][0] for results, _ in found)
        if not count:
            assert found[0][0] == expected
            assert expected.startswith("val_loader: expected at least one batch, got none.")
            continue
        assert found[0][0]["val/accuracy"] == expected["val/accuracy"]
        assert found[0][0].keys() == expected.keys() == {f"val/{n}" for n in ("accuracy", "loss", "largest", "first")}
        for name, value in expected.items():
            # n additions of positive numbers, each rounded: the relative error is less than n 2^-53, here on both sides
            assert abs(found[0][0][name] - value) <= count * 2**-52 * value, (name, count, size)


OF_ALL = """
    from hookbus_eval import DistEvalHook

    def in_order(outputs, targets):
        return float((outputs[:, 0] * torch.arange(len(outputs))).sum())

    def whole(model, loader):
        return {"samples": sum(len(batch) for batch, _ in loader)}

    loaders = {"a": loader_of(7, 2), "b": loader_of(1, 2)}
    by_steps = trainer(None, DistEvalHook(dataloader=loaders, metrics={"in_order": in_order}))
    by_function = trainer(None, DistEvalHook(dataloader=loaders, test_fn=whole))
    answer([dict(by_steps.validate()), dict(by_function.validate())])
"""

STATES = """
    from torchmetrics import Metric, MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassPrecision, MulticlassRecall

    class Everything(Metric):
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

    def judge(count):
        metrics = {
            "accuracy": MulticlassAccuracy(2, average="micro"), "auroc": MulticlassAUROC(2), "all": Everything(),
            "both": MetricCollection([MulticlassPrecision(2), MulticlassRecall(2)]),
        }
        judging = trainer(loader_of(count, 2), metrics=metrics)
        return [dict(judging.validate()), dict(judging.validate())]

    answer([judge(count) for count in (2, 3, 13)])
"""


def test_a_function_of_all_outputs_sees_them_in_the_order_of_one_process(launch: Launch) -> None:
    of_one, together = alone(JUDGING + OF_ALL), launch(JUDGING + OF_ALL).answers

    assert of_one[0].keys() == {"val/a/loss", "val/b/loss", "val/a/in_order", "val/b/in_order"}
    for rank in (0, 1):
        assert together[rank][0]["val/a/in_order"] == of_one[0]["val/a/in_order"]
        assert together[rank][0]["val/b/in_order"] == of_one[0]["val/b/in_order"] == 0.0
        assert together[rank][1] == of_one[1] == {"val/a/samples": 7.0, "val/b/samples": 1.0}


def test_metrics_of_torchmetrics_go_together_also_where_a_process_has_judged_nothing(launch: Launch) -> None:
    of_one, together = alone(JUDGING + STATES), launch(JUDGING + STATES).answers

    for rank in (0, 1):
        for expected, found in zip(of_one, together[rank], strict=True):
            for validation in (0, 1):
                assert found[validation] == pytest.approx(expected[validation], rel=1e-6)


BESIDES = """
    import toys
    from hookbus import Hook, HookBus
    from hookbus_eval import EvalHook

    class Count(Hook):
        samples = 0

        def after_val_iter(self, batch):
            self.samples += len(batch[0])

        after_test_iter = after_val_iter

    tested, validated, net = Count(), Count(), toys.net()
    trainer = toys.trainer(net, test_loader=toys.loader(3, 11), metrics=["accuracy"], hooks=[tested])
    found = [trainer.test()["accuracy"]]
    bus = HookBus([EvalHook(dataloader=toys.loader(3, 11), metrics=["accuracy"], interval=1), validated])
    bus.action("val_step", lambda run, batch: {"output": run.model(batch[0])})
    with bus.run(model=net) as run:
        found.append(run.validate()["accuracy"])
    answer([found, tested.samples, validated.samples])
"""


def test_tests_and_loops_of_ones_own_share_the_batches_as_well(launch: Launch) -> None:
    together = launch(BESIDES).answers
    (expected, other), _, _ = together[0]

    assert expected == other == together[1][0][0] == together[1][0][1]
    for counted in (1, 2):  # batches of 3, 3, 3 and 2 in turn
        assert [together[rank][counted] for rank in (0, 1)] == [6, 5]


class TestTheModel:
    def test_that_is_judged_is_the_one_that_is_saved(self, launch: Launch) -> None:
        """The last batch of each process has changed the statistics that it holds."""
        script = """
            import toys
            from torch import nn
            from torch.nn.functional import cross_entropy

            net = nn.Sequential(nn.BatchNorm1d(4), toys.net())
            inputs, targets = toys.data(11)[:]
            run = toys.trainer(net.double(), val_loader=toys.loader(3, 11)).fit()
            net.eval()
            answer([run.metrics.results["val/loss"], float(cross_entropy(net(inputs), targets))])
        """
        done = launch(script)

        loss, saved = done.answers[0]
        assert loss == pytest.approx(saved, rel=1e-12)
        assert done.answers[1][0] == loss

    def test_of_processes_that_train_apart_is_judged_on_all_data(self, launch: Launch) -> None:
        script = """
            import toys
            from hookbus import Hook

            class Count(Hook):
                samples = 0

                def after_val_iter(self, batch):
                    self.samples += len(batch[0])

            count = Count()
            toys.trainer(val_loader=toys.loader(3, 11), hooks=[count], distributed="none").validate()
            answer(count.samples)
        """
        assert launch(script).answers == {0: 11, 1: 11}


class TestTheLoopsOwnResults:
    def test_are_those_of_the_main_process_on_all_and_it_is_said(self, launch: Launch) -> None:
        script = """
            from hookbus import HookBus

            bus = HookBus()
            with bus.run(validate=lambda: {"score": 1.0 + RANK, "same": 2.0}) as run:
                answer([dict(run.validate()), dict(run.validate())])
        """
        done = launch(script)

        assert done.answers[0] == done.answers[1] == [{"val/score": 1.0, "val/same": 2.0}] * 2
        assert done.output(0).count("Validation results differ across ranks") == 1
        assert "the values of rank 0 are used: val/score is 1, 2." in done.output(0)

    def test_are_of_loaders_that_give_each_process_a_part_and_it_is_said(self, launch: Launch) -> None:
        script = """
            import toys, torch

            torch.manual_seed(0)
            whole = list(toys.loader(3, 11))
            own = whole[RANK::2]
            trainer = toys.trainer(val_loader=own, metrics=["accuracy"])
            answer([dict(trainer.validate()), dict(toys.trainer(val_loader=whole, metrics=["accuracy"]).validate())])
        """
        done = launch(script)

        parts, twice = done.answers[0]
        assert done.answers[1][0] == parts == pytest.approx(twice, rel=1e-12)
        assert "The evaluation loader (list) cannot be sharded: each of the 2 ranks reads all of its" in done.output(0)


def test_a_metric_that_cannot_go_together_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts:
        def update(self, outputs: Any, targets: Any) -> None: ...
        def compute(self) -> float: ...
        def reset(self) -> None: ...

    monkeypatch.setenv("WORLD_SIZE", "2")

    message = r"Counts does not define how to combine its state over 2 processes. Add a method combine\(ranks\)"
    with pytest.raises(ConfigError, match=message):
        scores_from([Counts()])


WORKERS = """
    import multiprocessing, os

    import toys
    from hookbus import Hook
    from torch.utils.data import DataLoader

    class WhoReads:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return toys.data()[index][0], 1, os.getpid()

    class Readers(Hook):
        def __init__(self):
            super().__init__()
            self.validations = []

        def before_val_epoch(self, run):
            self.validations.append(set())

        def after_val_iter(self, run, batch):
            self.validations[-1] |= set(batch[2].tolist())

    def step(model, batch):
        return toys.functional.cross_entropy(model(batch[0]), batch[1])

    readers = Readers()
    loader = DataLoader(WhoReads(), batch_size=2, num_workers=1, persistent_workers=PERSISTENT)
    toys.trainer(epochs=3, val_loader=loader, step_fn=step, hooks=[readers]).fit()
    answer([[len(each) for each in readers.validations], len(set().union(*readers.validations)),
            len(multiprocessing.active_children())])
"""


@pytest.mark.parametrize(("persistent", "workers"), [(True, 1), (False, 3)])
def test_persistent_workers_read_all_validations_of_a_run_and_end_with_it(
    persistent: bool, workers: int, launch: Launch
) -> None:
    answers = launch(WORKERS.replace("PERSISTENT", str(persistent))).answers

    assert answers == {rank: [[1, 1, 1], workers, 0] for rank in (0, 1)}
