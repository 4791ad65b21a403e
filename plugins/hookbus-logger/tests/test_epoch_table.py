"""Tests of the content of the table of a run."""

import math

import pytest

from hookbus_logger.epoch_table import EpochTable, Row, build_titles


def get_titles(table: EpochTable) -> list[str]:
    return [column.title for column in table.columns]


def get_texts(row: Row) -> dict[str, str]:
    return {name: cell.text for name, cell in EpochTable().add(row).items()}


def test_columns_are_losses_then_metrics_then_learning_rates_and_time() -> None:
    table = EpochTable()
    values = {"train/acc": 0.5, "train/loss": 1.0, "val/acc": 0.5, "val/top2": 0.75, "val/loss": 2.0, "lr": 0.1}
    table.add(Row("1/6", values, seconds=2.0))

    assert get_titles(table) == ["epoch", "train/loss", "val/loss", "train/acc", "val/acc", "top2", "lr", "time"]


def test_losses_of_all_validation_loaders_follow_the_training_loss() -> None:
    table = EpochTable()
    table.add(Row("1/6", {"val/clean/loss": 1.0, "val/noisy/loss": 1.0, "train/loss": 1.0}))

    assert get_titles(table) == ["epoch", "train/loss", "clean/loss", "noisy/loss"]


def test_columns_extend_with_the_values_of_later_rows() -> None:
    table = EpochTable()
    table.add(Row("50/100", {"train/loss": 1.0}, unit="iteration"))
    assert get_titles(table) == ["iteration", "train/loss"]

    table.add(Row("100/100", {"val/loss": 1.0, "val/accuracy": 0.5}, unit="iteration"))
    assert get_titles(table) == ["iteration", "train/loss", "val/loss", "accuracy"]


def test_importance_is_position_tracked_metric_losses_metrics_time_and_learning_rate() -> None:
    table = EpochTable(tracked=["val/f1"])
    values = {"train/loss": 1.0, "train/acc": 0.5, "val/loss": 1.0, "val/top2": 0.5, "val/f1": 0.5, "lr": 0.1}
    table.add(Row("1/6", {**values, "momentum": 0.9}, seconds=2.0))

    by_importance = sorted(table.columns, key=lambda column: column.rank)
    assert [column.name for column in by_importance] == [
        *("position", "val/f1", "val/loss", "train/loss", "val/top2", "time", "lr", "train/acc", "momentum"),
    ]


@pytest.mark.parametrize(
    ("names", "titles"),
    [
        (["val/accuracy"], ["accuracy"]),
        (["train/loss"], ["train/loss"]),
        (["train/loss", "val/loss"], ["train/loss", "val/loss"]),
        (["train/loss", "val/clean/loss", "val/noisy/loss"], ["train/loss", "clean/loss", "noisy/loss"]),
        (["lr/G", "lr/D"], ["lr/G", "lr/D"]),
        (["val/a\nb\x1b[31m"], ["a?b?[31m"]),
    ],
)
def test_titles_are_short_if_they_are_unambiguous(names: list[str], titles: list[str]) -> None:
    assert list(build_titles(names).values()) == titles


def test_cells_contain_numbers_rates_and_times() -> None:
    row = Row("2/6", {"train/loss": 12.3456, "val/loss": math.nan, "lr": 2.888e-05, "weight_decay": 0.1}, 3725.0)

    assert get_texts(row) == {
        "position": "2/6",
        "train/loss": "12.35",
        "val/loss": "nan",
        "lr": "2.89e-05",
        "weight_decay": "0.1",
        "time": "1:02:05",
    }


def test_best_value_has_an_asterisk_and_other_cells_state_whether_they_are_finite() -> None:
    cells = EpochTable().add(Row("2/6", {"val/acc": 0.5, "val/loss": math.inf}, best=frozenset({"val/acc"})))

    assert (cells["val/acc"].text, cells["val/acc"].is_best) == ("*0.5000", True)
    assert [cells[name].is_finite for name in ("val/acc", "val/loss")] == [True, False]


def test_a_column_has_the_width_of_its_widest_value_so_far() -> None:
    table = EpochTable()
    table.reserve("100/100")
    widths = []
    for loss in (0.5, -1.2345e-05, 0.25):
        table.add(Row("1/100", {"train/loss": loss}))
        widths.append([column.width for column in table.columns])

    assert widths == [[7, 7], [7, 10], [7, 10]]


def test_column_of_equal_learning_rates_is_replaced_by_those_of_the_groups() -> None:
    table = EpochTable()
    table.add(Row("1/2", {"lr": 0.1, "momentum": 0.9}))
    table.add(Row("2/2", {"lr/0": 0.1, "lr/1": 0.01, "momentum": 0.9}))
    assert get_titles(table) == ["epoch", "momentum", "lr/0", "lr/1"]

    table.add(Row("3/3", {"lr": 0.1}))
    assert get_titles(table) == ["epoch", "momentum", "lr"]
