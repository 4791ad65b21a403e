"""Requests of one rank, and their effect on all ranks."""

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

    class CallAt(Hook):
        """Call a function at one iteration (counted from 1) of one rank."""
        skips_iterations = True

        def __init__(self, rank, iteration, function, at="after_train_iter", name="call"):
            super().__init__(name=name)
            self.rank, self.iteration, self.function, self.at = rank, iteration, function, at

        def _call(self, run, point):
            if RANK == self.rank and point == self.at and run.current("iter") == self.iteration:
                self.function(run)

        def before_train_iter(self, run):
            self._call(run, "before_train_iter")

        def after_forward(self, run):
            self._call(run, "after_forward")

        def after_train_iter(self, run):
            self._call(run, "after_train_iter")

        def after_val(self, run):
            self._call(run, "after_val")

    class Saver(Hook):
        """Record the iterations at which checkpoints are planned, and the requests."""
        def __init__(self):
            super().__init__()
            self.plans = []

        def before_run(self, run):
            run.provide("checkpoint_saver", self)

        def plan(self, run, requests):
            assert all(request.details["saver"] is self for request in requests)
            places = [str(request.details["place"]) for request in requests]
            self.plans.append([run.iters_done, [str(request) for request in requests], places])

        def write(self, run, checkpoint):
            raise AssertionError

    class Validations(Hook):
        """Record the iterations at which a validation runs."""
        schedules_validation = True

        def __init__(self):
            super().__init__()
            self.iterations = []

        def after_val(self, run):
            self.iterations.append(run.iters_done)

    class Silent(Hook):
        """Declare that no requests are made; make one if `requests` is set."""
        makes_requests = False
        name = "silent"

        def __init__(self, requests=False):
            super().__init__()
            self.requests = requests

        def after_train_iter(self, run):
            if self.requests:
                run.request_stop("undeclared")

    class ScheduledStop(Hook):
        """Request a stop on one rank, at a schedule that triggers on all ranks."""
        @hookimpl(when=every(2))
        def after_train_iter(self, run):
            if RANK == 1:
                run.request_stop("enough")

    class EverySecond(Hook):
        """Record the iterations at which a schedule in seconds triggers; the timers of the ranks differ in speed."""
        def __init__(self):
            super().__init__()
            self.iterations = []

        def before_run(self, run):
            run.clock.timer = lambda: run.iters_done * (0.3 + 0.4 * RANK)

        @hookimpl(when=every(1, unit="seconds"))
        def after_train_iter(self, run):
            self.iterations.append(run.iters_done)

    class Tokens(Hook):
        """Record the iterations at which a schedule in tokens is due; the ranks count 3 and 7 tokens per batch."""
        def __init__(self):
            super().__init__()
            self.iterations = []

        @hookimpl(when=every(20, unit="token"))
        def after_train_iter(self, run):
            self.iterations.append(run.iters_done)

        def after_run(self, run):
            self.counts = {"done": run.tokens_done, "batch": run.batch_tokens}

    def fit(*hooks, **settings):
        trainer = toys.trainer(hooks=hooks, **settings)
        try:
            run = trainer.fit()
        except KeyboardInterrupt:
            run = trainer.bus.current
        return {"outcome": run.outcome, "iters": run.iters_done, "steps": run.steps_done, "epochs": run.epochs_done,
                "reasons": run.stop_reasons, "weights": toys.flat_weights(trainer.model)}

    results = {}
    results["no request"] = fit(CallAt(0, 0, None))
    results["stop"] = fit(CallAt(1, 3, lambda run: run.request_stop("enough")))
    results["stop on all"] = fit(CallAt(RANK, 3, lambda run: run.request_stop("enough")))
    results["different stops"] = fit(
        CallAt(RANK, 3, lambda run: run.request_stop("enough", outcome=["stopped", "preempted"][RANK]))
    )
    results["stop epoch"] = fit(CallAt(1, 2, lambda run: run.request_stop_epoch("plateau")))

    saver = Saver()
    results["save"] = fit(saver, CallAt(1, 3, lambda run: run.request_save("milestone", place=Path("x"))))
    results["save"]["plans"] = saver.plans

    validations = Validations()
    validated = dict(val_loader=toys.loader())
    results["validation"] = fit(validations, CallAt(1, 3, lambda run: run.request_validation("metrics")), **validated)
    results["validation"]["at"] = validations.iterations

    def request_validation(run):
        run.request_validation("metrics")

    results["stop in a validation"] = fit(
        Validations(),
        CallAt(RANK, 2, request_validation),
        CallAt(1, 2, lambda run: run.request_stop("patience"), at="after_val", name="other"),
        **validated,
    )
    results["skip before"] = fit(CallAt(1, 3, lambda run: run.request_skip_iter("bad"), at="before_train_iter"))
    results["skip after"] = fit(CallAt(1, 3, lambda run: run.request_skip_iter("bad"), at="after_forward"))
    results["every 3"] = fit(CallAt(1, 1, lambda run: run.request_stop("enough")), agree_every=3)
    results["every 3 and a schedule"] = fit(ScheduledStop(), agree_every=3)
    results["Ctrl-C"] = fit(CallAt(1, 3, lambda run: os.kill(os.getpid(), signal.SIGINT), at="before_train_iter"))

    trainer, reduced = toys.trainer(hooks=[Silent()]), []
    reduce = trainer.ranks.all_reduce
    trainer.ranks.all_reduce = lambda name, *rest: reduced.append(name) or reduce(name, *rest)
    run = trainer.fit()
    del trainer.ranks.all_reduce
    results["no synchronization"] = {
        "active": run.request_sync.active, "iters": run.iters_done, "reductions": len(reduced)
    }
    try:
        fit(Silent(requests=True))
    except RequestError as error:
        results["undeclared request"] = str(error)

    every_second = EverySecond()
    fit(every_second)
    results["schedule in seconds"] = {"at": every_second.iterations}
    for name, settings in (("tokens", {}), ("limit in tokens", {"tokens": 35, "epochs": None}),
                           ("limit in tokens, every 3", {"tokens": 35, "epochs": None, "agree_every": 3})):
        tokens = Tokens()
        results[name] = fit(tokens, batch_tokens=lambda batch: 3 + 4 * RANK, **settings)
        results[name] |= {"at": tokens.iterations, **tokens.counts}
    report(results)
