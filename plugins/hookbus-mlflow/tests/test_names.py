import re

import pytest

from hookbus_mlflow.names import to_mlflow_name


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
