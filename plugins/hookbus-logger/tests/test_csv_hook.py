"""The CSV hook: rows per step and epoch, files of other runs, resume and errors."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import check_hook, check_two_instances, fake_training
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import CsvHook, csv_hook, file_recorder
from hookbus_logger.csv_file import CsvFile


def read(path: Path, separator: str = ",") -> list[dict[str, float]]:
    """Return the values of each row by name."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file, delimiter=separator)
        return [{name: float(cell) for name, cell in row.items() if cell} for row in rows]


def fit(work_dir: Path, *hooks: Hook, epochs: int = 2, **options: Any) -> Run:
    """Train with 4 iterations per epoch, whose loss is the number of the iteration, and validate each epoch."""
    options = {"batches": 4, "losses": float, "scores": lambda epoch: {"accuracy": epoch / 4}, **options}
    return fake_training([*hooks], epochs=epochs, work_dir=work_dir, **options).run


class LogAt(Hook):
    """Log a scalar at a point."""

    def __init__(self, point: str, name: str, value: Callable[[Run], float]) -> None:
        super().__init__(name=f"log_{name}")
        self._tag, self._value = name, value
        self._point = point

    def before_train(self, run: Run) -> None:
        self._log(run, "before_train")

    def after_train_iter(self, run: Run) -> None:
        self._log(run, "after_train_iter")

    def after_epoch(self, run: Run) -> None:
        self._log(run, "after_epoch")

    def _log(self, run: Run, point: str) -> None:
        if point == self._point:
            run.writer.write_scalar(self._tag, self._value(run))


@pytest.mark.slow
def test_hook_passes_the_conformance_checks(tmp_path: Path) -> None:
    check_hook(CsvHook, interval=1)
    check_two_instances(CsvHook, {"path": "a.csv", "interval": 1}, {"path": "b.csv"}, directory=tmp_path)


def test_values_of_a_step_are_in_one_row(tmp_path: Path) -> None:
    fit(tmp_path, CsvHook(interval=2))
    assert (tmp_path / "logs/metrics.csv").read_text() == (
        "epoch,step,lr,train/loss,val/accuracy\n1,2,0.1,1.5,\n1,4,0.1,3.5,0.25\n2,6,0.1,5.5,\n2,8,0.1,7.5,0.5\n"
    )


def test_values_of_an_epoch_are_in_one_row(tmp_path: Path) -> None:
    fit(tmp_path, CsvHook(logging_interval="epoch"), LogAt("after_train_iter", "x", lambda run: run.iters_done))
    assert read(tmp_path / "logs/metrics.csv") == [
        {"epoch": 1, "step": 4, "lr": 0.1, "train/loss": 2.5, "val/accuracy": 0.25, "x": 4},
        {"epoch": 2, "step": 8, "lr": 0.1, "train/loss": 6.5, "val/accuracy": 0.5, "x": 8},
    ]


def test_scalars_of_iterations_are_not_written_each_time_with_one_row_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, rows = CsvFile.write, list[dict[str, float]]()

    def count(self: CsvFile, row: Any) -> None:
        rows.append(dict(row))
        write(self, row)

    monkeypatch.setattr(CsvFile, "write", count)
    hook, other = CsvHook(logging_interval="epoch"), LogAt("after_train_iter", "x", lambda run: run.iters_done)
    fit(tmp_path, hook, other, batches=50)
    assert [row["x"] for row in rows] == [50, 50, 100, 100]  # the means and the results of each epoch
    assert [row["x"] for row in read(tmp_path / "logs/metrics.csv")] == [50, 100]


def test_separator_and_nonfinite_values(tmp_path: Path) -> None:
    losses = lambda iteration: math.nan if iteration == 2 else math.inf  # noqa: E731
    fit(tmp_path, CsvHook(interval=1, separator="\t"), epochs=1, batches=2, losses=losses, scores=None)
    assert (
        tmp_path / "logs/metrics.csv"
    ).read_text() == "epoch\tstep\tlr\ttrain/loss\n1\t1\t0.1\tinf\n1\t2\t0.1\tnan\n"


def test_metric_that_appears_later_extends_the_header(tmp_path: Path) -> None:
    late = LogAt("after_epoch", "late", lambda run: run.epochs_done)
    bus_hooks = [CsvHook(interval=4), late]
    fit(tmp_path, *bus_hooks, scores=lambda epoch: {"accuracy": 0.5} if epoch == 2 else {})
    assert (tmp_path / "logs/metrics.csv").read_text() == (
        "epoch,step,late,lr,train/loss,val/accuracy\n1,4,1.0,0.1,2.5,\n2,8,2.0,0.1,6.5,0.5\n"
    )


