import pytest

from hookbus_profiler.report import Report
from hookbus_profiler.split import Times


def times(hooks=(), **parts):
    made = Times(iterations=4)
    made.parts.update(parts)
    made.hooks.update(hooks)
    return made


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            times(data=8, forward=1, backward=1),
            "The run waits for data 80.0 % of the time: let other processes load it",
        ),
        (
            times({"ema": 1, "logger": 3}, forward=4, data=2),
            "Hooks take 40.0 % of the time, the hook logger alone 30.0 %",
        ),
        (times(forward=5, optimizer=5), "The optimizer takes 50.0 % of the time"),
        (times(forward=5, other=5), "50.0 % of the time lies outside of the parts that are known"),
        (times({"ema": 1}, forward=4, backward=4, data=1), "The model itself takes 80.0 % of the time"),
        (times(step=1), "The model itself takes 100.0 % of the time"),
    ],
)
def test_one_sentence_says_what_holds_the_run_back(made, says):
    assert Report(made, workers=0).sentence.startswith(says)


@pytest.mark.parametrize(
    ("workers", "says"),
    [(0, "loader.num_workers is 0"), (4, "raise loader.num_workers (4 now)"), (None, "make the loader faster")],
)
def test_advice_about_data_knows_the_loader(workers, says):
    assert says in Report(times(data=1), workers=workers).sentence


def test_shares_sum_to_one_and_hooks_stand_by_name_from_the_most_expensive_on():
    shares = Report(times({"ema": 1, "logger": 3}, backward=2, data=4)).shares
    assert shares == {"data": 0.4, "backward": 0.2, "hook logger": 0.3, "hook ema": 0.1, "other": 0.0}


def test_all_of_it_as_text():
    report = Report(times({"[ema]": 0.004}, data=0.016, forward=0.020), flops=2_000_000_000, peak=1e12, workers=2)
    assert report.text() == (
        "Where the time goes: 4 iterations of 10.00 ms\n"
        "2 GFLOP per iteration, 200 GFLOP/s, 20.0 % of the 1 TFLOP/s of the device with 16 bits\n"
        "\n"
        "part             ms   share\n"
        "data loading  4.000  40.0 %\n"
        "forward       5.000  50.0 %\n"
        "hook [ema]    1.000  10.0 %\n"
        "\n"
        "The run waits for data 40.0 % of the time: raise loader.num_workers (2 now), or do less work per \n"
        "sample.\n"
    ).replace("per \n", "per\n")


def test_the_head_counts_and_says_what_is_special_about_the_iterations():
    made = Times("measured on a Sunday", iterations=1)
    made.parts["step"] = 0.004
    assert Report(made).text().startswith("Where the time goes: 1 iteration of 4.00 ms, measured on a Sunday\n")
