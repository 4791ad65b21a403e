"""Tests of the JSON lines file written by runs, resumed runs and killed processes."""

import itertools
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hookbus import Hook, HookBus, Priority, Trainer, every, hookimpl
from hookbus._run.run import Run
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import check_hook, check_two_instances, fake_training
from hookbus_logger import JsonlHook, read_jsonl

Row = dict[str, Any]


def read_rows(directory: Path, *kinds: str) -> list[Row]:
    rows = read_jsonl(directory / "logs" / "metrics.jsonl")
    return [row for row in rows if not kinds or row["kind"] in kinds]


def remove_time(rows: list[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def read_steps(directory: Path, kind: str = "train") -> list[int]:
    return [row["step"] for row in read_rows(directory, kind)]


class EmitAfterEpoch(Hook):
    """Emit a logging point after each epoch."""

    def __init__(self, point: str, **arguments: Any) -> None:
        super().__init__(name=arguments.pop("name", "emitter"), priority=arguments.pop("number", 50))
        self.point, self.arguments = point, arguments

    def after_epoch(self, run: Run) -> None:
        run.bus.emit(self.point, **self.arguments)  # type: ignore[arg-type]


class Fail(Hook):
    """Raise an error after the given iteration."""

    def __init__(self, iteration: int, error: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self.iteration, self.error = iteration, error

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            raise self.error("simulated crash")


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(JsonlHook)


# -- rows ------------------------------------------------------------------------------------------------


def test_row_contains_kind_position_and_values(tmp_path: Path) -> None:
    fake_training([JsonlHook(interval=2)], epochs=1, batches=2, losses=float, work_dir=tmp_path)

    (row,) = read_rows(tmp_path)
    assert row.pop("time") > 1.7e9
    assert row == {
        "kind": "train",
        "mode": "train",
        "step": 2,
        "epoch": 1,
        "iteration": 2,
        "values": {"train/loss": 1.5, "lr": 0.1},
    }


def test_validation_rows_follow_the_training_rows_of_their_epoch(tmp_path: Path) -> None:
    fake_training([JsonlHook(interval=2)], batches=2, scores=lambda epoch: {"accuracy": epoch / 4}, work_dir=tmp_path)

    rows = read_rows(tmp_path)
    assert [(row["kind"], row["epoch"], row["step"]) for row in rows] == [
        *(("train", 1, 2), ("val", 1, 2)),
        *(("train", 2, 4), ("val", 2, 4)),
    ]
    assert [row["values"] for row in rows if row["kind"] == "val"] == [{"val/accuracy": 0.25}, {"val/accuracy": 0.5}]


def test_nan_loss_is_reported_in_the_record_of_its_interval(tmp_path: Path) -> None:
    fake_training([JsonlHook(interval=3)], epochs=1, losses=lambda i: math.nan if i == 2 else 1.0, work_dir=tmp_path)

    (row,) = read_rows(tmp_path)
    assert row["values"] == {"train/loss": None, "lr": 0.1}
    assert row["nonfinite"] == {"train/loss": "nan"}
    assert row["nonfinite_counts"] == {"train/loss": 1}


def test_numbers_of_any_library_are_written_as_json_numbers(tmp_path: Path) -> None:
    values = {"a": np.float32(0.5), "b": np.int64(3), "c": torch.tensor(0.25), "d": torch.tensor(True), "e": -math.inf}

    fake_training([JsonlHook(), EmitAfterEpoch("log_scalars", values=values, step=7)], epochs=1, work_dir=tmp_path)

    (row,) = read_rows(tmp_path, "scalars")
    assert row["values"] == {"a": 0.5, "b": 3, "c": 0.25, "d": 1, "e": None}
    assert (row["step"], row["nonfinite"]) == (7, {"e": "-inf"})


def test_non_number_is_omitted_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {"boxes": [1, 2], "good": 1.0}

    fake_training([JsonlHook(), EmitAfterEpoch("log_scalars", values=values)], epochs=4, work_dir=tmp_path)

    assert [row["values"] for row in read_rows(tmp_path, "scalars")] == [{"good": 1.0}] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "jsonl: 'boxes' must be a single number, got list. The value is omitted from scalars rows."
    ]


def test_texts_and_the_configuration_are_written_as_rows(tmp_path: Path) -> None:
    text, config = (
        EmitAfterEpoch("log_text", tag="note", text="zwölf"),
        EmitAfterEpoch("log_config", config={"lr": 0.1}, name="config"),
    )

    fake_training([JsonlHook(interval=10), text, config], epochs=1, work_dir=tmp_path)

    rows = read_rows(tmp_path)
    assert [row["kind"] for row in rows] == ["config", "train", "text"]
    assert (rows[0]["config"], rows[2]["tag"], rows[2]["text"]) == ({"lr": 0.1}, "note", "zwölf")


def test_order_of_rows_does_not_depend_on_the_order_of_hooks(tmp_path: Path) -> None:
    files = []
    for number, (order, numbers) in enumerate(
        itertools.product(("nested", "ascending"), itertools.permutations([10, 50, 90]))
    ):
        jsonl, first, second = numbers
        hooks = [
            JsonlHook(interval=2, priority=jsonl),
            EmitAfterEpoch("log_scalars", values={"b": 1.0}, name="x", number=first),
            EmitAfterEpoch("log_scalars", values={"a": 1.0}, name="y", number=second),
            EmitAfterValidation(number=second),
        ]
        directory = tmp_path / str(number)
        bus = HookBus(hooks, order=order)
        fake_training(bus=bus, scores=lambda epoch: {"accuracy": 0.5}, work_dir=directory)
        files.append(remove_time(read_rows(directory)))

    assert all(rows == files[0] for rows in files)
    names = [next(iter(row["values"])) for row in files[0]]
    of_epoch = ["val/accuracy", "a", "at_val", "b"]
    assert names == ["train/loss", *of_epoch, "train/loss", "train/loss", *of_epoch]


class EmitAfterValidation(Hook):
    """Log a scalar during a validation."""

    def __init__(self, number: int) -> None:
        super().__init__(priority=number)

    def after_val_epoch(self, run: Run) -> None:
        run.bus.emit("log_scalars", values={"at_val": 1.0})


def test_validation_rows_of_a_run_limited_in_iterations_have_their_step(tmp_path: Path) -> None:
    class RequestValidation(Hook):
        @hookimpl(when=every(3))
        def after_train_iter(self, run: Run) -> None:
            run.request_validation()

    bus = HookBus([JsonlHook(by_epoch=False), RequestValidation()])
    with bus.run(iterations=6, work_dir=tmp_path, validate=lambda: {"accuracy": 0.5}) as run:
        for _ in run.epochs():
            for i, batch in run.batches(range(6)):
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})

    assert read_steps(tmp_path, "val") == [3, 6]
    assert read_steps(tmp_path) == [6]


