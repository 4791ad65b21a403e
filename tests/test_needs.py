"""Declaration of what a hook needs."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import Hook, HookConfig, Needs
from hookbus.errors import HookError


class DrawConfig(HookConfig):
    draws: bool = False


def test_hook_needs_nothing_by_default() -> None:
    assert Hook().needs == Needs()


def test_needs_may_depend_on_the_settings() -> None:
    class Draw(Hook):
        Config = DrawConfig

        @property
        def needs(self) -> Needs:
            return Needs(batch=self.config.draws)

    assert [Draw(draws=draws).needs.batch for draws in (False, True)] == [False, True]


def test_representation_contains_what_is_needed() -> None:
    assert repr(Needs()) == "Needs()"
    assert repr(Needs(points=("after_val",), loss=True)) == "Needs(points=('after_val',), loss=True)"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("points", ("after_vall",), r"points contains an unknown name, got 'after_vall'\. Did you mean 'after_val'"),
        ("points", (("after_val", "on_val"),), r"points contains an unknown name, got 'on_val'"),
        ("points", "after_val", r"points should be a tuple of names, got 'after_val'\. Pass \('after_val',\)\."),
        (
            "gradients",
            ("backward",),
            r"gradients contains an unknown name, got 'backward'\. Did you mean 'after_backward'",
        ),
        ("requests", ("stopp",), r"requests contains an unknown name, got 'stopp'\. Did you mean 'stop'"),
    ],
)
def test_invalid_name_is_an_error(field: str, value: Any, expected: str) -> None:
    with pytest.raises(HookError, match=f"Needs: {expected}"):
        Needs(**{field: value})
