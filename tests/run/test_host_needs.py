"""Comparison of hooks with what another trainer offers; `tests/conformance/test_needs.py` does it for every hook."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, HookConfig, Needs
from hookbus._run.host_needs import compare_hooks
from hookbus.bridge import Capabilities
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus

from .test_host import RecordingHost

MISSING = {"after_forward": "it has no such moment. Use `after_train_iter`."}
OTHER: dict[str, Any] = {"host": "Other", "bridge": "unused:Unused"}


class DrawConfig(HookConfig):
    draws: bool = True


class Listen(Hook):
    def before_train_epoch(self) -> None: ...

    def after_forward(self) -> None: ...

    def after_test(self) -> None: ...


def make_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def find_problems(hook: Hook, owner: Any = "host", *, has_validation: bool = False, **offered: Any) -> list[str]:
    record = Capabilities(**{**OTHER, **offered})
    return compare_hooks({"x": hook}, record, owner, has_validation=has_validation)["x"].problems


class TestProblems:
    @pytest.mark.parametrize("point", ["after_backward", ("after_forward", "after_backward")])
    def test_one_of_alternative_points_is_enough(self, point: Any) -> None:
        class Read(Hook):
            needs = Needs(points=(point,))

        assert find_problems(Read(), missing=MISSING) == []

    def test_missing_points_are_reported_with_the_reason(self) -> None:
        class Read(Hook):
            needs = Needs(points=(("after_forward", "after_backward"),))

        assert find_problems(Read(), missing={**MISSING, "after_backward": "none"}) == [
            "requires after_forward or after_backward, which Other does not emit: it has no such moment. Use "
            "`after_train_iter`."
        ]

    def test_need_of_a_setting_is_advised_to_change_it(self) -> None:
        class Draw(Hook):
            Config = DrawConfig

            @property
            def needs(self) -> Needs:
                return Needs(batch=self.config.draws)

        assert find_problems(Draw(), batch=False) == [
            "requires the batch of each iteration, which Other does not provide. Remove the hook, or the settings that "
            "require it."
        ]
        assert find_problems(Draw(draws=False), batch=False) == []

    def test_hook_that_validates_needs_a_host_or_a_function_that_validates(self) -> None:
        class Schedule(Hook):
            schedules_validation = True

        class Validate(Schedule):
            validation_fn = dict

        expected = "schedules validations, but Other validates on its own schedule only. Set that schedule instead."
        assert find_problems(Schedule()) == [expected]
        assert find_problems(Schedule(), requests={"validation": "epoch"}) == []
        assert find_problems(Schedule(), has_validation=True) == []
        assert find_problems(Validate()) == []

    def test_hook_that_reads_results_needs_validations(self) -> None:
        class Read(Hook):
            requires_validation = True

        assert find_problems(Read(), missing={"after_val": "it never validates. Remove the hook."}) == [
            "requires validations, but Other does not emit after_val: it never validates. Remove the hook."
        ]

    def test_hook_that_skips_or_accumulates_is_refused(self) -> None:
        class Change(Hook):
            skips_iterations = schedules_accumulation = True

        assert [problem.partition(",")[0] for problem in find_problems(Change())] == [
            "skips iterations",
            "changes the number of micro-batches per optimizer step",
        ]
        assert find_problems(Change(), requests={"skip": "now"}, accumulation=True) == []

    def test_second_owner_of_checkpoints_is_refused(self) -> None:
        from hookbus_checkpoint import CheckpointHook

        (problem,) = find_problems(CheckpointHook())
        assert problem == "writes checkpoints, but Other saves the state of the hooks in its own. Remove the hook."
        (problem,) = find_problems(CheckpointHook(), checkpoints=("host", "hookbus"))
        assert problem.endswith("Remove the hook, or pass checkpoints='hookbus'.")
        assert find_problems(CheckpointHook(), "hookbus", checkpoints=("host", "hookbus")) == []

    def test_plugin_without_needs_is_omitted(self) -> None:
        assert compare_hooks({"plugin": object()}, Capabilities(**OTHER), "host") == {}


class SetRate(Hook):
    schedules_learning_rate = True


class TestLearningRate:
    host = RecordingHost()
    host.lr_schedule = "the scheduler StepLR. Pass scheduler=None"

    def test_second_schedule_is_refused_before_any_event(self) -> None:
        bus = RecordingBus([SetRate(name="mine")])
        with pytest.raises(ConfigError) as caught:
            bus.open(host=self.host, epochs=1)
        (problem,) = caught.value.problems
        assert problem.startswith("hook 'mine' (")
        assert problem.endswith(
            "): sets the learning rate, as does the scheduler StepLR. Pass scheduler=None, or remove the hook."
        )
        assert bus.emitted_points == []

    def test_hook_that_is_registered_during_the_run_is_refused(self) -> None:
        bus = HookBus()
        run = bus.open(host=self.host, epochs=1)
        with pytest.raises(ConfigError, match="as does the scheduler StepLR"):
            bus.register(SetRate())
        run.close()

    @pytest.mark.parametrize(
        ("host", "options"),
        [
            (RecordingHost(), {"epochs": 1}),
            (host, {"mode": "val"}),
            (host, {"epochs": 1, "optimizer": {name: make_optimizer() for name in "ab"}}),  # may be another one
        ],
        ids=["constant", "validation", "several optimizers"],
    )
    def test_only_schedule_of_an_optimizer_is_accepted(self, host: RecordingHost, options: dict[str, Any]) -> None:
        HookBus([SetRate()]).open(host=host, **options).close()

    def test_hook_that_sets_the_learning_rate_is_known_as_long_as_it_is_registered(self) -> None:
        bus = HookBus()
        run = bus.open(host=RecordingHost(), epochs=1)
        assert not run.has_lr_hook
        hook = bus.register(SetRate())
        assert run.has_lr_hook
        bus.unregister(hook)
        assert not run.has_lr_hook
        run.close()

    def test_schedule_of_the_host_is_that_of_the_run(self) -> None:
        run = HookBus().open(host=self.host, epochs=1)
        assert run.external_lr_schedule == "the scheduler StepLR. Pass scheduler=None"
        run.close()
        with HookBus().run(epochs=1) as other:
            assert other.external_lr_schedule == ""


class TestDifferences:
    def test_points_that_the_hook_listens_at_are_listed(self) -> None:
        approximate = {"before_train_epoch": "late.", "after_val": "early."}
        record = Capabilities(**OTHER, missing={**MISSING, "after_test": "none"}, approximate=approximate)
        report = compare_hooks({"x": Listen()}, record, "host")["x"]
        assert report.status == "works approximately"
        assert list(report.differences) == ["before_train_epoch", "after_forward"]  # a training emits no point of tests

    @pytest.mark.parametrize(
        ("needs", "status"), [(Needs(), "works"), (Needs(optimizer=True), "cannot work")], ids=["works", "cannot"]
    )
    def test_status_of_other_hooks(self, needs: Needs, status: str) -> None:
        hook = type("Other", (Hook,), {"needs": needs})()
        assert compare_hooks({"x": hook}, Capabilities(**OTHER, optimizer=False), "host")["x"].status == status

    def test_differences_of_a_run_are_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        host = RecordingHost()
        host.capabilities = Capabilities(**OTHER, missing=MISSING, approximate={"before_train_epoch": "late."})
        bus = HookBus()
        bus.register(Listen(), "a")
        bus.register(Listen(), "b")
        with caplog.at_level(logging.INFO, "hookbus"):
            run = bus.open(host=host)
            bus.emit("after_train_iter")
            assert caplog.messages == [
                "Other differs from a loop of hookbus:\n"
                "  before_train_epoch: late. (hooks 'a', 'b')\n"
                "  after_forward is not emitted: it has no such moment. Use `after_train_iter`. (hooks 'a', 'b')"
            ]
            bus.register(Listen(), "late")
            assert caplog.messages[1].count("(hook 'late')") == 2
        run.close()
