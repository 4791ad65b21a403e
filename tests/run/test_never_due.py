"""Reports of schedules that are never due, before the training or once at its end."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR, MultiStepLR, SequentialLR, StepLR

from hookbus import Hook, HookBus, HookConfig, Trainer, Unit, between, every, hookimpl, last, once
from hookbus._events.schedules import Schedule
from tests import toys

MILESTONE_FIX = "Set a number that the run reaches, or count in another unit."
NEVER_DUE = "Set numbers that the run reaches, or count in another unit."


class IntervalConfig(HookConfig):
    interval: int = 10


class IntervalHook(Hook):
    """Hook with an interval in iterations and a default."""

    Config = IntervalConfig

    @hookimpl(when=every("interval"))
    def after_train_iter(self) -> None:
        """Do nothing."""


def build_hook(point: str, schedule: Schedule, name: str = "probe") -> Hook:
    """Return a hook with one scheduled listener."""

    def listen(self: Hook) -> None:
        """Do nothing."""

    hook: Hook = type("Probe", (Hook,), {point: hookimpl(when=schedule)(listen)})(name=name)
    return hook


def build_trainer(*hooks: Hook, **options: Any) -> Trainer:
    """Return a trainer with two batches per epoch."""
    model = nn.Linear(1, 1)
    data = [(torch.ones(1, 1), torch.ones(1, 1))] * 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"epochs": 3, "work_dir": None, "default_hooks": False, **options}
    return Trainer(model, optimizer, functional.mse_loss, data, hooks=hooks, **settings)


def run_without_epochs(*hooks: Hook, iterations: int = 3) -> None:
    """Run a custom loop that emits nothing but the end of its iterations."""
    bus = HookBus(hooks)
    with bus.run():
        for _ in range(iterations):
            bus.emit("after_train_iter")


def get_reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "never due" in message]


@pytest.mark.parametrize(
    ("point", "schedule", "end"),
    [
        ("after_train_epoch", every(4), "3 epochs"),
        ("after_train_iter", every(7), "6 iterations"),
        ("after_train_iter", every(2, start=7), "6 iterations"),
        ("after_train_iter", between(7, 9), "6 iterations"),
        ("after_train_iter", once(8), "6 iterations"),
        ("after_train_iter", every(4, unit="epoch"), "3 epochs"),
        ("after_train_iter", every(7, unit="step"), "6 optimizer steps"),
        ("after_train_iter", every(7, unit="sample"), "6 samples"),
        ("after_train_iter", every(1) & every(7), "6 iterations"),
        ("after_train_iter", every(1) & every(4, unit="epoch"), None),
        ("after_train_iter", every(7) | once(8), "6 iterations"),
    ],
)
def test_schedule_beyond_the_end_is_one_warning(
    point: str, schedule: Schedule, end: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    build_trainer(build_hook(point, schedule)).fit()

    assert len(get_reports(caplog)) == 1
    assert get_reports(caplog)[0].startswith(f"hook 'probe' is never due at {point}: its schedule is {schedule!r}, and")
    assert end is None or get_reports(caplog)[0].endswith(f"the run has {end}. {NEVER_DUE}")


@pytest.mark.parametrize(
    "schedule", [every(6), once(9, 1), between(6, 9), last, every(7) | every(1), ~every(7), every(None)]
)
def test_schedule_that_may_be_due_is_not_reported(schedule: Schedule, caplog: pytest.LogCaptureFixture) -> None:
    build_trainer(build_hook("after_train_iter", schedule)).fit()
    assert get_reports(caplog) == []


class ReportsAtStart(Hook):
    """Record the reports before the first epoch."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        self._caplog = caplog
        self.reports: list[str] = []

    def before_train_epoch(self) -> None:
        self.reports = get_reports(self._caplog)


