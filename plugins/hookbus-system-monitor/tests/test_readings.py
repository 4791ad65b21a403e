import pytest

from hookbus_system_monitor.readings import Probe, Rate, Reader, Total


def raise_on_read(error):
    def read():
        raise error

    return read


class TestReader:
    def test_reader_returns_the_values_by_name(self):
        assert Reader(pytest.fail).read(Probe("probe", ("a", "b"), lambda: (1, None))) == {"a": 1, "b": None}

    def test_reader_returns_none_for_each_value_of_a_failed_probe(self):
        assert Reader([].append).read(Probe("probe", ("a", "b"), raise_on_read(OSError("gone")))) == {
            "a": None,
            "b": None,
        }

    def test_reader_reports_each_unavailable_probe_once(self):
        lines = []
        reader = Reader(lines.append)
        for _ in range(3):
            reader.read(Probe("first", ("a",), raise_on_read(OSError("gone"))))
            reader.read(Probe("second", ("b",), raise_on_read(KeyError())))

        assert lines == [
            "first is unavailable: gone. Its values are omitted until it is available.",
            "second is unavailable: KeyError. Its values are omitted until it is available.",
        ]

    def test_reader_propagates_the_given_exceptions(self):
        lines = []
        with pytest.raises(OSError, match="gone"):
            Reader(lines.append).read(Probe("probe", ("a",), raise_on_read(OSError("gone"))), reraise=(OSError,))
        assert lines == []


class TestRate:
    def test_rate_is_none_in_the_first_reading(self):
        assert Rate().per_second(100, 1) is None

    def test_rate_is_the_increase_per_second(self):
        rate = Rate()
        rate.per_second(100, 10)

        assert rate.per_second(130, 14) == 7.5
        assert rate.per_second(130, 15) == 0

    def test_rate_is_none_after_a_counter_reset(self):
        rate = Rate()
        rate.per_second(100, 10)

        assert rate.per_second(20, 14) is None
        assert rate.per_second(30, 16) == 5

    def test_rate_is_none_without_elapsed_time(self):
        rate = Rate()
        rate.per_second(100, 10)

        assert rate.per_second(130, 10) is None


class TestTotal:
    def test_total_is_the_increase_since_the_first_reading(self):
        total = Total()

        assert [total.update(count) for count in (50, 50, 70)] == [0, 0, 20]

    def test_total_continues_after_a_counter_reset(self):
        total = Total()

        assert [total.update(count) for count in (50, 70, 5, 8)] == [0, 20, 25, 28]
