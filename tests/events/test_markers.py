"""Tests of the options set by `@hookimpl` and `@hookspec`."""

from __future__ import annotations

import pluggy
import pytest

from hookbus import every, hookimpl, last
from hookbus._events.markers import IMPL_ATTRIBUTE, hookspec
from hookbus._events.points import SPEC_ATTRIBUTE
from hookbus.errors import RegistrationError


def get_options(function: object) -> dict[str, object]:
    return dict(getattr(function, IMPL_ATTRIBUTE))


def test_marker_with_and_without_parentheses_sets_the_same_options() -> None:
    @hookimpl
    def bare() -> None: ...

    @hookimpl()
    def called() -> None: ...

    assert get_options(bare) == get_options(called)


def test_options_are_stored_and_names_are_converted_to_tuples() -> None:
    @hookimpl(when=every(3) & last, priority=7, before="ema", after=["logger", "checkpoint"], specname="after_train")
    def marked() -> None: ...

    options = get_options(marked)
    assert options["when"] == every(3) & last
    assert (options["priority"], options["specname"]) == (7, "after_train")
    assert (options["before"], options["after"]) == (("ema",), ("logger", "checkpoint"))


def test_marker_is_recognized_by_a_pluggy_manager_of_the_project() -> None:
    class Plugin:
        @hookimpl(tryfirst=True)
        def train_step(self) -> None: ...

    manager = pluggy.PluginManager("hookbus")
    options = manager.parse_hookimpl_opts(Plugin(), "train_step")
    assert options is not None
    assert options["tryfirst"] is True
    assert options["trylast"] is False


@pytest.mark.parametrize("wrong", [3, [3], [None]])
def test_before_and_after_accept_names_only(wrong: object) -> None:
    with pytest.raises(RegistrationError, match="invalid `before` or `after`"):
        hookimpl(before=wrong)(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("wrong", [50, "every(50)", True])
def test_when_accepts_schedules_and_functions_only(wrong: object) -> None:
    with pytest.raises(RegistrationError, match=r"hookimpl: invalid `when`, got"):
        hookimpl(when=wrong)  # type: ignore[call-overload]


def test_option_without_its_name_raises() -> None:
    with pytest.raises(RegistrationError, match=r"expected a function, got every\(50\). Pass options by name"):
        hookimpl(every(50))  # type: ignore[type-var]


def test_hookspec_stores_the_unit() -> None:
    class Spec:
        @hookspec
        def before_render(self) -> None: ...

        @hookspec(unit="step")
        def after_render(self) -> None: ...

    assert Spec.before_render.unit is None  # type: ignore[attr-defined]
    assert Spec.after_render.unit == "step"  # type: ignore[attr-defined]
    assert hasattr(Spec.after_render, SPEC_ATTRIBUTE)
