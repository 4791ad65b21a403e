"""Of one process; what several agree on is in tests/distributed/test_decisions.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hookbus import Hook, every, hookimpl
from hookbus.errors import RankError
from hookbus.ranks import Op, Ranks
from hookbus.runs.decisions import begin_together
from hookbus.testing import fake_training


class TestInOneProcess:
    def test_nothing_is_compared(self) -> None:
        class Stop(Hook):
            skips_iterations = True

            def after_train_iter(self, run) -> None:
                run.request_stop("enough")

        run = fake_training([Stop()]).run

        assert not run.decisions.active
        assert not run.decisions.skipping
        assert run.stop_reasons == ["stop: enough"]

    def test_id_and_seed_stay(self) -> None:
        run = fake_training().run
        before = run.id, run.seed
        begin_together(run)

        assert (run.id, run.seed) == before

    def test_a_hook_that_says_that_it_never_asks_may_ask(self) -> None:
        class Silent(Hook):
            makes_requests = False

            def after_train_iter(self, run) -> None:
                run.request_stop("after all")

        assert fake_training([Silent()]).run.outcome == "stopped"


class Alike(Ranks):
    """Two ranks that always do the same: one of them, and what it says twice. Notes what is compared."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 2
        self.compared: list[str] = []

    def _gather(self, name, value):
        return [value, value]

    def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
        self.compared.append(name)
        return tensor


def trained_alike(hook: Hook, monkeypatch: pytest.MonkeyPatch, every: int = 1) -> list[str]:
    """What two ranks compare in a training of 2 epochs of 3 iterations."""
    ranks = Alike()
    monkeypatch.setattr("hookbus.session.join", lambda device: ranks)

    class Sets(Hook):
        makes_requests = False

        def before_run(self, run) -> None:
            run.decisions.every = every

    fake_training([hook, Sets()])
    return ranks.compared


class Asks(Hook):
    pass


class Skips(Asks):
    skips_iterations = True

    def after_forward(self) -> None:
        pass


class AsksRarely(Asks):
    @hookimpl(when=every(4))
    def after_train_iter(self) -> None:
        pass


class Watches(Hook):
    observer = True


class NeverAsks(Hook):
    makes_requests = False


class TestWhatTwoRanksCompare:
    def test_what_waits_at_each_boundary_where_a_hook_can_ask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert trained_alike(Asks(), monkeypatch) == ["requests"] * 17

    @pytest.mark.parametrize("hook", [Watches, NeverAsks])
    def test_nothing_where_none_can(self, hook: type[Hook], monkeypatch: pytest.MonkeyPatch) -> None:
        assert trained_alike(hook(), monkeypatch) == []

    def test_less_often_where_that_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of the 6 iterations, the third and the sixth."""
        assert len(trained_alike(Asks(), monkeypatch, every=3)) == 17 - 4

    def test_at_once_where_the_schedule_of_a_hook_that_asks_is_due(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of the 6 iterations, the fourth, and the fifth."""
        assert len(trained_alike(AsksRarely(), monkeypatch, every=5)) == 17 - 4

    def test_whether_to_leave_the_iteration_out_where_a_hook_can_ask_that(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compared = trained_alike(Skips(), monkeypatch)

        assert compared.count("skip the iteration") == 6
        assert compared.count("requests") == 17


def test_a_vector_of_requests_is_small() -> None:
    sizes: list[tuple[int, torch.dtype]] = []

    class Measures(Alike):
        def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
            sizes.append((tensor.numel(), tensor.dtype))
            return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookbus.session.join", lambda device: Measures())
        fake_training([Asks()])

    assert set(sizes) == {(3, torch.int64)}


def test_ranks_that_are_at_different_places_are_an_error_that_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(Alike):
        """The other rank is an iteration ahead."""

        def _gather(self, name, value):
            return [value, replace(value, iteration=value.iteration + 1) if name == "requests" else value]

        def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
            return torch.tensor([2, -1, 0])

    monkeypatch.setattr("hookbus.session.join", lambda device: Ahead())

    with pytest.raises(RankError) as caught:
        fake_training([Asks()])
    assert str(caught.value) == (
        "The ranks have reached different points: rank 0: before_train, iteration 0; rank 1: before_train, iteration "
        "1. Make the training loaders of all ranks yield the same number of batches, and emit the same events on every "
        "rank."
    )
