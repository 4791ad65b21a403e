import resource
from contextlib import contextmanager

import pytest

from hookbus_timer.time_tracking import append_line


@contextmanager
def limit_file_size(size):
    """Limit the size of files, so that a larger write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestAppendLine:
    def test_directory_and_file_are_created(self, tmp_path):
        path = tmp_path / "logs" / "more" / "times.log"

        append_line(path, "one")

        assert path.read_text() == "one\n"

    def test_line_is_appended_to_an_existing_file(self, tmp_path):
        path = tmp_path / "times.log"

        append_line(path, "one")
        append_line(path, "zwölf")

        assert path.read_text(encoding="utf-8") == "one\nzwölf\n"

    @pytest.mark.parametrize("free_bytes", [1, 5, 10])
    def test_line_that_does_not_fit_is_not_written_partially(self, tmp_path, free_bytes):
        path = tmp_path / "times.log"
        append_line(path, "one")

        with limit_file_size(4 + free_bytes), pytest.raises(OSError, match="File too large"):
            append_line(path, "a line that is too long")

        assert path.read_text() == "one\n"

    def test_append_succeeds_after_disk_space_is_freed(self, tmp_path):
        path = tmp_path / "times.log"
        with limit_file_size(3), pytest.raises(OSError, match="File too large"):
            append_line(path, "lost line")

        append_line(path, "two")

        assert path.read_text() == "two\n"

    def test_error_names_the_file(self, tmp_path):
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            append_line(tmp_path, "one")
