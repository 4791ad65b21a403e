"""hookbus-sync in distributed training: hashes and values of the synchronized state."""

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

    RANK_MEANS, VARIANCES = [[1.0, -5.0], [3.0, 4.0]], [[1.0, 1.0], [3.0, 1.2]]

    def build_model():
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.LayerNorm(2))
        nn.init.constant_(net[0].weight, RANK)
        nn.init.constant_(net[2].bias, 2.0 * RANK)
        net.register_buffer("average", torch.tensor([0.1 + RANK, 0.7]))
        net.register_buffer("index", torch.tensor(RANK))
        return net

    def set_statistics(net):
        net[1].running_mean.copy_(torch.tensor(RANK_MEANS[RANK]))
        net[1].running_var.copy_(torch.tensor(VARIANCES[RANK]))
        net[1].num_batches_tracked.fill_(4 + 3 * RANK)

    def train(hook):
        net, bus, hashes = build_model(), HookBus([hook]), {}

        def record(moment):
            hashes[moment] = fingerprint(net[1].state_dict())

        bus.on("before_val_epoch")(lambda: record("validation"))
        with bus.run(model=net, epochs=1, validate=lambda: {}) as run:
            bus.emit("before_train_epoch")
            set_statistics(net)
            record("training")
            run.validate()
            set_statistics(net)
            bus.emit("after_train_epoch")
            record("end of epoch")
        return {"hashes": hashes, "state": {name: value.tolist() for name, value in net.state_dict().items()}}

    report({"norm": train(SyncNormHook()), "buffers": train(SyncBuffersHook())})
"""


class TestStatistics:
    def test_norm_statistics_cover_all_samples_at_validation_and_end_of_epoch(self, launch: Launch) -> None:
        completed = launch(STATISTICS)

        for hook in ("norm", "buffers"):
            first, second = (completed.reports[rank][hook] for rank in (0, 1))
            assert first["hashes"]["training"] != second["hashes"]["training"]
            for moment in ("validation", "end of epoch"):
                assert first["hashes"][moment] == second["hashes"][moment]
            state = first["state"]
            assert state["1.running_mean"] == [2.0, -0.5]
            # Mean of the variances plus variance of the means: (1 + 3) / 2 + 1 and (1 + 1.2) / 2 + 4.5**2.
            assert state["1.running_var"] == pytest.approx([3.0, 21.35], rel=1e-7)
            assert state["1.num_batches_tracked"] == 7

        self.check_other_parameters_and_buffers([completed.reports[rank] for rank in (0, 1)])

    def check_other_parameters_and_buffers(self, reports: list[Any]) -> None:
        """Check that only the buffers that a hook synchronizes have changed."""
        norm, buffers = ([report[hook]["state"] for report in reports] for hook in ("norm", "buffers"))
        assert [state["2.bias"] for state in norm] == [[1.0, 1.0]] * 2
        assert [state["2.bias"] for state in buffers] == [[0.0, 0.0], [2.0, 2.0]]
        assert [state["average"][0] for state in norm] == pytest.approx([0.1, 1.1])
        assert [state["average"][0] for state in buffers] == pytest.approx([0.6, 0.6])
        assert buffers[0]["average"] == buffers[1]["average"]
        assert buffers[0]["average"][1] == norm[0]["average"][1]  # equal values stay bitwise identical
        for states in (norm, buffers):
            assert [state["index"] for state in states] == [0, 1]
            assert [state["0.weight"][0][0] for state in states] == [0.0, 1.0]


SIZES_AND_ORDERS = """
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

    def get_sizes(**options):
        torch.manual_seed(100 + RANK)
        bus, sizes = HookBus([SyncRandomSizeHook(ratio_range=(1, 9), interval=2)]), []
        loader = DataLoader(Images(), batch_size=3)
        with bus.run(model=nn.Linear(1, 1), train_loader=loader, epochs=4, **options) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for i, batch in run.batches(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    sizes.append(batch.shape[-1])
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
        return sizes

    def get_orders():
        sampler = DistributedSampler(range(8), num_replicas=2, rank=RANK, shuffle=True)
        loader = DataLoader(torch.arange(8), batch_size=2, sampler=sampler)
        bus, orders = HookBus([DistSamplerSeedHook()]), []
        with bus.run(model=nn.Linear(1, 1), train_loader=loader, epochs=3) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                orders.append([])
                for i, batch in enumerate(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    orders[-1] += batch.tolist()
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")
        return orders

    report({"seeded": get_sizes(seed=5), "unseeded": get_sizes(), "orders": get_orders()})
"""


def test_sizes_and_epoch_orders_are_synchronized_across_ranks(launch: Launch) -> None:
    completed = launch(SIZES_AND_ORDERS)
    first, second = completed.reports[0], completed.reports[1]

    for seeding in ("seeded", "unseeded"):
        assert first[seeding] == second[seeding]
        assert len(set(first[seeding])) > 2
    assert first["orders"][0] != first["orders"][1] != first["orders"][2]
    for order, other in zip(first["orders"], second["orders"], strict=True):
        assert sorted(order + other) == list(range(8))


MEANS = """
    import torch
    from hookbus import Hook, HookBus
    from hookbus.errors import MetricError
    from hookbus_sync import SyncMetricsHook

    def train(hook, outputs):
        bus = HookBus([hook])
        with bus.run(epochs=1) as run:
            window = run.metrics.window("test")
            for i, output in enumerate(outputs):
                bus.emit("before_train_iter", batch_idx=i)
                bus.emit("after_train_iter", batch_idx=i, outputs=output)
            return dict(run.metrics.means(window))

    losses = [torch.tensor(1.0 + 2 * RANK), torch.tensor(5.0 + 2 * RANK)]
    outputs = [{"loss": losses[0], "local": 1.0 * RANK, "shared": RANK}, None]
    outputs += [{"loss": losses[1], "local": 3.0 * RANK, "shared": 4}]
    results = [train(SyncMetricsHook(), losses), train(SyncMetricsHook(metrics=["loss", "shared"]), outputs)]
    try:
        train(SyncMetricsHook(metrics=["acc"]), losses)
    except MetricError as error:
        results.append(str(error))
    report(results)
"""


def test_training_metrics_are_averaged_across_ranks(launch: Launch) -> None:
    completed = launch(MEANS)

    for rank in (0, 1):
        losses, outputs, error = completed.reports[rank]
        assert losses == {"train/loss": 4.0}  # of 1 and 3, and 5 and 7
        assert outputs == {"train/loss": 4.0, "train/local": 2.0 * rank, "train/shared": 2.25}
        assert error == (
            "hook 'sync_metrics': the iteration returned no 'acc', got loss. "
            "Set `metrics` to names that the step returns."
        )
