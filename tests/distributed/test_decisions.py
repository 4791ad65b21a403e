from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCENARIOS = '''
    import os, signal, toys, torch
    from pathlib import Path
    from hookbus import Hook, every, hookimpl
    from hookbus.errors import RequestError

    class On(Hook):
        """Does something at an iteration, from 1, on one rank."""
        skips_iterations = True

        def __init__(self, rank, iteration, do, at="after_train_iter", name="on"):
            super().__init__(name=name)
            self.rank, self.iteration, self.do, self.at = rank, iteration, do, at

        def _act(self, run, point):
            if RANK == self.rank and point == self.at and run.clock.number("iter") == self.iteration:
                self.do(run)

        def before_train_iter(self, run):
            self._act(run, "before_train_iter")

        def after_forward(self, run):
            self._act(run, "after_forward")

        def after_train_iter(self, run):
            self._act(run, "after_train_iter")

        def after_val(self, run):
            self._act(run, "after_val")

    class Saver(Hook):
        """Notes at which iterations checkpoints are planned, and why."""
        def __init__(self):
            super().__init__()
            self.plans = []

        def before_run(self, run):
            run.provide("saver", self)

        def plan(self, run, requests):
            assert all(each.details["saver"] is self for each in requests)
            places = [str(each.details["place"]) for each in requests]
            self.plans.append([run.iters_done, [str(each) for each in requests], places])

        def write(self, run, checkpoint):
            raise AssertionError

    class Validations(Hook):
        """Notes at which iterations validations are made."""
        schedules_validation = True

        def __init__(self):
            super().__init__()
            self.at = []

        def after_val(self, run):
            self.at.append(run.iters_done)

    class Silent(Hook):
        """Asks for nothing, unless told to."""
        makes_requests = False
        name = "silent"

        def __init__(self, asks=False):
            super().__init__()
            self.asks = asks

        def after_train_iter(self, run):
            if self.asks:
                run.request_stop("after all")

    class Due(Hook):
        """Asks on one rank, where a schedule is due on all."""
        @hookimpl(when=every(2))
        def after_train_iter(self, run):
            if RANK == 1:
                run.request_stop("enough")

    class ByTheClock(Hook):
        """Notes when a schedule of seconds is due, where each rank has a clock of its own speed."""
        def __init__(self):
            super().__init__()
            self.at = []

        def before_run(self, run):
            run.clock.timer = lambda: run.iters_done * (0.3 + 0.4 * RANK)

        @hookimpl(when=every(1, unit="seconds"))
        def after_train_iter(self, run):
            self.at.append(run.iters_done)

    def fit(*hooks, **settings):
        trainer = toys.trainer(hooks=hooks, **settings)
        try:
            run = trainer.fit()
        except KeyboardInterrupt:
            run = trainer.bus.current
        return {"outcome": run.outcome, "iters": run.iters_done, "steps": run.steps_done, "epochs": run.epochs_done,
                "reasons": run.stop_reasons, "weights": toys.numbers(trainer.model)}

    found = {}
    found["nobody asks"] = fit(On(0, 0, None))
    found["stop"] = fit(On(1, 3, lambda run: run.request_stop("enough")))
    found["stop on all"] = fit(On(RANK, 3, lambda run: run.request_stop("enough")))
    found["different stops"] = fit(
        On(RANK, 3, lambda run: run.request_stop("enough", outcome=["stopped", "preempted"][RANK]))
    )
    found["stop of the epoch"] = fit(On(1, 2, lambda run: run.request_stop_epoch("dull")))

    saver = Saver()
    found["save"] = fit(saver, On(1, 3, lambda run: run.request_save("precious", place=Path("x"))))
    found["save"]["plans"] = saver.plans

    seen = Validations()
    validated = dict(val_loader=toys.loader())
    found["validation"] = fit(seen, On(1, 3, lambda run: run.request_validation("curious")), **validated)
    found["validation"]["at"] = seen.at

    def curious(run):
        run.request_validation("curious")

    found["stop in a validation"] = fit(
        Validations(),
        On(RANK, 2, curious),
        On(1, 2, lambda run: run.request_stop("patience"), at="after_val", name="other"),
        **validated,
    )
    found["skip before"] = fit(On(1, 3, lambda run: run.request_skip_iter("bad"), at="before_train_iter"))
    found["skip after"] = fit(On(1, 3, lambda run: run.request_skip_iter("bad"), at="after_forward"))
    found["every 3"] = fit(On(1, 1, lambda run: run.request_stop("enough")), agree_every=3)
    found["every 3 and a schedule"] = fit(Due(), agree_every=3)
    found["Ctrl-C"] = fit(On(1, 3, lambda run: os.kill(os.getpid(), signal.SIGINT), at="before_train_iter"))

    trainer, reduced = toys.trainer(hooks=[Silent()]), []
    reduce = trainer.ranks.reduce
    trainer.ranks.reduce = lambda name, *rest: reduced.append(name) or reduce(name, *rest)
    run = trainer.fit()
    del trainer.ranks.reduce
    found["nothing compared"] = {"active": run.decisions.active, "iters": run.iters_done, "at boundaries": len(reduced)}
    try:
        fit(Silent(asks=True))
    except RequestError as error:
        found["wish of a silent hook"] = str(error)

    clock = ByTheClock()
    fit(clock)
    found["by the clock"] = {"at": clock.at}
    answer(found)
'''


