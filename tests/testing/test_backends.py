"""Tests of the comparison of written records with those that a backend reads back."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from hookbus import Hook, HookConfig
from hookbus.testing import WriterTestCase, check_writer
from hookbus.testing.backends import Curve, compare_curves

WRITTEN: dict[str, Curve] = {"loss": [(1, 0.5), (2, math.nan), (3, 0.25)], "a/b": [(1, 1.0)]}


def test_equal_records_pass() -> None:
    compare_curves(WRITTEN, {name: list(curve) for name, curve in WRITTEN.items()})


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ({"loss": [(1, 0.5), (2, math.nan), (3, 0.3)]}, "'loss', step 3: wrote 0.25, read back 0.3"),
        ({"loss": [(1, 0.5), (3, 0.25)]}, "'loss', step 2: wrote nan, read back nothing"),
        ({"loss": [*WRITTEN["loss"], (4, 0.0)]}, "'loss', step 4: wrote nothing, read back 0.0"),
        ({"loss": [*WRITTEN["loss"], (3, 0.25)]}, "'loss', step 3: wrote 0.25, read back 0.25, 0.25"),
        ({"loss": WRITTEN["loss"][::-1]}, "'loss': wrote the steps 1, 2, 3, read back 3, 2, 1"),
        ({"a.b": [(1, 1.0)]}, "'a.b': wrote nothing, read back 1.0 at step 1"),
    ],
)
def test_each_difference_is_explained(read: dict[str, Curve], message: str) -> None:
    with pytest.raises(AssertionError) as failure:
        compare_curves(WRITTEN, {**WRITTEN, **read})
    first, *lines = str(failure.value).splitlines()
    assert first == "The backend reads back other records than were written:"
    assert lines == [f"  {message}"]


def test_missing_name_is_explained_with_the_name_that_was_read() -> None:
    with pytest.raises(AssertionError) as failure:
        compare_curves({"a/b": [(1, 1.0)]}, {"a.b": [(1, 1.0)]})
    assert str(failure.value).splitlines()[1:] == [
        "  'a/b': wrote 1.0 at step 1, read back nothing. If the backend stores another name, pass `backend_name`",
        "  'a.b': wrote nothing, read back 1.0 at step 1",
    ]


def test_long_lists_are_shortened() -> None:
    written: dict[str, Curve] = {f"loss_{i}": [(step, 0.0) for step in range(5)] for i in range(7)}
    with pytest.raises(AssertionError) as failure:
        compare_curves(written, {})
    lines = str(failure.value).splitlines()
    assert lines[1].startswith("  'loss_0': wrote 0.0 at step 0, 0.0 at step 1, 0.0 at step 2 and 2 more, read back")
    assert (len(lines), lines[-1]) == (7, "  and 2 more")


class SilentConfig(HookConfig):
    interval: int = 1


class Silent(Hook):
    """Hook that writes nothing."""

    Config = SilentConfig


def test_check_writer_lists_the_differences() -> None:
    case = WriterTestCase(Silent, read_nothing)
    with pytest.raises(AssertionError, match=re.escape("'train/loss': wrote 1.0 at step 1")):
        check_writer(case)


def read_nothing(work_dir: Path) -> list[tuple[str, int, float]]:
    return []
