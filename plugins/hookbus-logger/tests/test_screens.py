"""Tests of the screen of a training on a pseudo terminal; `UPDATE_SCREENS=1` writes the expected screens."""

import io
import math
import os
import pty
import re
import threading
from pathlib import Path

import pytest
from rich.console import Console

from hookbus import Hook
from hookbus._run.run import Run
from hookbus.testing import fake_training
from hookbus_logger import LoggerHook

from .toys import ProvideConsole, TrackBest

SCREENS = Path(__file__).parent / "screens"
ACCURACIES = (0.6562, 0.6875, 0.5, 0.75)


class WarnInThirdEpoch(Hook):
    """Log a warning in the third epoch."""

    def after_epoch(self, run: Run, epoch: int) -> None:
        if epoch == 2:
            run.logger.warning("system_monitor: the memory of the process has grown by 1.2 GB in the last 3 epochs.")


def get_results(epoch: int) -> dict[str, float]:
    loss = math.nan if epoch == 3 else 0.9333 / epoch
    long_names = {f"mean_{name}_of_all_classes": 0.25 for name in ("precision", "intersection_over_union")}
    return {"loss": loss, "accuracy": ACCURACIES[epoch - 1], "top2": 0.8906, **long_names}


def capture_screen(width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a training prints on a pseudo terminal, with the times replaced by zeros."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    main, terminal = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(main, 1 << 16):
                chunks.append(chunk)
        except OSError:  # the terminal was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(terminal, "w", encoding="utf-8") as file:
        # rich queries the size of the standard streams only.
        hooks = [
            ProvideConsole(Console(file=file, width=width, highlight=False)),
            LoggerHook(),
            TrackBest(),
            WarnInThirdEpoch(),
        ]
        fake_training(hooks, epochs=4, losses=lambda i: 1 / i, scores=get_results)
    reader.join()
    os.close(main)
    text = re.sub(r"\x1b\[\d*m", "", b"".join(chunks).decode()).replace("\r\n", "\n")  # NO_COLOR permits bold text
    return re.sub(r"(\d:)?\d:\d\d(?= *\n)", lambda match: re.sub(r"\d", "0", match[0]), text)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_screen_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = capture_screen(width, monkeypatch)

    path = SCREENS / f"{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(screen, encoding="utf-8")
    assert max(map(len, screen.splitlines())) <= width
    assert screen == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("no_color", [None, "1"])
def test_no_color_disables_colors(no_color: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, highlight=False, color_system="standard")

    fake_training([ProvideConsole(console), LoggerHook()], epochs=1, losses=lambda _: math.nan)

    assert ("\x1b[1;31m" in file.getvalue()) == (not no_color)


def test_terminal_that_is_limited_to_ascii_receives_ascii_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    output = io.BytesIO()
    file = io.TextIOWrapper(output, "ascii", "strict", write_through=True)
    console = Console(file=file, force_terminal=True, width=42, highlight=False)

    hooks = [ProvideConsole(console), LoggerHook(), TrackBest(), WarnInThirdEpoch()]
    fake_training(hooks, epochs=2, scores=get_results)

    assert output.getvalue().decode("ascii").splitlines()[0] == "Sequential, 26 parameters - cpu - 2 epochs"