Found = dict[str, list[Any]]


@pytest.fixture(scope="module")
def found(launch_once: Launch) -> Found:
    """What the scenarios gave, by name and by rank."""
    answers = launch_once(SCENARIOS).answers
    return {name: [answers[0][name], answers[1][name]] for name in answers[0]}


def same(found: Found, scenario: str) -> Any:
    """What both ranks say."""
    first, second = found[scenario]
    assert first == second
    return first


def test_a_run_in_which_nobody_asks_reaches_its_limit(found: Found) -> None:
    both = same(found, "nobody asks")

    assert (both["outcome"], both["iters"], both["epochs"]) == ("finished", 8, 2)


class TestAStop:
    def test_of_one_rank_ends_all_after_the_same_iteration(self, found: Found) -> None:
        both = same(found, "stop")

        assert (both["outcome"], both["iters"], both["reasons"]) == ("stopped", 3, ["on: enough on rank 1"])

    def test_of_all_ranks_is_one(self, found: Found) -> None:
        assert same(found, "stop on all")["reasons"] == ["on: enough"]

    def test_the_strongest_of_several_wins(self, found: Found) -> None:
        both = same(found, "different stops")

        assert (both["outcome"], both["iters"]) == ("preempted", 3)
        assert both["reasons"] == ["on: enough on rank 0", "on: enough on rank 1"]

    def test_that_was_asked_for_in_a_validation_holds_at_once(self, found: Found) -> None:
        both = same(found, "stop in a validation")

        assert (both["outcome"], both["iters"], both["reasons"]) == ("stopped", 2, ["other: patience on rank 1"])

    def test_of_the_epoch_ends_it_everywhere(self, found: Found) -> None:
        both = same(found, "stop of the epoch")

        assert (both["outcome"], both["iters"], both["epochs"]) == ("finished", 6, 2)

    def test_by_control_c_ends_all_after_the_iteration(self, found: Found) -> None:
        both = same(found, "Ctrl-C")

        assert (both["outcome"], both["iters"], both["reasons"]) == ("interrupted", 3, ["Ctrl-C: on rank 1"])

    def test_waits_for_the_iteration_at_which_ranks_compare(self, found: Found) -> None:
        both = same(found, "every 3")

        assert (both["outcome"], both["iters"]) == ("stopped", 3)

    def test_that_was_due_by_schedule_does_not_wait(self, found: Found) -> None:
        both = same(found, "every 3 and a schedule")

        assert (both["outcome"], both["iters"]) == ("stopped", 2)


def test_a_save_of_one_rank_is_planned_by_all_with_its_details(found: Found) -> None:
    assert same(found, "save")["plans"] == [[3, ["on: precious on rank 1"], ["x"]]]


def test_a_validation_of_one_rank_is_made_by_all(found: Found) -> None:
    assert same(found, "validation")["at"] == [3]


class TestAnIterationThatOneRankLeavesOut:
    @pytest.mark.parametrize("scenario", ["skip before", "skip after"])
    def test_is_left_out_by_all(self, scenario: str, found: Found) -> None:
        both = same(found, scenario)

        assert (both["outcome"], both["iters"], both["steps"]) == ("finished", 8, 7)


class TestARunInWhichNoHookCanAsk:
    def test_compares_nothing(self, found: Found) -> None:
        assert same(found, "nothing compared") == {"active": False, "iters": 8, "at boundaries": 0}

    def test_refuses_a_wish(self, found: Found) -> None:
        assert "hook 'silent' made a request" in same(found, "wish of a silent hook")
        assert "say makes_requests = True" in same(found, "wish of a silent hook")


def test_the_time_of_schedules_is_the_same_on_all_ranks(found: Found) -> None:
    first, second = found["by the clock"]

    assert first["at"] == second["at"]
    assert first["at"]
