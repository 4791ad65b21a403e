"""The search for the batch size: what ends a trial, the result, its application, and that it leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from hookbus import HookBus, Run
from hookbus.errors import ConfigError, LoopError
from hookbus.testing import check_hook
from hookbus_ema import EMAHook
from hookbus_finders import BatchSizeFinderHook, LRFinderHook
from hookbus_runtime import OutOfMemoryHook
from tests.toys import Saver

from .toys import SAMPLES, Net, Observer, build_loader, build_trainer

QUICK: dict[str, Any] = {"init_val": 8, "steps_per_trial": 1}


@pytest.fixture(autouse=True)
def count_collections(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the garbage collection, which takes long in a process with many objects."""
    calls: list[int] = []
    monkeypatch.setattr("hookbus_finders.memory.gc.collect", lambda: calls.append(1))
    return calls


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    class WithLoader(BatchSizeFinderHook):
        def check(self, run: Run) -> None:
            data: Any = [(torch.zeros(3), 0)] * 4
            run.train_loader = DataLoader(data, batch_size=2)
            super().check(run)

    check_hook(WithLoader)


@pytest.mark.parametrize(
    ("settings", "capacity", "sizes", "result"),
    [
        ({}, 20, [8, 16, 32], 15),  # 16 less 5 %: 15.2
        ({"margin": 0.0}, 20, [8, 16, 32], 16),
        ({"mode": "binsearch", "margin": 0.0}, 20, [8, 16, 32, 24, 20, 22, 21], 20),
        ({"init_val": 32, "margin": 0.0}, 20, [32, 16], 16),
        ({}, None, [8, 16, 32, 48], 48),  # the dataset is the limit
        ({"max_val": 10}, None, [8, 10], 10),
        ({"max_trials": 2}, None, [8, 16], 16),
    ],
)
def test_error_ends_a_trial(
    settings: dict[str, Any], capacity: int | None, sizes: list[int], result: int, count_collections: list[int]
) -> None:
    net = Net(capacity)
    run = build_trainer(BatchSizeFinderHook(**{**QUICK, **settings}), net=net, train_loader=build_loader(4)).fit()
    trials = dict.fromkeys(net.sizes[: -run.iters_done])
    assert list(trials) == sizes
    assert run.require("batch_size_finder").size == result
    assert len(count_collections) == len(sizes)
    # Not applied.
    assert (run.train_loader.batch_size, run.iters_done) == (4, 24)


def test_each_size_is_tried_in_several_optimizer_steps() -> None:
    net = Net(12)
    build_trainer(BatchSizeFinderHook(init_val=8), net=net, epochs=1, accumulate=2).fit()
    assert net.sizes[:7] == [8] * 6 + [16]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_error_of_the_host_ends_a_trial(error: BaseException) -> None:
    hook = BatchSizeFinderHook(**QUICK, margin=0.0)
    build_trainer(hook, net=Net(20, error), epochs=1).fit()
    assert hook.result is not None
    assert hook.result.size == 16


def test_other_error_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        build_trainer(BatchSizeFinderHook(**QUICK), net=Net(20, RuntimeError("shapes cannot be multiplied"))).fit()


def test_model_that_does_not_fit_at_all_ends_the_run() -> None:
    with pytest.raises(LoopError, match="out of memory with each batch size, got 8, 4, 2, 1"):
        build_trainer(BatchSizeFinderHook(**QUICK), net=Net(0)).fit()


def test_tensors_of_a_failed_step_are_released() -> None:
    import weakref

    references: list[Any] = []

    class Leaky(Net):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.training and len(inputs) > 10:
                references.append(weakref.ref(kept := torch.zeros(1)))
                raise torch.OutOfMemoryError(f"{kept.numel()}")
            return super().forward(inputs)

    class Check(BatchSizeFinderHook):
        def _report(self, run: Run, result: Any) -> None:
            assert [reference() for reference in references] == [None]

    build_trainer(Check(**QUICK), net=Leaky(), epochs=1).fit()
    assert references


def train(*hooks: Any, capacity: int | None = None, **options: Any) -> Observer:
    observer = Observer()
    build_trainer(*hooks, EMAHook(momentum=0.5), observer, net=Net(capacity), **options).fit()
    return observer


@pytest.mark.parametrize("options", [{}, {"precision": "fp16", "accumulate": 2}], ids=["plain", "scaled"])
def test_training_is_bitwise_that_without_the_search(options: dict[str, Any]) -> None:
    searched, plain = train(BatchSizeFinderHook(**QUICK), capacity=20, **options), train(**options)
    assert searched.inputs == plain.inputs
    assert searched.means == plain.means
    assert searched.state == plain.state


