"""The end of a run: events of the hooks, `status.json` and the exception of the caller."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook, HookBus, Trainer, hookimpl
from hookbus._run.acquisition import acquire
from hookbus._run.finalize import EXIT_CODES, resolve_outcome
from hookbus._run.status import read_status
from hookbus.errors import format_error
from hookbus.lifecycle import POINTS
from tests import toys

AT_END = ("after_run", "cleanup")
NOT_IN_TRAINING = {
    "before_test", "before_test_epoch", "before_test_iter", "after_test_iter", "after_test_epoch", "after_test",
    "before_predict", "before_predict_epoch", "before_predict_iter",
    "after_predict_iter", "after_predict_epoch", "after_predict",
    "log_images", "log_histograms", "log_figure", "log_text", "log_artifact", "on_exception",
}  # fmt: skip
IN_TRAINING = [point for point in POINTS if point not in NOT_IN_TRAINING]
BEFORE_LOOP = ("before_run", "log_config", "after_load_checkpoint")
IN_LOOP = [point for point in IN_TRAINING if point not in (*BEFORE_LOOP, *AT_END)]


class RequestRecords(Hook):
    """Hook that requests a record of each iteration, so that `log_scalars` is emitted."""

    def after_train_iter(self, run: Any) -> None:
        window = run.metrics.window(self.name)
        run.request_record(window, lambda metrics, step: run.bus.emit("log_scalars", values=metrics, step=step))


class EventRecorder:
    """Listener of all points that records the events of a training, and acts at the first event of one point."""

    def __init__(self, training: Trainer, point: str, act: Callable[[], None]) -> None:
        self.events: list[str] = []
        self.outcomes: list[tuple[str, str, str]] = []
        self.exceptions: list[BaseException] = []
        for name in POINTS:
            setattr(self, name, hookimpl(self._recorder(name)))
        training.bus.register(self, "recorder")
        training.bus.on(point, name="culprit")(self._once(act))

    def _recorder(self, point: str) -> Callable[..., None]:
        def record(run: Any) -> None:
            self.events.append(point)
            if point in AT_END:
                self.outcomes.append((point, run.outcome, type(run.exception).__name__))

        return record

    def _once(self, act: Callable[[], None]) -> Callable[..., None]:
        def first() -> None:
            if "acted" not in self.events:
                self.events.append("acted")
                act()

        return first

    def since(self, point: str) -> list[str]:
        """Return the events of other points after the action."""
        return [event for event in self.events[self.events.index("acted") + 1 :] if event != point]


def raise_error(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of iteration 2, within the first epoch."""
    saver = toys.Saver("after_train_iter", 2)
    toys.trainer(saver, work_dir=tmp_path_factory.mktemp("earlier"), iterations=2).fit()
    return saver.files[0]


@pytest.fixture
def training(file: Path, tmp_path: Path) -> Trainer:
    """Training in which every point of a training is emitted."""
    options: dict[str, Any] = {
        "work_dir": tmp_path / "run",
        "resume": file,
        "val_loader": toys.pairs(),
        "config": {"lr": 0.1},
    }
    return toys.trainer(RequestRecords(), toys.Saver("after_train"), epochs=2, **options)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Install the default handler of SIGINT, and check that the test restored it."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, earlier) is signal.default_int_handler


def status_of(training: Trainer) -> Mapping[str, Any]:
    assert training.work_dir is not None
    return read_status(Path(training.work_dir))


def lock_is_free(training: Trainer) -> bool:
    acquire(Path(str(training.work_dir)), resume=True).release()
    return True


def test_training_emits_every_point_of_a_training(training: Trainer) -> None:
    recorder = EventRecorder(training, "before_run", lambda: None)
    training.fit()
    assert sorted(set(recorder.events) - {"acted"}) == sorted(IN_TRAINING)