def test_each_validation_loader_has_a_row(tmp_path: Path, trainer: Callable[..., Trainer]) -> None:
    loaders = {"clean": [torch.tensor([1.0])], "noisy": [torch.tensor([3.0])]}

    trainer(JsonlHook(), losses=[1.0], val_loader=loaders, work_dir=tmp_path).fit()

    assert [row["values"] for row in read_rows(tmp_path, "val")] == [{"val/clean/loss": 1.0}, {"val/noisy/loss": 3.0}]


def test_sanity_check_writes_no_row(tmp_path: Path, trainer: Callable[..., Trainer]) -> None:
    trained = trainer(
        JsonlHook(), EmitAfterValidation(50), losses=[1.0], val_loader=[torch.tensor([2.0])], validate_first=True,
        work_dir=tmp_path,
    )  # fmt: skip
    trained.fit()

    assert [(row["kind"], row["step"]) for row in read_rows(tmp_path)] == [("train", 1), ("val", 1), ("scalars", 1)]


# -- location of the file ---------------------------------------------------------------------------------


def test_missing_work_dir_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="requires a work directory, got none. Set `work_dir`, or set `path` to an"):
        fake_training([JsonlHook()], epochs=1)


def test_evaluation_without_a_work_dir_is_one_warning() -> None:
    bus = HookBus([JsonlHook()])
    message = "Set `work_dir` of the run or `path` of this hook"
    with pytest.warns(HookWarning, match=message) as caught, bus.run(mode="val") as run:
        bus.emit("log_scalars", values={"a": 1.0})

    assert run.outcome == "finished"
    assert len(caught) == 1


