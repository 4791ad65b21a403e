"""The base of hooks that feed a back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Run, Writer, WriterHook
from hookbus.errors import ConfigError
from hookbus.testing import fake_training
from tests.toys import Saver, trainer


class Notebook(Writer):
    """A back end in memory."""

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


class NotebookHook(WriterHook):
    """Records into a list."""

    checkpoints = False

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.lines: list[Any] = []

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        return lambda: Notebook(self.lines)

    def takes_checkpoints(self) -> bool:
        return self.checkpoints


class Reports(Hook):
    """Reports one of each kind before training."""

    def before_train(self, run: Run) -> None:
        values = torch.tensor([1.0, 2.0])
        writer = run.get("writer")
        writer.write_image("one", torch.zeros(3, 4, 5), caption="a cat")
        writer.write_image("two", [torch.zeros(4, 5), torch.zeros(4, 5)])
        writer.write_histogram("spread", values)
        writer.write_histogram("parts", {"a": values})
        writer.write_text("note", "hello")
        writer.write_scalars({"x": 1, "y": torch.tensor(2)})
        values.zero_()


def test_means_over_each_interval_and_over_what_is_left_stand_on_updates() -> None:
    hook = NotebookHook(interval=2)
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


def test_what_a_stop_cuts_is_left_to_the_run_that_goes_on(tmp_path: Path) -> None:
    whole, stopped, rest, saver = NotebookHook(interval=2), NotebookHook(interval=2), NotebookHook(interval=2), Saver()
    trainer(whole, epochs=2).fit()  # 6 iterations
    trainer(stopped, saver, StopsAt(3), epochs=2, work_dir=tmp_path / "a").fit()
    trainer(rest, epochs=2, work_dir=tmp_path / "b", resume=saver.files[-1]).fit()

    # what was recorded before the stop is written once more after it, in case it was lost
    losses = [[line for line in hook.lines if line[0] == "train/loss"] for hook in (whole, stopped, rest)]
    assert losses[1] == losses[0][:1]
    assert losses[2] == losses[0]


class FilingHook(NotebookHook):
    """Leaves a file in the directory of its own."""

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        directory = self.directory(run, None)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / run.mode).write_text("")
        return super().writer_factory(run)


def test_what_is_in_the_directory_of_a_back_end_goes_with_its_run(tmp_path: Path) -> None:
    trainer(FilingHook(), epochs=1, work_dir=tmp_path).fit()
    directory = tmp_path / "logs" / FilingHook().name
    (directory / "more").write_text("")

    with HookBus().run(work_dir=tmp_path, overwrite=True):
        assert not directory.exists()


def test_with_accumulation_a_record_waits_for_the_update() -> None:
    hook = NotebookHook(interval=3)
    trainer(hook, accumulate=2, epochs=2).fit()  # 6 iterations, an update at 2, 4 and 6: due at 3 and 6
    assert [line[1] for line in hook.lines if line[0] == "train/loss"] == [2, 3]


def test_everything_that_is_reported_is_handed_on_as_it_was() -> None:
    hook = NotebookHook()
    fake_training([hook, Reports()], epochs=1, batches=1, losses=float, config={"lr": 1, "token": "x"})
    assert hook.lines[:8] == [
        {"lr": 1, "token": "***"},
        ("one", 0, (4, 5, 3), "a cat"),
        ("two/0", 0, (4, 5, 1), None),
        ("two/1", 0, (4, 5, 1), None),
        ("spread", 0, [1.0, 2.0]),
        ("parts/a", 0, [1.0, 2.0]),
        ("note", 0, "hello"),
        ("x", 0, 1.0),
    ]


def test_a_name_that_is_no_text_becomes_one() -> None:
    hook = NotebookHook()
    bus = HookBus([hook])
    with bus.run(epochs=1):
        bus.emit("before_train")
        bus.emit("log_scalars", values={0: 0.5}, step=1)
    assert ("0", 1, 0.5) in hook.lines


@pytest.mark.parametrize(("takes", "files"), [(True, ["iter_2.pth"]), (False, [])])
def test_checkpoint_files_are_handed_to_a_back_end_that_takes_them(
    tmp_path: Path, takes: bool, files: list[str]
) -> None:
    hook = NotebookHook()
    hook.checkpoints = takes
    fake_training([hook, Saver("after_train_iter", 2)], epochs=1, work_dir=tmp_path)
    assert [line[0] for line in hook.lines if line[1:] == (None,)] == files


def test_a_run_that_fails_is_recorded_as_failed() -> None:
    hook = NotebookHook(interval=1)
    with pytest.raises(ZeroDivisionError):
        fake_training([hook], losses=lambda iteration: 1 / (2 - iteration))
    assert hook.lines[-1] == "failed"


def test_numbers_that_a_checkpoint_remembers_are_few() -> None:
    hook = NotebookHook()
    bus = HookBus([hook])
    with bus.run(epochs=1):
        for step in range(1000):
            bus.emit("log_scalars", values={"a": step, "b": 0}, step=step)
        remembered = hook.state_dict()["recent"]
    assert [step for step, _ in remembered] == list(range(750, 1000))
    assert remembered[-1] == [999, {"a": 999.0, "b": 0.0}]


def test_a_library_that_cannot_be_imported_is_named_with_what_to_do() -> None:
    class Lost(NotebookHook):
        library, install = "surely_not_there", "surely-not-there"

    with pytest.raises(ConfigError, match="Lost needs surely_not_there, .* Run: pip install surely-not-there"):
        Lost()
