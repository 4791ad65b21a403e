"""Tokens of a run: counts, schedules, limits, resume and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer, between, every, last, once
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus.errors import ConfigError, HookbusError, LoopError
from hookbus.lifecycle import POINTS
from tests import toys

LENGTHS = [3, 5, 2, 4]  # tokens of the batches of an epoch: 14


def batch_of(length: int) -> dict[str, Any]:
    """Return a batch of one text, padded to 6 tokens."""
    mask = torch.zeros(1, 6, dtype=torch.long)
    mask[:, :length] = 1
    return {
        "input_ids": torch.ones(1, 6),
        "attention_mask": mask,
        "num_tokens": length,
        "count": torch.tensor([length]),
    }


BATCHES = [batch_of(length) for length in LENGTHS]


def count_mask(batch: Any) -> Any:
    return batch["attention_mask"].sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, batch: Any) -> Any:
        return self.layer(batch["input_ids"]).mean()


def build_trainer(*hooks: object, **settings: Any) -> Trainer:
    model = Model()
    options = {"batch_tokens": count_mask, "work_dir": None, "default_hooks": False, **settings}
    step = {"step_fn": lambda model, batch: model(batch)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, train_loader=BATCHES, hooks=hooks, **step, **options)


def record(bus: HookBus, point: str, when: Any = None) -> list[int]:
    """Return a list of the number of completed iterations at each call of a listener."""
    calls: list[int] = []
    bus.on(point, when=when, name=f"{point} {when}")(lambda run: calls.append(run.iters_done))
    return calls


class Counts(Hook):
    """Records the total and the number of tokens of the batch after each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[tuple[int, int]] = []

    def after_train_iter(self, run: Run) -> None:
        self.counts.append((run.tokens_done, run.batch_tokens))


class TestCounting:
    @pytest.mark.parametrize(
        "batch_tokens",
        [
            count_mask,
            "num_tokens",
            lambda batch: int(batch["attention_mask"].sum()),
            "tests.run.test_tokens:count_mask",
        ],
        ids=["tensor", "key", "integer", "import string"],
    )
    def test_trainer_counts_the_tokens_of_each_batch(self, batch_tokens: Any) -> None:
        counts = Counts()
        build_trainer(counts, batch_tokens=batch_tokens, epochs=2).fit()
        assert counts.counts == [(3, 3), (8, 5), (10, 2), (14, 4), (17, 3), (22, 5), (24, 2), (28, 4)]

    @pytest.mark.parametrize("at", ["before", "after", "loader"])
    def test_custom_loop_passes_the_batch_at_either_point(self, at: str) -> None:
        counts = Counts()
        bus = HookBus([counts])
        with bus.run(epochs=1, batch_tokens=lambda batch: batch[1]) as run:
            for _ in run.epochs():
                for i, batch in run.batches([(torch.ones(2, 2), n) for n in LENGTHS]):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch if at != "after" else None)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch if at == "after" else None)
        assert counts.counts == [(3, 3), (8, 5), (10, 2), (14, 4)]

    def test_attribute_of_the_batch_is_read(self) -> None:
        class Texts:
            num_tokens = 7

        counts = Counts()
        bus = HookBus([counts])
        with bus.run(iterations=2, batch_tokens="num_tokens"):
            for _ in range(2):
                bus.emit("after_train_iter", batch=Texts())
        assert counts.counts == [(7, 7), (14, 7)]

    def test_tokens_are_not_counted_by_default(self) -> None:
        counts = Counts()
        run = build_trainer(counts, batch_tokens=None, epochs=1).fit()
        assert counts.counts == [(0, 0)] * 4
        assert not run.counts_tokens
        assert "tokens" not in run.state_dict()["clock"]

    @pytest.mark.parametrize(
        ("batch_tokens", "message"),
        [
            ("tokens", "the batch .dict. has no key or attribute 'tokens'"),
            ("attention_mask", r"must be an integer >= 0, got Tensor of shape \(1, 6\). Pass a function"),
            (lambda batch: -1, "must be an integer >= 0, got -1"),
            (lambda batch: 2.5, "must be an integer >= 0, got 2.5"),
            (lambda batch: True, "must be an integer >= 0, got True"),
            (lambda batch: torch.tensor(3, device="meta"), "a tensor on meta, which would synchronize with the device"),
        ],
        ids=["key", "mask", "negative", "float", "bool", "device"],
    )
    def test_other_counts_raise_at_the_first_iteration(self, batch_tokens: Any, message: str) -> None:
        with pytest.raises(LoopError, match=message):
            build_trainer(batch_tokens=batch_tokens, epochs=1).fit()

    def test_iteration_without_a_batch_raises(self) -> None:
        bus = HookBus()
        with pytest.raises(LoopError, match="the iteration has no batch"), bus.run(batch_tokens=len):
            bus.emit("after_train_iter")

    def test_batch_is_counted_before_it_is_moved_to_the_device(self) -> None:
        clock = Clock()
        clock.counts_tokens, clock.tokens.measure = True, lambda batch: batch
        clock.tokens.measure_ahead(5)
        clock.begin_iter("a batch on a device")
        clock.end_iter(None)
        clock.begin_iter(3)
        clock.end_iter(None)
        assert clock.tokens.done == 8


