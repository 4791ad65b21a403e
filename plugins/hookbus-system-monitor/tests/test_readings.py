import pytest

from hookbus_system_monitor.readings import Probe, Rate, Reader, Total


def failing(error):
    def read():
        raise error

    return read


class TestAReader:
    def test_gives_the_numbers_by_name(self):
        assert Reader(pytest.fail).read(Probe("it", ("a", "b"), lambda: (1, None))) == {"a": 1, "b": None}

    def test_gives_none_for_each_number_of_what_fails(self):
        assert Reader([].append).read(Probe("it", ("a", "b"), failing(OSError("gone")))) == {"a": None, "b": None}

    def test_says_once_of_each_that_it_cannot_be_read(self):
        lines = []
        reader = Reader(lines.append)
        for _ in range(3):
            reader.read(Probe("this", ("a",), failing(OSError("gone"))))
            reader.read(Probe("that", ("b",), failing(KeyError())))

        assert lines == [
            "this cannot be read (gone): there is no value for it as long as that lasts.",
            "that cannot be read (KeyError): there is no value for it as long as that lasts.",
        ]

    def test_passes_on_what_means_more_than_one_number(self):
        lines = []
        with pytest.raises(OSError, match="gone"):
            Reader(lines.append).read(Probe("it", ("a",), failing(OSError("gone"))), passes_on=(OSError,))
        assert lines == []


class TestARate:
    def test_is_not_known_at_the_first_look(self):
        assert Rate().per_second(100, 1) is None

    def test_is_the_growth_by_the_time(self):
        rate = Rate()
        rate.per_second(100, 10)

        assert rate.per_second(130, 14) == 7.5
        assert rate.per_second(130, 15) == 0

    def test_is_not_known_where_the_counter_began_again(self):
        rate = Rate()
        rate.per_second(100, 10)

        assert rate.per_second(20, 14) is None
        assert rate.per_second(30, 16) == 5

    def test_is_not_known_where_no_time_has_passed(self):
        rate = Rate()
        rate.per_second(100, 10)

        assert rate.per_second(130, 10) is None


class TestATotal:
    def test_is_the_growth_since_the_first_look(self):
        total = Total()

        assert [total.since_start(count) for count in (50, 50, 70)] == [0, 0, 20]

    def test_goes_on_where_the_counter_began_again(self):
        total = Total()

        assert [total.since_start(count) for count in (50, 70, 5, 8)] == [0, 20, 25, 28]
