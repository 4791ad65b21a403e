"""hookbus-sync over real processes: what is the same afterwards, by its hash, and what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

STATISTICS = """
    import torch
    from torch import nn
    from hookbus import HookBus
    from hookbus.testing import fingerprint
    from hookbus_sync import SyncBuffersHook, SyncNormHook

    MEANS, VARIANCES = [[1.0, -5.0], [3.0, 4.0]], [[1.0, 1.0], [3.0, 1.2]]

    def model():
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.LayerNorm(2))
        nn.init.constant_(net[0].weight, RANK)
        nn.init.constant_(net[2].bias, 2.0 * RANK)
        net.register_buffer("share", torch.tensor([0.1 + RANK, 0.7]))
        net.register_buffer("chosen", torch.tensor(RANK))
        return net

    def disturb(net):
        net[1].running_mean.copy_(torch.tensor(MEANS[RANK]))
        net[1].running_var.copy_(torch.tensor(VARIANCES[RANK]))
        net[1].num_batches_tracked.fill_(4 + 3 * RANK)

    def train(hook):
        net, bus, hashes = model(), HookBus([hook]), {}

        def look(when):
            hashes[when] = fingerprint(net[1].state_dict())

        bus.on("before_val_epoch")(lambda: look("judged"))
        with bus.run(model=net, epochs=1, validate=lambda: {}) as run:
            bus.emit("before_train_epoch")
            disturb(net)
            look("trained")
            run.validate()
            disturb(net)
            bus.emit("after_train_epoch")
            look("done")
        return {"hashes": hashes, "state": {name: value.tolist() for name, value in net.state_dict().items()}}

    answer({"norm": train(SyncNormHook()), "buffers": train(SyncBuffersHook())})
"""


class TestStatistics:
    def test_are_those_of_all_samples_when_judged_and_at_the_end_of_an_epoch(self, launch: Launch) -> None:
        done = launch(STATISTICS)

        for hook in ("norm", "buffers"):
            first, second = (done.answers[rank][hook] for rank in (0, 1))
            assert first["hashes"]["trained"] != second["hashes"]["trained"]
            for when in ("judged", "done"):
                assert first["hashes"][when] == second["hashes"][when]
            state = first["state"]
            assert state["1.running_mean"] == [2.0, -0.5]
            # within (1 + 3) / 2 and between 1; within (1 + 1.2) / 2 and between 4.5^2
            assert state["1.running_var"] == pytest.approx([3.0, 21.35], rel=1e-7)
            assert state["1.num_batches_tracked"] == 7

        self.see_what_each_leaves_alone([done.answers[rank] for rank in (0, 1)])

    def see_what_each_leaves_alone(self, answers: list[Any]) -> None:
        norm, buffers = ([each[hook]["state"] for each in answers] for hook in ("norm", "buffers"))
        assert [each["2.bias"] for each in norm] == [[1.0, 1.0]] * 2
        assert [each["2.bias"] for each in buffers] == [[0.0, 0.0], [2.0, 2.0]]
        assert [each["share"][0] for each in norm] == pytest.approx([0.1, 1.1])
        assert [each["share"][0] for each in buffers] == pytest.approx([0.6, 0.6])
        assert buffers[0]["share"] == buffers[1]["share"]
        assert buffers[0]["share"][1] == norm[0]["share"][1]  # what was the same stays as it was, to the bit
        for each in (norm, buffers):
            assert [state["chosen"] for state in each] == [0, 1]
            assert [state["0.weight"][0][0] for state in each] == [0.0, 1.0]


READING = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset, DistributedSampler
    from hookbus import Hook, HookBus
    from hookbus_sync import DistSamplerSeedHook, SyncRandomSizeHook

    class Images(Dataset):
        size = (1, 1)

        def update_dynamic_scale(self, size):
            self.size = size

        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.full((1, *self.size), float(index))

    def sizes(**options):
        torch.manual_seed(100 + RANK)
        bus, seen = HookBus([SyncRandomSizeHook(ratio_range=(1, 9), interval=2)]), []
        loader = DataLoader(Images(), batch_size=3)
        with bus.run(model=nn.Linear(1, 1), train_loader=loader, epochs=4, **options) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for i, batch in run.batches(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    seen.append(batch.shape[-1])
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
        return seen

    def orders():
        sampler = DistributedSampler(range(8), num_replicas=2, rank=RANK, shuffle=True)
        loader = DataLoader(torch.arange(8), batch_size=2, sampler=sampler)
        bus, seen = HookBus([DistSamplerSeedHook()]), []
        with bus.run(model=nn.Linear(1, 1), train_loader=loader, epochs=3) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                seen.append([])
                for i, batch in enumerate(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    seen[-1] += batch.tolist()
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")
        return seen

    answer({"seeded": sizes(seed=5), "unseeded": sizes(), "orders": orders()})
"""


def test_sizes_and_orders_are_those_of_all_processes(launch: Launch) -> None:
    done = launch(READING)
    first, second = done.answers[0], done.answers[1]

    for seeding in ("seeded", "unseeded"):
        assert first[seeding] == second[seeding]
        assert len(set(first[seeding])) > 2
    assert first["orders"][0] != first["orders"][1] != first["orders"][2]
    for own, other in zip(first["orders"], second["orders"], strict=True):
        assert sorted(own + other) == list(range(8))


NUMBERS = """
    import torch
    from hookbus import Hook, HookBus
    from hookbus.errors import MetricError
    from hookbus_sync import SyncMetricsHook

    def train(hook, outputs):
        bus = HookBus([hook])
        with bus.run(epochs=1) as run:
            window = run.metrics.window("test")
            for i, each in enumerate(outputs):
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_train_iter", batch_idx=i, outputs=each)
            return dict(run.metrics.means(window))

    losses = [torch.tensor(1.0 + 2 * RANK), torch.tensor(5.0 + 2 * RANK)]
    outputs = [{"loss": losses[0], "own": 1.0 * RANK, "shared": RANK}, None]
    outputs += [{"loss": losses[1], "own": 3.0 * RANK, "shared": 4}]
    found = [train(SyncMetricsHook(), losses), train(SyncMetricsHook(metrics=["loss", "shared"]), outputs)]
    try:
        train(SyncMetricsHook(metrics=["acc"]), losses)
    except MetricError as error:
        found.append(str(error))
    answer(found)
"""


def test_numbers_of_training_are_means_over_the_processes(launch: Launch) -> None:
    done = launch(NUMBERS)

    for rank in (0, 1):
        losses, outputs, error = done.answers[rank]
        assert losses == {"train/loss": 4.0}  # of 1 and 3, and 5 and 7
        assert outputs == {"train/loss": 4.0, "train/own": 2.0 * rank, "train/shared": 2.25}
        assert error == ("hook 'sync_metrics': the iteration returned no 'acc', got loss. Set `metrics` to names that the step returns.")
