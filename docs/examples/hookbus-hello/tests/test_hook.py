import logging

import pytest

from hookbus.errors import ConfigError
from hookbus.testing import check_hook, check_imports, fake_training
from hookbus_hello import HelloHook


def test_hook_passes_the_conformance_checks():
    check_hook(HelloHook)


def test_package_imports_public_names_only():
    check_imports("hookbus_hello")


def test_hook_logs_the_greeting_and_the_mean_loss_of_each_interval(caplog):
    caplog.set_level(logging.INFO, logger="hookbus")

    hook = HelloHook(text="Hi", interval=2)
    fake_training([hook], epochs=1, batches=4, losses=float)  # the losses are 1, 2, 3, 4

    assert [record.getMessage() for record in caplog.records] == [
        "Hi, Sequential with 26 weights!",  # layers of 3 * 4 + 4 and 4 * 2 + 2
        "Hi again: loss 1.5000 after 2 steps",
        "Hi again: loss 3.5000 after 4 steps",
    ]


def test_count_is_restored_after_a_resume():
    before, after = HelloHook(interval=1), HelloHook(interval=1)
    fake_training([before], epochs=1, batches=3)

    after.load_state_dict(before.state_dict())
    fake_training([after], epochs=1, batches=2)

    assert after.count == 5


def test_interval_must_be_positive():
    with pytest.raises(ConfigError, match="HelloHook: interval"):
        HelloHook(interval=0)
