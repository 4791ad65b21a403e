import re

import pytest

from hookbus.errors import ConfigError
from hookbus_mlflow import MLflowConfig, MLflowHook
from hookbus_mlflow.config import to_mlflow_name


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


@pytest.mark.parametrize("name", ["val/accuracy", "a b", "größe", "a.b-c_d", "x" * 250])
def test_valid_name_is_unchanged(name):
    assert to_mlflow_name(name) == name


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        *(("acc,top1", "acc_top1-"), ("01: time", "01_ time-"), ("/a", "_a-"), ("a/", "a_-"), ("a//b", "a/_b-")),
        *(("", "_-"), ("../a", "_/a-"), ("a/../b", "a/_/b-"), ("x" * 300, "x" * 241 + "-")),
    ],
)
def test_invalid_name_is_made_valid(name, prefix):
    from mlflow.utils.validation import _validate_metric_name

    assert re.fullmatch(f"{re.escape(prefix)}[0-9a-f]{{8}}", to_mlflow_name(name))
    _validate_metric_name(to_mlflow_name(name))