def test_custom_path_needs_no_work_dir(tmp_path: Path) -> None:
    path = tmp_path / "custom.jsonl"
    fake_training([JsonlHook(path=path, interval=3)], epochs=1)

    assert [row["step"] for row in read_jsonl(path)] == [3]


def test_second_run_at_a_custom_path_uses_another_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "custom.jsonl"
    for _ in range(3):
        fake_training([JsonlHook(path=path, interval=3)], epochs=1)

    names = ("custom.jsonl", "custom-2.jsonl", "custom-3.jsonl")
    assert [[row["step"] for row in read_jsonl(tmp_path / name)] for name in names] == [[3], [3], [3]]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is not a log of this run and is not changed; the rows are written to {name}. Move the file, or set "
        "another `path`."
        for name in names[1:]
    ]


def test_later_runs_of_one_trainer_continue_the_file_at_a_custom_path(
    tmp_path: Path, trainer: Callable[..., Trainer]
) -> None:
    trained = trainer(
        JsonlHook(interval=1, path=tmp_path / "custom.jsonl"), losses=[1.0], val_loader=[torch.tensor([2.0])]
    )
    trained.fit()
    trained.validate()

    rows = read_jsonl(tmp_path / "custom.jsonl")
    assert [(row["kind"], row["mode"]) for row in rows] == [("train", "train"), ("val", "train"), ("val", "val")]


def create_foreign(path: Path, kind: str, elsewhere: Path) -> None:
    """Create a file that is not a log of a run."""
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.write_bytes(FOREIGN_CONTENTS[kind])


FOREIGN_CONTENTS = {
    "incomplete": b'{"kind": "train", "mode": "train", "step": 7}\n{"kind": "tra',
    "nested": b"[" * 100_000 + b"\n",
    "binary": bytes(range(256)) * 10,
    "list": b"[1]\n2\nnull\n",
    "long": b"x" * 20_000_000,
    "empty": b"",
}


@pytest.mark.parametrize("kind", ["directory", "fifo", "link", *FOREIGN_CONTENTS])
def test_foreign_file_is_neither_changed_nor_appended_to(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, save_at: Any
) -> None:
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text('{"kind": "tra')
    create_foreign(logs / "metrics.jsonl", kind, elsewhere)
    before = os.lstat(logs / "metrics.jsonl")

    saves = save_at(tmp_path / "run" / "checkpoints", 2)
    fake_training([JsonlHook(interval=1), saves], epochs=1, work_dir=tmp_path / "run")
    fake_training([JsonlHook(interval=1), saves], epochs=1, work_dir=tmp_path / "run", resume="auto")

    after = os.lstat(logs / "metrics.jsonl")
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert elsewhere.read_text() == '{"kind": "tra'
    assert [row["step"] for row in read_jsonl(logs / "metrics-2.jsonl")] == [1, 2, 3]
    assert sorted(os.listdir(logs)) == ["metrics-2.jsonl", "metrics.jsonl"]
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text for text in messages if "is not a log of this run" in text] == messages[:1]


