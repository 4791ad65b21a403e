"""Validation of the configuration of `EMAHook`."""

import pytest

from hookbus.errors import ConfigError
from hookbus_ema import EMAHook


def test_config_has_the_documented_defaults() -> None:
    config = EMAHook().config

    assert (config.momentum, config.interval, config.warm_up) == (0.9999, 1, 100)
    assert (config.resume_from, config.update_buffers) == (None, False)
    assert (config.device, config.overlap) == (None, False)
    assert (config.start_step, config.start_epoch) == (0, 0)
    assert EMAHook.priority == 40


@pytest.mark.parametrize("momentum", [0.5, 0.999, 0.99999])
def test_config_accepts_the_weight_of_the_old_average(momentum: float) -> None:
    assert EMAHook(momentum=momentum).config.momentum == momentum


@pytest.mark.parametrize(("value", "converted"), [(0.0002, "0.9998"), (0.1, "0.9"), (0.0, "1.0"), (0.4999, "0.5001")])
def test_config_rejects_the_weight_of_the_new_value_with_an_explanation(value: float, converted: str) -> None:
    with pytest.raises(ConfigError) as error:
        EMAHook(momentum=value)

    message = str(error.value)
    assert message.startswith(f"EMAHook: momentum: must be at least 0.5, got {value!r}.")
    assert "average = momentum * average + (1 - momentum) * weight" in message
    assert "weight of the new value" in message
    if value:
        assert f"set {converted}." in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, "momentum: should be less than 1"),
        ({"momentum": -0.9}, "momentum: should be greater than or equal to 0"),
        ({"momentum": "0.9"}, "momentum: should be a valid number"),
        ({"interval": 0}, "interval: should be greater than or equal to 1"),
        ({"warm_up": -1}, "warm_up: should be greater than or equal to 0"),
        ({"device": "cuda"}, "device: should be 'cpu'"),
        ({"frequency": 2}, "frequency: not supported, got 2: updates are counted by `interval`. Set `interval: 2`."),
        ({"when": "every(2)"}, "when: not supported, got every(2): updates are counted by `interval`. Set `interval`"),
        ({"start_step": -1}, "start_step: should be greater than or equal to 0"),
        ({"start_step": 2, "start_epoch": 1}, "start_epoch: cannot be combined with `start_step`, got 1 and 2"),
        ({"start_step": 2, "resume_from": "a.pth"}, "resume_from: the averages of the checkpoint are used from the fi"),
        ({"momentun": 0.9}, "momentun: unknown key. Did you mean 'momentum'"),
    ],
)
def test_constructor_names_the_invalid_setting(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        EMAHook(settings)

    assert message in str(error.value)