class TestSchedules:
    @pytest.mark.parametrize(
        ("point", "when", "calls"),
        [
            # Totals after the iterations: 3, 8, 10, 14, 17, 22, 24, 28.
            ("after_train_iter", every(10, unit="token"), [3, 6]),
            ("before_train_iter", every(10, unit="token"), [2, 5]),
            ("after_train_iter", every(10, start=4, unit="token"), [2, 4, 7]),
            ("after_train_iter", once(1, 28, unit="token"), [1, 8]),
            ("after_train_iter", between(4, 11, unit="token"), [2, 3, 4]),  # the first token of the iteration
            ("after_optimizer_step", every(10, unit="token"), [2, 5]),
            ("before_optimizer_step", every(10, unit="token"), [2, 5]),
            ("after_epoch", every(20, unit="token"), [8]),
            ("before_epoch", every(14, unit="token"), [4]),
        ],
        ids=str,
    )
    def test_listener_is_due_in_the_unit_of_tokens(self, point: str, when: Any, calls: list[int]) -> None:
        trainer = build_trainer(epochs=2)
        recorded = record(trainer.bus, point, when)
        trainer.fit()
        assert recorded == calls

    def test_accumulated_step_contains_the_tokens_of_its_micro_batches(self) -> None:
        trainer = build_trainer(epochs=2, accumulate=2)
        recorded = record(trainer.bus, "after_optimizer_step", every(9, unit="token"))
        trainer.fit()
        # Steps complete 8, 14, 22 and 28 tokens, within iterations 2, 4, 6 and 8.
        assert recorded == [3, 5, 7]

    def test_share_and_last_refer_to_the_limit_in_tokens(self) -> None:
        trainer = build_trainer(tokens=20)
        halves = record(trainer.bus, "after_train_iter", every(0.5, unit="token"))
        final = record(trainer.bus, "after_train_iter", last(unit="token"))
        trainer.fit()
        assert (halves, final) == ([3, 6], [6])

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 12), st.integers(0, 20))
    def test_every_multiple_is_due_once_and_resumed_runs_agree(self, lengths: list[int], n: int, stop: int) -> None:
        expected, total = [], 0
        for i, length in enumerate(lengths):
            if (total + length) // n > total // n:
                expected.append(i)
            total += length
        clock, due = self.build_clock(), []
        for i, length in enumerate(lengths):
            if i == stop:
                state, clock = clock.state_dict(), self.build_clock()
                clock.load_state_dict(state)
            clock.begin_iter(length)
            clock.end_iter(length)
            if every(n, unit="token").due(PointCounters(clock, POINTS["after_train_iter"])):
                due.append(i)
        assert due == expected

    @staticmethod
    def build_clock() -> Clock:
        clock = Clock()
        clock.counts_tokens, clock.tokens.measure = True, lambda batch: batch
        return clock


