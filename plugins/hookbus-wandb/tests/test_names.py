import re

import pytest

from hookbus_wandb.names import artifact_name, stored


@pytest.mark.parametrize("name", ["val/accuracy", "acc,top1", "01: time", "größe", "_own", "a\\b", "x" * 200])
def test_a_name_that_wandb_takes_stays(name):
    assert stored(name) == name


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("", "_-"),
        ("_step", "_-"),
        ("_wandb", "_-"),
        ("trainer/step", "_-"),
        ("a\x00b", "a_b-"),
        ("x" * 300, "x" * 191 + "-"),
    ],
)
def test_names_of_wandbs_own_and_long_ones_get_their_hash(name, begins):
    assert re.fullmatch(f"{re.escape(begins)}[0-9a-f]{{8}}", stored(name))


@pytest.mark.parametrize(
    ("name", "begins"), [("run-1-a b.txt", "run-1-a_b.txt-"), ("größe/1", "gr__e_1-"), ("x" * 129, "x" * 119 + "-")]
)
def test_artifacts_have_plain_names(name, begins):
    assert re.fullmatch(f"{re.escape(begins)}[0-9a-f]{{8}}", artifact_name(name))
    assert artifact_name("model-1a2b.c_d") == "model-1a2b.c_d"
