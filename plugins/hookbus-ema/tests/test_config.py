"""The settings of the hook, and what is refused."""

import pytest

from hookbus.errors import ConfigError
from hookbus_ema import EMAHook


def test_defaults_are_those_of_the_hooks_document() -> None:
    config = EMAHook().config

    assert (config.momentum, config.interval, config.warm_up) == (0.9999, 1, 100)
    assert (config.resume_from, config.update_buffers) == (None, False)
    assert (config.device, config.overlap) == (None, False)
    assert EMAHook.priority == 40


@pytest.mark.parametrize("momentum", [0.5, 0.999, 0.99999])
def test_a_share_of_the_old_average_is_accepted(momentum: float) -> None:
    assert EMAHook(momentum=momentum).config.momentum == momentum


@pytest.mark.parametrize(("value", "meant"), [(0.0002, "0.9998"), (0.1, "0.9"), (0.0, "1.0"), (0.4999, "0.5001")])
def test_a_share_of_the_new_weight_is_refused_and_both_conventions_are_explained(value: float, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EMAHook(momentum=value)

    message = str(caught.value)
    assert message.startswith(f"EMAHook: momentum: {value!r} would forget")
    assert "average = momentum * average + (1 - momentum) * weight" in message
    assert "share of the new weight" in message
    if value:
        assert f"write {meant}." in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, "momentum: should be less than 1"),
        ({"momentum": -0.9}, "momentum: should be greater than or equal to 0"),
        ({"momentum": "0.9"}, "momentum: should be a valid number"),
        ({"interval": 0}, "interval: should be greater than or equal to 1"),
        ({"warm_up": -1}, "warm_up: should be greater than or equal to 0"),
        ({"device": "cuda"}, "device: should be 'cpu'"),
        ({"frequency": 2}, "frequency: updates are counted by interval: say interval: 2"),
        ({"momentun": 0.9}, "momentun: unknown key. Did you mean 'momentum'"),
    ],
)
def test_what_cannot_work_is_refused_when_the_hook_is_built(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EMAHook(settings)

    assert message in str(caught.value)
