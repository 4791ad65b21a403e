"""The options that `@hookimpl` and `@hookspec` leave on a function."""

from __future__ import annotations

import pluggy
import pytest

from hookbus import every, hookimpl, last
from hookbus.errors import RegistrationError
from hookbus.markers import IMPL_ATTRIBUTE, SPEC_ATTRIBUTE, hookspec


def options_of(function: object) -> dict[str, object]:
    return dict(getattr(function, IMPL_ATTRIBUTE))


def test_a_bare_mark_and_a_called_one_leave_the_same_options() -> None:
    @hookimpl
    def bare() -> None: ...

    @hookimpl()
    def called() -> None: ...

    assert options_of(bare) == options_of(called)


def test_options_are_kept_as_given_and_names_as_a_tuple() -> None:
    @hookimpl(when=every(3) & last, priority=7, before="ema", after=["logger", "checkpoint"], specname="after_train")
    def marked() -> None: ...

    found = options_of(marked)
    assert found["when"] == every(3) & last
    assert (found["priority"], found["specname"]) == (7, "after_train")
    assert (found["before"], found["after"]) == (("ema",), ("logger", "checkpoint"))


def test_a_mark_is_found_by_pluggys_own_manager_of_the_project() -> None:
    class Plugin:
        @hookimpl(tryfirst=True)
        def train_step(self) -> None: ...

    manager = pluggy.PluginManager("hookbus")
    found = manager.parse_hookimpl_opts(Plugin(), "train_step")
    assert found is not None
    assert found["tryfirst"] is True
    assert found["trylast"] is False


@pytest.mark.parametrize("wrong", [3, [3], [None]])
def test_before_and_after_take_names_only(wrong: object) -> None:
    with pytest.raises(RegistrationError, match="invalid `before` or `after`"):
        hookimpl(before=wrong)(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("wrong", [50, "every(50)", True])
def test_when_takes_a_schedule_or_a_function_only(wrong: object) -> None:
    with pytest.raises(RegistrationError, match=r"hookimpl: invalid `when`, got"):
        hookimpl(when=wrong)  # type: ignore[call-overload]


def test_a_spec_keeps_its_unit() -> None:
    class Spec:
        @hookspec
        def before_render(self) -> None: ...

        @hookspec(unit="step")
        def after_render(self) -> None: ...

    assert Spec.before_render.unit is None  # type: ignore[attr-defined]
    assert Spec.after_render.unit == "step"  # type: ignore[attr-defined]
    assert hasattr(Spec.after_render, SPEC_ATTRIBUTE)
