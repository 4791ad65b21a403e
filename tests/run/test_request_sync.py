"""Request synchronization with one process; tests/distributed/test_request_sync.py tests it with multiple processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import SecretStr
from torch import Tensor

from hookbus import Hook, HookConfig, every, hookimpl
from hookbus._run.request_sync import _describe_hook, sync_run_identity
from hookbus.distributed.collectives import Collectives, Op
from hookbus.errors import RankError
from hookbus.testing import fake_training


class TestSingleProcess:
    def test_single_process_compares_no_requests(self) -> None:
        class Stop(Hook):
            skips_iterations = True

            def after_train_iter(self, run) -> None:
                run.request_stop("enough")

        run = fake_training([Stop()]).run

        assert not run.request_sync.active
        assert not run.request_sync.skipping
        assert run.stop_reasons == ["stop: enough"]

    def test_single_process_keeps_its_run_id_and_seed(self) -> None:
        run = fake_training().run
        before = run.id, run.seed
        sync_run_identity(run)

        assert (run.id, run.seed) == before

    def test_hook_that_declares_no_requests_may_make_one(self) -> None:
        class Silent(Hook):
            makes_requests = False

            def after_train_iter(self, run) -> None:
                run.request_stop("after all")

        assert fake_training([Silent()]).run.outcome == "stopped"


class EqualRanks(Collectives):
    """Two ranks with equal calls and values, of which one exists. Records the names of the reductions."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 2
        self.compared: list[str] = []

    def _gather(self, name, value):
        return [value, value]

    def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
        self.compared.append(name)
        return tensor


def reductions_of_training(hook: Hook, monkeypatch: pytest.MonkeyPatch, every: int = 1) -> list[str]:
    """Return the names of the reductions in a training of 2 epochs of 3 iterations on two equal ranks."""
    ranks = EqualRanks()
    monkeypatch.setattr("hookbus._run.loop_session.get_collectives", lambda device: ranks)

    class SetInterval(Hook):
        makes_requests = False

        def before_run(self, run) -> None:
            run.request_sync.every = every

    fake_training([hook, SetInterval()])
    return ranks.compared


class MayRequest(Hook):
    pass


class MaySkip(MayRequest):
    skips_iterations = True

    def after_forward(self) -> None:
        pass


class ScheduledRequests(MayRequest):
    @hookimpl(when=every(4))
    def after_train_iter(self) -> None:
        pass


class Observer(Hook):
    observer = True


class NoRequests(Hook):
    makes_requests = False


class TestReductions:
    def test_ranks_compare_requests_at_each_boundary_if_a_hook_can_make_any(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert reductions_of_training(MayRequest(), monkeypatch) == ["requests"] * 17

    @pytest.mark.parametrize("hook", [Observer, NoRequests])
    def test_ranks_compare_nothing_if_no_hook_can_make_requests(
        self, hook: type[Hook], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert reductions_of_training(hook(), monkeypatch) == []

    def test_ranks_compare_requests_every_n_iterations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Of the 6 iterations, the third and the sixth.
        assert len(reductions_of_training(MayRequest(), monkeypatch, every=3)) == 17 - 4

    def test_ranks_compare_requests_when_a_scheduled_hook_is_due(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Of the 6 iterations, the fourth and the fifth.
        assert len(reductions_of_training(ScheduledRequests(), monkeypatch, every=5)) == 17 - 4

    def test_ranks_compare_skips_if_a_hook_can_skip_iterations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compared = reductions_of_training(MaySkip(), monkeypatch)

        assert compared.count("skip the iteration") == 6
        assert compared.count("requests") == 17


def test_requests_are_compared_as_three_integers() -> None:
    sizes: list[tuple[int, torch.dtype]] = []

    class RecordSizes(EqualRanks):
        def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
            sizes.append((tensor.numel(), tensor.dtype))
            return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookbus._run.loop_session.get_collectives", lambda device: RecordSizes())
        fake_training([MayRequest()])

    assert set(sizes) == {(3, torch.int64)}


def test_ranks_at_different_points_raise_an_error_with_both_points(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(EqualRanks):
        """Two ranks, of which the second is one iteration ahead."""

        def _gather(self, name, value):
            return [value, replace(value, iteration=value.iteration + 1) if name == "requests" else value]

        def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
            return torch.tensor([2, -1, 0])

    monkeypatch.setattr("hookbus._run.loop_session.get_collectives", lambda device: Ahead())

    with pytest.raises(RankError) as caught:
        fake_training([MayRequest()])
    assert str(caught.value) == (
        "The ranks have reached different points: rank 0: before_train, iteration 0; rank 1: before_train, iteration "
        "1. Make the training loaders of all ranks yield the same number of batches, and emit the same events on every "
        "rank."
    )


def test_description_of_a_hook_for_the_comparison_contains_no_secrets() -> None:
    class LoginConfig(HookConfig):
        link: SecretStr
        api_key: str

    class Login(Hook):
        Config = LoginConfig

    text = _describe_hook("login", Login(link="abcdef", api_key="abcdef"))
    assert text.endswith("priority 50, link='SecretStr', api_key='***'")
