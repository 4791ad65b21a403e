"""Tests of `hookbus._utils.curves`."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hookbus._utils.curves import COLORS, draw_curves, find_ticks, reduce_points

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(-1e6, 1e6, allow_nan=False)


def get_lines(svg: str) -> list[list[tuple[float, float]]]:
    """Return the pixels of each line."""
    lines = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    return [[tuple(map(float, pixel.split(","))) for pixel in line.attrib["points"].split()] for line in lines]  # type: ignore[misc]


def get_texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_curve_connects_its_points_from_left_to_right() -> None:
    ((first, middle, last),) = get_lines(draw_curves({"loss": [(1, 0.0), (2, 1.0), (3, 0.5)]}, width=364, height=230))

    # Between the margins of 52 and 12 pixels, with 5 % of the height free above and below.
    assert [first[0], middle[0], last[0]] == [52, 202, 352]
    assert first[1] > last[1] > middle[1]
    assert last[1] == pytest.approx((first[1] + middle[1]) / 2, abs=0.1)


def test_the_title_the_label_and_the_names_are_escaped() -> None:
    svg = draw_curves({"<b>": [(1, 1)], "a & b": [(1, 2)]}, title='"<x>"', x_label="<i>")

    assert {"<b>", "a & b", '"<x>"', "<i>"} <= set(get_texts(svg))
    assert ElementTree.fromstring(svg).attrib["aria-label"] == '"<x>"'


def test_values_that_are_not_finite_interrupt_a_curve() -> None:
    svg = draw_curves({"loss": [(1, 1), (2, 2), (3, math.nan), (4, math.inf), (5, 3), (6, 4), (7, math.nan), (8, 1)]})

    assert [len(line) for line in get_lines(svg)] == [2, 2]
    assert svg.count("<circle") == 1, "a single point is a dot"


@pytest.mark.parametrize("curves", [{}, {"loss": []}, {"loss": [(1, math.nan)]}])
def test_no_finite_value_is_stated(curves: dict[str, list[tuple[float, float]]]) -> None:
    assert "no finite values" in get_texts(draw_curves(curves))


@pytest.mark.parametrize("values", [(0.0, 5e-324), (-1.7e308, 1.7e308), (1e300, -1e300), (1e-310, 2e-310)])
def test_extreme_values_are_drawn(values: tuple[float, float]) -> None:
    assert draw_curves({"loss": list(enumerate(values))})


def test_integers_have_no_fractions_at_the_horizontal_axis() -> None:
    assert not [text for text in get_texts(draw_curves({"loss": [(1, 5), (2, 5)]})) if "1." in text]


def test_a_long_name_is_shortened_and_its_curve_has_the_full_one() -> None:
    svg = draw_curves({"x" * 100: [(1, 1)]}, width=300)

    assert not [text for text in get_texts(svg) if len(text) > 40]
    assert next(ElementTree.fromstring(svg).iter(f"{SVG}title")).text == "x" * 100


def test_names_that_do_not_fit_into_a_row_of_the_legend_continue_below() -> None:
    svg = draw_curves({f"metric{index}": [(1, index)] for index in range(9)}, width=360)

    boxes = list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))
    assert [box.attrib["fill"] for box in boxes] == [*COLORS, COLORS[0]]
    assert max(float(box.attrib["x"]) for box in boxes) < 360
    assert len({box.attrib["y"] for box in boxes}) > 1


@given(low=numbers, width=st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside_the_limits(low: float, width: float) -> None:
    high = low + width
    ticks = find_ticks(low, high)

    assert 2 <= len(ticks) <= 6
    assert all(low - width * 1e-6 <= tick <= high + width * 1e-6 for tick in ticks)


def test_ticks_are_multiples_of_a_round_step() -> None:
    assert find_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert find_ticks(0.93, 1.31) == [1.0, 1.1, 1.2, 1.3]
    assert find_ticks(1, 20) == [5, 10, 15, 20]
    assert find_ticks(0.5, 1.5, min_step=1) == [1]


@given(st.lists(numbers, max_size=300), st.integers(2, 40))
def test_reduced_curves_keep_their_extremes_and_their_order(values: list[float], limit: int) -> None:
    assume(len(values) > 0)
    points = [(float(index), value) for index, value in enumerate(values)]
    reduced = reduce_points(points, limit)

    assert len(reduced) <= max(limit, 2)
    assert reduced == sorted(set(reduced) & set(points))
    assert {min(values), max(values)} <= {value for _, value in reduced}
    assert reduced == points or len(points) > limit


def test_the_size_of_a_chart_is_bounded() -> None:
    assert len(draw_curves({"loss": [(index, index % 7) for index in range(100_000)]})) < 10_000