class TestApply:
    SETTINGS: ClassVar[dict[str, Any]] = {**QUICK, "apply": True}

    def test_training_is_that_with_a_loader_of_this_size(self) -> None:
        hook, plain, applied = BatchSizeFinderHook(**self.SETTINGS), Observer(), Observer()
        run = build_trainer(hook, applied, net=Net(20)).fit()
        build_trainer(plain, train_loader=build_loader(15)).fit()
        assert (run.train_loader.batch_size, run.epoch_length, run.iters_done) == (15, 4, 8)
        assert applied.inputs == plain.inputs
        assert applied.means == plain.means

    def test_resumed_run_reads_batches_of_this_size(self, tmp_path: Path) -> None:
        whole = train(BatchSizeFinderHook(**self.SETTINGS), capacity=20)
        saver = Saver("after_train_iter", 5)
        train(BatchSizeFinderHook(**self.SETTINGS), saver, capacity=20, work_dir=tmp_path / "run")
        hook = BatchSizeFinderHook(**self.SETTINGS)
        resumed = train(hook, capacity=20, work_dir=tmp_path / "run", resume=saver.files[0])
        assert resumed.inputs == whole.inputs[5:]
        assert resumed.state == whole.state
        assert hook.result is not None
        assert hook.result.trials == ((8, True), (16, True), (32, False))

    @pytest.mark.parametrize("reverse", [False, True])
    def test_search_precedes_the_range_test_in_any_order(self, reverse: bool) -> None:
        net = Net(20)
        hooks = [BatchSizeFinderHook(**self.SETTINGS), LRFinderHook(num_training_steps=4)]
        build_trainer(*(reversed(hooks) if reverse else hooks), net=net, epochs=1).fit()
        assert net.sizes == [8, 16, 32, *[15, 15, 15, 3], *[15, 15, 15, 3]]

    def test_loop_that_reads_its_loader_directly_is_refused(self) -> None:
        bus, loader = HookBus([BatchSizeFinderHook(**self.SETTINGS)]), build_loader()
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bus.action("train_step", lambda run, batch: {"loss": model(batch[0]).mean().item()})

        def run_loop() -> None:
            with bus.run(model=model, optimizer=optimizer, train_loader=loader, epochs=1):
                for i, batch in enumerate(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)

        with pytest.raises(LoopError, match=r"Iterate over run\.batches\(loader\)"):
            run_loop()

    def test_custom_loop_reads_the_size(self) -> None:
        bus, loader, sizes = HookBus([BatchSizeFinderHook(**self.SETTINGS)]), build_loader(), []
        net = Net(20)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(run: Run, batch: Any) -> Any:
            loss = net(batch[0]).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        train_step = bus.action("train_step", step)
        with bus.run(model=net, optimizer=optimizer, train_loader=loader, epochs=1) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for i, batch in run.batches(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    sizes.append(len(batch[0]))
                    bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": train_step(batch)})
        assert sizes == [15, 15, 15, 3]


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ([(torch.zeros(2, 4), torch.tensor([0, 1]))], "it is no DataLoader, got list"),
        (build_loader(None, shuffle=False), r"determines the batches, got batch_size=None"),  # type: ignore[arg-type]
        (
            DataLoader(
                build_loader().dataset,
                batch_sampler=type("Balanced", (BatchSampler,), {})(SequentialSampler(range(SAMPLES)), 4, False),
            ),
            "its batch sampler determines the batches, got Balanced",
        ),
    ],
)
def test_loader_that_cannot_be_rebuilt_is_refused_before_the_training(loader: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build_trainer(BatchSizeFinderHook(), train_loader=loader).fit()


@pytest.mark.parametrize(
    ("setting", "value", "iterations"),
    [("limit_train_batches", 3, 6), ("limit_train_batches", 0.5, 8), ("overfit_batches", 2, 4), ("fast_dev_run", 1, 1)],
)
def test_limited_training_is_not_searched_with_one_warning(
    setting: str, value: float, iterations: int, caplog: pytest.LogCaptureFixture
) -> None:
    hook = BatchSizeFinderHook(**QUICK, apply=True)
    run = build_trainer(hook, net=Net(20), **{setting: value}).fit()
    assert (run.iters_done, hook.result, run.get("batch_size_finder")) == (iterations, None, None)
    assert [record.getMessage() for record in caplog.records if "batch_size_finder" in record.getMessage()] == [
        f"batch_size_finder: not executed, because the training is limited by `{setting}`."
    ]


def test_out_of_memory_hook_does_not_split_the_batches_of_the_search() -> None:
    hook = BatchSizeFinderHook(**QUICK, margin=0.0)
    build_trainer(hook, OutOfMemoryHook(retry=True), net=Net(20), epochs=1).fit()
    assert hook.result is not None
    assert hook.result.size == 16


@pytest.mark.parametrize("model", [nn.SyncBatchNorm(2), nn.Linear(2, 2)])
def test_custom_loop_with_several_ranks_is_refused(model: nn.Module) -> None:
    bus = HookBus()
    with bus.run(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), train_loader=build_loader()
    ) as run:
        run.ranks.world_size = 2
        hook = BatchSizeFinderHook()
        hook._run = run
        with pytest.raises(ConfigError, match="would block the other 1, got a custom loop"):
            hook.check(run)
        run.trainer = object()
        if isinstance(model, nn.SyncBatchNorm):
            with pytest.raises(ConfigError, match="got SyncBatchNorm"):
                hook.check(run)
        else:
            hook.check(run)
        run.trainer = None
        run.ranks.world_size = 1
