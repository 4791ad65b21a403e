import pytest
import torch
from torch import nn

from hookbus import Hook, Trainer
from hookbus.testing import check_hook, fingerprint
from hookbus_retry import RetryHook

WEEK = [(torch.full((2, 3), float(day)), torch.tensor([0, 1])) for day in range(4)]


class Flaky(nn.Linear):
    """Fails at these calls, from 1."""

    def __init__(self, *failing, error=ConnectionError):
        torch.manual_seed(0)
        super().__init__(3, 2)
        self.failing, self.error, self.calls = failing, error, 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls in self.failing:
            raise self.error(f"call {self.calls}")
        return super().forward(inputs)


class Late(Hook):
    """Fails when the update is made."""

    def after_optimizer_step(self):
        raise ConnectionError("late")


def train(model, hook, *others, **options):
    """Four iterations; returns what the hook waited."""
    waited = []
    hook.sleep = waited.append
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    common = {"epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
    Trainer(model, optimizer, nn.functional.cross_entropy, WEEK, hooks=[hook, *others], **common, **options).fit()
    return waited


def test_keeps_the_promises_that_users_rely_on():
    check_hook(RetryHook)


def test_a_step_that_passes_at_last_gives_the_weights_of_one_that_never_failed():
    plain, flaky = Flaky(), Flaky(2, 3, 6)

    assert train(plain, RetryHook()) == []
    assert train(flaky, RetryHook(wait=0.5)) == [0.5, 1.0, 0.5]  # the second step twice, then the fourth

    assert fingerprint(flaky.state_dict()) == fingerprint(plain.state_dict())


def test_the_error_goes_on_after_the_last_attempt():
    model = Flaky(1, 2, 3)

    with pytest.raises(ConnectionError, match="call 2"):
        train(model, RetryHook(attempts=2))


def test_a_mistake_is_not_tried_again():
    model = Flaky(1, error=ValueError)

    with pytest.raises(ValueError, match="call 1"):
        train(model, RetryHook())

    assert model.calls == 1


def test_gradients_of_earlier_micro_batches_are_not_added_to_twice():
    model = Flaky(2)

    with pytest.raises(ConnectionError, match="call 2"):
        train(model, RetryHook(), accumulate=2)

    assert model.calls == 2


def test_an_update_is_not_made_twice():
    model = Flaky()

    with pytest.raises(ConnectionError, match="late"):
        train(model, RetryHook(), Late())

    assert model.calls == 1
