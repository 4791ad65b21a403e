import pytest

from hookbus.errors import ConfigError
from hookbus_wandb import WandbConfig, WandbHook


def test_default_config_leaves_all_settings_to_wandb():
    assert WandbConfig().model_dump(include=set(WandbConfig.__annotations__)) == {
        "instance": None,
        "name": None,
        "project": None,
        "config": None,
        "log_model": False,
        "log_code": False,
        "mode": None,
        "id": None,
        "resume": "allow",
    }
    assert WandbConfig().interval == 50


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"mode": "shared"}, "mode"),
        ({"id": "a/b"}, "id"),
        ({"resume": "auto"}, "resume"),
        ({"interval": 0}, "interval"),
    ],
)
def test_invalid_setting_is_named_in_the_error(settings, name):
    with pytest.raises(ConfigError, match=name):
        WandbHook(**settings)
