"""Tests of the shared console and of log messages on it."""

import io
import logging
import os
import re
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.logging import RichHandler

from hookbus import HookBus
from hookbus_logger.console import get_console, print_line, redirect_messages

LOGGER = logging.getLogger("hookbus")


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120, highlight=False)


@pytest.fixture
def narrow() -> Console:
    """Return a terminal of 24 columns."""
    return Console(file=io.StringIO(), width=24, highlight=False, force_terminal=True, color_system=None)


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Return the root logger; remove handlers added by the test afterwards."""
    logger = logging.getLogger()
    before = list(logger.handlers)
    yield logger
    logger.handlers[:] = before


def printed_text(console: Console) -> list[str]:
    """Return the printed lines without the time."""
    assert isinstance(console.file, io.StringIO)
    return [line[21:] for line in console.file.getvalue().splitlines()]


def test_console_of_a_run_is_created_on_the_first_request() -> None:
    with HookBus().run() as run:
        first = get_console(run)
        assert get_console(run) is first is run.get("console")


def test_provided_console_is_used(console: Console) -> None:
    with HookBus().run() as run:
        run.provide("console", console)
        assert get_console(run) is console


@pytest.mark.parametrize(
    ("errors", "expected"), [("strict", r"\u640d\u5931 0.5"), ("replace", "?? 0.5"), ("xmlcharrefreplace", "&#25613;")]
)
def test_characters_that_a_pipe_cannot_encode_are_escaped(
    monkeypatch: pytest.MonkeyPatch, errors: str, expected: str
) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252", errors))
    with HookBus().run() as run:
        print_line(get_console(run), "損失 0.5")
    sys.stdout.flush()

    assert expected in output.getvalue().decode("cp1252")


def test_line_of_a_file_is_not_wrapped_and_has_no_control_characters(console: Console) -> None:
    console.width = 20
    print_line(console, ("much longer than twenty columns", "bold red"), " [not\x1b[2J\r\x07 \x9b2Jmarkup]")

    [line] = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert line[10:] == "much longer than twenty columns [not[2J 2Jmarkup]"
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_recording_console_stores_the_styles() -> None:
    recording = Console(file=io.StringIO(), record=True, highlight=False)
    print_line(recording, ("bad", "bold red"), " good")

    assert "\x1b" not in recording.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1;31mbad\x1b[0m good" in recording.export_text(styles=True)


def test_terminal_size_is_not_queried_for_each_line_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[int] = []

    def size(descriptor: int) -> os.terminal_size:
        queries.append(descriptor)
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", size)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with HookBus().run() as run:
        console = get_console(run)
        queries.clear()
        print_line(console, "a line"), print_line(console, "another one")

    assert console.file.getvalue().count("line\n") == 1  # type: ignore[attr-defined]
    assert queries == []


def test_line_of_a_terminal_is_wrapped_between_words_and_has_no_time(narrow: Console) -> None:
    print_line(narrow, ("warning  ", "yellow"), "the path runs/with/a/long/name/x cannot be read\nand so on, for ever")

    assert narrow.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "warning  the path",
        "  runs/with/a/long/name/x",
        "  cannot be read",
        "  and so on, for ever",
    ]


@pytest.mark.parametrize(("width", "start"), [(120, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  "), (60, r"\d\d:\d\d:\d\d  ")])
def test_line_of_a_file_starts_with_the_time_and_a_wide_one_with_the_date(
    console: Console, width: int, start: str
) -> None:
    console.width = width
    print_line(console, "text")

    assert re.fullmatch(f"{start}text\n", console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("", 160), ("0", 160), ("x", 160)])
def test_columns_determines_the_width_of_a_file(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with HookBus().run() as run:
        console = get_console(run)
        print_line(console, "word " * 40)

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert console.width == width
    assert (len(lines) > 1, max(map(len, lines)) <= 60) == (width == 60, width == 60)


def test_message_that_a_table_contains_is_printed_without_a_terminal_only(console: Console, narrow: Console) -> None:
    for output in (console, narrow):
        with redirect_messages(output):
            LOGGER.info("epoch 1: 3 s", extra={"is_in_table": True})

    assert printed_text(console) == ["epoch 1: 3 s"]
    assert narrow.file.getvalue() == ""  # type: ignore[attr-defined]


def test_multiline_text_is_indented_to_its_first_line(console: Console) -> None:
    print_line(console, ("failed  ", "bold red"), "one\ntwo")

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line[21:] for line in lines] == ["failed  one", "two"]
    assert lines[1].startswith(" " * 21)


def test_messages_are_printed_with_their_level(console: Console) -> None:
    with redirect_messages(console):
        LOGGER.info("resumed from %s", "x")
        logging.getLogger("hookbus.checkpoint.state").warning("unexpected")
        LOGGER.debug("not shown")

    assert printed_text(console) == ["resumed from x", "warning  unexpected"]


def test_exception_is_printed_with_its_traceback(console: Console) -> None:
    with redirect_messages(console):
        try:
            raise ZeroDivisionError("reason")
        except ZeroDivisionError:
            LOGGER.exception("failed")

    assert printed_text(console)[0] == "error  failed"
    assert "ZeroDivisionError: reason" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["stream", "rich"])
def test_message_is_not_repeated_by_other_terminal_handlers(
    console: Console, root: logging.Logger, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    handler = logging.StreamHandler(sys.stderr) if kind == "stream" else RichHandler(console=Console(stderr=True))
    root.addHandler(handler)

    with redirect_messages(console):
        LOGGER.warning("inside")
        logging.getLogger("other").warning("from another logger")
    LOGGER.warning("outside")

    output = capsys.readouterr().err
    assert "inside" not in output
    assert "from another logger" in output
    assert "outside" in output
    assert printed_text(console) == ["warning  inside"]


def test_other_handlers_are_not_modified(console: Console, root: logging.Logger) -> None:
    file = io.StringIO()
    root.addHandler(logging.StreamHandler(file))

    with redirect_messages(console):
        LOGGER.info("both")

    assert file.getvalue() == "both\n"
    assert printed_text(console) == ["both"]


def test_logger_is_restored_after_an_error(console: Console) -> None:
    def raise_error() -> None:
        with redirect_messages(console):
            assert LOGGER.isEnabledFor(logging.INFO)
            raise ZeroDivisionError

    before = (list(LOGGER.handlers), LOGGER.level, LOGGER.propagate)
    with pytest.raises(ZeroDivisionError):
        raise_error()

    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == before


def test_level_set_by_the_user_stays_in_effect(console: Console) -> None:
    LOGGER.setLevel(logging.ERROR)
    try:
        with redirect_messages(console):
            LOGGER.warning("below the level")
        assert LOGGER.level == logging.ERROR
    finally:
        LOGGER.setLevel(logging.NOTSET)

    assert printed_text(console) == []


def test_message_after_a_nested_context_is_printed_once(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = logging.StreamHandler(sys.stdout)
    LOGGER.addHandler(terminal)
    try:
        with redirect_messages(console):
            with redirect_messages(Console(file=io.StringIO())):
                pass
            LOGGER.info("after")
    finally:
        LOGGER.removeHandler(terminal)

    assert (capsys.readouterr().out, printed_text(console)) == ("", ["after"])


def test_nested_contexts_print_each_message_once(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_messages(Console(highlight=False)), redirect_messages(console):
        LOGGER.info("once")

    assert (capsys.readouterr().out, printed_text(console)) == ("", ["once"])
