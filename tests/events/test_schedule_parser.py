"""Tests of the parser for schedules in run files."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import between, every, for_loader, last, once
from hookbus._events.points import Unit
from hookbus._events.schedule_parser import parse_schedule
from hookbus._events.schedules import Schedule
from hookbus.errors import ConfigError

UNITS: list[Unit] = ["iter", "batch", "step", "epoch", "sample", "token", "seconds"]

counts = st.integers(1, 9)
units = st.none() | st.sampled_from(UNITS)
names = st.sampled_from(["interval", "a b", "it's", '"', "\\"])
values = counts | names
shares = st.sampled_from([0.1, 1 / 3, 0.25, 1e-5, 1.0])
written = st.recursive(
    st.one_of(
        st.builds(lambda n, s, u: every(n, start=s, unit=u), st.none() | values, st.none() | values, units),
        st.builds(lambda a, n, u: between(a, a + n, unit=u), st.integers(0, 9), counts, units),
        st.builds(lambda a, b, u: between(a, b, unit=u), names, names, units),
        st.builds(lambda ns, u: once(*ns, unit=u), st.lists(values, max_size=3), units),
        st.builds(lambda u: last(unit=u), units),
        st.builds(lambda s, u: every(s, unit=u), shares, units),
        st.builds(lambda s, u: once(s, unit=u) | between(0.0, s, unit=u), shares, units),
        st.builds(lambda ns: for_loader(*ns), st.lists(names, min_size=1, max_size=3)),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(written)
def test_repr_of_a_schedule_can_be_parsed(schedule: Schedule) -> None:
    assert parse_schedule(repr(schedule)) == schedule


def test_parser_accepts_whitespace_and_operators() -> None:
    assert parse_schedule(" every( 100 )&between(1,1000) ") == every(100) & between(1, 1000)
    assert parse_schedule("~every(2) | last(unit='epoch')") == ~every(2) | last(unit="epoch")
    assert parse_schedule("once()") == once(1)
    assert parse_schedule("every(0.1) & between(0, 0.5)") == every(0.1) & between(0, 0.5)
    assert parse_schedule("for_loader('clean', 'noisy')") == for_loader("clean", "noisy")
    assert parse_schedule("once(1) | every(2) & last") == once(1) | (every(2) & last)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "invalid syntax"),
        ("evry(3)", "unknown function evry. Did you mean 'every'?"),
        ("every(3", "was never closed"),
        ("every(3) and last", "unsupported expression every(3) and last"),
        ("every", "unsupported expression every"),
        ("every(3) + every(4)", "unsupported expression"),
        ("every(1 / 3)", "expected a number or a string, got 1 / 3"),
        ("every(-1)", "expected a number or a string, got -1"),
        ("every(True)", "expected a number or a string, got True"),
        ("every(1, 2)", "takes 1 positional argument but 2 were given"),
        ("every(**{'interval': 3})", "expected a number or a string, got "),
        ("every(*[3])", "expected a number or a string, got "),
        ("every(interval=3, size=4)", "unexpected keyword argument 'size'"),
        ("last.due", "unsupported expression"),
        ("last.__class__", "unsupported expression"),
        ("__import__('os')", "unknown function __import__"),
        ("every(__import__('os').getpid())", "expected a number or a string, got "),
        ("(lambda: every(3))()", "unsupported expression"),
        ("every(3); last", "invalid syntax"),
        ("every(3)\x00", "null bytes"),
        ("[last for _ in range(9)]", "unsupported expression"),
        ("f'{last}'", "unsupported expression"),
        ("50", "unsupported expression 50"),
        ("~" * 100_000 + "last", ""),
        ("(" * 100_000 + "last" + ")" * 100_000, ""),
        ("every(" + "9" * 10_000 + ")", ""),
    ],
    ids=lambda text: text[:20],
)
def test_invalid_text_raises_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schedule(text)
    message = str(caught.value)
    assert reason in message
    assert message.endswith("Use every(50), between(1, 1000), once(12) or last, combined with &, | and ~.")


@pytest.mark.parametrize("text", ["every(0)", "every(1.5)", "between(3, 1)", "once(0)", "every(2, unit='epochs')"])
def test_text_with_an_invalid_number_raises(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_schedule(text)


@settings(deadline=None)
@given(st.text(alphabet="every(last)&|~ 1234567890,='once between\\\"\n[]{}#:;.*\x00é", max_size=40))
def test_any_text_yields_a_schedule_or_config_error_without_warning(text: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            schedule = parse_schedule(text)
        except ConfigError:
            schedule = None
    assert caught == []
    assert schedule is None or parse_schedule(repr(schedule)) == schedule
