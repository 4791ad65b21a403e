"""Records of what another trainer offers, and requests that it carries out or refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import pytest

from hookbus import HookBus, Run
from hookbus._run.host import Capabilities, Host, HostRequest
from hookbus.errors import ConfigError, RequestError
from hookbus.needs import REQUESTS
from hookbus.testing import RecordingBus


class RecordingHost:
    """Host that records what it is called with."""

    checkpoints = "host"

    def __init__(self, **requests: Any) -> None:
        self.capabilities = Capabilities(host="Other", bridge="unused:Unused", requests=requests)
        self.calls: list[tuple[str, Sequence[str]]] = []
        self.run: Run | None = None  # whose validation it performs at once
        self.lr_schedule = ""
        self.can_validate = "validation" in requests

    def describe_lr_schedule(self) -> str:
        return self.lr_schedule

    def compute_outputs(self, batch: Any) -> object:
        raise NotImplementedError

    def stop(self, reasons: Sequence[str]) -> None:
        self.calls.append(("stop", reasons))

    def stop_epoch(self) -> None:
        self.calls.append(("stop_epoch", ()))

    def save(self, reasons: Sequence[str]) -> None:
        self.calls.append(("save", reasons))

    def validate(self) -> None:
        self.calls.append(("validate", ()))
        if self.run is not None:
            self.run.begin_validation()
            self.run.end_validation({"loss": 0.5})


def open_run(host: Host, bus: HookBus | None = None, **options: Any) -> Run:
    bus = bus or HookBus()
    run = bus.open(host=host, epochs=3, **options)
    bus.emit("before_train_epoch")
    bus.emit("before_train_iter")
    return run


@pytest.mark.parametrize("has_data", [False, True])
def test_run_can_validate_if_its_host_has_data(has_data: bool) -> None:
    host = RecordingHost(validation="now")
    host.can_validate = has_data
    run = open_run(host)
    assert run.can_validate == has_data
    run.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"missing": {"after_vall": ""}}, "unknown points, got after_vall"),
        ({"approximate": {"b": "", "a": ""}}, "unknown points, got a, b"),
        ({"gradients": ("backward",)}, "unknown points, got backward"),
        ({"requests": {"skp": "now"}}, "unknown requests, got skp"),
        (
            {"missing": {"log_text": "", "after_train_iter": ""}},
            "points that cannot be missing, got after_train_iter, log",
        ),
    ],
)
def test_invalid_name_in_a_record_is_an_error(arguments: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"Capabilities of Other: {expected}"):
        Capabilities(host="Other", bridge="unused:Unused", **arguments)


def test_request_is_honored_unless_it_is_missing_or_never() -> None:
    record = Capabilities(host="Other", bridge="unused:Unused", requests={"stop": "epoch", "save": "never"})
    assert [record.honors(request) for request in ("stop", "save", "skip")] == [True, False, False]


def test_each_request_has_a_name() -> None:
    assert set(REQUESTS) == set(get_args(HostRequest))


REQUEST: dict[str, Callable[[Run], object]] = {
    "stop": lambda run: run.request_stop("enough"),
    "abort": lambda run: run.request_abort("broken"),
    "stop_epoch": lambda run: run.request_stop_epoch(),
    "save": lambda run: run.request_save(),
    "validation": lambda run: run.request_validation(),
    "skip": lambda run: run.request_skip_iter(),
}


def test_run_can_save_if_a_hook_or_the_host_does() -> None:
    host = RecordingHost()
    run = open_run(host)
    assert not run.can_save
    host.capabilities = replace(host.capabilities, requests={"save": "step"})
    assert run.can_save
    host.capabilities = replace(host.capabilities, requests={})
    run.provide("checkpoint_saver", object())
    assert run.can_save
    run.close()


@pytest.mark.parametrize("request_name", REQUEST)
def test_request_that_the_host_does_not_carry_out_is_refused(request_name: str) -> None:
    host = RecordingHost()
    run = open_run(host)
    name = REQUESTS["stop" if request_name == "abort" else request_name]
    with pytest.raises(RequestError, match=f"^loop requested a {name}, which Other does not carry out. Disable"):
        REQUEST[request_name](run)
    run.bus.emit("after_train_iter")
    run.close()
    assert (host.calls, run.outcome) == ([], "finished")


@pytest.mark.parametrize(
    ("request_name", "calls"),
    [
        ("stop", [("stop", ["loop: enough"])]),
        ("abort", [("stop", ["loop: broken"])]),
        ("stop_epoch", [("stop_epoch", ())]),
        ("save", [("save", ["loop"])]),
        ("validation", [("validate", ())]),
        ("skip", []),
    ],
)
def test_request_reaches_the_host_at_the_next_boundary(request_name: str, calls: Any) -> None:
    host = RecordingHost(**dict.fromkeys(REQUESTS, "now"))
    run = open_run(host)
    REQUEST[request_name](run)
    assert host.calls == []
    assert run.should_skip_iter == (request_name == "skip")
    run.bus.emit("after_train_iter")
    assert host.calls == calls
    run.close()


class TestAllRequests:
    """Requests of a host that carries out all of them."""

    REQUESTS: ClassVar = dict.fromkeys(REQUESTS, "now")

    def test_requests_are_processed_in_their_fixed_order(self) -> None:
        bus, host = HookBus(), RecordingHost(**self.REQUESTS)

        @bus.on("after_train_iter", name="careful")
        def request(run: Run) -> None:
            for name in ("stop", "stop_epoch", "save", "validation"):
                REQUEST[name](run)
            assert host.calls == []

        open_run(host, bus)
        bus.emit("after_train_iter")
        assert host.calls == [
            ("validate", ()),
            ("save", ["careful"]),
            ("stop_epoch", ()),
            ("stop", ["careful: enough"]),
        ]
        bus.current.close()

    def test_saves_of_several_hooks_are_one_save_of_the_host(self) -> None:
        host = RecordingHost(**self.REQUESTS)
        run = open_run(host)
        run.request_save("first")
        run.request_save("second")
        run.bus.emit("after_train_iter")
        assert host.calls == [("save", ["loop: first", "loop: second"])]
        run.close()

    def test_validation_may_begin_within_the_event_that_requested_it(self) -> None:
        bus, host = RecordingBus(), RecordingHost(**self.REQUESTS)
        run = host.run = open_run(host, bus)
        run.request_validation()
        bus.emit("after_train_iter")
        assert bus.emitted_points[-4:] == ["before_val", "before_val_epoch", "after_val_epoch", "after_val"]
        assert (dict(run.metrics.results), run.validating) == ({"val/loss": 0.5}, False)
        run.close()

    def test_validated_weights_are_not_validated_again(self) -> None:
        host = RecordingHost(**self.REQUESTS)
        run = host.run = open_run(host)
        run.bus.emit("after_train_iter")
        for _ in range(2):
            run.request_validation()
            run.settle()
        assert host.calls == [("validate", ())]
        run.close()

    def test_validation_function_of_the_run_precedes_that_of_the_host(self) -> None:
        host = RecordingHost(**self.REQUESTS)
        run = open_run(host, validate=lambda: {"loss": 0.25})
        run.request_validation()
        run.bus.emit("after_train_iter")
        assert (host.calls, dict(run.metrics.results)) == ([], {"val/loss": 0.25})
        run.close()

    def test_abort_drops_validations_and_saves(self) -> None:
        host = RecordingHost(**self.REQUESTS)
        run = open_run(host)
        for name in ("save", "validation", "abort"):
            REQUEST[name](run)
        run.bus.emit("after_train_iter")
        assert host.calls == [("stop", ["loop: broken"])]
        run.close()
        assert run.outcome == "aborted"


@pytest.mark.parametrize(("when", "epochs"), [("epoch", 1), ("iteration", 0)])
def test_stop_truncates_the_epoch_unless_the_host_completes_it(when: str, epochs: int) -> None:
    run = open_run(RecordingHost(stop=when))
    run.request_stop()
    for _ in range(3 if when == "epoch" else 1):
        run.bus.emit("after_train_iter")
        if when == "epoch" and run.iters_done < 3:
            run.bus.emit("before_train_iter")
    run.bus.emit("after_train_epoch")
    run.close()
    assert (run.outcome, run.epochs_done) == ("stopped", epochs)