@pytest.mark.parametrize("priorities", [(0, 100), (100, 0)])
def test_columns_do_not_depend_on_the_order_of_the_hooks(priorities: tuple[int, int], tmp_path: Path) -> None:
    hook, other = CsvHook(interval=1, priority=priorities[0]), LogAt("after_train_iter", "a", lambda run: 1.0)
    bus = HookBus([hook])
    bus.register(other, priority=priorities[1])
    with bus.run(work_dir=tmp_path, epochs=1) as run:
        for _ in run.epochs():
            for i, batch in run.batches([0, 1]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": torch.tensor(0.5)})
    assert (tmp_path / "logs/metrics.csv").read_text() == "epoch,step,a,train/loss\n1,1,1.0,0.5\n1,2,1.0,0.5\n"


def test_value_that_is_no_number_is_omitted_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = HookBus([CsvHook()])
    with bus.run(work_dir=tmp_path, epochs=1) as run:
        for step in (1, 2):
            bus.emit("log_scalars", values={"x": "text", "y": 1.0}, step=step)
        run.request_stop("enough")
    assert [row["y"] for row in read(tmp_path / "logs/metrics.csv")] == [1, 1]
    assert sum("'x' must be a single number, got str" in message for message in caplog.messages) == 1


# -- resume ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"interval": 1}, {"interval": 3}, {"logging_interval": "epoch"}], ids=str)
@pytest.mark.parametrize(("stop", "lost"), [(1, 2), (3, 0), (4, 2), (6, 0)])
def test_file_of_a_resumed_run_is_the_one_of_an_uninterrupted_run(
    settings: dict[str, Any], stop: int, lost: int, tmp_path: Path
) -> None:
    """The interrupted run trains further iterations after its last checkpoint, whose rows are lost."""

    class Fail(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == stop:
                run.request_save()
            if run.iters_done == stop + 1 + lost:
                raise RuntimeError("killed")

    def hooks() -> list[Hook]:
        return [
            CsvHook(settings),
            CheckpointHook(interval=None, save_best=False),
            LogAt("before_train", "start", lambda run: 7.0),
            LogAt("after_epoch", "late", lambda run: run.epochs_done),
        ]

    fit(tmp_path / "a", *hooks(), epochs=3)
    with pytest.raises(RuntimeError, match="killed"):
        fit(tmp_path / "b", *hooks(), Fail(), epochs=3)
    fit(tmp_path / "b", *hooks(), epochs=3, resume="auto")
    expected = (tmp_path / "a/logs/metrics.csv").read_text()
    assert (tmp_path / "b/logs/metrics.csv").read_text() == expected
    assert expected.startswith("epoch,step,start,")


def test_run_without_a_checkpoint_keeps_its_file_when_it_starts_again(tmp_path: Path) -> None:
    fit(tmp_path, CsvHook(interval=4))
    first = (tmp_path / "logs/metrics.csv").read_text()
    fit(tmp_path, CsvHook(interval=2), epochs=1, resume="auto")
    assert (tmp_path / "logs/metrics-old.csv").read_text() == first
    assert [row["step"] for row in read(tmp_path / "logs/metrics.csv")] == [2, 4]


# -- files of other runs -----------------------------------------------------------------------


def test_file_of_another_run_is_not_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "all.csv"
    fit(tmp_path / "a", CsvHook(path=path, interval=4), epochs=1)
    first = path.read_text()
    fit(tmp_path / "b", CsvHook(path=path, interval=2), epochs=1)
    assert path.read_text() == first
    assert [row["step"] for row in read(tmp_path / "all-2.csv")] == [2, 4]
    assert sum("is not a log of this run and is not changed" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("append", [False, True])
def test_file_outside_the_work_directory_is_continued_by_a_resume(append: bool, tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text("epoch,step,other\n9,9,0.5")

    def hooks() -> list[Hook]:
        return [CsvHook(path=path, append=append, interval=2), CheckpointHook(save_best=False)]

    fit(tmp_path / "a", *hooks(), epochs=1)
    fit(tmp_path / "a", *hooks(), epochs=2, resume="auto")
    own = read(path if append else tmp_path / "all-2.csv")
    assert own[0].get("other") == (0.5 if append else None)
    assert [row["step"] for row in own if "other" not in row] == [2, 4, 6, 8]
    assert path.read_text().startswith("epoch,step,other,lr,train/loss" if append else "epoch,step,other\n9,9,0.5")
    assert not (tmp_path / "all-3.csv").exists()


def test_appended_file_loses_only_rows_of_the_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"

    def hooks() -> list[Hook]:
        return [CsvHook(path=path, append=True, interval=2), CheckpointHook(save_best=False)]

    fit(tmp_path / "a", *hooks(), epochs=2)
    fit(tmp_path / "b", *hooks(), epochs=2)
    before = path.read_text()
    # The checkpoint of the first epoch, as if the run had been killed in the second one.
    for file in (tmp_path / "b/checkpoints").glob("*"):
        if "epoch_1" not in file.name:
            file.unlink()
    fit(tmp_path / "b", *hooks(), epochs=2, resume="auto")
    assert path.read_text() == before
    assert [row["step"] for row in read(path)] == [2, 4, 6, 8] * 2


def test_file_to_append_to_has_to_be_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_bytes(b"\xff\xfe\n")
    with pytest.warns(HookWarning, match=r"all\.csv is not a CSV file"):
        fit(tmp_path / "a", CsvHook(path=tmp_path / "all.csv", append=True), epochs=1)
    assert (tmp_path / "all.csv").read_bytes() == b"\xff\xfe\n"


# -- settings and errors -----------------------------------------------------------------------


@pytest.mark.parametrize("separator", ["", ",,", "a", "1", '"', "\n", ".", "-", "é"])
def test_separator_is_one_character_that_is_in_no_number(separator: str) -> None:
    with pytest.raises(ConfigError, match="separator: "):
        CsvHook(separator=separator)


def test_two_hooks_with_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path: hook 'b' also writes to .*metrics\.csv"):
        fit(tmp_path, CsvHook(name="a"), CsvHook(name="b"), epochs=1)


def test_rows_that_cannot_be_written_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, attempts = CsvFile.write, list[list[float]]()

    def fail_twice(self: CsvFile, *rows: Any) -> None:
        attempts.append([row["step"] for row in rows])
        if len(attempts) <= 2:
            raise OSError(28, "No space left on device")
        write(self, *rows)

    monkeypatch.setattr(CsvFile, "write", fail_twice)
    with pytest.warns(HookWarning, match="cannot write rows: .*No space left") as warned:
        fit(tmp_path, CsvHook(interval=1), epochs=1, scores=None)
    assert len(warned) == 1
    assert attempts == [[1], [1, 2], [1, 2, 3], [4]]
    assert [row["step"] for row in read(tmp_path / "logs/metrics.csv")] == [1, 2, 3, 4]


def test_rows_beyond_the_limit_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CsvFile, *rows: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_recorder, "MAX_PENDING_ROWS", 2)
    monkeypatch.setattr(CsvFile, "write", fail)
    with pytest.warns(HookWarning) as warned:
        fit(tmp_path, CsvHook(interval=1), epochs=1, scores=None)
    assert "4 rows could not be written and are lost" in str(warned[-1].message)
    assert read(tmp_path / "logs/metrics.csv") == []


def test_trainer_and_run_of_validation_share_the_file(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    batches = [(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))] * 2
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.functional.cross_entropy,
        batches,
        batches,
        test_loader=batches,
        epochs=1,
        work_dir=tmp_path,
        default_hooks=False,
        hooks=[CsvHook(interval=2)],
    )
    trainer.fit()
    trainer.test()
    rows = read(tmp_path / "logs/metrics.csv")
    assert [sorted(row) for row in rows] == [
        ["epoch", "lr", "step", "train/loss", "val/loss"],
        ["epoch", "step", "test/loss"],
    ]


def test_file_is_rewritten_in_proportion_to_its_growth_if_each_row_has_a_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite, rows = CsvFile._rewrite, list[int]()

    def count(self: CsvFile, kept: int, *arguments: Any) -> None:
        rows.append(kept)
        rewrite(self, kept, *arguments)

    monkeypatch.setattr(CsvFile, "_rewrite", count)
    monkeypatch.setattr(csv_hook, "MAX_HELD_SHARE", 0.25)
    bus = HookBus([CsvHook()])
    with bus.run(work_dir=tmp_path, epochs=1) as run:
        bus.emit("before_train")
        for step in range(1, 201):
            bus.emit("log_scalars", values={f"m{step}": step / 2}, step=step)
            if step == 100:
                bus.hooks["csv"].state_dict()  # a checkpoint contains the position of all rows
                assert len(read(tmp_path / "logs/metrics.csv")) == 100
    assert run.outcome == "finished"
    assert sum(rows) < 10 * 200  # 20,000 with a rewrite for each row
    assert read(tmp_path / "logs/metrics.csv") == [
        {"epoch": 0, "step": step, f"m{step}": step / 2} for step in range(1, 201)
    ]


def test_names_beyond_the_maximum_number_of_columns_are_omitted_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(csv_hook, "MAX_COLUMNS", 4)  # epoch, step, and two names
    bus = HookBus([CsvHook()])
    with bus.run(work_dir=tmp_path, epochs=1):
        bus.emit("before_train")
        bus.emit("log_scalars", values={"a": 1.0, "b": 2.0, "c": 3.0}, step=1)
        bus.emit("log_scalars", values={"a": 4.0, "d": 5.0}, step=2)
    assert read(tmp_path / "logs/metrics.csv") == [
        {"epoch": 0, "step": 1, "a": 1.0, "b": 2.0},
        {"epoch": 0, "step": 2, "a": 4.0},
    ]
    assert [record.message for record in caplog.records if "omitted" in record.message] == [
        "csv: the table has 4 columns. Values of further names, such as 'c', are omitted. Use `jsonl`."
    ]
