import logging

import pytest

from hookbus.errors import ConfigError
from hookbus.testing import check_hook, fake_training
from hookbus_hello import HelloHook


def test_keeps_the_promises_that_users_rely_on():
    check_hook(HelloHook)


def test_says_hello_and_the_mean_loss_of_each_interval(caplog):
    caplog.set_level(logging.INFO, logger="hookbus")

    hook = HelloHook(text="Hi", interval=2)
    fake_training([hook], epochs=1, batches=4, losses=float)  # the losses are 1, 2, 3, 4

    assert [record.getMessage() for record in caplog.records] == [
        "Hi, Sequential with 26 weights!",  # layers of 3 * 4 + 4 and 4 * 2 + 2
        "Hi again: the loss is 1.5000 after 2 updates",
        "Hi again: the loss is 3.5000 after 4 updates",
    ]


def test_counts_what_it_said_over_a_resume():
    before, after = HelloHook(interval=1), HelloHook(interval=1)
    fake_training([before], epochs=1, batches=3)

    after.load_state_dict(before.state_dict())
    fake_training([after], epochs=1, batches=2)

    assert after.said == 5


def test_refuses_an_interval_that_is_no_positive_count():
    with pytest.raises(ConfigError, match="HelloHook: interval"):
        HelloHook(interval=0)