def test_file_with_another_name_is_changed_under_its_own_only(tmp_path: Path, save_at: Any) -> None:
    saves = save_at(tmp_path / "checkpoints", 2)
    fake_training([JsonlHook(interval=1), saves], epochs=1, work_dir=tmp_path)
    log = tmp_path / "logs" / "metrics.jsonl"
    os.link(log, tmp_path / "backup.jsonl")
    content = log.read_bytes()

    fake_training([JsonlHook(interval=1)], epochs=2, work_dir=tmp_path, resume="auto")

    assert (tmp_path / "backup.jsonl").read_bytes() == content
    assert read_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_overwrite_removes_the_file_of_the_previous_run(tmp_path: Path) -> None:
    for _ in range(2):
        fake_training([JsonlHook(interval=3)], epochs=1, work_dir=tmp_path, overwrite=True)

    assert read_steps(tmp_path) == [3]


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    hook = JsonlHook(path=tmp_path / "custom.jsonl")
    bus = HookBus([hook])
    with bus.run():
        bus.emit("log_scalars", values={"a": 1.0}, step=0)

    assert not (tmp_path / "custom.jsonl").exists()


def test_rows_of_a_separate_validation_or_test_have_their_mode(tmp_path: Path, trainer: Callable[..., Trainer]) -> None:
    trained = trainer(
        JsonlHook(interval=1), losses=[1.0], val_loader=[torch.tensor([2.0])], test_loader=[torch.tensor([4.0])],
        work_dir=tmp_path,
    )  # fmt: skip
    trained.fit()
    trained.validate()
    trained.test()

    assert [(row["kind"], row["mode"], row["step"]) for row in read_rows(tmp_path)] == [
        *(("train", "train", 1), ("val", "train", 1)),
        *(("val", "val", 1), ("test", "test", 1)),
    ]


def test_second_run_on_the_same_bus_writes_to_its_own_file(tmp_path: Path) -> None:
    bus = HookBus([JsonlHook(interval=3)])
    for name in ("a", "b"):
        fake_training(bus=bus, epochs=1, work_dir=tmp_path / name, fresh=True)

    assert [read_steps(tmp_path / name) for name in ("a", "b")] == [[3], [3]]


def test_short_run_writes_all_rows(tmp_path: Path) -> None:
    hook = JsonlHook(interval=1)
    fake_training([hook], epochs=1, batches=5, work_dir=tmp_path)

    assert read_steps(tmp_path) == [1, 2, 3, 4, 5]
    assert hook._log is None


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_error_closes_the_file_and_propagates(tmp_path: Path, error: type[BaseException]) -> None:
    hook = JsonlHook(interval=1)

    with pytest.raises(error):
        fake_training([hook, Fail(3, error)], epochs=1, batches=5, work_dir=tmp_path)

    assert read_steps(tmp_path) == [1, 2]
    assert hook._log is None


# -- resume ------------------------------------------------------------------------------------------------


def test_killed_and_resumed_run_has_each_step_once(tmp_path: Path, save_at: Any) -> None:
    checkpoints, options = tmp_path / "checkpoints", {"batches": 50, "work_dir": tmp_path}
    with pytest.raises(RuntimeError):
        fake_training([JsonlHook(interval=10), save_at(checkpoints, 100), Fail(155)], epochs=4, **options)
    assert read_steps(tmp_path)[-1] == 150

    fake_training([JsonlHook(interval=10)], epochs=4, resume="auto", **options)

    assert read_steps(tmp_path) == list(range(10, 201, 10))


def test_additional_epochs_are_appended_to_the_same_file(tmp_path: Path, save_at: Any) -> None:
    options = {"scores": lambda epoch: {"accuracy": epoch / 10}, "work_dir": tmp_path}
    fake_training([JsonlHook(), save_at(tmp_path / "checkpoints", 9)], epochs=3, **options)

    fake_training([JsonlHook()], epochs=5, resume="auto", **options)

    for kind in ("train", "val"):
        assert [row["epoch"] for row in read_rows(tmp_path, kind)] == [1, 2, 3, 4, 5]


