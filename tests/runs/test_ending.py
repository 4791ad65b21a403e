"""However a run ends, its end is told: to every hook once, in `status.json`, and to the caller."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook, HookBus, Trainer, hookimpl
from hookbus.errors import in_one_line
from hookbus.lifecycle import POINTS
from hookbus.runs.ending import EXIT_CODES, agreed_outcome
from hookbus.runs.workdir import claim, read_status
from tests import toys

AT_THE_END = ("after_run", "cleanup")
NOT_IN_TRAINING = {
    "before_test", "before_test_epoch", "before_test_iter", "after_test_iter", "after_test_epoch", "after_test",
    "log_images", "log_histograms", "log_figure", "log_text", "log_artifact", "on_exception",
}  # fmt: skip
IN_TRAINING = [point for point in POINTS if point not in NOT_IN_TRAINING]
BEFORE_THE_LOOP = ("before_run", "log_config", "after_load_checkpoint")
IN_THE_LOOP = [point for point in IN_TRAINING if point not in (*BEFORE_THE_LOOP, *AT_THE_END)]


class Records(Hook):
    """Asks for a record of each iteration, so that `log_scalars` fires."""

    def after_train_iter(self, run: Any) -> None:
        window = run.metrics.window(self.name)
        run.request_record(window, lambda metrics, step: run.bus.emit("log_scalars", values=metrics, step=step))


class Heard:
    """Writes down every event of a training, and does something at the first event of one point."""

    def __init__(self, training: Trainer, point: str, act: Callable[[], None]) -> None:
        self.events: list[str] = []
        self.outcomes: list[tuple[str, str, str]] = []
        self.exceptions: list[BaseException] = []
        for each in POINTS:
            setattr(self, each, hookimpl(self._noting(each)))
        training.bus.register(self, "heard")
        training.bus.on(point, name="culprit")(self._once(act))

    def _noting(self, point: str) -> Callable[..., None]:
        def note(run: Any) -> None:
            self.events.append(point)
            if point in AT_THE_END:
                self.outcomes.append((point, run.outcome, type(run.exception).__name__))

        return note

    def _once(self, act: Callable[[], None]) -> Callable[..., None]:
        def first() -> None:
            if "acted" not in self.events:
                self.events.append("acted")
                act()

        return first

    def since(self, point: str) -> list[str]:
        """The events of other points since it was done."""
        return [each for each in self.events[self.events.index("acted") + 1 :] if each != point]


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of iteration 2, in the middle of the first epoch."""
    saver = toys.Saver("after_train_iter", 2)
    toys.trainer(saver, work_dir=tmp_path_factory.mktemp("earlier"), iterations=2).fit()
    return saver.files[0]


@pytest.fixture
def training(file: Path, tmp_path: Path) -> Trainer:
    """A training in which every point of a training fires."""
    options: dict[str, Any] = {
        "work_dir": tmp_path / "run",
        "resume": file,
        "val_loader": toys.pairs(),
        "config": {"lr": 0.1},
    }
    return toys.trainer(Records(), toys.Saver("after_train"), epochs=2, **options)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C does here what it does in a program; afterwards nobody listens for it in another way."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, earlier) is signal.default_int_handler


def status_of(training: Trainer) -> Mapping[str, Any]:
    assert training.work_dir is not None
    return read_status(Path(training.work_dir))


def lock_is_free(training: Trainer) -> bool:
    claim(Path(str(training.work_dir)), resume=True).release()
    return True


def test_these_are_the_points_of_a_training(training: Trainer) -> None:
    heard = Heard(training, "before_run", lambda: None)
    training.fit()
    assert sorted(set(heard.events) - {"acted"}) == sorted(IN_TRAINING)


