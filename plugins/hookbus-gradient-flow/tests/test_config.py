import pytest

from hookbus.errors import ConfigError
from hookbus_gradient_flow import GradientFlowConfig, GradientFlowHook


def test_default_config_measures_all_parameters_every_hundred_steps():
    config = GradientFlowConfig()
    assert (config.targets, config.frequency, config.save_dir) == ([], 100, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frequency": 0}, "frequency: should be greater than or equal to 1"),
        ({"frequency": None}, "frequency"),
        ({"save_dir": ""}, "save_dir"),
        ({"target": ["fc"]}, "target: unknown key. Did you mean 'targets'?"),
        ({"when": "every(3)"}, "Set `frequency` instead"),
    ],
)
def test_invalid_setting_raises(settings, message):
    with pytest.raises(ConfigError) as caught:
        GradientFlowHook(settings)
    assert message in str(caught.value)
