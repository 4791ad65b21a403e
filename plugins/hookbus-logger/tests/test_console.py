"""One console, and the messages of a run on it."""

import io
import logging
import os
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.logging import RichHandler

from hookbus import HookBus
from hookbus_logger.console import console_of, messages_on, say, show_below

LOGGER = logging.getLogger("hookbus")


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=20, highlight=False)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, without handlers that the test has added."""
    logger = logging.getLogger()
    before = list(logger.handlers)
    yield logger
    logger.handlers[:] = before


def text_on(console: Console) -> list[str]:
    """What was printed, without the time in front."""
    assert isinstance(console.file, io.StringIO)
    return [line[21:] for line in console.file.getvalue().splitlines()]


def test_whoever_asks_first_makes_the_console_of_a_run() -> None:
    with HookBus().run() as run:
        first = console_of(run)
        assert console_of(run) is first is run.get("console")


def test_a_run_that_was_given_a_console_keeps_it(console: Console) -> None:
    with HookBus().run() as run:
        run.provide("console", console)
        assert console_of(run) is console


def test_a_line_is_never_broken_and_has_no_control_characters(console: Console) -> None:
    say(console, ("much longer than twenty columns", "bold red"), " [not\x1b[2J\r\x07 markup]")

    assert text_on(console) == ["much longer than twenty columns [not[2J markup]"]
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_console_that_records_keeps_the_styles_of_a_file() -> None:
    recording = Console(file=io.StringIO(), record=True, highlight=False)
    say(recording, ("bad", "bold red"), " good")

    assert "\x1b" not in recording.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1;31mbad\x1b[0m good" in recording.export_text(styles=True)


def test_a_file_has_no_size_that_is_asked_for_at_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def size(descriptor: int) -> os.terminal_size:
        asked.append(descriptor)
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", size)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with HookBus().run() as run:
        console = console_of(run)
        asked.clear()
        say(console, "a line"), say(console, "another one")

    assert console.file.getvalue().count("line\n") == 1  # type: ignore[attr-defined]
    assert asked == []


def test_what_has_several_lines_stands_under_the_text(console: Console) -> None:
    console.width = 80
    show_below(console, "a\nb")

    assert console.file.getvalue() == f"{' ' * 21}a\n{' ' * 21}b\n"  # type: ignore[attr-defined]


def test_a_text_of_several_lines_stands_under_its_first(console: Console) -> None:
    say(console, ("failed  ", "bold red"), "one\ntwo")

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line[21:] for line in lines] == ["failed  one", "two"]
    assert lines[1].startswith(" " * 21)


def test_messages_appear_on_the_console_with_their_level(console: Console) -> None:
    with messages_on(console):
        LOGGER.info("resumed from %s", "x")
        logging.getLogger("hookbus.state").warning("odd")
        LOGGER.debug("not shown")

    assert text_on(console) == ["resumed from x", "warning  odd"]


def test_an_exception_is_shown_with_its_traceback(console: Console) -> None:
    with messages_on(console):
        try:
            raise ZeroDivisionError("why")
        except ZeroDivisionError:
            LOGGER.exception("failed")

    assert text_on(console)[0] == "error  failed"
    assert "ZeroDivisionError: why" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["stream", "rich"])
def test_a_message_is_not_shown_a_second_time_on_the_terminal(
    console: Console, root: logging.Logger, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    handler = logging.StreamHandler(sys.stderr) if kind == "stream" else RichHandler(console=Console(stderr=True))
    root.addHandler(handler)

    with messages_on(console):
        LOGGER.warning("inside")
        logging.getLogger("mine").warning("of somebody else")
    LOGGER.warning("outside")

    shown = capsys.readouterr().err
    assert "inside" not in shown
    assert "of somebody else" in shown
    assert "outside" in shown
    assert text_on(console) == ["warning  inside"]


def test_handlers_that_write_elsewhere_go_on(console: Console, root: logging.Logger) -> None:
    file = io.StringIO()
    root.addHandler(logging.StreamHandler(file))

    with messages_on(console):
        LOGGER.info("both")

    assert file.getvalue() == "both\n"
    assert text_on(console) == ["both"]


def test_the_logger_is_as_it_was_also_after_a_failure(console: Console) -> None:
    def fails() -> None:
        with messages_on(console):
            assert LOGGER.isEnabledFor(logging.INFO)
            raise ZeroDivisionError

    before = (list(LOGGER.handlers), LOGGER.level, LOGGER.propagate)
    with pytest.raises(ZeroDivisionError):
        fails()

    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == before


def test_a_level_that_the_user_has_set_stays(console: Console) -> None:
    LOGGER.setLevel(logging.ERROR)
    try:
        with messages_on(console):
            LOGGER.warning("not wanted")
        assert LOGGER.level == logging.ERROR
    finally:
        LOGGER.setLevel(logging.NOTSET)

    assert text_on(console) == []


def test_one_inside_another_shows_each_message_once(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    with messages_on(Console(highlight=False)), messages_on(console):
        LOGGER.info("once")

    assert (capsys.readouterr().out, text_on(console)) == ("", ["once"])