class TestAnException:
    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=repr)
    @pytest.mark.parametrize("point", [point for point in IN_TRAINING if point not in AT_THE_END])
    def test_is_told_once_and_then_the_end_whatever_the_point(
        self, training: Trainer, point: str, error: BaseException
    ) -> None:
        heard = Heard(training, point, raising(error))
        seen: list[object] = []
        training.bus.on("on_exception")(lambda exception: seen.append(exception))
        with pytest.raises(type(error)) as caught:
            training.fit()
        assert caught.value is error
        assert seen == [error]
        assert heard.since(point) == ["on_exception", "after_run", "cleanup"]
        outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        assert heard.outcomes == [(each, outcome, type(error).__name__) for each in AT_THE_END]
        status = status_of(training)
        assert (status["outcome"], status["exit_code"]) == (outcome, EXIT_CODES[outcome])
        assert status["error"] == in_one_line(error)
        assert not training.bus.current.alive
        assert lock_is_free(training)

    @pytest.mark.parametrize(
        ("error", "outcome"), [(ValueError("broken"), "failed"), (KeyboardInterrupt(), "interrupted")]
    )
    @pytest.mark.parametrize("point", AT_THE_END)
    def test_at_the_end_ends_a_run_that_had_ended_well(
        self, training: Trainer, point: str, error: BaseException, outcome: str
    ) -> None:
        heard = Heard(training, point, raising(error))
        with pytest.raises(type(error)) as caught:
            training.fit()
        assert caught.value is error
        assert heard.since(point) == (["cleanup"] if point == "after_run" else [])
        assert {each for each in heard.outcomes if each[1] != "finished"} <= {
            ("cleanup", outcome, type(error).__name__)
        }
        assert (status_of(training)["outcome"], status_of(training)["epochs_done"]) == (outcome, 2)
        assert lock_is_free(training)

    def test_leaves_requests_undone_and_says_so(self, training: Trainer, caplog: pytest.LogCaptureFixture) -> None:
        def ask_and_fail(run: Any) -> None:
            run.request_save("before it is too late")
            run.request_stop("enough")
            raise ValueError("broken")

        training.bus.on("after_train_iter", name="asking")(ask_and_fail)
        with pytest.raises(ValueError, match="broken"):
            training.fit()
        assert [line for line in caplog.messages if line.startswith("The run ended")] == [
            "The run ended before a request was processed: save, requested by asking: before it is too late",
            "The run ended before a request was processed: stop, requested by asking: enough",
        ]
        assert training.bus.current.stops == []

    def test_what_is_asked_for_after_it_is_not_done_either(
        self, training: Trainer, caplog: pytest.LogCaptureFixture
    ) -> None:
        training.bus.on("on_exception", name="asking")(lambda run: run.request_save("a last one"))
        heard = Heard(training, "before_train", raising(ValueError("broken")))
        with pytest.raises(ValueError, match="broken"):
            training.fit()
        assert "The run ended before a request was processed: save, requested by asking: a last one" in caplog.messages
        assert "before_save_checkpoint" not in heard.events

    def test_of_the_loop_itself_is_told_in_the_same_way(self) -> None:
        bus, called = HookBus(), list[str]()
        bus.on("on_exception", name="a")(lambda exception: called.append(str(exception)))
        bus.on("after_run", name="b")(lambda run: called.append(run.outcome))
        bus.on("cleanup", name="c")(lambda: called.append("cleanup"))
        with pytest.raises(ZeroDivisionError), bus.run(epochs=1) as run:
            next(run.epochs()) / 0
        assert called == ["division by zero", "failed", "cleanup"]


