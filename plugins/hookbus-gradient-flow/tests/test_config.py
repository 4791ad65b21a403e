import pytest

from hookbus.errors import ConfigError
from hookbus_gradient_flow import GradientFlowConfig, GradientFlowHook


def test_the_defaults_look_at_everything_every_hundred_updates():
    config = GradientFlowConfig()
    assert (config.targets, config.frequency, config.save_dir) == ([], 100, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frequency": 0}, "frequency: should be greater than or equal to 1"),
        ({"frequency": None}, "frequency"),
        ({"save_dir": ""}, "save_dir"),
        ({"target": ["fc"]}, "target: unknown key. Did you mean 'targets'?"),
        ({"when": "every(3)"}, "Say frequency for how often"),
    ],
)
def test_what_does_not_hold_is_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        GradientFlowHook(settings)
    assert message in str(caught.value)