class LogEachIteration(Hook):
    """Log a scalar at each iteration; its row is sorted after the results of the same moment."""

    def after_train_iter(self, run: Run) -> None:
        run.bus.emit("log_scalars", values={"iteration": run.iters_done})


@pytest.mark.parametrize(("saved_at", "killed_at"), [(1, 5), (3, 3), (3, 4), (5, 9), (6, 12), (9, 12)])
def test_file_of_a_resumed_run_equals_that_of_the_uninterrupted_run(
    tmp_path: Path, save_at: Any, saved_at: int, killed_at: int
) -> None:
    def train(directory: Path, *hooks: object, **more: Any) -> None:
        saves = save_at(directory / "checkpoints", saved_at)
        scores = {"scores": lambda epoch: {"accuracy": epoch / 10}}
        hooks = (JsonlHook(interval=2), saves, LogEachIteration(), *hooks)
        fake_training(hooks, epochs=4, work_dir=directory, losses=float, **scores, **more)

    train(tmp_path / "uninterrupted")
    with pytest.raises(RuntimeError):
        train(tmp_path / "killed", Fail(killed_at))
    train(tmp_path / "killed", resume="auto")

    assert remove_time(read_rows(tmp_path / "killed")) == remove_time(read_rows(tmp_path / "uninterrupted"))


def test_row_whose_write_failed_before_a_save_remains_after_the_resume(tmp_path: Path, save_at: Any) -> None:
    class LogToFullDisk(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 2:
                limits = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
                run.bus.emit("log_scalars", values={"late": 1.0})
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    hooks = [JsonlHook(interval=100), LogToFullDisk(), save_at(tmp_path / "checkpoints", 2)]
    with pytest.raises(RuntimeError), pytest.warns(HookWarning, match="cannot write rows"):
        fake_training([*hooks, Fail(3)], work_dir=tmp_path)

    fake_training([JsonlHook(interval=100)], work_dir=tmp_path, resume="auto")

    assert [row["values"] for row in read_rows(tmp_path, "scalars")] == [{"late": 1.0}]


@pytest.mark.parametrize("number", [10, 90])
def test_rows_written_before_the_resume_remain(tmp_path: Path, save_at: Any, number: int) -> None:
    class LogConfig(Hook):
        priority = number

        def before_run(self, run: Run) -> None:
            run.bus.emit("log_config", config={"start": self.config.name})

    saves = save_at(tmp_path / "checkpoints", 2)
    fake_training([LogConfig(name="first"), JsonlHook(interval=1), saves], epochs=1, work_dir=tmp_path)
    fake_training([LogConfig(name="second"), JsonlHook(interval=1)], epochs=1, work_dir=tmp_path, resume="auto")

    assert [row["config"]["start"] for row in read_rows(tmp_path, "config")] == ["first", "second"]
    assert read_steps(tmp_path) == [1, 2, 3]


def test_run_without_a_checkpoint_keeps_its_old_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = tmp_path / "logs"
    contents = []
    for _ in range(3):
        with pytest.raises(RuntimeError):
            fake_training([JsonlHook(interval=1), Fail(3)], work_dir=tmp_path, resume="auto")
        contents.append((logs / "metrics.jsonl").read_bytes())
    fake_training([JsonlHook(interval=1)], work_dir=tmp_path, resume="auto")

    assert read_steps(tmp_path) == [1, 2, 3, 4, 5, 6]
    names = ("metrics-old.jsonl", "metrics-old-2.jsonl", "metrics-old-3.jsonl")
    assert [(logs / name).read_bytes() for name in names] == contents
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 3
    assert all("restarts from iteration 0" in text for text in warned)

    fake_training([JsonlHook(interval=1)], work_dir=tmp_path, overwrite=True)

    assert os.listdir(logs) == ["metrics.jsonl"]


def test_run_that_fails_before_its_training_leaves_the_file(tmp_path: Path, save_at: Any) -> None:
    class FailEarly(Hook):
        def after_load_checkpoint(self) -> None:
            raise RuntimeError("simulated crash")

    fake_training([JsonlHook(interval=1), save_at(tmp_path / "checkpoints", 2)], work_dir=tmp_path)
    content = (tmp_path / "logs" / "metrics.jsonl").read_bytes()

    with pytest.raises(RuntimeError):
        fake_training([JsonlHook(interval=1), FailEarly()], work_dir=tmp_path, resume="auto", config={"lr": 1})

    assert (tmp_path / "logs" / "metrics.jsonl").read_bytes() == content


@pytest.mark.parametrize("is_inside", [True, False])
def test_checkpoint_of_another_run_truncates_no_file(tmp_path: Path, save_at: Any, is_inside: bool) -> None:
    path = None if is_inside else tmp_path / "custom.jsonl"
    fake_training([JsonlHook(interval=1), save_at(tmp_path / "other", 2)], epochs=1, work_dir=tmp_path / "a")
    fake_training([JsonlHook(interval=1, path=path)], epochs=1, work_dir=tmp_path / "b")
    log = path or tmp_path / "b" / "logs" / "metrics.jsonl"
    content = log.read_bytes()

    resume = {"resume": tmp_path / "other" / "2.pth"}
    fake_training([JsonlHook(interval=1, path=path)], epochs=2, work_dir=tmp_path / "b", **resume)

    assert log.read_bytes() == content
    rows = read_rows(tmp_path / "b-2") if is_inside else read_jsonl(tmp_path / "custom-2.jsonl")
    assert [row["step"] for row in rows] == [3, 4, 5, 6]


def test_run_resumes_its_file_at_a_custom_path(tmp_path: Path, save_at: Any) -> None:
    path = tmp_path / "custom.jsonl"
    saves = save_at(tmp_path / "run" / "checkpoints", 2)
    fake_training([JsonlHook(interval=1, path=path), saves], epochs=1, work_dir=tmp_path / "run")

    fake_training([JsonlHook(interval=1, path=path)], work_dir=tmp_path / "run", resume="auto")

    assert [row["step"] for row in read_jsonl(path)] == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "custom-2.jsonl").exists()


