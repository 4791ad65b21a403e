"""Tests of console output."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
import warnings

import pytest
import typer

from hookbus._cli.console import handle_errors, output_console, print_error, print_json
from hookbus.errors import ConfigError, HookbusError, HookWarning


class TestExitCodes:
    def test_config_error_is_printed_line_by_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(typer.Exit) as caught, handle_errors():
            raise ConfigError(["run.yaml:1:2: [a]: no.", "run.yaml:3:4: b: no."])
        assert caught.value.exit_code == 2
        assert capsys.readouterr() == ("", "run.yaml:1:2: [a]: no.\nrun.yaml:3:4: b: no.\n")

    def test_at_most_fifty_errors_are_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        for error in (ConfigError(map(str, range(20_000))), HookbusError("\n".join(map(str, range(20_000))))):
            with pytest.raises(typer.Exit), handle_errors():
                raise error
            lines = capsys.readouterr().err.splitlines()
            assert len(lines) == 51
            assert "and 19,950 more " in lines[-1]

    def test_control_characters_do_not_reach_the_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        def fail() -> None:
            warnings.warn("w\x1b[31m", HookWarning, stacklevel=1)
            logging.getLogger("hookbus").warning("l\x07")
            raise HookbusError("e\x1b]0;title\x07")

        with pytest.raises(typer.Exit), handle_errors():
            fail()
        assert capsys.readouterr().err == "warning: w\\x1b[31m\nwarning: l\\x07\nerror: e\\x1b]0;title\\x07\n"

    def test_hookbus_error_is_printed_without_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        error = HookbusError("one\ntwo")
        error.add_note("hook 'x', at before_run")
        with pytest.raises(typer.Exit) as caught, handle_errors():
            raise error
        assert caught.value.exit_code == 1
        assert capsys.readouterr().err == "error: one\nerror: two\n  hook 'x', at before_run\n"

    def test_unexpected_error_is_printed_with_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(typer.Exit) as caught, handle_errors():
            raise ZeroDivisionError("division by zero")
        assert caught.value.exit_code == 1
        err = capsys.readouterr().err
        assert err.startswith("Traceback")
        assert err.endswith("ZeroDivisionError: division by zero\n")

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
    def test_error_of_the_disk_is_printed_without_traceback(
        self, capsys: pytest.CaptureFixture[str], number: int
    ) -> None:
        error = OSError(number, os.strerror(number), "x/log.txt")
        error.add_note("raised by hook 'log'")
        with pytest.raises(typer.Exit) as end, handle_errors():
            raise error
        assert end.value.exit_code == 1
        lines = capsys.readouterr().err.splitlines()
        assert lines == [
            f"error: OSError: [Errno {number}] {os.strerror(number)}: 'x/log.txt'",
            "  raised by hook 'log'",
        ]

    def test_warning_that_cannot_be_printed_does_not_end_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with open("/dev/full", "w", buffering=1) as full:
            with handle_errors():
                monkeypatch.setattr(sys, "stderr", full)
                logging.getLogger("hookbus").warning("logged")
                warnings.warn("shown", HookWarning, stacklevel=1)
            monkeypatch.undo()
            with contextlib.suppress(OSError):
                full.close()

    def test_interrupt_is_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(typer.Exit) as caught, handle_errors():
            raise KeyboardInterrupt
        assert caught.value.exit_code == 130
        assert capsys.readouterr().err == "interrupted\n"

    @pytest.mark.parametrize(("code", "shown"), [(None, ""), (0, "0"), (3, "3"), ("no [gpu]", "'no [gpu]'")])
    def test_sys_exit_is_an_error(self, capsys: pytest.CaptureFixture[str], code: object, shown: str) -> None:
        error = SystemExit(code)
        error.add_note("raised by hook 'x'")
        with pytest.raises(typer.Exit) as caught, handle_errors():
            raise error
        assert caught.value.exit_code == 1
        assert capsys.readouterr().err == (f"error: Unexpected call of sys.exit({shown}).\n  raised by hook 'x'\n")

    def test_typer_exit_keeps_its_code(self) -> None:
        with pytest.raises(typer.Exit) as caught, handle_errors():
            raise typer.Exit(75)
        assert caught.value.exit_code == 75

    def test_broken_pipe_is_propagated(self) -> None:
        with pytest.raises(BrokenPipeError), handle_errors():
            raise BrokenPipeError


class TestMessages:
    def test_warnings_and_logs_are_printed_on_standard_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        with handle_errors():
            warnings.warn("left [out]", HookWarning, stacklevel=1)
            warnings.warn("left [out]", HookWarning, stacklevel=1)
            logging.getLogger("hookbus").info("resumed")
            logging.getLogger("hookbus.part").warning("damaged %s", "[file]")
        assert capsys.readouterr() == (
            "",
            "warning: left [out]\nwarning: left [out]\nresumed\nwarning: damaged [file]\n",
        )

    def test_other_ranks_print_errors_with_their_rank(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "1")
        with handle_errors():
            warnings.warn("left out", HookWarning, stacklevel=1)
            logging.getLogger("hookbus").warning("logged by all ranks")
            logging.getLogger("hookbus").error("out of memory")
            print_error("no disk")
        assert capsys.readouterr().err.splitlines() == [
            "rank 1: warning: left out",
            "rank 1: error: out of memory",
            "rank 1: error: no disk",
        ]

    def test_only_rank_0_prints_results(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for rank in ("1", "0"):
            monkeypatch.setenv("RANK", rank)
            output_console().print("rank", rank)
            print_json(rank)

        assert capsys.readouterr().out.splitlines() == ["rank 0", '"0"']

    def test_long_line_is_not_wrapped(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_error("word " * 100)
        assert len(capsys.readouterr().err.splitlines()) == 1

    def test_logging_and_warnings_are_restored(self) -> None:
        logger = logging.getLogger("hookbus")
        before = (list(logger.handlers), logger.level, logger.propagate, warnings.showwarning)
        with handle_errors():
            assert logger.handlers != before[0]
        assert (list(logger.handlers), logger.level, logger.propagate, warnings.showwarning) == before


@pytest.fixture(autouse=True)
def unset_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


class TestOutput:
    def test_width_of_piped_output(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert output_console().width == 160
        monkeypatch.setenv("COLUMNS", "60")
        assert output_console().width == 60
        monkeypatch.setenv("COLUMNS", "0")  # some terminals set 0 if the width is unknown
        assert output_console().width == 160

    def test_json_has_null_for_values_that_are_not_finite(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_json({"loss": float("nan"), "all": [float("inf"), 1.5]})
        assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"loss": None, "all": [None, 1.5]}

    def test_json_is_not_escaped(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_json({"ü": [1, None]})
        assert capsys.readouterr().out == '{\n  "ü": [\n    1,\n    null\n  ]\n}\n'
