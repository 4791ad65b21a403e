import resource
from contextlib import contextmanager

import pytest

from hookbus_timer.lines import append_line


@contextmanager
def no_file_larger_than(size):
    """The system refuses to write beyond this size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestAppendLine:
    def test_makes_the_directory_and_the_file(self, tmp_path):
        path = tmp_path / "logs" / "more" / "times.log"

        append_line(path, "one")

        assert path.read_text() == "one\n"

    def test_adds_to_what_is_there(self, tmp_path):
        path = tmp_path / "times.log"

        append_line(path, "one")
        append_line(path, "zwölf")

        assert path.read_text(encoding="utf-8") == "one\nzwölf\n"

    @pytest.mark.parametrize("room", [1, 5, 10])
    def test_a_line_that_does_not_fit_leaves_no_trace(self, tmp_path, room):
        path = tmp_path / "times.log"
        append_line(path, "one")

        with no_file_larger_than(4 + room), pytest.raises(OSError, match="No space left on device"):
            append_line(path, "a line that is too long")

        assert path.read_text() == "one\n"

    def test_goes_on_once_there_is_room_again(self, tmp_path):
        path = tmp_path / "times.log"
        with no_file_larger_than(3), pytest.raises(OSError, match="No space left on device"):
            append_line(path, "lost line")

        append_line(path, "two")

        assert path.read_text() == "two\n"

    def test_says_which_file_cannot_be_written(self, tmp_path):
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            append_line(tmp_path, "one")