class TestSeveralFailures:
    def test_at_the_end_are_one_group(self, training: Trainer) -> None:
        first, second, third = ValueError("first"), TypeError("second"), OSError("third")
        training.bus.on("after_run", name="a")(raising(first))
        training.bus.on("after_run", name="b")(raising(second))
        training.bus.on("cleanup", name="c")(raising(third))
        with pytest.raises(BaseExceptionGroup, match="hooks failed at the end of the run") as caught:
            training.fit()
        inner, last = caught.value.exceptions
        assert last is third
        assert isinstance(inner, ExceptionGroup)
        assert inner.exceptions == (second, first)
        assert status_of(training)["outcome"] == "failed"

    def test_leave_ctrl_c_as_it_is_with_the_others_noted(self, training: Trainer) -> None:
        interrupt = KeyboardInterrupt()
        training.bus.on("after_run", name="a")(raising(ValueError("first")))
        training.bus.on("cleanup", name="b")(raising(interrupt))
        with pytest.raises(KeyboardInterrupt) as caught:
            training.fit()
        assert caught.value is interrupt
        (note,) = interrupt.__notes__
        assert note.startswith("also raised: ValueError: first (raised by hook 'a'")
        assert (training.bus.current.outcome, status_of(training)["exit_code"]) == ("interrupted", 130)

    def test_leave_the_error_of_the_training_as_it_is(self, training: Trainer) -> None:
        error, heard = ValueError("broken"), Heard(training, "before_train", lambda: None)
        training.bus.on("before_train", name="a")(raising(error))
        training.bus.on("on_exception", name="b")(raising(KeyboardInterrupt()))
        training.bus.on("cleanup", name="c")(raising(OSError("third")))
        with pytest.raises(ValueError, match="broken") as caught:
            training.fit()
        assert caught.value is error
        assert [note.partition(" (")[0] for note in error.__notes__[1:]] == [
            "also raised: KeyboardInterrupt",
            "also raised: OSError: third",
        ]
        assert [each for each in heard.events if each in AT_THE_END] == ["after_run", "cleanup"]
        assert status_of(training)["outcome"] == "failed"

    def test_a_status_that_cannot_be_written_is_one_of_them(self, training: Trainer, tmp_path: Path) -> None:
        def take_its_place() -> None:
            (tmp_path / "run" / "status.json").unlink()
            (tmp_path / "run" / "status.json").mkdir()

        training.bus.on("cleanup", name="a")(take_its_place)
        with pytest.raises(IsADirectoryError):
            training.fit()
        assert training.bus.current.outcome == "failed"
        assert lock_is_free(training)


