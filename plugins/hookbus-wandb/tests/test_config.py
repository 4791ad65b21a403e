import pytest

from hookbus.errors import ConfigError
from hookbus_wandb import WandbConfig, WandbHook


def test_without_settings_wandb_decides_and_the_work_directory_names_the_run():
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
    ("settings", "named"),
    [
        ({"mode": "shared"}, "mode"),
        ({"id": "a/b"}, "id"),
        ({"resume": "auto"}, "resume"),
        ({"interval": 0}, "interval"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings, named):
    with pytest.raises(ConfigError, match=named):
        WandbHook(**settings)
