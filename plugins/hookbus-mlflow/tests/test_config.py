import pytest

from hookbus.errors import ConfigError
from hookbus_mlflow import MLflowConfig, MLflowHook


def test_without_settings_it_keeps_everything_in_the_work_directory():
    assert MLflowConfig().model_dump(include=set(MLflowConfig.__annotations__)) == {
        "tracking_uri": None,
        "experiment": "hookbus",
        "run_name": None,
        "tags": {},
        "log_model": False,
    }


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"experiment": ""}, "experiment"), ({"tags": {"n": 1}}, "tags"), ({"interval": 0}, "interval")],
)
def test_a_setting_that_cannot_be_is_named(settings, named):
    with pytest.raises(ConfigError, match=named):
        MLflowHook(**settings)