class TestException:
    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=repr)
    @pytest.mark.parametrize("point", [point for point in IN_TRAINING if point not in AT_END])
    def test_exception_at_any_point_is_emitted_once_before_the_end(
        self, training: Trainer, point: str, error: BaseException
    ) -> None:
        recorder = EventRecorder(training, point, raise_error(error))
        seen: list[object] = []
        training.bus.on("on_exception")(lambda exception: seen.append(exception))
        with pytest.raises(type(error)) as caught:
            training.fit()
        assert caught.value is error
        assert seen == [error]
        assert recorder.since(point) == ["on_exception", "after_run", "cleanup"]
        outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        assert recorder.outcomes == [(last_point, outcome, type(error).__name__) for last_point in AT_END]
        status = status_of(training)
        assert (status["outcome"], status["exit_code"]) == (outcome, EXIT_CODES[outcome])
        assert status["error"] == format_error(error)
        assert not training.bus.current.is_running
        assert lock_is_free(training)

    @pytest.mark.parametrize(
        ("error", "outcome"), [(ValueError("broken"), "failed"), (KeyboardInterrupt(), "interrupted")]
    )
    @pytest.mark.parametrize("point", AT_END)
    def test_exception_at_the_end_fails_a_completed_run(
        self, training: Trainer, point: str, error: BaseException, outcome: str
    ) -> None:
        recorder = EventRecorder(training, point, raise_error(error))
        with pytest.raises(type(error)) as caught:
            training.fit()
        assert caught.value is error
        assert recorder.since(point) == (["cleanup"] if point == "after_run" else [])
        assert {entry for entry in recorder.outcomes if entry[1] != "finished"} <= {
            ("cleanup", outcome, type(error).__name__)
        }
        assert (status_of(training)["outcome"], status_of(training)["epochs_done"]) == (outcome, 2)
        assert lock_is_free(training)

    def test_exception_drops_pending_requests_with_a_warning(
        self, training: Trainer, caplog: pytest.LogCaptureFixture
    ) -> None:
        def request_and_fail(run: Any) -> None:
            run.request_save("before it is too late")
            run.request_stop("enough")
            raise ValueError("broken")

        training.bus.on("after_train_iter", name="requester")(request_and_fail)
        with pytest.raises(ValueError, match="broken"):
            training.fit()
        assert [line for line in caplog.messages if line.startswith("The run ended")] == [
            "The run ended before a request was processed: save, requested by requester: before it is too late",
            "The run ended before a request was processed: stop, requested by requester: enough",
        ]
        assert training.bus.current.stops == []

    def test_request_after_an_exception_is_dropped_with_a_warning(
        self, training: Trainer, caplog: pytest.LogCaptureFixture
    ) -> None:
        training.bus.on("on_exception", name="requester")(lambda run: run.request_stop("too late"))
        recorder = EventRecorder(training, "before_train", raise_error(ValueError("broken")))
        with pytest.raises(ValueError, match="broken"):
            training.fit()
        assert "The run ended before a request was processed: stop, requested by requester: too late" in caplog.messages
        assert "before_save_checkpoint" not in recorder.events

    def test_exception_of_the_loop_is_emitted_before_the_end(self) -> None:
        bus, called = HookBus(), list[str]()
        bus.on("on_exception", name="a")(lambda exception: called.append(str(exception)))
        bus.on("after_run", name="b")(lambda run: called.append(run.outcome))
        bus.on("cleanup", name="c")(lambda: called.append("cleanup"))
        with pytest.raises(ZeroDivisionError), bus.run(epochs=1) as run:
            next(run.epochs()) / 0
        assert called == ["division by zero", "failed", "cleanup"]