@pytest.mark.parametrize(
    ("options", "count"), [({"epochs": 3}, 1), ({"epochs": None, "iterations": 6}, 0)], ids=["epochs", "iterations"]
)
def test_known_limit_is_compared_before_the_training(
    options: dict[str, Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    start = ReportsAtStart(caplog)
    build_trainer(start, build_hook("after_train_epoch", every(4)), **options).fit()
    assert (len(start.reports), len(get_reports(caplog))) == (count, 1)


def test_check_lists_the_schedules_beyond_the_limit() -> None:
    lines = build_trainer(build_hook("after_train_epoch", every(4))).check()
    assert lines[-1] == (
        "warning: hook 'probe' is never due at after_train_epoch: its schedule is every(4), and the run has 3 epochs. "
        f"{NEVER_DUE}"
    )


@pytest.mark.parametrize(
    ("settings", "count"), [({}, 0), ({"interval": 10}, 0), ({"interval": 20}, 1), ({"frequency": 7}, 1)]
)
def test_default_number_is_not_reported(settings: dict[str, int], count: int, caplog: pytest.LogCaptureFixture) -> None:
    build_trainer(IntervalHook(settings)).fit()
    assert len(get_reports(caplog)) == count


class EpochHook(Hook):
    """Hook with a default schedule in epochs."""

    Config = IntervalConfig

    @hookimpl(when=every("interval", unit="epoch"))
    def after_train_iter(self) -> None:
        """Do nothing."""


def test_default_in_epochs_is_reported_in_a_loop_without_epochs(caplog: pytest.LogCaptureFixture) -> None:
    run_without_epochs(EpochHook())
    assert get_reports(caplog) == [
        "hook 'epoch' is never due at after_train_iter: its schedule is every(10, unit='epoch'), and the run has "
        f"0 epochs. {NEVER_DUE}"
    ]


def test_default_in_epochs_is_not_reported_in_a_truncated_epoch(caplog: pytest.LogCaptureFixture) -> None:
    build_trainer(EpochHook(), epochs=None, iterations=1).fit()
    assert get_reports(caplog) == []


@pytest.mark.parametrize("end", ["stopped", "failed"])
def test_incomplete_run_is_not_reported(end: str, caplog: pytest.LogCaptureFixture) -> None:
    class End(Hook):
        def after_train_iter(self, run: Any) -> None:
            if end == "failed":
                raise ValueError("failed")
            run.request_stop("enough")

    trainer = build_trainer(End(), build_hook("after_train_iter", every(5)))
    if end == "failed":
        with pytest.raises(ValueError, match="failed"):
            trainer.fit()
    else:
        trainer.fit()
    assert get_reports(caplog) == []


def test_number_that_was_due_before_a_resume_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    trainer = build_trainer(build_hook("after_train_epoch", once(2)), epochs=2)
    trainer.fit()
    trainer.fit(epochs=3)
    assert get_reports(caplog) == []


def test_when_is_reported_only_if_no_listener_of_the_hook_is_due(caplog: pytest.LogCaptureFixture) -> None:
    class TwoPoints(IntervalHook):
        @hookimpl(when=every("interval"))
        def after_train_epoch(self) -> None:
            """Do nothing."""

    build_trainer(TwoPoints(when="every(5)")).fit()
    assert get_reports(caplog) == []
    build_trainer(TwoPoints(when="every(7)")).fit()
    assert len(get_reports(caplog)) == 1


def test_run_at_its_limit_is_reported_in_any_loop(caplog: pytest.LogCaptureFixture) -> None:
    trainer = build_trainer(epochs=2)
    trainer.fit()
    trainer.fit()
    assert [message for message in caplog.messages if message.startswith("Nothing to train: 2 epochs and 4 ")]
    assert len(caplog.messages) == 1


class Idle(Hook):
    def state_dict(self) -> dict[str, Any]:
        return {}


class Checks(Hook):
    def check(self, run: Any) -> None: ...


def test_hook_without_listeners_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    training = toys.trainer(Idle(), Checks(), epochs=2)
    message = "hook 'idle' has no listener, so it has no effect. Define a method named like a point"
    assert [line for line in training.check() if "has no listener" in line] == [
        f"warning: {message}, such as after_train_iter."
    ]
    training.fit()
    assert [record.getMessage() for record in caplog.records if "has no listener" in record.getMessage()] == [
        f"{message}, such as after_train_iter."
    ]


@pytest.mark.parametrize(
    ("point", "schedule", "count"),
    [
        ("after_train_iter", every(3, unit="batch"), 2),
        ("after_val_iter", every(4), 3),
        ("before_val_iter", between(4, 9), 3),
        ("after_train_iter", every(2, unit="batch"), None),
        ("after_val_iter", every(3), None),
        ("after_test_iter", every(4), None),
    ],
)
def test_batches_are_compared_with_the_length_of_the_loader(
    point: str, schedule: Schedule, count: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [(torch.ones(1, 1), torch.ones(1, 1))] * 3
    loaders = {"long": batches, "short": batches[:1]}
    start = ReportsAtStart(caplog)
    build_trainer(start, build_hook(point, schedule), val_loader=loaders).fit()
    assert get_reports(caplog) == start.reports
    assert [report.split("and ")[-1] for report in get_reports(caplog)] == [
        f"an epoch has {count} batches. Set numbers that an epoch reaches, or count in another unit."
    ] * (count is not None)


def test_batches_of_a_replaced_validation_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    class Validates(Hook):
        @property
        def validation_fn(self) -> Any:
            return lambda run: {}

    batches = [(torch.ones(1, 1), torch.ones(1, 1))]
    build_trainer(Validates(), build_hook("after_val_iter", every(4)), val_loader=batches).fit()
    assert get_reports(caplog) == []


@pytest.mark.parametrize(
    ("schedule", "end"), [(every(4), "the run has 3 iterations"), (every(4, unit="batch"), "an epoch has 3 batches")]
)
def test_loop_without_a_limit_is_reported_once_at_its_end(
    schedule: Schedule, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_without_epochs(build_hook("after_train_iter", schedule))
    (report,) = get_reports(caplog)
    assert f"and {end}. " in report


class MilestoneConfig(HookConfig):
    number: int = 9


class AtMilestone(Hook):
    """Hook that takes effect at a number of epochs, iterations or steps."""

    Config = MilestoneConfig
    unit_of_number: Unit = "epoch"

    def get_milestones(self, run: Any) -> dict[str, tuple[int, Unit]]:
        return {"number": (self.config.number, self.unit_of_number)}

    def before_train(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("unit", "number", "expected", "is_known"),
    [
        ("epoch", 4, "4 epochs for 'number', and the run has 3 epochs", True),
        ("iter", 7, "7 iterations for 'number', and the run has 6 iterations", True),
        ("step", 7, "7 optimizer steps for 'number', and the run has 6 optimizer steps", False),
        ("epoch", 3, None, False),
        ("step", 6, None, False),
        ("epoch", 9, None, False),
    ],
)
def test_setting_that_requires_a_longer_run_is_reported(
    unit: Unit, number: int, expected: str | None, is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hook = AtMilestone(number=number)
    hook.unit_of_number = unit
    lines = [line for line in build_trainer(hook).check() if line.startswith("warning")]
    build_trainer(hook).fit()
    reports = [] if expected is None else [f"hook 'at_milestone' requires {expected}. {MILESTONE_FIX}"]
    assert caplog.messages == reports
    assert lines == [f"warning: {report}" for report in reports if is_known]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda optimizer: StepLR(optimizer, 3), "4 epochs for 'StepLR.step_size'"),
        (lambda optimizer: MultiStepLR(optimizer, [3, 5]), "4 epochs for 'MultiStepLR.milestones'"),
        (lambda optimizer: LinearLR(optimizer, total_iters=4), "4 epochs for 'LinearLR.total_iters'"),
        (
            lambda optimizer: SequentialLR(optimizer, [LinearLR(optimizer), StepLR(optimizer, 1)], [7]),
            "8 epochs for 'SequentialLR.milestones'",
        ),
        (lambda optimizer: ChainedScheduler([StepLR(optimizer, 3)], optimizer), "4 epochs for 'StepLR.step_size'"),
        (lambda optimizer: StepLR(optimizer, 2), None),
        (lambda optimizer: LinearLR(optimizer, total_iters=3), None),
        (lambda optimizer: LinearLR(optimizer), None),
        (lambda optimizer: MultiStepLR(optimizer, [2, 30]), None),
    ],
)
def test_scheduler_that_changes_nothing_in_the_run_is_reported(
    build: Any, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.ones(1, 1), torch.ones(1, 1))] * 2
    options: dict[str, Any] = {"epochs": 3, "work_dir": None, "default_hooks": False}
    Trainer(model, optimizer, functional.mse_loss, data, scheduler=build(optimizer), **options).fit()
    expected = f"scheduler requires {message}, and the run has 3 epochs. {MILESTONE_FIX}"
    assert caplog.messages == [expected] * (message is not None)
