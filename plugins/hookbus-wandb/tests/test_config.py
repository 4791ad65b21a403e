import re

import pytest

from hookbus.errors import ConfigError
from hookbus_wandb import WandbConfig, WandbHook
from hookbus_wandb.config import to_artifact_name, to_wandb_name


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


@pytest.mark.parametrize("name", ["val/accuracy", "acc,top1", "01: time", "größe", "_own", "a\\b", "x" * 200])
def test_valid_name_is_unchanged(name):
    assert to_wandb_name(name) == name


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("", "_-"),
        ("_step", "_-"),
        ("_wandb", "_-"),
        ("trainer/step", "_-"),
        ("a\x00b", "a_b-"),
        ("x" * 300, "x" * 191 + "-"),
    ],
)
def test_reserved_or_long_name_ends_with_its_hash(name, prefix):
    assert re.fullmatch(f"{re.escape(prefix)}[0-9a-f]{{8}}", to_wandb_name(name))


@pytest.mark.parametrize(
    ("name", "prefix"), [("run-1-a b.txt", "run-1-a_b.txt-"), ("größe/1", "gr__e_1-"), ("x" * 129, "x" * 119 + "-")]
)
def test_artifact_name_has_only_valid_characters(name, prefix):
    assert re.fullmatch(f"{re.escape(prefix)}[0-9a-f]{{8}}", to_artifact_name(name))
    assert to_artifact_name("model-1a2b.c_d") == "model-1a2b.c_d"
