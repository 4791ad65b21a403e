"""Names of checkpoints: fields, formats, and what a name must not contain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus.errors import ConfigError
from hookbus_checkpoint import CheckpointHook
from hookbus_checkpoint.file_names import RESERVED_CHARACTERS, check_template, format_name, get_file_stem

VALUES = {"epoch": 3, "iter": 12, "step": 6, "sample": 384, "val_loss": 0.25, "val/loss": 0.25, "val/map.50": -1.5}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("epoch_{}.pth", "epoch_7.pth"),
        ("epoch_{0}.pth", "epoch_7.pth"),
        ("e{:04d}.pth", "e0007.pth"),
        ("{epoch}-{val_loss:.2f}", "3-0.25.pth"),
        ("{epoch}-{val/loss:.2f}", "3-0.25.pth"),
        ("{epoch:02d}-{val_loss:.2f}.pth", "03-0.25.pth"),
        ("epoch={epoch}-step={step}-val_loss={val_loss:.3e}", "epoch=3-step=6-val_loss=2.500e-01.pth"),
        ("{iter}_{sample}_{val/map.50:+.1f}.pth", "12_384_-1.5.pth"),
        ("{}-{val_loss}.pth", "7-0.25.pth"),
        ("{{x}}_{}.pth", "{x}_7.pth"),
    ],
)
def test_name(template: str, name: str) -> None:
    assert format_name(check_template(template, by_epoch=True), 7, VALUES.__getitem__) == name


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-0.0, "-0.00"), (1e6, "1000000.00")]
)
def test_metric_may_have_any_value(value: float, text: str) -> None:
    assert format_name("{epoch}-{loss:.2f}.pth", 1, {"epoch": 1, "loss": value}.__getitem__) == f"1-{text}.pth"


@pytest.mark.parametrize(
    "template",
    [
        "{sample}.pth",  # the size of a batch may be unknown
        "{val_loss:.2f}.pth",  # two epochs may have the same loss
        "{epoch:.0e}.pth",
        "{epoch!r}.pth",
        "{epoch:{}}.pth",
        "{epoch}-{val_loss:d}.pth",
        "{epoch}-{val_loss:*>9}.pth",
        "{epoch}/{val_loss:.2f}.pth",
        "../{epoch}.pth",
        "{epoch}-{val_loss:.2f}.ckpt",
        "best_{epoch}.pth",
        "{epoch}-{val_loss:200.2f}.pth",
        "{epoch",
        "",
    ],
)
def test_invalid_template_is_an_error_with_the_value(template: str) -> None:
    with pytest.raises(ConfigError) as error:
        CheckpointHook(filename_tmpl=template)
    assert "filename_tmpl: must be a file name" in str(error.value)
    assert f"got {template!r}" in str(error.value)


def test_epoch_does_not_identify_an_iteration() -> None:
    with pytest.raises(ConfigError, match=r"one {} for the number or one of {iter}, {step}, formats"):
        CheckpointHook(filename_tmpl="{epoch}-{val_loss:.2f}", by_epoch=False)
    assert CheckpointHook(filename_tmpl="{epoch}-{iter}", by_epoch=False).config.template == "{epoch}-{iter}.pth"


@pytest.mark.parametrize("template", ["iter_{}", "iter_{epoch}.pth", "iter_{step:d}.pth"])
def test_names_of_iterations_are_reserved(template: str) -> None:
    with pytest.raises(ConfigError, match="filename_tmpl: reserved for checkpoints of iterations"):
        CheckpointHook(filename_tmpl=template)


def test_metrics_are_all_other_fields() -> None:
    config = CheckpointHook(filename_tmpl="{}-{epoch}-{step}-{val_loss:.2f}-{train/loss}-{f1}").config
    assert config.name_metrics == ["val_loss", "train/loss", "f1"]
    assert config.validation_metrics == ["val_loss", "f1"]


@given(st.text(), st.floats(), st.integers(1, 10**6))
def test_accepted_template_results_in_a_name_in_the_directory(text: str, value: float, number: int) -> None:
    try:
        template = check_template(text + "{epoch}-{a/b:.3g}", by_epoch=True)
    except ValueError:
        return
    name = format_name(template, number, lambda field: number if field == "epoch" else value)
    assert RESERVED_CHARACTERS.isdisjoint(name)
    assert name.endswith(".pth")
    assert not name.startswith(".")


def test_stem_has_a_limit_in_bytes() -> None:
    assert get_file_stem("val/准确率", limit=8) == "val_准"
