"""Tests of reading untrusted files."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from hookbus._utils.files import MAX_DEPTH, open_regular_file, parse_json, read_regular_file


def test_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular_file(tmp_path / "a", 5) == b"12345"


def test_file_over_the_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(OSError, match="larger than 4 bytes") as raised:
        read_regular_file(tmp_path / "a", 4)
    assert raised.value.errno == errno.EFBIG


def test_fifo_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular_file(tmp_path / "a", 10)


def test_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("a")
        with pytest.raises(OSError, match="not a regular file"):
            read_regular_file(tmp_path / "a", 10)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_device_is_refused(device: str) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_regular_file(device, 10)


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a directory"):
        read_regular_file(tmp_path, 10)


def test_symbolic_link_is_refused_unless_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError, match="is a symbolic link"):
        read_regular_file(tmp_path / "link", 10)
    with open_regular_file(tmp_path / "link") as file:
        assert file.read() == b"1"


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300])
def test_impossible_name_is_an_os_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="embedded null|surrogates|name too long"):
        read_regular_file(tmp_path / name, 10)


def test_valid_json_is_parsed() -> None:
    assert parse_json(b'{"a": [1, 2.5, null, true, "\xc3\xa4 \\ud83d\\ude00"]}') == {
        "a": [1, 2.5, None, True, "ä \U0001f600"]
    }


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe{}", "can't decode byte 0xff"),
        (b"[NaN]", "NaN is not a finite number"),
        (b"[-Infinity]", "-Infinity is not a finite number"),
        (b"[1e999]", "1e999 is not a finite number"),
        (b'{"a": 1, "b": 2, "a": 3}', "duplicate key 'a'"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b"1" * 5000, "integer string conversion"),
        (b"{} {}", "Extra data"),
        (b"[" * 100_000, "nested deeper than 64 levels"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested deeper than 64 levels"),
    ],
)
def test_invalid_json_is_a_value_error(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"^invalid JSON: .*{reason}"):
        parse_json(data)


def test_nesting_is_limited_exactly() -> None:
    parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(ValueError, match="nested deeper"):
        parse_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    parse_json("[" + ", ".join(["[]"] * 200) + "]")  # many brackets, but two levels
