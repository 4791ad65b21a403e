import pytest

from hookbus_profiler.report import Report
from hookbus_profiler.time_breakdown import Times


def build_times(hooks=(), **parts):
    times = Times(iterations=4)
    times.parts.update(parts)
    times.hooks.update(hooks)
    return times


@pytest.mark.parametrize(
    ("breakdown", "text"),
    [
        (
            build_times(data=8, forward=1, backward=1),
            "Data loading takes 80.0 % of the time. Set `loader.num_workers` above 0",
        ),
        (
            build_times({"ema": 1, "logger": 3}, forward=4, data=2),
            "Hooks take 40.0 % of the time, the hook logger alone 30.0 %",
        ),
        (build_times(forward=5, optimizer=5), "The optimizer takes 50.0 % of the time"),
        (build_times(forward=5, other=5), "50.0 % of the time is spent outside of the measured parts"),
        (build_times({"ema": 1}, forward=4, backward=4, data=1), "The model itself takes 80.0 % of the time"),
        (build_times(step=1), "The model itself takes 100.0 % of the time"),
    ],
)
def test_sentence_reports_the_bottleneck(breakdown, text):
    assert Report(breakdown, workers=0).recommendation.startswith(text)


@pytest.mark.parametrize(
    ("workers", "text"),
    [(0, "Set `loader.num_workers` above 0"), (4, "`loader.num_workers`, now 4"), (None, "Speed up the loader")],
)
def test_advice_on_data_loading_depends_on_the_workers(workers, text):
    assert text in Report(build_times(data=1), workers=workers).recommendation


def test_shares_sum_to_one_with_hooks_sorted_by_time():
    shares = Report(build_times({"ema": 1, "logger": 3}, backward=2, data=4)).shares
    assert shares == {"data": 0.4, "backward": 0.2, "hook logger": 0.3, "hook ema": 0.1, "other": 0.0}


def test_text_contains_the_complete_report():
    report = Report(build_times({"[ema]": 0.004}, data=0.016, forward=0.020), flops=2_000_000_000, peak=1e12, workers=2)
    assert report.to_text() == (
        "Time breakdown: 4 iterations of 10.00 ms\n"
        "2 GFLOP per iteration, 200 GFLOP/s, 20.0 % of the device's 16-bit peak of 1 TFLOP/s\n"
        "\n"
        "part             ms   share\n"
        "data loading  4.000  40.0 %\n"
        "forward       5.000  50.0 %\n"
        "hook [ema]    1.000  10.0 %\n"
        "\n"
        "Data loading takes 40.0 % of the time. Increase `loader.num_workers`, now 2, or reduce the work per\n"
        "sample.\n"
    )


def test_text_starts_with_the_number_of_iterations_and_the_note():
    times = Times("including warm-up", iterations=1)
    times.parts["step"] = 0.004
    assert Report(times).to_text().startswith("Time breakdown: 1 iteration of 4.00 ms, including warm-up\n")