class TestCtrlC:
    @pytest.mark.parametrize("point", IN_THE_LOOP)
    def test_lets_the_iteration_end_and_everything_be_closed_whatever_is_running(
        self, training: Trainer, point: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard = Heard(training, point, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert "on_exception" not in heard.events
        assert heard.events[-2:] == ["after_run", "cleanup"]
        assert heard.outcomes == [(each, "interrupted", "NoneType") for each in AT_THE_END]
        for opening in (each for each in POINTS if each.startswith("before_") and "optimizer" not in each):
            closing = opening.replace("before_", "after_")
            assert heard.events.count(opening) == heard.events.count(closing), opening
        run = training.bus.current
        assert run.stop_reasons == ["Ctrl-C"]
        assert status_of(training)["reasons"] == ["Ctrl-C"]
        files = (Path(str(training.work_dir)) / "checkpoints").glob("*.pth")
        assert [each.name for each in files] == [f"iter_{run.iters_done}.pth"]
        expected = "Interrupted: finishing this iteration. Press Ctrl-C again to stop at once."
        assert caplog.messages.count(expected) == 1

    @pytest.mark.parametrize(
        ("point", "iterations"),
        [("before_train", 2), ("before_train_iter", 3), ("after_backward", 3), ("after_epoch", 3)],
    )
    def test_no_further_iteration_begins(self, training: Trainer, point: str, iterations: int) -> None:
        Heard(training, point, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert training.bus.current.iters_done == iterations

    @pytest.mark.parametrize("point", [*BEFORE_THE_LOOP, *AT_THE_END])
    def test_outside_of_the_loop_it_ends_the_run_at_once(self, training: Trainer, point: str) -> None:
        heard = Heard(training, point, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert [each for each in heard.since(point) if each in AT_THE_END] == [
            each for each in AT_THE_END if point not in (each, "cleanup")
        ]
        assert (training.bus.current.outcome, status_of(training)["exit_code"]) == ("interrupted", 130)

    @pytest.mark.parametrize("point", IN_THE_LOOP)
    def test_a_second_time_it_ends_the_run_at_once(self, training: Trainer, point: str) -> None:
        def twice() -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        heard = Heard(training, point, twice)
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert heard.since(point) == ["on_exception", "after_run", "cleanup"]
        assert status_of(training)["outcome"] == "interrupted"


class Asks(Hook):
    def __init__(self, *outcomes: str) -> None:
        super().__init__()
        self.outcomes = outcomes

    def after_train_iter(self, run: Any) -> None:
        for outcome in self.outcomes:
            run.request_stop(f"it is {outcome}", outcome=outcome)


class TestOutcome:
    @pytest.mark.parametrize(
        ("asked", "outcome"),
        [
            ((), "finished"),
            (("stopped",), "stopped"),
            (("stopped", "preempted"), "preempted"),
            (("preempted", "interrupted", "stopped"), "interrupted"),
        ],
    )
    def test_is_the_most_urgent_of_what_was_asked_for(self, asked: tuple[str, ...], outcome: str) -> None:
        with contextlib.suppress(KeyboardInterrupt), HookBus([Asks(*asked)]).run(iterations=1) as run:
            for _ in run.epochs():
                for _ in run.batches([1]):
                    run.bus.emit("after_train_iter")
            assert run.outcome == "running"
            assert agreed_outcome(run) == outcome
        assert run.outcome == outcome

    def test_every_one_has_an_exit_code(self) -> None:
        assert EXIT_CODES == {
            "finished": 0,
            "stopped": 0,
            "failed": 1,
            "aborted": 1,
            "preempted": 75,
            "interrupted": 130,
        }


class TestStatus:
    @pytest.mark.parametrize(
        ("asked", "outcome", "code"),
        [((), "finished", 0), (("stopped",), "stopped", 0), (("preempted",), "preempted", 75)],
    )
    def test_says_how_it_ended_why_and_how_far_it_got(
        self, tmp_path: Path, asked: tuple[str, ...], outcome: str, code: int
    ) -> None:
        training = toys.trainer(Asks(*asked), iterations=2, work_dir=tmp_path, val_loader=toys.pairs())
        run = training.fit()
        status = json.loads((tmp_path / "status.json").read_text())
        done = 1 if asked else 2
        assert {key: status[key] for key in ("outcome", "exit_code", "mode", "reasons", "error")} == {
            "outcome": outcome,
            "exit_code": code,
            "mode": "train",
            "reasons": [f"asks: it is {each}" for each in asked],
            "error": None,
        }
        assert status["about"] == {}
        assert (status["epochs_done"], status["iters_done"], status["steps_done"]) == (0, done, done)
        assert (status["best"], status["metrics"]) == ({}, dict(run.metrics.results))

    def test_names_the_best_results(self, tmp_path: Path) -> None:
        from hookbus.run import Best

        with HookBus().run(work_dir=tmp_path) as run:
            run.best["val/accuracy"] = Best(0.5, epoch=2, step=6, path=tmp_path / "best.pth")
            run.metrics.results |= {"val/loss": float("nan")}
        status = read_status(tmp_path)
        assert status["best"] == {"val/accuracy": {"value": 0.5, "epoch": 2, "step": 6}}
        assert status["metrics"] == {"val/loss": None}

    def test_says_that_the_run_is_going_on_before_any_hook_is_called(self, tmp_path: Path) -> None:
        bus, seen = HookBus(), []
        bus.on("before_run")(lambda: seen.append(read_status(tmp_path)))
        with bus.run(work_dir=tmp_path):
            pass
        assert [(each["outcome"], each["exit_code"]) for each in seen] == [("running", None)]

    def test_is_written_when_every_hook_has_cleaned_up(self, tmp_path: Path) -> None:
        bus, seen = HookBus(), []
        bus.on("cleanup")(lambda: seen.append(read_status(tmp_path)["outcome"]))
        with bus.run(work_dir=tmp_path):
            pass
        assert (seen, read_status(tmp_path)["outcome"]) == (["running"], "finished")

    def test_is_left_alone_by_a_validation_on_its_own(self, tmp_path: Path) -> None:
        training = toys.trainer(epochs=1, work_dir=tmp_path, val_loader=toys.pairs())
        training.fit()
        before = (tmp_path / "status.json").read_text()
        training.validate()
        assert (tmp_path / "status.json").read_text() == before
