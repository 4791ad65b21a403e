"""Tests of the layout of a table in a number of terminal columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hookbus_logger.columns import GAP, Column, fit_columns, format_row, shorten_title

SHAPES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 8)), max_size=9)
"""Length of the title, width of the values and rank of each column."""


def build_columns(shapes: list[tuple[int, int, int]]) -> list[Column]:
    """Return a first column of rank 0, and further ones with similar titles."""
    titled = [Column(str(i), f"{i * 'µ'}_{length * '評'}_dice", *rest) for i, (length, *rest) in enumerate(shapes, 1)]
    return [Column("0", "epoch", 9), *titled]


@given(SHAPES, st.integers(15, 220))
def test_table_fits_the_width_and_omits_the_least_important_columns(
    shapes: list[tuple[int, int, int]], width: int
) -> None:
    table = build_columns(shapes)
    fitted = fit_columns(table, width)

    texts = {column.name: "9" * column.width for column in table}
    header = format_row(fitted, {column.name: column.title for column in fitted})
    row = format_row(fitted, texts)
    assert [cell.strip() for cell in row] == [texts[column.name] for column in fitted]
    assert sum(map(cell_len, header)) == sum(map(cell_len, row)) <= width - GAP * (len(fitted) - 1)

    names = [column.name for column in fitted]
    omitted = [column.rank for column in table if column.name not in names]
    assert names[0] == "0"
    assert names == [column.name for column in table if column.name in names]
    assert max(column.rank for column in fitted) <= min(omitted, default=8)
    assert len({column.title for column in fitted}) == len(fitted)


@pytest.mark.parametrize("title", ["accuracy", "mean_intersection_over_union", "評" * 14, "mean_評評評評評評評_union"])
def test_shortened_title_has_at_most_the_given_width(title: str) -> None:
    for width in range(1, 31):
        shortened = shorten_title(title, width)
        assert cell_len(shortened) <= width
        assert shortened == title if cell_len(title) <= width else "…" in shortened


def test_titles_are_shortened_before_a_column_is_omitted() -> None:
    table = [Column("p", "epoch", 5), Column("a", "mean_intersection_over_union", 7, 1), Column("b", "accuracy", 7, 2)]

    assert [column.title for column in fit_columns(table, 27)] == ["epoch", "mea…_union", "accuracy"]
    assert [column.title for column in fit_columns(table, 26)] == ["epoch", "mean_i…n_over_union"]
    assert [column.title for column in fit_columns(table, 80)] == ["epoch", table[1].title, "accuracy"]


def test_a_column_whose_title_would_be_that_of_another_one_is_omitted() -> None:
    names = "per_image_dice_of_the_class_cat", "per_pixel_dice_of_the_class_cat"
    table = [Column("p", "epoch", 5), Column("a", names[0], 7, 1), Column("b", names[1], 7, 2)]

    assert [column.title for column in fit_columns(table, 29)] == ["epoch", "per_ima…_the_class_cat"]
    assert [column.title for column in fit_columns(table, 71)] == ["epoch", *names]
