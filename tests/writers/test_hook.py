"""Tests of the base class of writer hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Run, Writer, WriterHook
from hookbus.errors import ConfigError
from hookbus.testing import fake_training
from hookbus.writers.append_only_file import AppendOnlyFile
from tests.toys import Saver, trainer


class MemoryWriter(Writer):
    """Writer that appends all records to a list."""

    def __init__(self, lines: list[Any]) -> None:
        self.lines = lines

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        self.lines.append((name, step, value))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        self.lines.append((name, step, tuple(image.shape), caption))

    def write_histogram(self, name: str, values: Any, step: int) -> None:
        self.lines.append((name, step, values.tolist()))

    def write_text(self, name: str, text: str, step: int) -> None:
        self.lines.append((name, step, text))

    def write_config(self, config: Mapping[str, Any]) -> None:
        self.lines.append(config)

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        self.lines.append((path.name, name))

    def write_outcome(self, outcome: str) -> None:
        self.lines.append(outcome)


class MemoryHook(WriterHook):
    """Hook with a writer in memory."""

    checkpoints = False

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.lines: list[Any] = []

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        return lambda: MemoryWriter(self.lines)

    def uploads_checkpoints(self) -> bool:
        return self.checkpoints


class LogsEachType(Hook):
    """Logs one value of each type before training."""

    def before_train(self, run: Run) -> None:
        values = torch.tensor([1.0, 2.0])
        writer = run.get("writer")
        writer.write_image("one", torch.zeros(3, 4, 5), caption="a cat")
        writer.write_image("two", [torch.zeros(4, 5), torch.zeros(4, 5)])
        writer.write_histogram("histogram", values)
        writer.write_histogram("parts", {"a": values})
        writer.write_text("note", "hello")
        writer.write_scalars({"x": 1, "y": torch.tensor(2)})
        values.zero_()


def test_means_of_intervals_and_remaining_values_are_logged_by_step() -> None:
    hook = MemoryHook(interval=2)
    fake_training([hook], epochs=1, batches=5, losses=float)
    assert [line for line in hook.lines if line[0] == "train/loss"] == [
        ("train/loss", 2, 1.5),  # of 1 and 2
        ("train/loss", 4, 3.5),
        ("train/loss", 5, 5.0),
    ]
    assert hook.lines[-1] == "finished"


class StopsAt(Hook):
    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            run.request_save()
            run.request_stop("enough")


def test_incomplete_interval_of_a_stopped_run_is_logged_by_the_resumed_run(tmp_path: Path) -> None:
    uninterrupted, stopped, resumed, saver = (
        MemoryHook(interval=2),
        MemoryHook(interval=2),
        MemoryHook(interval=2),
        Saver(),
    )
    trainer(uninterrupted, epochs=2).fit()  # 6 iterations
    trainer(stopped, saver, StopsAt(3), epochs=2, work_dir=tmp_path / "a").fit()
    trainer(resumed, epochs=2, work_dir=tmp_path / "b", resume=saver.files[-1]).fit()

    # records before the stop are written again by the resumed run, in case a kill has lost them
    losses = [[line for line in hook.lines if line[0] == "train/loss"] for hook in (uninterrupted, stopped, resumed)]
    assert losses[1] == losses[0][:1]
    assert losses[2] == losses[0]


class FileHook(MemoryHook):
    """Hook that creates a file in its directory."""

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        directory = self.directory(run, None)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / run.mode).write_text("")
        return super().writer_factory(run)


def test_overwrite_removes_the_directory_of_the_hook(tmp_path: Path) -> None:
    trainer(FileHook(), epochs=1, work_dir=tmp_path).fit()
    directory = tmp_path / "logs" / FileHook().name
    (directory / "more").write_text("")

    with HookBus().run(work_dir=tmp_path, overwrite=True):
        assert not directory.exists()


def test_record_is_delivered_at_the_next_optimizer_step() -> None:
    hook = MemoryHook(interval=3)
    trainer(
        hook, accumulate=2, epochs=2
    ).fit()  # 6 iterations, optimizer steps at 2, 4 and 6, records requested at 3 and 6
    assert [line[1] for line in hook.lines if line[0] == "train/loss"] == [2, 3]


def test_values_of_log_points_are_written_as_they_were_when_logged() -> None:
    hook = MemoryHook()
    fake_training([hook, LogsEachType()], epochs=1, batches=1, losses=float, config={"lr": 1, "token": "x"})
    assert hook.lines[:8] == [
        {"lr": 1, "token": "***"},
        ("one", 0, (4, 5, 3), "a cat"),
        ("two/0", 0, (4, 5, 1), None),
        ("two/1", 0, (4, 5, 1), None),
        ("histogram", 0, [1.0, 2.0]),
        ("parts/a", 0, [1.0, 2.0]),
        ("note", 0, "hello"),
        ("x", 0, 1.0),
    ]


def test_name_of_another_type_becomes_a_string() -> None:
    hook = MemoryHook()
    bus = HookBus([hook])
    with bus.run(epochs=1):
        bus.emit("before_train")
        bus.emit("log_scalars", values={0: 0.5}, step=1)
    assert ("0", 1, 0.5) in hook.lines


@pytest.mark.parametrize(("uploads", "files"), [(True, ["iter_2.pth"]), (False, [])])
def test_checkpoint_files_are_uploaded_only_if_the_hook_requests_it(
    tmp_path: Path, uploads: bool, files: list[str]
) -> None:
    hook = MemoryHook()
    hook.checkpoints = uploads
    fake_training([hook, Saver("after_train_iter", 2)], epochs=1, work_dir=tmp_path)
    assert [line[0] for line in hook.lines if line[1:] == (None,)] == files


def test_outcome_of_a_failed_run_is_written() -> None:
    hook = MemoryHook(interval=1)
    with pytest.raises(ZeroDivisionError):
        fake_training([hook], losses=lambda iteration: 1 / (2 - iteration))
    assert hook.lines[-1] == "failed"


def test_number_of_recent_values_in_a_checkpoint_is_limited() -> None:
    hook = MemoryHook()
    bus = HookBus([hook])
    with bus.run(epochs=1):
        for step in range(1000):
            bus.emit("log_scalars", values={"a": step, "b": 0}, step=step)
        recent = hook.state_dict()["recent"]
    assert [step for step, _ in recent] == list(range(750, 1000))
    assert recent[-1] == [999, {"a": 999.0, "b": 0.0}]


def test_missing_library_is_reported_with_the_package_to_install() -> None:
    class MissingLibrary(MemoryHook):
        library, install = "missing_library", "missing-library"

    with pytest.raises(
        ConfigError, match="MissingLibrary: the required module missing_library .* Run: pip install missing-library"
    ):
        MissingLibrary()


class LineWriter(Writer):
    """Writer of one line per number."""

    def __init__(self, path: Path) -> None:
        self.file = AppendOnlyFile(path)

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        self.file.append(f"{name} {step}\n".encode())

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Ignore images."""

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Ignore the configuration."""

    def resume(self, since: int, step: int) -> frozenset[Any]:
        lines = [line for line in self.file.read_lines() if int(line.split()[1]) <= step]
        self.file.replace("".join(lines).encode())
        return frozenset()

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class LineHook(WriterHook):
    """Hook that writes one line per number to a file."""

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        path = self.directory(run, None) / "lines.txt"
        return lambda: LineWriter(path)


class FailAt(Hook):
    """Raise an error after an iteration."""

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == 2:
            raise RuntimeError("simulated crash")


def read_steps(directory: Path) -> list[int]:
    lines = (directory / "lines.txt").read_text().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("train/loss")]


def test_records_before_a_restart_are_kept_under_another_name(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError):
            fake_training([LineHook(interval=1, name="lines"), FailAt()], work_dir=tmp_path, resume="auto")
    fake_training([LineHook(interval=1, name="lines")], work_dir=tmp_path, resume="auto")

    steps = [read_steps(tmp_path / "logs" / name) for name in ("lines", "lines-old", "lines-old-2")]
    assert steps == [[1, 2, 3, 4, 5, 6], [1], [1]]


def test_run_that_fails_before_its_training_removes_no_record(tmp_path: Path) -> None:
    class FailEarly(Hook):
        def before_run(self) -> None:
            raise RuntimeError("simulated crash")

    with pytest.raises(RuntimeError):
        fake_training([LineHook(interval=1, name="lines"), FailAt()], work_dir=tmp_path)
    content = (tmp_path / "logs" / "lines" / "lines.txt").read_bytes()
    with pytest.raises(RuntimeError):
        fake_training([LineHook(interval=1, name="lines"), FailEarly()], work_dir=tmp_path, resume="auto")

    assert (tmp_path / "logs" / "lines" / "lines.txt").read_bytes() == content


def test_directory_that_no_run_has_created_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "logs" / "lines").mkdir(parents=True)
    (tmp_path / "logs" / "lines" / "lines.txt").write_text("mine 9\n")

    fake_training([LineHook(interval=1, name="lines")], work_dir=tmp_path)

    assert (tmp_path / "logs" / "lines" / "lines.txt").read_text() == "mine 9\n"
    assert read_steps(tmp_path / "logs" / "lines-2") == [1, 2, 3, 4, 5, 6]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'logs' / 'lines'} was not created by a run and is not changed; lines-2 is used instead."
    ]


@pytest.mark.parametrize("opening", [None, "text:a", [["text:a"]], [1]])
def test_invalid_records_of_the_start_are_refused(opening: object) -> None:
    hook = MemoryHook()
    state = hook.state_dict()
    hook.check_state(state)

    with pytest.raises(ValueError, match="opening"):
        hook.check_state({**state, "opening": opening})
