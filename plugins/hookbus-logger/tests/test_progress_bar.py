"""Tests of the throughput measurement, the progress line and the ticker thread."""

import subprocess
import sys
import textwrap
import threading

import pytest
from rich.console import Console, Group

from hookbus_logger.progress_bar import (
    ProgressState,
    ThroughputMeter,
    Ticker,
    build_bar,
    format_line,
    format_throughput,
)


def render(state: ProgressState, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(Group(build_bar(state, width)))
    return captured.get()


def test_throughput_is_the_number_of_iterations_per_second() -> None:
    meter = ThroughputMeter()
    for done, now in ((80, 100.0), (85, 105.0), (90, 110.0)):
        meter.update(done, now)

    assert meter.per_second == 1.0


def test_throughput_excludes_pauses() -> None:
    meter = ThroughputMeter()
    meter.update(0, 0.0)
    meter.pause(5.0)
    meter.update(10, 12.0)
    meter.resume(25.0)
    meter.update(20, 30.0)

    assert meter.per_second == 20 / 10


def test_throughput_uses_only_the_window() -> None:
    meter = ThroughputMeter(span=10.0)
    meter.update(0, 0.0)
    for second in range(1, 31):
        meter.update(100 * second, float(second))
    for second in range(31, 41):
        meter.update(3000 + second - 30, float(second))

    assert meter.per_second == 1.0


def test_two_measurements_outside_the_window_yield_a_throughput() -> None:
    meter = ThroughputMeter(span=10.0)
    meter.update(0, 0.0)
    meter.update(50, 100.0)

    assert meter.per_second == 0.5


def test_throughput_is_none_before_an_iteration_is_completed() -> None:
    meter = ThroughputMeter()
    assert meter.per_second is None
    meter.update(7, 1.0)
    assert meter.per_second is None
    meter.update(7, 2.0)
    assert meter.per_second is None


@pytest.mark.parametrize(
    ("per_second", "text"), [(1234.5, "1234 it/s"), (46.94, "46.9 it/s"), (1.0, "1.0 it/s"), (0.25, "4.0 s/it")]
)
def test_throughput_below_one_is_formatted_in_seconds_per_iteration(per_second: float, text: str) -> None:
    assert format_throughput(per_second) == text


def test_plain_line_contains_all_fields() -> None:
    state = ProgressState("epoch 2/5", 150, 450, loss=0.4213, per_second=12.3, eta="0:00:24")

    assert format_line(state) == "epoch 2/5  150/450  loss 0.4213  12.3 it/s  eta 0:00:24"
    assert format_line(ProgressState("validating", 3)) == "validating  3 it"


def test_bar_fits_on_one_line_at_any_width() -> None:
    state = ProgressState("epoch 2/5", 225, 450, loss=0.4213, per_second=12.3, eta="0:00:24")

    assert render(state).split() == [
        *("epoch", "2/5", "━" * 16, "225/450"),
        *("loss", "0.4213", "12.3", "it/s", "eta", "0:00:24"),
    ]
    for width in range(10, 100):
        assert render(state, width).count("\n") == 1
        assert len(render(state, width).rstrip("\n")) <= width


def test_narrow_terminal_omits_the_bar() -> None:
    state = ProgressState("epoch 2/5", 225, 450, loss=0.4213, per_second=12.3, eta="0:00:24")

    assert render(state, 60) == "epoch 2/5  225/450  loss 0.4213  12.3 it/s  eta 0:00:24\n"
    assert render(state, 30) == "epoch 2/5  225/450  loss 0.42…\n"


def test_bar_without_a_total_contains_the_count() -> None:
    assert "━" in render(ProgressState("validating", 3))
    assert render(ProgressState("validating", 3)).split()[-2:] == ["3", "it"]


def test_ticker_calls_the_function_until_stopped_and_joins_its_thread() -> None:
    called, threads = threading.Event(), set(threading.enumerate())

    ticker = Ticker(0.001, called.set)
    assert called.wait(60)
    ticker.stop()
    called.clear()

    assert set(threading.enumerate()) <= threads
    assert not called.is_set()


FORK_SCRIPT = """
    import os, threading
    from hookbus_logger.progress_bar import Ticker

    lock, ticked = threading.Lock(), threading.Event()

    def tick():
        with lock:
            for _ in range(200_000):
                pass
        ticked.set()

    ticker = Ticker(0.0001, tick)
    ticked.wait(60)
    for _ in range(20):
        child = os.fork()
        if not child:
            os._exit(not lock.acquire(timeout=5))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child process deadlocks"
    ticker.stop()
"""


def test_forked_process_does_not_inherit_a_lock_of_the_thread() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK_SCRIPT)], check=True, timeout=100)