class TestMultipleFailures:
    def test_multiple_errors_at_the_end_are_raised_as_one_group(self, training: Trainer) -> None:
        first, second, third = ValueError("first"), TypeError("second"), OSError("third")
        training.bus.on("after_run", name="a")(raise_error(first))
        training.bus.on("after_run", name="b")(raise_error(second))
        training.bus.on("cleanup", name="c")(raise_error(third))
        with pytest.raises(BaseExceptionGroup, match="hooks failed at the end of the run") as caught:
            training.fit()
        inner, last = caught.value.exceptions
        assert last is third
        assert isinstance(inner, ExceptionGroup)
        assert inner.exceptions == (second, first)
        assert status_of(training)["outcome"] == "failed"

    def test_keyboard_interrupt_is_raised_with_other_errors_as_notes(self, training: Trainer) -> None:
        interrupt = KeyboardInterrupt()
        training.bus.on("after_run", name="a")(raise_error(ValueError("first")))
        training.bus.on("cleanup", name="b")(raise_error(interrupt))
        with pytest.raises(KeyboardInterrupt) as caught:
            training.fit()
        assert caught.value is interrupt
        (note,) = interrupt.__notes__
        assert note.startswith("also raised: ValueError: first (raised by hook 'a'")
        assert (training.bus.current.outcome, status_of(training)["exit_code"]) == ("interrupted", 130)

    def test_error_of_the_training_is_raised_with_errors_at_the_end_as_notes(self, training: Trainer) -> None:
        error, recorder = ValueError("broken"), EventRecorder(training, "before_train", lambda: None)
        training.bus.on("before_train", name="a")(raise_error(error))
        training.bus.on("on_exception", name="b")(raise_error(KeyboardInterrupt()))
        training.bus.on("cleanup", name="c")(raise_error(OSError("third")))
        with pytest.raises(ValueError, match="broken") as caught:
            training.fit()
        assert caught.value is error
        assert [note.partition(" (")[0] for note in error.__notes__[1:]] == [
            "also raised: KeyboardInterrupt",
            "also raised: OSError: third",
        ]
        assert [event for event in recorder.events if event in AT_END] == ["after_run", "cleanup"]
        assert status_of(training)["outcome"] == "failed"

    def test_foreign_status_is_not_modified_and_does_not_fail_the_run(
        self, training: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def replace_by_directory() -> None:
            (tmp_path / "run" / "status.json").unlink()
            (tmp_path / "run" / "status.json").mkdir()

        training.bus.on("cleanup", name="a")(replace_by_directory)
        assert training.fit().outcome == "finished"
        assert (tmp_path / "run" / "status.json").is_dir()
        (message,) = [line for line in caplog.messages if "status.json" in line]
        assert message.startswith(f"{tmp_path / 'run' / 'status.json'} could not be written: ")


class TestCtrlC:
    @pytest.mark.parametrize("point", IN_LOOP)
    def test_ctrl_c_at_any_point_ends_the_iteration_and_closes_open_points(
        self, training: Trainer, point: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        recorder = EventRecorder(training, point, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert "on_exception" not in recorder.events
        assert recorder.events[-2:] == ["after_run", "cleanup"]
        assert recorder.outcomes == [(last_point, "interrupted", "NoneType") for last_point in AT_END]
        for opening in (name for name in POINTS if name.startswith("before_") and "optimizer" not in name):
            closing = opening.replace("before_", "after_")
            assert recorder.events.count(opening) == recorder.events.count(closing), opening
        run = training.bus.current
        assert run.stop_reasons == ["Ctrl-C"]
        assert status_of(training)["reasons"] == ["Ctrl-C"]
        files = (Path(str(training.work_dir)) / "checkpoints").glob("*.pth")
        assert [path.name for path in files] == [f"iter_{run.iters_done}.pth"]
        expected = "Interrupted: finishing this iteration. Press Ctrl-C again to stop at once."
        assert caplog.messages.count(expected) == 1

    @pytest.mark.parametrize(
        ("point", "iterations"),
        [("before_train", 2), ("before_train_iter", 3), ("after_backward", 3), ("after_epoch", 3)],
    )
    def test_no_iteration_begins_after_ctrl_c(self, training: Trainer, point: str, iterations: int) -> None:
        EventRecorder(training, point, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert training.bus.current.iters_done == iterations

    @pytest.mark.parametrize("point", [*BEFORE_LOOP, *AT_END])
    def test_ctrl_c_outside_of_the_loop_ends_the_run_at_once(self, training: Trainer, point: str) -> None:
        recorder = EventRecorder(training, point, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert [event for event in recorder.since(point) if event in AT_END] == [
            last_point for last_point in AT_END if point not in (last_point, "cleanup")
        ]
        assert (training.bus.current.outcome, status_of(training)["exit_code"]) == ("interrupted", 130)

    @pytest.mark.parametrize("point", IN_LOOP)
    def test_second_ctrl_c_ends_the_run_at_once(self, training: Trainer, point: str) -> None:
        def twice() -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        recorder = EventRecorder(training, point, twice)
        with pytest.raises(KeyboardInterrupt):
            training.fit()
        assert recorder.since(point) == ["on_exception", "after_run", "cleanup"]
        assert status_of(training)["outcome"] == "interrupted"


class RequestStops(Hook):
    def __init__(self, *outcomes: str) -> None:
        super().__init__()
        self.outcomes = outcomes

    def after_train_iter(self, run: Any) -> None:
        for outcome in self.outcomes:
            run.request_stop(f"it is {outcome}", outcome=outcome)


class TestOutcome:
    @pytest.mark.parametrize(
        ("outcomes", "outcome"),
        [
            ((), "finished"),
            (("stopped",), "stopped"),
            (("stopped", "preempted"), "preempted"),
            (("preempted", "interrupted", "stopped"), "interrupted"),
        ],
    )
    def test_outcome_is_the_strongest_of_the_stop_requests(self, outcomes: tuple[str, ...], outcome: str) -> None:
        with contextlib.suppress(KeyboardInterrupt), HookBus([RequestStops(*outcomes)]).run(iterations=1) as run:
            for _ in run.epochs():
                for _ in run.batches([1]):
                    run.bus.emit("after_train_iter")
            assert run.outcome == "running"
            assert resolve_outcome(run) == outcome
        assert run.outcome == outcome

    def test_every_outcome_has_an_exit_code(self) -> None:
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
        ("outcomes", "outcome", "code"),
        [((), "finished", 0), (("stopped",), "stopped", 0), (("preempted",), "preempted", 75)],
    )
    def test_status_contains_outcome_reasons_and_progress(
        self, tmp_path: Path, outcomes: tuple[str, ...], outcome: str, code: int
    ) -> None:
        training = toys.trainer(RequestStops(*outcomes), iterations=2, work_dir=tmp_path, val_loader=toys.pairs())
        run = training.fit()
        status = json.loads((tmp_path / "status.json").read_text())
        done = 1 if outcomes else 2
        assert {key: status[key] for key in ("outcome", "exit_code", "mode", "reasons", "error")} == {
            "outcome": outcome,
            "exit_code": code,
            "mode": "train",
            "reasons": [f"request_stops: it is {reason}" for reason in outcomes],
            "error": None,
        }
        assert status["about"] == {}
        assert (status["epochs_done"], status["iters_done"], status["steps_done"]) == (0, done, done)
        assert (status["best"], status["metrics"]) == ({}, dict(run.metrics.results))

    def test_status_contains_the_best_results(self, tmp_path: Path) -> None:
        from hookbus._run.run import BestResult

        with HookBus().run(work_dir=tmp_path) as run:
            run.best["val/accuracy"] = BestResult(0.5, epoch=2, step=6, path=tmp_path / "best.pth")
            run.metrics.results |= {"val/loss": float("nan")}
        status = read_status(tmp_path)
        assert status["best"] == {"val/accuracy": {"value": 0.5, "epoch": 2, "step": 6}}
        assert status["metrics"] == {"val/loss": None}

    def test_status_is_running_before_any_hook_is_called(self, tmp_path: Path) -> None:
        bus, seen = HookBus(), []
        bus.on("before_run")(lambda: seen.append(read_status(tmp_path)))
        with bus.run(work_dir=tmp_path):
            pass
        assert [(status["outcome"], status["exit_code"]) for status in seen] == [("running", None)]

    def test_final_status_is_written_after_the_cleanup_of_hooks(self, tmp_path: Path) -> None:
        bus, seen = HookBus(), []
        bus.on("cleanup")(lambda: seen.append(read_status(tmp_path)["outcome"]))
        with bus.run(work_dir=tmp_path):
            pass
        assert (seen, read_status(tmp_path)["outcome"]) == (["running"], "finished")

    def test_separate_validation_does_not_modify_the_status(self, tmp_path: Path) -> None:
        training = toys.trainer(epochs=1, work_dir=tmp_path, val_loader=toys.pairs())
        training.fit()
        before = (tmp_path / "status.json").read_text()
        training.validate()
        assert (tmp_path / "status.json").read_text() == before


def test_status_file_contains_no_secrets(tmp_path: Path) -> None:
    class Login(Hook):
        def before_run(self, run: Any) -> None:
            run.metadata |= {"hub": {"api_key": "keyvalue"}, "command": ["--token", "other"], "count": 3}

        def after_train(self, run: Any) -> None:
            run.request_stop("no access to https://me:other@host")
            raise ValueError("rejected keyvalue")

    training = toys.trainer(Login(), work_dir=tmp_path / "run", epochs=1, config={"api_key": "keyvalue"})
    with pytest.raises(ValueError, match="keyvalue"):
        training.fit()

    status = status_of(training)
    assert status["error"] == "ValueError: rejected ***"
    assert status["about"] == {"hub": {"api_key": "***"}, "command": ["--token", "***"], "count": 3}
    assert "keyvalue" not in json.dumps(status)
    assert "other" not in json.dumps(status)
