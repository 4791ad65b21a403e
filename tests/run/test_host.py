"""Records of what another trainer offers, and requests that it does not carry out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest

from hookbus import HookBus, Run
from hookbus._run.host import Capabilities, Host, HostRequest
from hookbus.errors import ConfigError, RequestError
from hookbus.needs import REQUESTS


class RecordingHost:
    """Host that records what it is called with."""

    checkpoints = "host"

    def __init__(self, **requests: Any) -> None:
        self.capabilities = Capabilities(host="Other", bridge="unused:Unused", requests=requests)
        self.calls: list[tuple[str, Sequence[str]]] = []

    def stop(self, reasons: Sequence[str]) -> None:
        self.calls.append(("stop", reasons))

    def stop_epoch(self) -> None:
        self.calls.append(("stop_epoch", ()))

    def save(self, reasons: Sequence[str]) -> None:
        self.calls.append(("save", reasons))

    def validate(self) -> None:
        self.calls.append(("validate", ()))


def open_run(host: Host) -> Run:
    bus = HookBus()
    run = bus.open(host=host, epochs=3)
    bus.emit("before_train_epoch")
    bus.emit("before_train_iter")
    return run


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