def test_incomplete_line_is_removed_before_the_run_resumes(tmp_path: Path, save_at: Any) -> None:
    fake_training([JsonlHook(interval=1), save_at(tmp_path / "checkpoints", 3)], epochs=1, work_dir=tmp_path)
    with open(tmp_path / "logs" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "tra')

    fake_training([JsonlHook(interval=1)], epochs=2, work_dir=tmp_path, resume="auto")

    assert read_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_test_of_an_older_checkpoint_removes_no_rows(
    tmp_path: Path, trainer: Callable[..., Trainer], save_at: Any
) -> None:
    options: dict[str, Any] = {"losses": [1.0, 2.0, 3.0, 4.0], "work_dir": tmp_path}
    trainer(JsonlHook(interval=1), save_at(tmp_path / "checkpoints", 2), **options).fit()
    tester = trainer(JsonlHook(), test_loader=[torch.tensor([5.0])], **options)
    tester.resume = tmp_path / "checkpoints" / "2.pth"
    tester.test()
    assert read_steps(tmp_path) == [1, 2, 3, 4]

    trainer(JsonlHook(interval=1), resume="auto", **options).fit()

    assert sorted(read_steps(tmp_path)) == [1, 2, 3, 4]
    assert [row["values"] for row in read_rows(tmp_path, "test")] == [{"test/loss": 5.0}]


def test_hook_without_state_truncates_the_file_by_step(tmp_path: Path, save_at: Any) -> None:
    fake_training([JsonlHook(interval=1, name="old"), save_at(tmp_path / "checkpoints", 2)], work_dir=tmp_path)

    fake_training([JsonlHook(interval=1, name="new")], work_dir=tmp_path, resume="auto")

    assert read_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


KILLED_SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    from hookbus import Hook, Trainer
    from hookbus.checkpoint.state import write_checkpoint
    from hookbus.testing import fake_training
    from hookbus_logger import JsonlHook

    directory, resume = Path(sys.argv[1]), sys.argv[2]

    class Kill(Hook):
        def after_train_iter(self, run):
            if run.iters_done == 100 and resume == "never":
                run.request_save(saver=self)
            if run.iters_done == 155 and resume == "never":
                os.kill(os.getpid(), signal.SIGKILL)

        def plan(self, run, requests):
            (directory / "checkpoints").mkdir()
            return directory / "checkpoints" / "100.pth"

        def write(self, run, checkpoint):
            write_checkpoint(directory / "checkpoints" / "100.pth", checkpoint, 1)
            return False

    fake_training([JsonlHook(interval=10), Kill()], epochs=4, batches=50, work_dir=directory, resume=resume)
"""


@pytest.mark.slow
def test_killed_process_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED_SCRIPT), str(tmp_path)]

    killed = subprocess.run([*command, "never"], env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    assert read_steps(tmp_path)[-1] == 150
    subprocess.run([*command, "auto"], check=True)

    assert read_steps(tmp_path) == list(range(10, 201, 10))


def test_rows_of_one_optimizer_step_are_sorted_at_any_priority(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    class LogScalar(Hook):
        priority = Priority.LOWEST

        def after_train_iter(self, run: Run) -> None:
            if run.stepped:
                run.bus.emit("log_scalars", values={"own": 1.0})

    trainer(JsonlHook(interval=1), LogScalar(), losses=[1.0] * 16, accumulate=8, work_dir=tmp_path).fit()

    assert [(row["kind"], row["step"]) for row in read_rows(tmp_path)] == [
        *(("train", 1), ("scalars", 1)),
        *(("train", 2), ("scalars", 2)),
    ]


class TestTwoHooks:
    @pytest.mark.parametrize("path", [None, "logs/../logs/metrics.jsonl"])
    def test_one_file_of_two_hooks_is_an_error(self, path: str | None, tmp_path: Path) -> None:
        first = JsonlHook(name="b")
        second = JsonlHook(name="a", path=None if path is None else tmp_path / path)
        with pytest.raises(ConfigError, match=r"path: hook '[ab]' also writes to .*metrics\.jsonl"):
            fake_training([first, second], work_dir=tmp_path)

    def test_one_file_of_two_hooks_is_an_error_of_the_check(
        self, trainer: Callable[..., Trainer], tmp_path: Path
    ) -> None:
        hooks = JsonlHook(name="b"), JsonlHook(name="a", path="logs/metrics.jsonl")
        with pytest.raises(ConfigError, match=r"path: hook '[ab]' also writes to .*metrics\.jsonl"):
            trainer(*hooks, losses=[1.0], work_dir=tmp_path / "x").check()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("is_reversed", [False, True])
    def test_two_hooks_write_their_own_files(self, is_reversed: bool, tmp_path: Path) -> None:
        hooks = [
            JsonlHook(name="a", interval=1),
            JsonlHook(name="b", interval=2, by_epoch=False, path=tmp_path / "other.jsonl"),
        ]
        fake_training(hooks[::-1] if is_reversed else hooks, epochs=2, batches=3, work_dir=tmp_path)

        assert read_steps(tmp_path) == [1, 2, 3, 4, 5, 6]
        rows = [row for row in read_jsonl(tmp_path / "other.jsonl") if row["kind"] == "train"]
        assert [row["step"] for row in rows] == [2, 4, 6]

    def test_two_hooks_pass_the_check(self, tmp_path: Path) -> None:
        settings = {"interval": 1, "path": tmp_path / "a.jsonl"}, {"interval": 2, "path": tmp_path / "b.jsonl"}
        check_two_instances(JsonlHook, *settings, directory=tmp_path / "runs")
