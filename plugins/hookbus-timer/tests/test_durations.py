import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_timer.time_tracking import format_duration


def parse_duration(text: str) -> int:
    days, hours, minutes, seconds = re.fullmatch(r"(?:(\d+) d )?(\d+):(\d\d):(\d\d)", text).groups()
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)


class TestFormatDuration:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (None, "unknown"),
            (0, "0.0 s"),
            (0.04, "0.0 s"),
            (4.25, "4.2 s"),
            (59.94, "59.9 s"),
            (59.96, "0:01:00"),
            (60, "0:01:00"),
            (62.4, "0:01:02"),
            (3599.4, "0:59:59"),
            (3599.6, "1:00:00"),
            (3723, "1:02:03"),
            (86399, "23:59:59"),
            (86400, "1 d 0:00:00"),
            (2 * 86400 + 3 * 3600 + 4 * 60 + 5, "2 d 3:04:05"),
        ],
    )
    def test_short_durations_are_seconds_and_long_ones_clock_times(self, seconds, text):
        assert format_duration(seconds) == text

    @given(st.integers(min_value=60, max_value=10**9))
    def test_integer_seconds_are_formatted_exactly(self, seconds):
        assert parse_duration(format_duration(seconds)) == seconds

    @given(st.floats(min_value=60, max_value=1e9))
    def test_duration_is_rounded_to_the_nearest_second(self, seconds):
        assert abs(parse_duration(format_duration(seconds)) - seconds) <= 0.5