class TestLimit:
    def test_run_ends_after_the_iteration_that_reaches_the_limit(self) -> None:
        run = build_trainer(tokens=20).fit()
        assert (run.outcome, run.iters_done, run.tokens_done, run.max_tokens) == ("finished", 6, 22, 20)
        assert not run.epoch_complete

    def test_float_without_fraction_is_a_limit(self) -> None:
        trainer = build_trainer(tokens=1e1)
        assert trainer.fit().iters_done == 3
        assert trainer.fit(tokens=2e1).iters_done == 6  # continues

    def test_custom_loop_ends(self) -> None:
        bus = HookBus()
        with bus.run(tokens=11, batch_tokens="num_tokens") as run:
            for _ in run.epochs():
                for _, batch in run.batches(BATCHES):
                    bus.emit("after_train_iter", batch=batch)
        assert run.iters_done == 4

    def test_remaining_iterations_are_estimated(self) -> None:
        trainer, estimates = build_trainer(tokens=20), []
        trainer.bus.on("after_train_iter")(lambda run: estimates.append(run.expected_last_iter))
        trainer.fit()
        # 3 tokens in the first iteration: 17 / 3 = 5.67 more of them; 8 in 2: 12 / 4 = 3; 10 in 3: 3; 14 in 4: 1.7; ...
        assert estimates == [7, 5, 6, 6, 6, 6]

    @pytest.mark.slow
    @pytest.mark.parametrize("stop", [1, 3, 5])
    def test_resumed_run_ends_at_the_same_iteration(self, stop: int, tmp_path: Any) -> None:
        def train(path: Any, resume: str, *hooks: object) -> tuple[Run, list[int]]:
            trainer = build_trainer(toys.Saver(), *hooks, tokens=33, work_dir=path, resume=resume)
            calls = record(trainer.bus, "after_train_iter", every(6, unit="token"))
            return trainer.fit(), calls

        class Stop(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == stop:
                    run.request_stop("test")

        whole, calls = train(tmp_path / "whole", "never")
        _, first = train(tmp_path / "parts", "never", Stop())
        second, rest = train(tmp_path / "parts", "auto")
        assert first + rest == calls == [2, 4, 6, 7, 9, 10]
        assert second.state_dict()["clock"]["tokens"] == whole.state_dict()["clock"]["tokens"]
        assert (second.iters_done, second.tokens_done) == (10, 36)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tokens": 9, "batch_tokens": None}, "tokens: the run counts no tokens. Pass `batch_tokens`"),
            ({"tokens": 9, "epochs": 1}, "exactly one limit is required"),
            ({"tokens": 9.5}, "tokens: expected an integer >= 0, got 9.5"),
            ({"tokens": -1}, "tokens: expected an integer >= 0, got -1"),
            ({"tokens": count_mask}, "Pass a function as `batch_tokens`"),
            ({"batch_tokens": 9, "epochs": 1}, "batch_tokens: should be a function of the batch"),
        ],
    )
    def test_invalid_limits_are_refused(self, options: Any, message: str) -> None:
        with pytest.raises(HookbusError, match=message):
            build_trainer(**options).fit()

    def test_iterations_are_unknown_if_the_limit_is_in_tokens(self) -> None:
        trainer = build_trainer(tokens=20)
        record(trainer.bus, "after_train_iter", every(0.1))
        with pytest.raises(ConfigError, match=r"only in tokens. Use every\(0.1, unit='token'\)"):
            trainer.fit()

    def test_schedule_in_tokens_is_refused_if_they_are_not_counted(self) -> None:
        trainer = build_trainer(batch_tokens=None, epochs=1)
        record(trainer.bus, "after_train_iter", every(2) & every(1000, unit="token"))
        with pytest.raises(ConfigError, match="the run does not count the unit 'token'. Pass `batch_tokens`"):
            trainer.fit()