'''


Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(module_launch: Launch) -> Results:
    """Results of the scenarios, by name and rank."""
    reports = module_launch(SCENARIOS).reports
    return {name: [reports[0][name], reports[1][name]] for name in reports[0]}


def get_common(results: Results, scenario: str) -> Any:
    """Return the result of a scenario; fail if the ranks differ."""
    first, second = results[scenario]
    assert first == second
    return first


def test_run_without_requests_trains_all_epochs(results: Results) -> None:
    result = get_common(results, "no request")

    assert (result["outcome"], result["iters"], result["epochs"]) == ("finished", 8, 2)


class TestStopRequest:
    def test_stop_of_one_rank_ends_all_ranks_after_the_same_iteration(self, results: Results) -> None:
        result = get_common(results, "stop")

        assert (result["outcome"], result["iters"], result["reasons"]) == ("stopped", 3, ["call: enough on rank 1"])

    def test_identical_stops_of_all_ranks_are_one_reason(self, results: Results) -> None:
        assert get_common(results, "stop on all")["reasons"] == ["call: enough"]

    def test_outcome_with_the_highest_precedence_is_used(self, results: Results) -> None:
        result = get_common(results, "different stops")

        assert (result["outcome"], result["iters"]) == ("preempted", 3)
        assert result["reasons"] == ["call: enough on rank 0", "call: enough on rank 1"]

    def test_stop_during_a_validation_takes_effect_in_the_same_iteration(self, results: Results) -> None:
        result = get_common(results, "stop in a validation")

        assert (result["outcome"], result["iters"], result["reasons"]) == ("stopped", 2, ["other: patience on rank 1"])

    def test_epoch_stop_of_one_rank_ends_the_epoch_on_all_ranks(self, results: Results) -> None:
        result = get_common(results, "stop epoch")

        assert (result["outcome"], result["iters"], result["epochs"]) == ("finished", 6, 2)

    def test_control_c_on_one_rank_ends_all_ranks_after_the_iteration(self, results: Results) -> None:
        result = get_common(results, "Ctrl-C")

        assert (result["outcome"], result["iters"], result["reasons"]) == ("interrupted", 3, ["Ctrl-C: on rank 1"])

    def test_stop_takes_effect_at_the_next_multiple_of_agree_every(self, results: Results) -> None:
        result = get_common(results, "every 3")

        assert (result["outcome"], result["iters"]) == ("stopped", 3)

    def test_stop_from_a_scheduled_call_ignores_agree_every(self, results: Results) -> None:
        result = get_common(results, "every 3 and a schedule")

        assert (result["outcome"], result["iters"]) == ("stopped", 2)


def test_save_request_of_one_rank_is_planned_on_all_ranks_with_its_details(results: Results) -> None:
    assert get_common(results, "save")["plans"] == [[3, ["call: milestone on rank 1"], ["x"]]]


def test_validation_request_of_one_rank_runs_on_all_ranks(results: Results) -> None:
    assert get_common(results, "validation")["at"] == [3]


class TestSkipRequest:
    @pytest.mark.parametrize("scenario", ["skip before", "skip after"])
    def test_iteration_that_one_rank_skips_is_skipped_on_all_ranks(self, scenario: str, results: Results) -> None:
        result = get_common(results, scenario)

        assert (result["outcome"], result["iters"], result["steps"]) == ("finished", 8, 7)


class TestRunWithoutRequestingHooks:
    def test_requests_are_not_synchronized(self, results: Results) -> None:
        assert get_common(results, "no synchronization") == {"active": False, "iters": 8, "reductions": 0}

    def test_undeclared_request_is_rejected(self, results: Results) -> None:
        assert "hook 'silent' made a request" in get_common(results, "undeclared request")
        assert "Set makes_requests = True" in get_common(results, "undeclared request")


def test_schedule_in_seconds_triggers_at_the_same_iteration_on_all_ranks(results: Results) -> None:
    first, second = results["schedule in seconds"]

    assert first["at"] == second["at"]
    assert first["at"]


def test_tokens_of_all_ranks_are_summed_at_the_synchronizations(results: Results) -> None:
    for rank, batch in enumerate((3, 7)):
        tokens = results["tokens"][rank]
        # 10 tokens per iteration, which schedules take into account in the next one.
        assert (tokens["at"], tokens["done"], tokens["batch"]) == ([3, 5, 7], 80, batch)
        limited = results["limit in tokens"][rank]
        assert (limited["iters"], limited["done"], limited["outcome"]) == (4, 40, "finished")
        # Without a synchronization in iteration 4, the end of the epoch is the next one.
        delayed = results["limit in tokens, every 3"][rank]
        assert (delayed["iters"], delayed["epochs"], delayed["done"]) == (4, 1, 40)
