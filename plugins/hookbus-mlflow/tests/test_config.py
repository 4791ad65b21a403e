import pytest

from hookbus.errors import ConfigError
from hookbus_mlflow import MLflowConfig, MLflowHook


def test_default_config_uses_the_work_directory():
    assert MLflowConfig().model_dump(include=set(MLflowConfig.__annotations__)) == {
        "tracking_uri": None,
        "experiment": "hookbus",
        "run_name": None,
        "tags": {},
        "log_model": False,
    }


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"experiment": ""}, "experiment"), ({"tags": {"n": 1}}, "tags"), ({"interval": 0}, "interval")],
)
def test_invalid_setting_is_named_in_the_error(settings, name):
    with pytest.raises(ConfigError, match=name):
        MLflowHook(**settings)
