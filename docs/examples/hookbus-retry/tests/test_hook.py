import pytest
import torch
from torch import nn

from hookbus import Hook, Trainer
from hookbus.testing import check_hook, fingerprint
from hookbus_retry import RetryHook

BATCHES = [(torch.full((2, 3), float(value)), torch.tensor([0, 1])) for value in range(4)]


class Flaky(nn.Linear):
    """A layer that fails at the given calls, from 1."""

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
    """A hook that fails after the optimizer step."""

    def after_optimizer_step(self):
        raise ConnectionError("late")


def train(model, hook, *others, **options):
    """Train for four iterations and return the wait times of the hook."""
    waited = []
    hook.sleep = waited.append
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    common = {"epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
    Trainer(model, optimizer, nn.functional.cross_entropy, BATCHES, hooks=[hook, *others], **common, **options).fit()
    return waited


def test_hook_passes_the_conformance_checks():
    check_hook(RetryHook)


def test_retried_steps_give_the_weights_of_steps_without_failure():
    plain, flaky = Flaky(), Flaky(2, 3, 6)

    assert train(plain, RetryHook()) == []
    assert train(flaky, RetryHook(wait=0.5)) == [0.5, 1.0, 0.5]  # the second step twice, then the fourth

    assert fingerprint(flaky.state_dict()) == fingerprint(plain.state_dict())


def test_error_is_raised_after_the_last_attempt():
    model = Flaky(1, 2, 3)

    with pytest.raises(ConnectionError, match="call 2"):
        train(model, RetryHook(attempts=2))


def test_other_errors_are_not_retried():
    model = Flaky(1, error=ValueError)

    with pytest.raises(ValueError, match="call 1"):
        train(model, RetryHook())

    assert model.calls == 1


def test_step_is_not_retried_in_the_middle_of_an_accumulation():
    model = Flaky(2)

    with pytest.raises(ConnectionError, match="call 2"):
        train(model, RetryHook(), accumulate=2)

    assert model.calls == 2


def test_step_is_not_retried_after_its_optimizer_step():
    model = Flaky()

    with pytest.raises(ConnectionError, match="late"):
        train(model, RetryHook(), Late())

    assert model.calls == 1
